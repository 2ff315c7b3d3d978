# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The position-wise feed-forward network (section 3.3 of https://arxiv.org/abs/1706.03762)."""

from torch import Tensor, nn
from transformers.activations import ACT2FN

from .checks import check_width
from .dropout import Dropout


# The same function by another name: transformers computes the first as a chain of nine products, torch the second in one pass.
IN_ONE_PASS = {"gelu_new": "gelu_pytorch_tanh"}


def activation_function(name: str) -> nn.Module:
    return ACT2FN[IN_ONE_PASS.get(name, name)]


class FeedForward(nn.Module):
    """FFN(x) = activation(x W_up) W_down, the same at every position.

    Gated (https://arxiv.org/abs/2002.05202): (activation(x W_gate) * x W_up) W_down, which is ReGLU, GEGLU or SwiGLU with
    the activation `relu`, `gelu` or `silu`.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        activation: str = "relu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias) if gated else None
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = activation_function(activation)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        check_width("FeedForward", x, self.up_proj.in_features)
        if self.gate_proj is None:
            hidden = self.activation(self.up_proj(x))  # [B, T, D] -> [B, T, d_ff]
        else:
            hidden = self.activation(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(self.dropout(hidden))
