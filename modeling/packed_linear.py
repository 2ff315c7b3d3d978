# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Linear layers for inference on a CPU: weights laid out for few rows at a time, or rounded to eight bits.

To generate a token is to read every weight for a handful of rows. The general matrix product that serves training is slow at
that (docs/performance.md has the figures); oneDNN's, with the weights in its own order, is not. Eight-bit weights are a
quarter to read.
"""

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


# R rows, D model width, N outputs

Product = Callable[[Tensor], Tensor]


def join(*linears: Any) -> Product:
    """One function for linear layers that read the same input: [R, D] -> their outputs side by side [R, N]."""
    if all(type(linear) is Int8Linear for linear in linears):
        return Int8Linear.join(linears)
    if not all(is_plain(linear) for linear in linears):  # adapters, hooks
        return linears[0] if len(linears) == 1 else lambda x: torch.cat([linear(x) for linear in linears], dim=-1)
    weight = torch.cat([linear.weight.detach() for linear in linears]) if len(linears) > 1 else linears[0].weight.detach()
    bias = None if linears[0].bias is None else torch.cat([linear.bias.detach() for linear in linears])
    return FewRows(weight, bias) if has_onednn(weight) else lambda x: F.linear(x, weight, bias)


class FewRows:
    """x W^T + b in the way that is fastest for as many rows as x has: measured in docs/performance.md."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = weight, bias
        self.is_small, self.is_large = weight.numel() <= 2**16, weight.numel() > 2**18

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if x.dtype != self.weight.dtype or (self.is_small and rows < 8):  # autocast may have changed the type
            return F.linear(x, self.weight, self.bias)
        if rows == 1 and not self.is_large:
            return self.multiply_pieces(x)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")

    def multiply_pieces(self, x: Tensor) -> Tensor:
        """One row [1, D] -> [1, N]. To read the weights is what takes time here, and each core reads pieces of them."""
        weight, bias = self.pieces
        x = x.expand(len(weight), 1, -1)
        return (torch.bmm(x, weight) if bias is None else torch.baddbmm(bias, x, weight)).view(1, -1)

    @functools.cached_property
    def pieces(self) -> tuple[Tensor, Tensor | None]:
        """Columns of W^T [P, D, N / P], and their biases [P, 1, N / P]."""
        outputs, inputs = self.weight.shape
        count = math.gcd(outputs, 4)
        weight = self.weight.reshape(count, -1, inputs).transpose(1, 2).contiguous()
        return weight, None if self.bias is None else self.bias.view(count, 1, -1)

    @functools.cached_property
    def packed(self) -> Tensor:
        return torch.ops.mkldnn._reorder_linear_weight(self.weight, 8)


def is_plain(linear: nn.Module) -> bool:
    """Whether to call this layer is to multiply with its weight: no hook, no adapter, no other storage."""
    hooks = linear._forward_hooks or linear._forward_pre_hooks or hasattr(linear, "_hf_hook")
    return isinstance(linear, nn.Linear) and type(linear.weight) is nn.Parameter and not linear.weight.is_meta and not hooks


def has_onednn(weight: Tensor) -> bool:
    known = hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkldnn.is_available()
    return known and weight.device.type == "cpu" and weight.dtype == torch.float32


class Int8Linear(nn.Module):
    """A linear layer with weights of eight bits, a scale for each output; inputs are rounded too, as they come.

    The arithmetic is torch's dynamic quantisation.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        # One bit less than there is: products of eight and eight bits overflow where they are added in pairs.
        self.scales = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
        self.rounded = (weight / self.scales[:, None]).round().to(torch.int8)
        self.product = int8_product(self.rounded, self.scales, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    @staticmethod
    def join(linears: tuple[Any, ...]) -> Product:
        if len(linears) == 1:
            return linears[0].product
        bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
        return int8_product(torch.cat([linear.rounded for linear in linears]), torch.cat([i.scales for i in linears]), bias)


def int8_product(rounded: Tensor, scales: Tensor, bias: Tensor | None) -> Product:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces another way to make such tensors, which it does not have yet
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        weight = torch._make_per_channel_quantized_tensor(rounded, scales.double(), zeros, 0)
        packed = torch.ops.quantized.linear_prepack(weight, None if bias is None else bias.detach())
    return lambda x: torch.ops.quantized.linear_dynamic(x, packed, reduce_range=True)


def quantize_int8(model: nn.Module) -> nn.Module:
    """Rounds the weights of every linear layer to eight bits, in place: a quarter of the memory, for inference on a CPU.

    Embeddings, norms and small outputs stay as they are. What is lost is lost: save the model before.
    """
    if model.device.type != "cpu" or model.dtype != torch.float32:
        raise ValueError(f"Eight-bit layers run on a CPU beside float32, but the model is {model.dtype} on {model.device}.")
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if is_plain(child):
                setattr(parent, name, Int8Linear(child.weight.detach(), child.bias))  # type: ignore[operator, arg-type]
    return model.eval()
