# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Matrix products by oneDNN in the place of MKL, on processors where MKL is slow.

torch has both libraries and multiplies float32 matrices with MKL, which leaves half of each register unused on processors with
AVX-512 that are not Intel's. A product of activations and weights is 1.1 to 1.2 times as fast there with oneDNN, and 2 times
where a core multiplies a whole register at once (docs/performance.md). Nothing but the kernels of `mm`, `addmm` and
`addmm_` changes: gradients, autocast, compilation and counting of arithmetic work above them, and do not notice.
"""

import functools
import platform
import warnings
from pathlib import Path

import torch
from torch import Tensor


# M rows of activations, K features in, N features out

FEW_ROWS = 64
FEW_PRODUCTS = 2**23  # of numbers: below, MKL is as fast or faster
ZEN_5 = 26  # the first family of AMD's that multiplies 512 bits at once; the one before takes two turns


@functools.cache
def use_onednn_products() -> torch.library.Library | None:
    """For the rest of this process, where it helps; None where it does not."""
    return override_products(weight_gradients=has_whole_registers()) if mkl_is_slow() else None


def mkl_is_slow() -> bool:
    has_both = torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return has_both and "AVX512" in torch.backends.cpu.get_cpu_capability() and cpu_fact("vendor_id") == "AuthenticAMD"


def has_whole_registers() -> bool:
    return int(cpu_fact("cpu family") or 0) >= ZEN_5


def cpu_fact(name: str) -> str:
    """As the processor gives it; nothing where the system does not tell."""
    if platform.system() != "Linux":
        return ""
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    return next((value.strip() for fact, _, value in lines if fact.strip() == name), "")


def override_products(weight_gradients: bool) -> torch.library.Library:
    """Products go to oneDNN as long as the returned library lives, those that are gradients of weights if so told."""
    names = ("mm", "addmm", "addmm_")
    mkl_mm, mkl_addmm, mkl_addmm_ = (torch.library.get_kernel(f"aten::{name}", "CPU") for name in names)

    def mm(keys, a: Tensor, b: Tensor) -> Tensor:
        if suits_onednn(a, b):
            return onednn_product(a, b)
        if weight_gradients and is_weight_gradient(a, b):
            return onednn_weight_gradient(a, b)
        return mkl_mm.call_boxed(keys, a, b)

    def addmm(keys, bias: Tensor, a: Tensor, b: Tensor, *, beta=1, alpha=1) -> Tensor:
        if bias.dim() == 1 and len(bias) == b.shape[1] and beta == alpha == 1 and suits_onednn(a, b):
            return onednn_product(a, b, bias)
        return mkl_addmm.call_boxed(keys, bias, a, b, beta=beta, alpha=alpha)

    def addmm_(keys, total: Tensor, a: Tensor, b: Tensor, *, beta=1, alpha=1) -> Tensor:
        if weight_gradients and beta == alpha == 1 and is_weight_gradient(a, b):
            return total.add_(onednn_product(a, b))  # whatever it copies, a result to turn around would cost more
        return mkl_addmm_.call_boxed(keys, total, a, b, beta=beta, alpha=alpha)

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of what is meant to happen here
        for name, kernel in zip(names, (mm, addmm, addmm_)):
            library.impl(name, kernel, "CPU", with_keyset=True, allow_override=True)
    return library


def suits_onednn(a: Tensor, b: Tensor) -> bool:
    """Whether a [M, K] are rows of activations, or of their gradients, and b [K, N] is a weight, either way round."""
    return is_large(a, b) and a.stride(1) == 1 and (b.is_contiguous() or b.T.is_contiguous())


def is_weight_gradient(a: Tensor, b: Tensor) -> bool:
    """Whether a [N, M] is the gradient of an output [M, N], transposed, and b [M, K] are rows of activations."""
    return is_large(a, b) and a.T.is_contiguous() and b.is_contiguous()


def is_large(a: Tensor, b: Tensor) -> bool:
    return (
        a.dtype == b.dtype == torch.float32
        and a.shape[0] >= FEW_ROWS
        and a.shape[1] == b.shape[0]
        and a.shape[0] * b.numel() >= FEW_PRODUCTS
    )


def onednn_product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """[M, K] x [K, N] + [N] -> [M, N]. What is neither b nor b.T in one piece, oneDNN multiplies a thousand times slower."""
    return torch.ops.mkldnn._linear_pointwise(a, b.T, bias, "none", [], "")


def onednn_weight_gradient(a: Tensor, b: Tensor) -> Tensor:
    """[N, M] x [M, K] -> [N, K]. oneDNN copies what is on the left, where it stands transposed: that be the narrower."""
    if a.shape[0] <= b.shape[1]:
        return onednn_product(a, b)
    return onednn_product(b.T, a.T).T.contiguous()
