# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Whether a model fits a native architecture exactly, and what stands in the way where it does not."""

from dataclasses import dataclass, fields
from typing import Any

from transformers import PreTrainedConfig

from .families import FAMILIES
from .family import Family, several


TOKEN_HEADS = ("GlassformerForCausalLM", "GlassformerForConditionalGeneration", "GlassformerForMaskedLM")
POOLING_HEADS = ("GlassformerForSequenceClassification", "GlassformerForImageClassification")
CLASSIFIERS = (*POOLING_HEADS, "GlassformerForTokenClassification")
JUDGES = (*CLASSIFIERS, "GlassformerForQuestionAnswering")

# Choices that change nothing about a trained model.
TRAINING = (
    "dropout", "attention_dropout", "activation_dropout", "token_dropout", "layer_drop", "label_smoothing", "use_cache",
    "initializer_range", "unk_token_id", "mask_token_id",
)  # fmt: skip
# What a choice has to be where an architecture does not mention it.
PLAIN: dict[str, Any] = {
    "image_size": None,
    "layer_types": None,
    "norm_bias": True,
    "first_norm": True,
    "scale_attention": True,
    "qk_norm": False,
    "attention_window": None,
    "pruned_heads": None,
    "position_offset": 0,
    "num_token_types": 0,
    "ngram_size": 1,
    "conv_size": 1,
    "embedding_norm": False,
    "embedding_tying": "three-way",
    "output_transform": "none",
    "output_bias": False,
    "logit_softcap": None,
    "classifier_activation": None,
    "classifier_norm": False,
    "classifier_bias": True,
    "dense_bias": True,
    "phrase_size": 0,
}


@dataclass(frozen=True)
class Fit:
    """One architecture and what stands in its way; nothing, if the model fits."""

    family: Family
    reasons: list[str]


def fits(config: Any, head: str | None = None) -> list[Fit]:
    """Every architecture, those that fit first and those of another shape last."""
    found = [Fit(family, stands_in_the_way(config, family, head)) for family in FAMILIES.values()]
    return sorted(found, key=lambda fit: (fit.family.shape != config.shape, len(fit.reasons)))


def stands_in_the_way(config: Any, family: Family, head: str | None = None) -> list[str]:
    """Why a model of this config cannot become one of this family; by default, with the main head."""
    if config.shape != family.shape:
        return [f"shape={config.shape}, needs {family.shape}"]
    head = head or family.main_head
    if head not in family.heads:
        return [f"{family.name} has no head like {head}"]
    needed = built_in(config, family, head) | family.heads[head].fixed
    choices = that_matter(config, head)
    reasons = [f"{name}={value}, needs {needed[name]}" for name, value in choices.items() if value != needed.get(name, value)]
    return reasons + family.objections(config) + family.heads[head].objections(config)


def built_in(config: Any, family: Family, head: str) -> dict[str, Any]:
    """What each choice has to be that is not a field of this architecture."""
    plain = PLAIN | {
        "num_kv_heads": config.num_heads,
        "head_width": config.d_model // config.num_heads,
        "attention_out_bias": config.attention_bias,
    }
    open_choices = (*family.fields_with(head), *family.by_hand)
    return {name: value for name, value in plain.items() if name not in open_choices} | family.fixed


def that_matter(config: Any, head: str) -> dict[str, Any]:
    """Our choices by name, as they are computed with; without those that this config or this head does not use."""
    idle = set(TRAINING)
    if head not in TOKEN_HEADS:
        idle |= {"output_transform", "output_bias", "logit_softcap"}
    if head not in CLASSIFIERS:
        idle |= {"classifier_bias"}
    if head not in JUDGES:
        idle |= {"classifier_activation", "classifier_norm"}
    if not (config.output_transform == "dense" if head in TOKEN_HEADS else head in JUDGES and config.classifier_activation):
        idle |= {"dense_bias"}
    if config.norm != "layernorm":
        idle |= {"norm_bias"}
    if head not in POOLING_HEADS:
        idle |= {"pooling"}
    if config.image_size is None:
        idle |= {"patch_size", "num_channels"}
    else:
        idle |= {"vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "scale_embedding", "max_position_embeddings"}
    if config.ngram_size == 1:
        idle |= {"ngram_buckets"}
    if head != "GlassformerForSequenceClassification":
        idle |= {"phrase_size"}
    if not config.phrase_size:
        idle |= {"phrase_buckets"}
    if config.position_encoding != "learned":
        idle |= {"position_offset"}
    if config.position_encoding not in ("learned", "rope"):
        idle |= {"max_position_embeddings"}
    if config.position_encoding != "relative":
        idle |= {"relative_attention_num_buckets", "relative_attention_max_distance"}
    if config.shape != "encoder-decoder" or not config.tie_word_embeddings:
        idle |= {"embedding_tying"}
    if config.shape == "decoder":
        idle |= {"num_token_types"}
    if config.shape != "encoder-decoder" and head not in TOKEN_HEADS:
        idle |= {"tie_word_embeddings"}
    return {name: choice(config, name) for name in (*own_fields(config), "layer_types") if name not in idle}


def own_fields(config: Any) -> list[str]:
    inherited = {field.name for field in fields(PreTrainedConfig)}
    return [field.name for field in fields(config) if field.name not in inherited]


def choice(config: Any, name: str) -> Any:
    """The value of a choice, also where it is left to follow from others."""
    if name == "head_width":
        return config.d_k
    if name == "attention_out_bias" and config.attention_out_bias is None:
        return config.attention_bias
    if name == "layer_types":
        types = getattr(config, name, [])
        return types if len(set(types)) > 1 else None
    return getattr(config, name)


def stands_in_their_way(theirs: Any, family: Family, head: str) -> list[str]:
    """Why a native model of this config, with what we call `head`, cannot become one of ours."""
    reasons = [
        f"{name}={getattr(theirs, name)}, needs {needed}"
        for name, needed in family.their_fixed.items()
        if getattr(theirs, name, needed) != needed
    ]
    for ours, names in family.fields_with(head).items():
        values = {name: getattr(theirs, name, None) for name in several(names)}
        if len(set(map(str, values.values()))) > 1:
            told = " and ".join(f"{name}={value}" for name, value in values.items())
            reasons.append(f"{told} differ, but {ours} is one")
    for ours, needed in family.heads[head].fixed.items():  # a head may insist on what its model leaves open
        if ours in family.fields and (value := getattr(theirs, name := several(family.fields[ours])[0])) != needed:
            reasons.append(f"{name}={value}, needs {needed} in {family.heads[head].theirs}")
    return reasons + family.their_objections(theirs)


def describe_fits(config: Any, head: str | None = None) -> str:
    """A table of all architectures: the class that the model would become, or what stands in the way, a reason a line."""
    lines = []
    for fit in fits(config, head):
        family = fit.family
        found = fit.reasons or [family.heads[head or family.main_head].theirs]
        lines.append(f"{family.name:12}{'no' if fit.reasons else 'fits':6}{found[0]}")
        lines += [f"{'':18}{reason}" for reason in found[1:]]
    return "\n".join(lines)
