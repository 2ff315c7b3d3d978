# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""A convolution over neighbouring tokens, which makes phrases of words before attention relates them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .feed_forward import activation_function
from .masking import one_after


class Convolution(nn.Module):
    """activation([x_(t-1), x_t, x_(t+1)] W + b), for a size of three.

    Attention has to find out that neighbours belong together; here they do from the beginning, with a matrix for each place, as
    in convolutional networks for sentences (https://arxiv.org/abs/1408.5882). A small classifier then reads "not a good" as one.
    """

    def __init__(self, d_model: int, size: int, activation: str):
        super().__init__()
        self.reach = size // 2  # tokens to each side
        self.dense = nn.Linear(size * d_model, d_model)
        self.activation = activation_function(activation)

    def forward(self, x: Tensor, follows: Tensor) -> Tensor:
        """x [B, T, D], and whether each token continues the text of the one before it [B or 1, T] -> [B, T, D]"""
        goes_on = one_after(follows)[..., None]
        follows = follows[..., None]
        window, left, right = [x], x, x
        for _ in range(self.reach):  # zeros where the text ends, be it at padding or at another text
            left = torch.where(follows, F.pad(left, (0, 0, 1, 0))[:, :-1], 0.0)
            right = torch.where(goes_on, F.pad(right, (0, 0, 0, 1))[:, 1:], 0.0)
            window = [left, *window, right]
        return self.activation(self.dense(torch.cat(window, -1)))  # [B, T, size x D] -> [B, T, D]
