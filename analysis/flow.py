# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""How signals travel through the layers: sizes of the residual stream on the way up, of gradients on the way down."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from . import pictures
from .hooks import EXPLODING, VANISHING, GradientMonitor, Watch
from .inside import by_layer, layer_of


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
    """Both as bars over the layers; limits beyond which little is learnt are lines."""
    figure, axes = pictures.panels(1, 2, max(3.6, 0.3 * max(len(flow.stream), len(flow.gradients)) + 1.5))
    for axis, values, title in (
        (axes[0], flow.stream, "residual stream: mean length of a token's vector"),
        (axes[1], flow.gradients, "norm of the gradient"),
    ):
        axis.barh(range(len(values)), list(values.values()), color="#00617f")
        axis.set_yticks(range(len(values)), list(values), fontsize=7)
        axis.invert_yaxis()
        axis.set_xscale("log")
        axis.set_title(title, fontsize=9)
    for limit in (VANISHING, EXPLODING):
        low, high = axes[1].get_xlim()
        if low / 10 < limit < high * 10:
            axes[1].axvline(limit, color="black", linestyle="--", linewidth=1)
            axes[1].annotate(f"{limit:g}", (limit, -0.6), fontsize=7, ha="center", annotation_clip=False)
    return pictures.save(figure, path)
