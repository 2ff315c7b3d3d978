# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Heads switched off for the length of a `with`, and how much each of them matters.

A head is switched off by setting what it puts out to zero, whatever kernel computes it: the model goes on with what the others
say.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from glassformer.attention import eager_attention_forward

from .capture import attention_places, evaluating, record_attention, replaced_attention


# B batch, T tokens, H heads, K width of a head

Place = tuple[str, int]  # kind and layer, as in ("cross", 0)


@contextmanager
def mask_heads(model: PreTrainedModel, heads: Mapping[Place, Sequence[int]]) -> Iterator[None]:
    """The model without these heads: {("encoder", 0): [1, 3]} switches two heads of the encoder's first layer off."""
    places = attention_places(model)
    check_places(heads, places)
    name = model.config._attn_implementation or "eager"
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention_forward)

    def attention(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        output, weights = attend(module, *args, **kwargs)  # [B, T, H, K]
        gone = list(heads.get(places[module], ()))
        if not gone:
            return output, weights
        if max(gone) >= output.shape[2]:
            raise ValueError(f"There is no head {max(gone)} in {places[module]}, which has {output.shape[2]}.")
        keep = torch.ones(output.shape[2], dtype=output.dtype, device=output.device)
        keep[gone] = 0.0
        return output * keep[:, None], weights

    with replaced_attention(model, attention, masks=name):
        yield


def check_places(heads: Mapping[Place, Sequence[int]], places: Mapping[nn.Module, Place]) -> None:
    known = sorted(set(places.values()))
    for place, numbers in heads.items():
        if place not in known:
            raise ValueError(f"There is no attention {place}: choose from {', '.join(map(str, known))}.")
        if any(number < 0 for number in numbers):
            raise ValueError(f"Heads are numbered from 0, but {list(numbers)} of {place} are not.")


def head_importance(model: PreTrainedModel, loss: Callable[[], Tensor]) -> dict[tuple[str, int, int], float]:
    """How much the loss rises when a head is switched off, by kind, layer and head.

    Args:
        loss: computes the loss of `model` on some rows, the same ones at every call.
    """
    with evaluating(model):
        with record_attention(model) as attention:
            loss()
        counts = {
            (kind, layer): attention.calls(kind, layer)[0].shape[1] for kind in attention.maps for layer in attention.layers(kind)
        }
        base, importance = float(loss()), {}
        for (kind, layer), count in counts.items():
            for head in range(count):
                with mask_heads(model, {(kind, layer): [head]}):
                    importance[kind, layer, head] = float(loss()) - base
    return importance
