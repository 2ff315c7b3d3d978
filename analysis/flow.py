# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""How signals travel through the layers: sizes of the residual stream on the way up, of gradients on the way down."""

import math
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from . import pictures
from .hooks import EXPLODING, VANISHING, GradientMonitor, Watch
from .inside import by_layer, layer_of


COLOUR = "#00617f"


class StreamNorms(Watch):
    """The mean length of the vectors [B, T, D] that each layer hands on: `rows` by layer, in their order."""

    def __init__(self, model: PreTrainedModel):
        super().__init__(model)
        self.rows: dict[str, float] = {}

    def see(self, name: str, module, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        layer = layer_of(name)
        if layer and name.endswith(layer) and outputs:
            self.rows[layer] = float(outputs[0].detach().norm(dim=-1).mean())


@dataclass
class Flow:
    stream: dict[str, float]  # by layer
    gradients: dict[str, float]


def measure_flow(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Flow:
    """One forward and one backward pass of the loss, without dropout; gradients are cleared again."""
    was_training = model.training
    model.eval()
    try:
        with StreamNorms(model) as stream, GradientMonitor(model) as gradients:
            model(**inputs).loss.backward()
    finally:
        model.zero_grad()
        model.train(was_training)
    return Flow(stream.rows, by_layer(gradients.rows, lambda row: row.norm))


def draw_flow(flow: Flow, path: Path) -> Path:
    """Layers from top to bottom: lengths as bars, gradients as points over powers of ten, with the limits as lines."""
    from matplotlib.ticker import NullFormatter

    figure, (left, right) = pictures.panels(1, 2, max(4.2, 0.3 * len(flow.gradients) + 1.5))
    left.barh(range(len(flow.stream)), list(flow.stream.values()), color=COLOUR)
    right.plot(list(flow.gradients.values()), range(len(flow.gradients)), "o", color=COLOUR)
    right.set_xscale("log")
    low, high = right.get_xlim()
    right.set_xlim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))
    right.xaxis.set_minor_formatter(NullFormatter())
    right.grid(axis="x", linewidth=0.5)
    for limit in (VANISHING, EXPLODING):
        if right.get_xlim()[0] <= limit <= right.get_xlim()[1]:
            right.axvline(limit, color="black", linestyle="--", linewidth=1)
    for axis, values, title in (
        (left, flow.stream, "mean length of a token's vector"),
        (right, flow.gradients, "norm of the gradient"),
    ):
        axis.set_yticks(range(len(values)), list(values), fontsize=7)
        axis.invert_yaxis()
        axis.set_title(title, fontsize=9)
    return pictures.save(figure, path)
