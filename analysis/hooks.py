# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Watching a model at work, for the length of a `with`: activations, gradients and the health of its heads.

    with ActivationStats(model) as stats:
        model(**batch)
    print(stats.table())

Each puts hooks on the modules it watches and takes them away again, whatever happens in between.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .capture import KINDS, record_attention
from .heads import entropy_of


VANISHING, EXPLODING = 1e-6, 10.0  # norms of gradients beyond which little is learnt, or too much at once
COLLAPSED, EVEN = 0.1, 0.95  # shares of the highest entropy outside of which a head looks at one place, or everywhere alike


class Watch:
    """Base class: hooks on every module, for as long as the `with` lasts."""

    def __init__(self, model: nn.Module):
        self.model = model
        self._hooks = ExitStack()

    def __enter__(self):
        for name, module in self.model.named_modules():
            if name:
                handle = module.register_forward_hook(self._hook(name), with_kwargs=True)
                self._hooks.callback(handle.remove)
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()

    def _hook(self, name: str):
        def hook(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            self.see(name, module, [*tensors(args), *tensors(kwargs)], list(tensors(output)))

        return hook

    def see(self, name: str, module: nn.Module, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        raise NotImplementedError


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists and dicts, outputs of models among them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)


def format_table(head: list[str], rows: list[list[str]]) -> str:
    """The first column to the left, the others to the right."""
    widths = [max(len(line[column]) for line in (head, *rows)) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(zip(line, widths))
        )
        for line in (head, *rows)
    )


# Activations


@dataclass
class Activation:
    mean: float
    std: float
    largest: float
    zeros: float  # share
    finite: bool


class ActivationStats(Watch):
    """Mean, spread and extremes of what each module puts out, the last time it was called: `rows` by name."""

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.rows: dict[str, Activation] = {}

    def see(self, name: str, module: nn.Module, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        values = [x.detach().float() for x in outputs if x.is_floating_point()]
        if values and values[0].numel():
            x = values[0]
            finite = bool(x.isfinite().all())
            self.rows[name] = Activation(
                float(x.mean()), float(x.std(correction=0)), float(x.abs().max()), float((x == 0).float().mean()), finite
            )

    def table(self) -> str:
        rows = [
            [name, f"{row.mean:.3g}", f"{row.std:.3g}", f"{row.largest:.3g}", f"{row.zeros:.1%}"]
            for name, row in self.rows.items()
        ]
        return format_table(["module", "mean", "std", "largest", "zeros"], rows)


# Gradients


@dataclass
class Gradient:
    norm: float
    weight_norm: float
    update_ratio: float | None  # of the step that was made within the `with`, to the weight before it


class GradientMonitor:
    """Norms of gradients and weights, and how far an optimiser's step moved them: `rows` by parameter, after the `with`.

    Put backward pass and step inside. Gradients are taken as they come, before anybody cuts them or sets them to zero.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.rows: dict[str, Gradient] = {}

    def __enter__(self) -> "GradientMonitor":
        self.before = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.norms: dict[str, float] = {}
        self._hooks = ExitStack()
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                self._hooks.callback(p.register_post_accumulate_grad_hook(self._hook(name)).remove)
        return self

    def _hook(self, name: str):
        def hook(parameter: Tensor) -> None:
            assert parameter.grad is not None
            self.norms[name] = float(parameter.grad.norm())

        return hook

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()
        for name, p in self.model.named_parameters():
            if name in self.norms:
                before = self.before[name]
                size, moved = float(before.norm()), float((p.detach() - before).norm())
                self.rows[name] = Gradient(self.norms[name], size, moved / size if moved and size else None)
        self.before.clear()

    @property
    def vanishing(self) -> list[str]:
        return [name for name, row in self.rows.items() if row.norm < VANISHING]

    @property
    def exploding(self) -> list[str]:
        return [name for name, row in self.rows.items() if not math.isfinite(row.norm) or row.norm > EXPLODING]

    def table(self) -> str:
        rows = [
            [name, f"{row.norm:.3g}", f"{row.weight_norm:.3g}", "-" if row.update_ratio is None else f"{row.update_ratio:.2g}"]
            for name, row in self.rows.items()
        ]
        return format_table(["parameter", "gradient", "weight", "update / weight"], rows)


# Heads


@dataclass
class HeadHealth:
    kind: str
    layer: int
    head: int
    entropy: float  # share of the highest possible
    verdict: str  # "well", "collapsed" or "even"


class AttentionHealth:
    """The entropy of every head in the calls within the `with`; padding is left to the caller: give rows of one length."""

    def __init__(self, model: PreTrainedModel):
        self.model = model
        self.rows: list[HeadHealth] = []

    def __enter__(self) -> "AttentionHealth":
        self._recording = record_attention(self.model)
        self._attention = self._recording.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._recording.__exit__(*error)
        if error[0] is not None:
            return
        for kind in KINDS:
            for layer in self._attention.layers(kind):
                self.rows += [
                    HeadHealth(kind, layer, head, share, judge(share))
                    for head, share in enumerate(entropy_shares(self._attention.calls(kind, layer), kind == "decoder"))
                ]

    @property
    def ill(self) -> list[HeadHealth]:
        return [row for row in self.rows if row.verdict != "well"]


def entropy_shares(calls: list[Tensor], is_causal: bool) -> list[float]:
    """The mean entropy of each head [B, H, T, S], as a share of that of a head which looks everywhere alike."""
    shares = []
    for weights in calls:
        queries, keys = weights.shape[-2:]
        visible = torch.arange(keys - queries, keys) + 1 if is_causal else torch.full((queries,), keys)
        several = visible > 1
        if several.any():
            shares.append((entropy_of(weights)[..., several] / visible[several].log()).mean((0, 2)))
    return torch.stack(shares).mean(0).tolist() if shares else []


def judge(share: float) -> str:
    return "collapsed" if share < COLLAPSED else "even" if share > EVEN else "well"
