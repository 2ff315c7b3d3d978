# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Attention as matrices of shades, with the tokens beside them: PNG or SVG, as the name of the file says."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from . import rollout
from .fonts import font_families


if TYPE_CHECKING:
    from .position_maps import PositionMap
    from .visualizer import Capture

LONGEST = 40  # tokens of a side that are shown
FLOWING = 16  # tokens up to which flow, which takes long, is computed as well
COLOURS = "cividis"  # looks the same to colour-blind people, and in grey
SUFFIXES = (".png", ".svg")


def draw_heads(capture: "Capture", kind: str, layer: int, path: Path, words: bool = False) -> Path:
    """One panel a head."""
    weights = capture.weights(kind, layer, words)  # [H, T, S]
    queries, keys = capture.labels(kind, words)
    columns = min(4, len(weights))
    rows = math.ceil(len(weights) / columns)
    size = 0.16 * max(min(len(keys), LONGEST), 12) + 1.2
    figure, axes = panels(rows, columns, size)
    for head, (axis, matrix) in enumerate(zip(axes, weights)):
        draw_matrix(axis, matrix, queries, keys, f"head {head}")
    figure.suptitle(f"{kind} attention, layer {layer}{cropped(queries, keys)}", fontsize=10)
    return save(figure, path)


def draw_alignment(capture: "Capture", layer: int | None, path: Path) -> Path:
    """Target tokens against source tokens, the mean over the heads."""
    means = {number: capture.weights("cross", number).mean(0) for number in capture.layers("cross")}
    chosen = layer if layer is not None else max(means, key=lambda number: float(means[number].max(-1).values.mean()))
    queries, keys = capture.labels("cross")
    figure, [axis] = panels(1, 1, 0.2 * max(min(len(keys), LONGEST), 12) + 1.6)
    draw_matrix(axis, means[chosen], queries, keys, f"cross-attention, layer {chosen}, mean of the heads{cropped(queries, keys)}")
    return save(figure, path)


def draw_rollout(capture: "Capture", kind: str, path: Path) -> Path:
    """Outputs against inputs of a stack."""
    if kind == "cross":
        raise ValueError("Rollout follows a text through one stack: choose the encoder or the decoder.")
    layers = [capture.weights(kind, layer) for layer in capture.layers(kind)]
    queries, keys = capture.labels(kind)
    found = {"rollout": rollout.rollout(layers)}
    if len(keys) <= FLOWING:
        found["flow"] = rollout.flow(layers)
    figure, axes = panels(1, len(found), 0.18 * max(min(len(keys), LONGEST), 14) + 1.4)
    for axis, (name, matrix) in zip(axes, found.items()):
        draw_matrix(axis, matrix, queries, keys, f"{name}, {len(layers)} layers of the {kind}{cropped(queries, keys)}")
    return save(figure, path)


def draw_positions(found: "PositionMap", path: Path) -> Path:
    """The table, and the likeness of positions."""
    figure, (left, right) = panels(1, 2, 4.2)
    for axis, matrix, title, across in (
        (left, found.table, found.name, found.columns),
        (right, found.likeness, "likeness of positions", "position"),
    ):
        picture = axis.imshow(matrix.numpy(), cmap=COLOURS, aspect="auto")
        axis.set(xlabel=across, ylabel="position")
        axis.set_title(title, fontsize=9)
        figure.colorbar(picture, ax=axis, shrink=0.8)
    return save(figure, path)


def panels(rows: int, columns: int, size: float) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure  # not pyplot, which would meddle with a notebook

    figure = Figure(figsize=(size * columns, size * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flatten())


def draw_matrix(axis, matrix: Tensor, queries: list[str], keys: list[str], title: str) -> None:
    matrix, queries, keys = matrix[:LONGEST, :LONGEST], queries[:LONGEST], keys[:LONGEST]
    axis.imshow(matrix.numpy(), cmap=COLOURS, vmin=0.0, vmax=max(float(matrix.max()), 1e-6), aspect="auto")
    look: dict[str, Any] = {"fontsize": 6, "parse_math": False, "fontfamily": font_families(queries + keys)}
    axis.set_xticks(range(len(keys)), keys, rotation=90, **look)
    axis.set_yticks(range(len(queries)), queries, **look)
    axis.set_title(title, fontsize=8, parse_math=False)


def cropped(queries: list[str], keys: list[str]) -> str:
    """A note where not everything is shown."""
    longest = max(len(queries), len(keys))
    return f" (the first {LONGEST} of {longest} tokens)" if longest > LONGEST else ""


def save(figure, path: Path) -> Path:
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} is no picture that can be written: end its name with {' or '.join(SUFFIXES)}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def draw_summary(heads: list[dict[str, Any]], path: Path) -> Path:
    """Layers against heads, one panel a kind: the shade is how widely a head looks, the word what it does, the number how far."""
    kinds = list(dict.fromkeys(row["kind"] for row in heads))
    numbers = max(row["head"] for row in heads) + 1
    figure, axes = panels(1, len(kinds), max(3.2, 0.85 * numbers + 1.2))
    for axis, kind in zip(axes, kinds):
        rows = [row for row in heads if row["kind"] == kind]
        layers = sorted({row["layer"] for row in rows})
        shades = [[row["entropy"] for row in rows if row["layer"] == layer] for layer in layers]
        axis.imshow(shades, cmap=COLOURS, vmin=0.0, vmax=1.0, aspect="auto")
        for row in rows:
            colour = "black" if row["entropy"] > 0.5 else "white"
            place = row["head"], layers.index(row["layer"])
            words = "\n".join([*row["pattern"].split(), f"{row['distance']:.1f}"])
            axis.text(*place, words, ha="center", va="center", fontsize=6, color=colour)
        axis.set_xticks(range(len(shades[0])), [str(head) for head in range(len(shades[0]))])
        axis.set_yticks(range(len(layers)), [str(layer) for layer in layers])
        title = f"{kind} (dark: looks at one place, light: everywhere;\nnumbers: how many tokens away)"
        axis.set(title=title, xlabel="head", ylabel="layer")
        axis.title.set_fontsize(8)
    return save(figure, path)
