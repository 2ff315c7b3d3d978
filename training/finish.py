# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The end of a run: choose the final weights, save a model that anybody can load, measure it, and write down what happened."""

import logging
import shutil
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from datasets import Dataset
from transformers import PreTrainedModel

from . import report
from .checkpoints import CheckpointError, CheckpointFolder, LoopState, read_weights, step_of, write_json
from .data import hub_id
from .estimate import readable_time
from .evaluation import describe, evaluate_model, evaluation_group, predict_rows
from .optimization import average_states
from .recipe import Recipe
from .task import Task, build_model, head_of


logger = logging.getLogger("glassformer")


def finish(task: Task, accelerator: Accelerator, folder: Path, checkpoints: CheckpointFolder, state: LoopState) -> None:
    """Choose the final weights, measure them on every split, and write down what the run was."""
    recipe = task.recipe
    chosen = choose_checkpoints(recipe, checkpoints, state)
    if accelerator.is_main_process:
        save_model(task, folder, chosen)
    accelerator.wait_for_everyone()
    model = head_of(task).from_pretrained(folder).to(accelerator.device).eval()
    results: dict[str, Any] = {}
    samples, group = None, evaluation_group(accelerator)
    for split in ("validation", "test"):
        if split in task.rows:
            rows = task.rows[split]
            results[split], predictions = evaluate_model(
                model, task.objective, rows, task.encoded[split], recipe.evaluation, task.block_size, group
            )
            samples = (rows, predictions)
    if not accelerator.is_main_process:
        return
    write_json(folder / "metrics.json", results)
    write_samples(task, model, folder, samples)
    report.draw_curves(folder / "log.jsonl", folder / "curves.png", recipe.name)
    manifest = describe_run(task, model, state, chosen, results)
    report.write_manifest(folder, manifest)
    logger.info(
        f"{state.step} updates, {state.tokens:,} tokens, {manifest['padding']:.1%} padding, {readable_time(state.seconds)}, "
        f"{manifest['waiting']:.1%} of it waiting for data."
    )
    for split, values in results.items():
        logger.info(f"{split}: {describe(values)}")
    logger.info(f"Everything is in {folder}.")


def describe_run(
    task: Task, model: PreTrainedModel, state: LoopState, chosen: list[Path], results: dict[str, Any]
) -> dict[str, Any]:
    """What `run.json` says, beside the versions."""
    recipe = task.recipe
    return {
        "recipe": recipe.to_dict(),
        "objective": recipe.objective.name,
        "parameters": model.num_parameters(),
        "seed": recipe.seed,
        "processes": state.processes,
        "updates": state.step,
        "epochs": state.position.epoch,
        "tokens": state.tokens,
        "padding": 1 - state.tokens / max(state.padded, 1),
        "seconds": state.seconds,
        "waiting": state.waited / max(state.seconds, 1e-9),
        "best": {"metric": recipe.evaluation.best or task.objective.best, "value": state.best, "update": state.best_step},
        "weights_from": [path.name for path in chosen],
        "rows": {split: len(rows) for split, rows in task.rows.items() if isinstance(rows, Dataset)},
        "hub_dataset": hub_id(recipe.data),
        "data_fingerprints": task.fingerprints,
        "metrics": results,
    }


def choose_checkpoints(recipe: Recipe, checkpoints: CheckpointFolder, state: LoopState) -> list[Path]:
    """Those whose weights become the model; several are averaged."""
    options = recipe.checkpoints
    everything = checkpoints.all()
    if options.final == "average":
        regular = [path for path in checkpoints.all("step") if options.every is None or step_of(path) % options.every == 0]
        return (regular or everything)[-options.average :]
    if options.final == "best" and state.best_step is not None:
        if found := checkpoints.find(state.best_step):
            return [found]
        raise CheckpointError(f"The best checkpoint, of update {state.best_step}, is gone from {checkpoints.folder}.")
    return everything[-1:]


def save_model(task: Task, folder: Path, chosen: list[Path]) -> None:
    """Weights, config, tokenizer, generation defaults and code: moved into place when all of them are written."""
    weights = average_states(read_weights(path, average=task.recipe.training.ema is not None) for path in chosen)
    model = build_model(task)
    model.load_state_dict(weights, strict=False)  # a tied weight is there under one of its names
    partial = folder / ".model.partial"
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    task.tokenizer.model_max_length = min(task.tokenizer.model_max_length, task.config.max_position_embeddings)
    task.tokenizer.save_pretrained(partial)
    if task.target_tokenizer is not None:
        task.target_tokenizer.save_pretrained(partial / "target_tokenizer")
    for path in partial.iterdir():
        if (folder / path.name).is_dir():
            shutil.rmtree(folder / path.name)
        path.replace(folder / path.name)
    partial.rmdir()


def write_samples(task: Task, model: PreTrainedModel, folder: Path, measured: tuple[Any, list[Any]] | None) -> None:
    """A few rows with what the model makes of them."""
    count = task.recipe.evaluation.samples
    if measured is None or not count:
        return
    rows, predictions = measured
    rows = [rows[number] for number in range(min(count, len(rows)))]
    if not predictions:
        rows = task.objective.sample_prompts(rows)
        predictions = predict_rows(model, task.objective, rows, {})
    answers = [task.objective.readable(prediction) for prediction in predictions[:count]]
    report.write_predictions(folder / "predictions.jsonl", rows, answers)
