# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What hooks see inside the model during one update, as numbers for the log and TensorBoard: `logging.inside` in a recipe.

By layer: the norm of the gradient, how far the step moved the weights in relation to their size, the spread of the layer's
output; by head: the entropy of its attention. The run itself goes on as if nobody looked.
"""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .capture import evaluating
from .hooks import ActivationStats, AttentionHealth, Gradient, GradientMonitor


@contextmanager
def look_inside(model: PreTrainedModel, batch: dict[str, Tensor]) -> Iterator[dict[str, dict[str, float]]]:
    """Around an update with `batch`: what is found is in the dict that is given, afterwards."""
    found: dict[str, dict[str, float]] = {}
    with GradientMonitor(model) as gradients, ActivationStats(model) as activations:
        yield found
    found["gradient"] = by_layer(gradients.rows, lambda row: row.norm)
    moved = by_layer(gradients.rows, lambda row: (row.update_ratio or 0.0) * row.weight_norm)
    weights = by_layer(gradients.rows, lambda row: row.weight_norm)
    found["update"] = {name: moved[name] / weights[name] for name in weights if weights[name]}
    layers = {name: layer_of(name) for name in activations.rows}
    found["activation"] = {layer: activations.rows[name].std for name, layer in layers.items() if layer and name.endswith(layer)}
    found["entropy"] = entropies(model, batch)


def layer_of(name: str) -> str | None:
    """`model.encoder.layers.0.self_attn.q_proj.weight` -> `encoder.layers.0`"""
    layer = re.search(r"(?:(?:encoder|decoder)\.)?\w+\.\d+(?=\.|$)", name)
    return None if layer is None else layer[0]


def by_layer(rows: dict[str, Gradient], value: Any) -> dict[str, float]:
    """The norm of all that belongs to a layer, and of what belongs to none."""
    squares: dict[str, float] = {}
    for name, row in rows.items():
        layer = layer_of(name) or "embeddings and output"
        squares[layer] = squares.get(layer, 0.0) + value(row) ** 2
    return {layer: math.sqrt(total) for layer, total in squares.items()}


def entropies(model: PreTrainedModel, batch: dict[str, Tensor]) -> dict[str, float]:
    """Of every head, on the rows of the batch that have no padding, as shares of the highest possible."""
    masks = [batch[name].bool().all(1) for name in ("attention_mask", "decoder_attention_mask") if name in batch]
    if not masks or masks[0].dim() != 1:  # sequences packed into one row
        return {}
    whole = torch.stack(masks).all(0)
    if not whole.any():
        return {}
    with evaluating(model), AttentionHealth(model) as health:
        model(**{name: tensor[whole] for name, tensor in batch.items()})
    return {f"{row.kind}.{row.layer}.{row.head}": row.entropy for row in health.rows}
