# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What the heads of a trained model have learnt: patterns over thousands of rows, likeness, importance, and what pruning costs.

`glassformer heads FOLDER` writes a page with the tables, and the pictures beside it.
"""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from glassformer.pruning import prune_heads
from glassformer.training.data import encode_rows, load_split
from glassformer.training.evaluation import ALONE, evaluate_loss
from glassformer.training.inference import Trained, load_trained
from glassformer.training.task import data_of, fitting, set_numbering

from . import pictures
from .flow import COLOUR
from .head_mask import head_importance
from .heads import MIXED
from .patterns import HeadReport, Row, analyze_heads


Loss = Callable[[PreTrainedModel], float]
SHARES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75)  # of the heads that are taken out


@dataclass
class Pruning:
    heads: int  # that were taken out, the least important first
    parameters: int
    loss: float


@dataclass
class Study:
    report: HeadReport  # its rows have the importance of each head as well
    judged_on: int  # rows that the loss is of
    prunings: list[Pruning]  # the first takes nothing out


def study_heads(folder: str | Path, output: Path, rows: int = 10_000, judged_on: int = 200, split: str = "train") -> Study:
    """Patterns over `rows` rows of a split of the data that the model learnt from; importance on validation rows."""
    trained = load_trained(folder)
    report = analyze_heads(trained.model, trained.objective.tokenizer, texts(trained, split, rows))
    loss = loss_on(trained, judged_on)
    importance = head_importance(trained.model, lambda: torch.tensor(loss(trained.model)))
    for row in report.rows:
        row["importance"] = importance[row["kind"], row["layer"], row["head"]]
    study = Study(report, judged_on, prune_step_by_step(trained.model, importance, loss))
    report.save(output / "heads")
    draw_pruning(study.prunings, output / "pruning.png")
    (output / "heads.md").write_text(page(study), encoding="utf-8")
    return study


def texts(trained: Trained, split: str, count: int) -> list[Row]:
    rows = load_split(data_of(trained.recipe), trained.objective.roles, None, split, trained.recipe.seed)
    few = rows.select(range(min(count, len(rows))))
    if "target" in few.column_names:
        return [{"source": row["source"], "target": row["target"]} for row in few]
    if "text" not in few.column_names:
        raise ValueError(f"Heads are studied on texts, or sources with targets, not on {' and '.join(few.column_names)}.")
    return [row["text"] for row in few]


def loss_on(trained: Trained, count: int) -> Loss:
    """The mean loss on the first validation rows."""
    objective, data = trained.objective, data_of(trained.recipe)
    rows = load_split(data, objective.roles, None, "validation", trained.recipe.seed)
    rows = rows.select(range(min(count, len(rows))))
    set_numbering(objective, rows)
    encoded = fitting(
        encode_rows(rows, objective.encode, key="", cache=None), "validation", "truncate", objective.max_length, "drop"
    )
    return lambda model: evaluate_loss(model, objective, encoded, trained.recipe.evaluation, ["loss"], None, ALONE)[0]["loss"]


def prune_step_by_step(model: PreTrainedModel, importance: dict[tuple[str, int, int], float], loss: Loss) -> list[Pruning]:
    """The least important heads first, but never the last one of a layer."""
    order = sorted(importance, key=lambda place: importance[place])
    prunings = [Pruning(0, model.num_parameters(), loss(model))]
    for share in SHARES:
        chosen: dict[tuple[str, int], list[int]] = {}
        left = Counter((kind, layer) for kind, layer, _ in order)
        for kind, layer, head in order:
            if sum(map(len, chosen.values())) < share * len(order) and left[kind, layer] > 1:
                chosen.setdefault((kind, layer), []).append(head)
                left[kind, layer] -= 1
        smaller = copy.deepcopy(model)
        prune_heads(smaller, chosen)
        prunings.append(Pruning(sum(map(len, chosen.values())), smaller.num_parameters(), loss(smaller)))
    return prunings


# The page


def page(study: Study) -> str:
    report, kinds = study.report, list(dict.fromkeys(row["kind"] for row in study.report.rows))
    parts = [f"Over {report.texts:,} rows; importance and pruning by the loss on {study.judged_on} validation rows.", ""]
    parts += ["![patterns](heads.png)", "", "![likeness](heads-likeness.png)", ""]
    for kind in kinds:
        rows = [row for row in report.rows if row["kind"] == kind]
        names = Counter(row["pattern"] for row in rows)
        specialised = sum(count for name, count in names.items() if name not in (MIXED, "broad"))
        likeness = clusters_of(rows, report.distances[kind])
        parts += [f"## {kind}", "", f"{specialised} of {len(rows)} heads have a pattern. {likeness}", ""]
        parts += table([head_cells(row) for row in sorted(rows, key=lambda row: -row["importance"])])
    parts += [
        "## Without the least important heads",
        "",
        "![pruning](pruning.png)",
        "",
        "| heads taken out | parameters | loss |",
    ]
    parts += ["|---:|---:|---:|", *(f"| {step.heads} | {step.parameters:,} | {step.loss:.3f} |" for step in study.prunings), ""]
    return "\n".join(parts)


def head_cells(row: dict[str, Any]) -> list[str]:
    numbers = (f"{row['gain']:.2f}", f"{row['entropy']:.2f}", f"{row['distance']:.1f}", f"{row['importance']:+.3f}")
    return [f"{row['layer']}.{row['head']}", row["pattern"], *numbers]


def table(rows: list[list[str]]) -> list[str]:
    head = ["| layer.head | pattern | gain | entropy | distance | loss without it |", "|---|---|---:|---:|---:|---:|"]
    return [*head, *(f"| {' | '.join(cells)} |" for cells in rows), ""]


def clusters_of(rows: list[dict[str, Any]], distances: Tensor) -> str:
    names = [f"{row['layer']}.{row['head']}" for row in rows]
    groups: dict[str, list[str]] = {}
    for name, row in zip(names, rows):
        groups.setdefault(row["cluster"], []).append(name)
    if alike := [", ".join(heads) for heads in groups.values() if len(heads) > 1]:
        return f"Alike are {'; '.join(alike)}."
    apart = distances + torch.eye(len(distances))
    one, other = divmod(int(apart.argmin()), len(apart))
    return f"No two are alike: the nearest, {names[one]} and {names[other]}, put {apart.min():.0%} of their attention elsewhere."


def draw_pruning(prunings: list[Pruning], path: Path) -> Path:
    figure, [axis] = pictures.panels(1, 1, 3.6)
    axis.plot([step.heads for step in prunings], [step.loss for step in prunings], marker="o", color=COLOUR)
    axis.set(xlabel="heads taken out, the least important first", ylabel="validation loss")
    return pictures.save(figure, path)
