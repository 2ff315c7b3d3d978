# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""How weights move: which optimiser, how fast at each step, and an average of where they have been."""

import importlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR
from transformers.optimization import (
    get_constant_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup,
    get_inverse_sqrt_schedule,
    get_polynomial_decay_schedule_with_warmup,
    get_wsd_schedule,
)

from glassformer.norms import RMSNorm

from . import recipe
from .devices import has_fast_bfloat16


DEFAULT_LR = 1e-3


# Optimisers


def make_optimizers(model: nn.Module, options: recipe.Optimizer, schedule: recipe.Schedule) -> list[Optimizer]:
    """One optimiser, or two: Muon turns the matrices inside the layers and leaves the rest to AdamW."""
    lr = peak_lr(options, schedule)
    if options.name == "muon":
        inner, others = split_for_muon(model)
        kind = torch.optim.Muon if has_fast_bfloat16(inner[0].device) else Float32Muon
        muon = kind(inner, lr=lr, weight_decay=options.weight_decay, adjust_lr_fn="match_rms_adamw")
        return [muon, _adamw(decay_groups(others, model, options.weight_decay), lr, options)]
    groups = decay_groups(dict(model.named_parameters()), model, options.weight_decay)
    if options.name == "adamw":
        return [_adamw(groups, lr, options)]
    if options.name == "adafactor":
        return [torch.optim.Adafactor(groups, lr=lr)]
    return [_from_package(options.name)(groups, lr=lr, betas=tuple(options.betas))]


def peak_lr(options: recipe.Optimizer, schedule: recipe.Schedule) -> float:
    """The noam schedule gives the learning rate itself: what it multiplies is 1 unless the recipe says otherwise."""
    return options.lr if options.lr is not None else 1.0 if schedule.name == "noam" else DEFAULT_LR


def _adamw(groups: list[dict[str, Any]], lr: float, options: recipe.Optimizer) -> Optimizer:
    fused = all(p.device.type in ("cpu", "cuda") for group in groups for p in group["params"])
    first, second = options.betas
    return torch.optim.AdamW(groups, lr=lr, betas=(first, second), eps=options.eps, fused=fused)


def _from_package(name: str) -> Any:
    try:
        package = importlib.import_module("pytorch_optimizer")
    except ImportError:
        raise recipe.RecipeError(
            f'optimizer.name={name} comes from the package pytorch-optimizer: pip install "glassformer[optimizers]".'
        ) from None
    return {"lamb": package.Lamb, "sophia": package.SophiaH}[name]


class Float32Muon(torch.optim.Muon):
    """torch's Muon with its iteration in float32, for processors that have to emulate bfloat16.

    On one core with AVX2 it takes 22 to 26 ms of an update of the date translator, torch's 465 to 470 ms; forward and backward
    pass take 104 to 127 ms.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p.grad))
                momentum.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
                update = orthogonalise(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * 0.2 * max(p.shape) ** 0.5)  # "match_rms_adamw": steps as large as Adam's


def orthogonalise(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """The nearest matrix with singular values about 1, by Newton-Schulz (https://kellerjordan.github.io/posts/muon/)."""
    a, b, c = coefficients
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x


def decay_groups(parameters: Mapping[str, nn.Parameter], model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay is for matrices that multiply: not for biases, norms and embeddings."""
    spared = spared_from_decay(model)
    decayed = [p for name, p in parameters.items() if name not in spared]
    others = [p for name, p in parameters.items() if name in spared]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def spared_from_decay(model: nn.Module) -> set[str]:
    norms_and_embeddings = (nn.Embedding, nn.LayerNorm, RMSNorm)
    spared = {name for name, _ in model.named_parameters() if name.endswith("bias")}
    for path, module in model.named_modules():
        if isinstance(module, norms_and_embeddings):
            spared |= {f"{path}.{name}" for name, _ in module.named_parameters(recurse=False)}
    # An output matrix that is tied to an embedding appears under one of the two names.
    embeddings = {p for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    return spared | {name for name, p in model.named_parameters() if p in embeddings}


def split_for_muon(model: nn.Module) -> tuple[list[nn.Parameter], dict[str, nn.Parameter]]:
    """Matrices of the layers, and all other parameters by name."""
    spared = spared_from_decay(model)
    parameters = dict(model.named_parameters())
    matrices = {name: p for name, p in parameters.items() if p.ndim == 2 and name not in spared}
    inner = {name: p for name, p in matrices.items() if re.search(r"\.\d+\.", name)}  # one of several layers
    return list(inner.values()), {name: p for name, p in parameters.items() if name not in inner}


# Schedules


def noam_factor(step: int, d_model: int, warmup: int) -> float:
    """d_model^-0.5 min(step^-0.5, step warmup^-1.5), the first update being step 1 (equation 3 of the paper)."""
    step, warmup = max(step, 1), max(warmup, 1)
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


ENDLESS = ("noam", "inverse_sqrt", "constant")  # schedules that do not ask when the run ends


def make_schedule(optimizer: Optimizer, schedule: recipe.Schedule, d_model: int, total: int | None) -> LRScheduler:
    """A learning rate for each of `total` updates."""
    warmup = schedule.warmup_steps
    if schedule.name == "noam":
        return LambdaLR(optimizer, lambda done: noam_factor(done + 1, d_model, warmup))
    if schedule.name == "inverse_sqrt":
        return get_inverse_sqrt_schedule(optimizer, warmup)
    if schedule.name == "constant":
        return get_constant_schedule_with_warmup(optimizer, warmup)
    if total is None:
        raise recipe.RecipeError(f"schedule.name={schedule.name} must know where the run ends: set training.steps or .epochs.")
    if warmup >= total:
        raise recipe.RecipeError(f"schedule.warmup_steps={warmup} leaves nothing of a run of {total} updates: make it smaller.")
    peaks = [group["lr"] for group in optimizer.param_groups]
    if schedule.name == "cosine":
        return get_cosine_with_min_lr_schedule_with_warmup(optimizer, warmup, total, min_lr_rate=schedule.final_ratio)
    if schedule.name in ("linear", "polynomial"):
        power, end = 1.0 if schedule.name == "linear" else schedule.power, peaks[0] * schedule.final_ratio
        return get_polynomial_decay_schedule_with_warmup(optimizer, warmup, total, lr_end=end, power=power)
    if schedule.name == "warmup_stable_decay":
        decay = schedule.decay_steps or max(total // 10, 1)
        if warmup + decay > total:
            raise recipe.RecipeError(
                f"schedule.warmup_steps={warmup} and decay_steps={decay} exceed the {total} updates of the run."
            )
        return get_wsd_schedule(optimizer, warmup, decay, num_training_steps=total, min_lr_ratio=schedule.final_ratio)
    # torch counts from 0, and puts the peak one before the share `pct_start`; the rise starts at a 25th of the peak.
    rise, fall = (max(warmup, 1) + 1) / (total + 1), 1 / (25 * schedule.final_ratio) if schedule.final_ratio else math.inf
    return OneCycleLR(
        optimizer, peaks, total_steps=total + 1, pct_start=rise, div_factor=25, final_div_factor=fall, cycle_momentum=False
    )


# Averages


class WeightAverage:
    """Exponential moving average of the weights: average <- decay average + (1 - decay) weights, after every update."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        current = dict(model.named_parameters())
        torch._foreach_lerp_(list(self.weights.values()), [current[name].detach() for name in self.weights], 1 - self.decay)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Saved weights, of which each process takes the part that it holds."""
        for name, tensor in self.weights.items():
            saved = weights[name].to(tensor.device)
            if isinstance(tensor, DTensor):
                saved = distribute_tensor(saved, tensor.device_mesh, tensor.placements)
            tensor.copy_(saved)

    @torch.no_grad()
    def swap(self, model: nn.Module) -> None:
        """Exchange average and weights; a second call undoes the first."""
        for name, p in model.named_parameters():
            current = p.detach().clone()
            p.copy_(self.weights[name])
            self.weights[name].copy_(current)


def average_states(states: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several checkpoints' weights, summed in float64, read one at a time."""
    total: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    count = 0
    for state in states:
        count += 1
        for name, tensor in state.items():
            kinds[name] = tensor.dtype
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / count).to(kinds[name]) for name, tensor in total.items()}
