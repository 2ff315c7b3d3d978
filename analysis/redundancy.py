# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Heads that do the same: how far apart the attention of two heads is, over many texts, and groups of heads that are alike.

The distance of two heads is the share of attention that they put on different places, 0 to 1 (total variation).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx
import torch
from torch import Tensor

from . import pictures


# N heads of a kind in all layers, T queries, S keys

ALIKE = 0.2  # distance up to which one of two heads is superfluous


@dataclass
class HeadDistances:
    """Sums over many texts, for one kind of attention."""

    total: Tensor = field(default_factory=lambda: torch.zeros(()))  # [N, N]
    tokens: int = 0

    def add(self, maps: Tensor) -> None:
        """The attention of one text, of all heads of all layers [N, T, S]."""
        rows = maps.flatten(1)
        self.total = self.total + torch.cdist(rows, rows, p=1) / 2
        self.tokens += maps.shape[1]

    def mean(self) -> Tensor:
        return self.total / max(self.tokens, 1)

    def clusters(self) -> list[int]:
        """A number for each head; those that are alike, directly or through others, have the same."""
        near = (self.mean() <= ALIKE).nonzero().tolist()
        groups = list(networkx.connected_components(networkx.Graph(near)))
        numbers = {head: number for number, group in enumerate(sorted(groups, key=min)) for head in group}
        return [numbers[head] for head in range(len(numbers))]


def draw_distances(distances: dict[str, Tensor], names: dict[str, Sequence[str]], path: Path) -> Path:
    """Heads against heads, one panel a kind."""
    figure, axes = pictures.panels(1, len(distances), max(3.6, 0.16 * max(map(len, distances.values())) + 1.8))
    for axis, (kind, matrix) in zip(axes, distances.items()):
        picture = axis.imshow(matrix.numpy(), cmap=f"{pictures.COLOURS}_r", vmin=0.0, vmax=1.0)
        axis.set_xticks(range(len(matrix)), names[kind], rotation=90, fontsize=6)
        axis.set_yticks(range(len(matrix)), names[kind], fontsize=6)
        axis.set_title(f"{kind}: attention on different places", fontsize=8)
        axis.set(xlabel="layer.head", ylabel="layer.head")
        figure.colorbar(picture, ax=axis, shrink=0.8)
    return pictures.save(figure, path)


def head_names(rows: list[dict[str, Any]], kind: str) -> list[str]:
    return [f"{row['layer']}.{row['head']}" for row in rows if row["kind"] == kind]
