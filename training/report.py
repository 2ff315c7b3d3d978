# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What a run leaves behind beside the model: `metrics.json`, `predictions.jsonl`, `curves.png` and `run.json`."""

import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

from .checkpoints import write_json
from .logs import flat, read_log


PACKAGES = ("glassformer", "torch", "transformers", "datasets", "tokenizers", "accelerate", "evaluate", "safetensors", "numpy")


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in PACKAGES}}


def write_predictions(path: Path, rows: list[dict[str, Any]], predictions: list[Any]) -> None:
    lines = [json.dumps({**row, "prediction": answer}, ensure_ascii=False) for row, answer in zip(rows, predictions)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    write_json(folder / "run.json", {**content, "versions": versions(), "platform": platform.platform()})


def draw_curves(log: Path, picture: Path, title: str) -> None:
    """Loss, the metrics of the evaluations, and the learning rate over updates."""
    from matplotlib.figure import Figure  # not pyplot, which would meddle with a notebook

    records = read_log(log)
    training = [record for record in records if "loss" in record]
    evaluations = [{"step": record["step"], **flat(record["validation"])} for record in records if "validation" in record]
    others = sorted(
        {key for one in evaluations for key, value in one.items() if isinstance(value, float)} - {"loss", "perplexity"}
    )

    figure = Figure(figsize=(13 if others else 9, 3.6), layout="constrained")
    axes = figure.subplots(1, 3 if others else 2)
    figure.suptitle(title, parse_math=False)
    plot(axes[0], training, "loss", "training")
    plot(axes[0], evaluations, "loss", "validation", marker="o")
    axes[0].set(title="loss (nats)", xlabel="update")
    axes[0].legend()
    plot(axes[1], training, "lr", "learning rate")
    axes[1].set(title="learning rate", xlabel="update")
    if others:
        for key in others:
            plot(axes[2], evaluations, key, key, marker="o")
        axes[2].set(title="validation", xlabel="update")
        axes[2].legend()
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.savefig(picture, dpi=110, pil_kwargs={"optimize": True})


def plot(axis, records: list[dict[str, Any]], key: str, label: str, marker: str = "") -> None:
    points = [(record["step"], record[key]) for record in records if key in record]
    if points:
        axis.plot(*zip(*points), label=label, marker=marker, markersize=3, linewidth=1.2)
