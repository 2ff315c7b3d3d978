# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Normalisation over the last dimension, position by position."""

import torch
from torch import Tensor, nn

from .checks import check_width


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight: layer norm without centring (https://arxiv.org/abs/1910.07467)."""

    def __init__(self, d_model: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * self.normalise(x).to(x.dtype)

    def normalise(self, x: Tensor) -> Tensor:
        check_width("RMSNorm", x, self.weight.shape[0])
        # Squares overflow in float16: take the mean in float32 at least.
        precise = x.to(torch.promote_types(x.dtype, torch.float32))
        return precise * torch.rsqrt(precise.pow(2).mean(-1, keepdim=True) + self.eps)

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.eps}"


class RMSNorm1p(RMSNorm):
    """The same with 1 + weight in the place of weight, as in Gemma: what weight decay pulls towards is a scale of one."""

    def __init__(self, d_model: int, eps: float = 1e-6):
        super().__init__(d_model, eps)
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        precise = self.normalise(x)
        return (precise * (1 + self.weight.to(precise.dtype))).to(x.dtype)


NORMS: dict[str, type[nn.Module]] = {"layernorm": nn.LayerNorm, "rmsnorm": RMSNorm, "rmsnorm1p": RMSNorm1p}


def build_norm(name: str, width: int, eps: float, bias: bool = True) -> nn.Module:
    """`bias` is a layer norm's: the others have none."""
    return nn.LayerNorm(width, eps=eps, bias=bias) if name == "layernorm" else NORMS[name](width, eps=eps)


def make_norm(config) -> nn.Module:
    return build_norm(config.norm, config.d_model, config.norm_eps, config.norm_bias)
