# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What a recipe would do, before it does it: the resolved recipe, sizes, and what the run will need."""

import dataclasses
import itertools

import torch

import glassformer

from .batching import Loader, Position
from .devices import choose_precision, chosen_device
from .estimate import (
    empty_model,
    estimate_memory,
    estimate_seconds,
    matmul_rate,
    parameter_count,
    readable_bytes,
    readable_time,
    training_flops,
)
from .evaluation import check_metrics
from .loop import total_updates
from .optimization import make_optimizers, make_schedule
from .recipe import Recipe, RecipeError, pretraining_of, scaled
from .task import Task, prepare


SAMPLE = 20  # batches to look at
EFFICIENCY = 0.5  # share of the machine's matrix-product rate that training is taken to reach


def describe_plan(recipe: Recipe) -> str:
    """Everything that `--dry-run` prints. A tokenizer is trained if need be, a model is not."""
    if recipe.pretraining is None:
        return describe_run(recipe)
    first = pretraining_of(recipe)
    second = dataclasses.replace(recipe, model={**first.model, **recipe.model})
    return f"{describe_run(first)}\n\nAnd then, starting from that model:\n\n{describe_run(second)}"


def describe_run(recipe: Recipe) -> str:
    recipe = scaled(recipe)
    task = prepare(recipe)
    loader = Loader(task.source(), task.objective.collate, recipe.batching)
    batches = [batch.tensors for batches, _ in itertools.islice(loader.updates(Position()), SAMPLE) for batch in batches]
    total = total_updates(recipe, loader)
    check_run(task, batches, total)
    lines = [recipe.to_yaml(), *describe_sizes(task, batches, total), *describe_needs(task, batches, total)]
    return "\n".join(lines)


def check_run(task: Task, batches: list[dict[str, torch.Tensor]], total: int | None) -> None:
    """What a run would refuse at its start, once everything is loaded."""
    recipe = task.recipe
    if not batches:
        raise RecipeError("The training data has no rows: nothing can be learnt from it.")
    check_metrics(task.objective, recipe.evaluation.metrics or ())
    for optimizer in make_optimizers(empty_model(task.config, our_head(task)), recipe.optimizer, recipe.schedule):
        make_schedule(optimizer, recipe.schedule, task.config.d_model, total)


def describe_sizes(task: Task, batches: list[dict[str, torch.Tensor]], total: int | None) -> list[str]:
    recipe, counts = task.recipe, [task.objective.count_tokens(tensors) for tensors in batches]
    per_update = sum(real for real, _ in counts) / len(counts) * recipe.batching.accumulation
    padding = 1 - sum(real for real, _ in counts) / sum(padded for _, padded in counts)
    rows = [f"{split} {len(task.encoded[split]):,}" if split in task.encoded else f"{split} a stream" for split in task.rows]
    return [
        f"rows              {', '.join(rows)}",
        f"vocabulary        {task.config.vocab_size:,} tokens",
        f"parameters        {parameter_count(task.config, our_head(task)):,}",
        f"updates           {total or 'until the time is up'}",
        f"tokens an update  {per_update:,.0f} for each process, {padding:.1%} padding",
    ]


def describe_needs(task: Task, batches: list[dict[str, torch.Tensor]], total: int | None) -> list[str]:
    recipe, head = task.recipe, our_head(task)
    device = chosen_device()
    shapes = [batch_shape(task, tensors) for tensors in batches]
    precision = choose_precision(recipe.training.precision) or "float32"
    memory = max(
        (estimate_memory(
            task.config, head, *shape, optimizer=recipe.optimizer.name, precision=precision,
            gradient_checkpointing=recipe.training.gradient_checkpointing, device=device,
        ) for shape in shapes),
        key=lambda needs: needs["total"],
    )  # fmt: skip
    parts = ", ".join(f"{name} {readable_bytes(memory[name])}" for name in ("weights", "gradients", "optimizer", "activations"))
    lines = [f"memory            about {readable_bytes(memory['total'])} for each process ({parts})"]
    if total is None:
        return lines
    flops = sum(training_flops(task.config, head, *shape) for shape in shapes) / len(shapes)
    rate = matmul_rate(device)
    seconds = estimate_seconds(flops * recipe.batching.accumulation * total, rate, EFFICIENCY)
    return [
        *lines,
        f"time              about {readable_time(seconds)} of updates in one process, at {EFFICIENCY:.0%} of the "
        f"{rate / 1e9:,.0f} GFLOP/s that {device} has just shown; evaluation comes on top",
    ]


def batch_shape(task: Task, tensors: dict[str, torch.Tensor]) -> tuple[int, ...]:
    """Examples, source length and, for two stacks, target length."""
    examples, length = tensors["input_ids"].shape
    return (examples, length, tensors["labels"].shape[1]) if task.config.is_encoder_decoder else (examples, length)


def our_head(task: Task) -> type:
    """Also for a baseline, which is as large."""
    return getattr(glassformer, task.objective.head)
