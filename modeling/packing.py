# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Training without padding: a padded batch as one long row of its tokens, which know their own sequence in attention only.

    A B C D             A B C D E F G H I      lengths 4, 2, 3
    E F . .    <->
    G H I .

Norms, projections and feed-forward networks work on each token alone: they do not need to see any padding.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers.utils.import_utils import is_tracing


# B batch, T length, N tokens in the batch, D model width


def lengths_to_pack(tokens: Tensor | None) -> list[int] | None:
    """The lengths of the sequences under a mask [B, T], if to leave out their padding pays off.

    It does where a tenth is padding and sequences are not short: attention then runs on one after the other, on a CPU,
    whose cores a single sequence keeps busy. Padding must be on the right.
    """
    if tokens is None or tokens.dim() != 2 or tokens.device.type != "cpu" or is_tracing(tokens):
        return None
    lengths = tokens.sum(1)
    pays_off = 64 <= lengths.float().mean() < 0.9 * tokens.shape[1]
    if not pays_off or lengths.min() == 0 or (tokens[:, 1:] > tokens[:, :-1]).any():
        return None
    return lengths.tolist()


def pack(x: Tensor, lengths: list[int]) -> Tensor:
    """[B, T, D] -> [1, N, D]"""
    return torch.cat([row[:length] for row, length in zip(x.unbind(), lengths)])[None]


def pack_rotation(rotary: tuple[Tensor, Tensor] | None, batch: int, lengths: list[int]) -> tuple[Tensor, Tensor] | None:
    """Cosine and sine [B or 1, T, K] -> [1, N, K]"""
    if rotary is None:
        return None
    cos, sin = (pack(turn.expand(batch, -1, -1), lengths) for turn in rotary)
    return cos, sin


def unpack(x: Tensor, lengths: list[int], width: int) -> Tensor:
    """[1, N, D] -> [B, T, D] for T = width, with zeros for padding"""
    padded = pad_sequence(x[0].split(lengths), batch_first=True)
    return F.pad(padded, (0, 0, 0, width - padded.shape[1]))
