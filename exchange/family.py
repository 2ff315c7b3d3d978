# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What is said about a native architecture of transformers, once, to be read in both directions.

A `Family` is a table: which of our choices it has under which name, which of them are built into it, and which of our weights
are which of its own. Weights are told as pairs `(ours, theirs, *operations)` of module names without `.weight` and `.bias`, `*`
standing for the number of a layer. The operations are transformers' own (`transformers.core_model_loading`): they lead from
their tensors to ours, and know their way back.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


Names = str | tuple[str, ...]
Pair = tuple[Any, ...]  # ours (one name, or those that are one tensor in their model), theirs, operations

# Choices that every architecture here has under the same name.
TOKENS: dict[str, Names] = {
    "vocab_size": "vocab_size",
    "pad_token_id": "pad_token_id",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
}

# Our heads, by the names that the command line has for them.
HEADS = {
    "model": "GlassformerModel",
    "causal-lm": "GlassformerForCausalLM",
    "seq2seq-lm": "GlassformerForConditionalGeneration",
    "masked-lm": "GlassformerForMaskedLM",
    "sequence-classification": "GlassformerForSequenceClassification",
    "token-classification": "GlassformerForTokenClassification",
    "question-answering": "GlassformerForQuestionAnswering",
    "image-classification": "GlassformerForImageClassification",
}


@dataclass(frozen=True)
class Head:
    """Their class for one of our heads: weights beside those of the bare model, and choices that are built into it.

    `fields` and `objections` are as those of the family, for what matters to this head alone.
    """

    theirs: str
    weights: tuple[Pair, ...] = ()
    fixed: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)  # of the class, beside the config
    fields: dict[str, Names] = field(default_factory=dict)
    objections: Callable[[Any], list[str]] = lambda ours: []


@dataclass(frozen=True)
class Family:
    """One native architecture.

    Args:
        name: transformers' `model_type`.
        heads: by the class of ours.
        fields: our choices and their names for them; where several of theirs are one of ours, they have to agree.
        fixed: our choices that are built into the architecture. What is neither here nor in `fields` has to be plain (`fit.py`).
        their_fixed: switches of theirs that have to be so, for we have no others.
        training: as `fields`, for what matters while training only, and need not agree.
        weights: of the bare model.
        made: weights of theirs that follow from nothing of ours, and how they are made, given the module.
        unused: weights of theirs that nothing is computed with.
        read: choices of ours that are not one field of theirs, given their config.
        write: the way back, given our config.
        by_hand: the choices of ours that these two take care of, beside those in `fields`.
        look: choices of ours that their weights tell, given their model.
        objections: more that stands in the way, given our config.
        their_objections: the same, given theirs.
        caution: a sentence about what others take for granted of such a model and this one, of theirs, does not have; or nothing.
    """

    name: str
    shape: str
    heads: dict[str, Head]
    fields: dict[str, Names]
    fixed: dict[str, Any]
    weights: list[Pair]
    their_fixed: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Names] = field(default_factory=dict)
    made: dict[str, Callable[[Any], Tensor]] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    read: Callable[[Any], dict[str, Any]] = lambda theirs: {}
    write: Callable[[Any], dict[str, Any]] = lambda ours: {}
    by_hand: tuple[str, ...] = ()
    look: Callable[[Any], dict[str, Any]] = lambda model: {}
    objections: Callable[[Any], list[str]] = lambda ours: []
    their_objections: Callable[[Any], list[str]] = lambda theirs: []
    caution: Callable[[Any], str | None] = lambda model: None

    def fields_with(self, head: str) -> dict[str, Names]:
        """Those of the family and of one of its heads."""
        return self.fields | self.heads[head].fields

    @property
    def main_head(self) -> str:
        """Our class that predicts tokens or, of a family that reads pictures, classes."""
        if "GlassformerForImageClassification" in self.heads:
            return "GlassformerForImageClassification"
        return {
            "decoder": "GlassformerForCausalLM",
            "encoder": "GlassformerForMaskedLM",
            "encoder-decoder": "GlassformerForConditionalGeneration",
        }[self.shape]


def in_layers(ours: str, theirs: str, pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs of one layer, for all layers of a stack."""
    return [(prefixed(ours, names), f"{theirs}.*.{name}", *operations) for names, name, *operations in pairs]


def prefixed(prefix: str, names: Names) -> Names:
    """`prefix.*.name`, for one name or several."""
    if isinstance(names, tuple):
        return tuple(f"{prefix}.*.{name}" for name in names)
    return f"{prefix}.*.{names}"


def heads(attention: str) -> tuple[str, str, str]:
    """Queries, keys and values of an attention, which many models keep in one tensor."""
    return f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"


def several(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names
