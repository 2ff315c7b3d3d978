# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Dropout (section 5.4 of https://arxiv.org/abs/1706.03762)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.utils.import_utils import is_tracing


COINS = 4  # of 16 bits each, in one random number of 64 bits
SIDES = 2**16


class Dropout(nn.Dropout):
    """While training, sets an element to zero with probability p and scales the others up, so that the mean stays.

    On a CPU, torch draws a random number for each element, which takes longer than a layer norm and an activation together.
    Here one number decides about four elements; p is rounded to a multiple of 1 / 65536.
    """

    def forward(self, x: Tensor) -> Tensor:
        dropped = round(self.p * SIDES)  # sides of the coin that mean zero
        if not self.training or dropped in (0, SIDES) or x.device.type != "cpu" or is_tracing(x):
            return F.dropout(x, self.p, self.training)
        numbers = torch.empty(-(-x.numel() // COINS), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        coins = numbers.view(torch.int16)[: x.numel()].view(x.shape)
        return (x * (coins >= dropped - SIDES // 2)).mul_(SIDES / (SIDES - dropped))


class TokenDropout(Dropout):
    """The same for whole tokens: all of a word's embedding or nothing of it, so that no word is relied on alone."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        if not self.training or self.p == 0:
            return x
        return x * super().forward(x.new_ones(*x.shape[:-1], 1))
