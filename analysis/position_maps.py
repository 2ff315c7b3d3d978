# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What a model knows about positions: a row of numbers for each, and how alike two of them are."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from glassformer.positions import (
    AlibiBias,
    LearnedPositionEncoding,
    RelativePositionBias,
    RotaryPositionEncoding,
    SinusoidalPositionEncoding,
)


# T positions, D width, H heads


@dataclass
class PositionMap:
    """`table` [T, D or H]; `likeness` [T, T], the larger the closer two positions are for the model."""

    name: str
    columns: str  # what a column of the table is
    table: Tensor
    likeness: Tensor


@torch.no_grad()
def position_map(model: PreTrainedModel, length: int) -> PositionMap:
    """Of the first module of the model that deals with positions: ours, or a table of another model."""
    for name, module in model.named_modules():
        found = read_module(name, module, length)
        if found is not None:
            return found
    raise ValueError("This model has no position encoding that can be drawn: it has none, or computes it elsewhere.")


def read_module(name: str, module: nn.Module, length: int) -> PositionMap | None:
    places = torch.arange(length)
    if isinstance(module, SinusoidalPositionEncoding):
        table = module(torch.zeros(1, length, module.d_model))[0]
        return PositionMap("sinusoidal encoding", "feature", table, cosine(table))
    if isinstance(module, LearnedPositionEncoding) or (isinstance(module, nn.Embedding) and is_position_table(name)):
        table = module.weight[:length].float().cpu()
        return PositionMap("learned encoding", "feature", table, cosine(table))
    if isinstance(module, RotaryPositionEncoding):
        cosines, sines = (turn[0, :, : turn.shape[-1] // 2].cpu() for turn in module(torch.zeros(1), places[None]))
        likeness = (cosines @ cosines.T + sines @ sines.T) / cosines.shape[-1]  # the mean cosine of the angles between
        return PositionMap("rotation, cosine of the angle", "pair", cosines, likeness)
    if isinstance(module, (AlibiBias, RelativePositionBias)):
        bias = module(places.to(next(iter([*module.parameters(), *module.buffers()])).device))[0].float().cpu()  # [H, T, T]
        return PositionMap("bias on the scores of the last position", "head", bias[:, -1].T, bias.mean(0))
    return None


def is_position_table(name: str) -> bool:
    """As BERT, GPT-2, BART and their like call it."""
    last = name.rpartition(".")[2]
    return last in ("position_embeddings", "wpe", "embed_positions")


def cosine(table: Tensor) -> Tensor:
    unit = F.normalize(table, dim=-1)
    return unit @ unit.T
