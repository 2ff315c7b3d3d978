# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What was measured, for people and programs: tables on the console and in Markdown, bars and curves as pictures, JSON."""

import datetime
import importlib.metadata
import json
import math
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .interleave import Spread


PACKAGES = ("glassformer", "torch", "transformers", "x-transformers", "ctranslate2", "onnxruntime", "numpy")


@dataclass
class Table:
    """One comparison. `bars` go into the chart of the benchmark, or `curves`, label -> points; `data` into the JSON file."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    bars: dict[str, Spread] = field(default_factory=dict)
    bar_label: str = ""
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    curve_labels: tuple[str, str] = ("", "")
    data: dict[str, Any] = field(default_factory=dict)


# Text


def plain(table: Table) -> str:
    """Columns side by side, the first to the left and numbers to the right."""
    lines = [table.columns, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.columns))]
    text = [
        f"{line[0]:{widths[0]}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(line[1:], widths[1:])) for line in lines
    ]
    return "\n".join([table.title, *(f"  {line}".rstrip() for line in text), *(f"  {note}" for note in table.notes), ""])


def markdown(table: Table) -> str:
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    notes = "\n".join(f"{note}  " for note in table.notes)
    return f"### {table.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{notes}\n"


# Files


def write(folder: Path, benchmark: str, tables: list[Table], settings: dict[str, Any]) -> list[Path]:
    """`BENCHMARK.json`, `.md`, and `.png` and `.svg` where there is something to draw."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine(settings["device"]), "settings": settings, "results": [as_json(table) for table in tables]}
    paths = [folder / f"{benchmark}.json", folder / f"{benchmark}.md"]
    paths[0].write_text(json.dumps(content, indent=2) + "\n")
    paths[1].write_text("\n".join(map(markdown, tables)))
    return paths + draw(folder / benchmark, tables)


def as_json(table: Table) -> dict[str, Any]:
    return {"title": table.title, "notes": table.notes, **_plain_values(table.data)}


def _plain_values(value: Any) -> Any:
    """Spreads by name, and null where there is no number."""
    if isinstance(value, Spread):
        return {"median": value.median, "quartiles": [value.low, value.high]}
    if isinstance(value, dict):
        return {str(key): _plain_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_values(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def machine(device: str = "cpu") -> dict[str, Any]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "cpu": cpu_name(),
        "device": device_name(device),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def device_name(device: str) -> str:
    import torch

    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return name() if name else device


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


# Pictures

OUR_COLOUR, OTHER_COLOUR = "#c2571a", "#8a94a3"


def draw(path: Path, tables: list[Table]) -> list[Path]:
    from matplotlib.figure import Figure  # not pyplot, which would meddle with a notebook

    tables = [table for table in tables if table.bars or table.curves]
    if not tables:
        return []
    columns = min(2, len(tables))
    rows = math.ceil(len(tables) / columns)
    height = 0.9 + max(0.32 * len(table.bars) if table.bars else 2.6 for table in tables)
    figure = Figure(figsize=(6.5 * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, table in zip(axes, tables):
        draw_bars(axis, table) if table.bars else draw_curves(axis, table)
        axis.set_title(table.title, fontsize=10, parse_math=False)
    for axis in axes[len(tables) :]:
        axis.set_visible(False)
    pictures = [path.with_suffix(".png"), path.with_suffix(".svg")]
    for picture in pictures:
        figure.savefig(picture, dpi=120)
    return pictures


def draw_bars(axis, table: Table) -> None:
    """A bar for each contestant, the first on top, with its quartiles."""
    names = list(table.bars)
    values = [table.bars[name] for name in names]
    errors = [[value.median - value.low for value in values], [value.high - value.median for value in values]]
    colours = [OUR_COLOUR if name.startswith("glassformer") else OTHER_COLOUR for name in names]
    axis.barh(names, [value.median for value in values], xerr=errors, color=colours, error_kw={"linewidth": 0.8, "capsize": 2})
    axis.invert_yaxis()
    axis.set_xlabel(table.bar_label, fontsize=9)
    axis.tick_params(labelsize=9)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)


def draw_curves(axis, table: Table) -> None:
    for label, points in table.curves.items():
        axis.plot(*zip(*points), marker="o", markersize=3, linewidth=1.2, label=label)
    axis.set(xscale="log", yscale="log", xlabel=table.curve_labels[0], ylabel=table.curve_labels[1])
    ticks = sorted({x for points in table.curves.values() for x, _ in points})
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    heights = [y for points in table.curves.values() for _, y in points]
    marks = [mark * 10**power for power in range(-3, 7) for mark in (1, 2, 5)]
    marks = [mark for mark in marks if min(heights) * 0.9 <= mark <= max(heights) * 1.1]
    axis.set_yticks(marks, [f"{mark:g}" for mark in marks])
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
