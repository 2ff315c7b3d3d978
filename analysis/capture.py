# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Attention weights of any model that follows transformers' attention interface, ours and theirs, for the length of a `with`.

Fast kernels never form the weights. Inside `record_attention` the model's layers are handed the textbook formula instead, which
notes the weights of the layers that are asked for; afterwards everything is as it was. Nothing is slower outside of it.
"""

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from glassformer.attention import eager_attention_forward


# B batch, H heads, T queries, S keys

KINDS = ("encoder", "decoder", "cross")
CROSS = ("cross", "encoder_attn", "encdecattention")  # what families call attention to another sequence
REPLACED = "glassformer_analysis"  # the name under which transformers finds an attention function of ours


@dataclass
class Attention:
    """Weights [B, H, T, S] by kind and layer, one entry for each call: many where a text was generated token by token."""

    maps: dict[str, dict[int, list[Tensor]]] = field(default_factory=lambda: {kind: {} for kind in KINDS})

    def add(self, kind: str, layer: int, weights: Tensor) -> None:
        self.maps[kind].setdefault(layer, []).append(weights.detach().float().cpu())

    def layers(self, kind: str) -> list[int]:
        return sorted(self.maps[kind])

    def calls(self, kind: str, layer: int) -> list[Tensor]:
        if layer not in self.maps[kind]:
            seen = ", ".join(f"{name} {self.layers(name)}" for name in KINDS if self.maps[name]) or "nothing"
            raise ValueError(f"No {kind} attention of layer {layer} was recorded, but {seen}.")
        return self.maps[kind][layer]

    def weights(self, kind: str, layer: int) -> Tensor:
        """[B, H, T, S] of a model that was called once, or of all calls together: rows below each other, zeros for later keys."""
        calls = self.calls(kind, layer)
        longest = max(call.shape[-1] for call in calls)
        return torch.cat([nn.functional.pad(call, (0, longest - call.shape[-1])) for call in calls], dim=2)


@contextmanager
def record_attention(model: PreTrainedModel, layers: Collection[int] | None = None) -> Iterator[Attention]:
    """The attention of every call of `model` within the block, of these layers or of all; memory is what these take."""
    found, places = Attention(), attention_places(model)

    def attention(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        output, weights = eager_attention_forward(module, *args, **kwargs)
        kind, layer = places[module]
        if layers is None or layer in layers:
            found.add(kind, layer, weights)
        return output, weights

    with replaced_attention(model, attention, masks="eager"):
        yield found


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Without dropout and gradients; afterwards the model is in the mode it was in."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


@contextmanager
def replaced_attention(model: PreTrainedModel, attention: Callable[..., Any], masks: str) -> Iterator[None]:
    """Every part of the model hands queries, keys and values to `attention`, with masks as the function `masks` has them."""
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}.values()
    before = [(config, config._attn_implementation) for config in configs]
    ALL_ATTENTION_FUNCTIONS.register(REPLACED, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(REPLACED, ALL_MASK_ATTENTION_FUNCTIONS[masks])
    try:
        for config, _ in before:
            config._attn_implementation = REPLACED
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation = implementation


def attention_places(model: PreTrainedModel) -> dict[nn.Module, tuple[str, int]]:
    """The kind and the layer of each module, as its name tells: `model.decoder.layers.3.cross_attn` -> cross, 3."""
    alone = "decoder" if model.can_generate() or is_causal(model) else "encoder"
    places = {}
    for name, module in model.named_modules():
        if number := re.search(r"\.(\d+)\.", name):
            places[module] = kind_of(name.lower(), alone), int(number[1])
    return places


def kind_of(name: str, alone: str) -> str:
    """`alone` is for models of one stack, whose names do not tell which."""
    if any(word in name for word in CROSS):
        return "cross"
    stacks = [kind for kind in ("decoder", "encoder") if kind in name.split(".")]
    return stacks[0] if stacks else alone


def is_causal(model: PreTrainedModel) -> bool:
    """Whether self-attention looks back only, by what its modules say of themselves."""
    return any(getattr(module, "is_causal", False) is True for module in model.modules())
