# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Checkpoints that are complete or absent, and the folder of a run that holds them.

A checkpoint is written beside its place, with a checksum of every file, synced to disk and then renamed: whatever happens in
between, what bears the name of a checkpoint is whole. Weights and optimiser state are safetensors, the rest is JSON: nothing in
it can execute code.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict
from torch.optim import Optimizer

from .batching import Position
from .recipe import Recipe


MANIFEST = "checksums.json"
WEIGHTS, AVERAGE, OPTIMIZER, LOOP = "model.safetensors", "average.safetensors", "optimizer.safetensors", "loop.json"
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


logger = logging.getLogger("glassformer")


class CheckpointError(RuntimeError):
    """A run that cannot be saved or gone on with; the message says why and what to do."""


@dataclasses.dataclass
class LoopState:
    """All that the loop knows beside weights and optimiser: numbers, so that it can be read by eye."""

    step: int = 0
    position: Position = dataclasses.field(default_factory=Position)
    tokens: int = 0  # seen so far, padding not counted
    padded: int = 0  # the same with padding
    seconds: float = 0.0
    waited: float = 0.0  # seconds of these in which the next batch was not ready
    loss_sum: float = 0.0  # since the last line of the log
    loss_count: int = 0
    best: float | None = None
    best_step: int | None = None
    evaluations_without_gain: int = 0
    health: dict[str, Any] = dataclasses.field(default_factory=dict)
    schedulers: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    optimizer_groups: list[list[dict[str, Any]]] = dataclasses.field(default_factory=list)
    scaler: dict[str, Any] | None = None
    log_bytes: int = 0  # what the log held when this was written
    processes: int = 1

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "LoopState":
        return cls(**{**content, "position": Position(**content["position"])})


class CheckpointFolder:
    """`step-00000100`, `step-00000200`, ...: the newest `keep` of them.

    Beside these there may be one `best-...`, where the best evaluation fell between two steps, and one `pause-...`, where the
    run was interrupted: neither takes the place of another, so an interruption does not change what is kept or averaged.
    """

    def __init__(self, folder: Path, keep: int):
        self.folder, self.keep = folder, keep

    def all(self, kind: str = "*") -> list[Path]:
        """Oldest first."""
        return sorted(self.folder.glob(f"{kind}-{'[0-9]' * 8}"), key=lambda path: (step_of(path), path.name))

    def find(self, step: int) -> Path | None:
        return next((path for path in self.all() if step_of(path) == step), None)

    def save(self, kind: str, step: int, write: Callable[[Path], None], best_step: int | None) -> Path:
        """`write` fills a folder; it becomes the checkpoint when all of it is on disk."""
        path = self.folder / f"{kind}-{step:08d}"
        try:
            write_whole(path, write)
        except (OSError, SafetensorError) as error:
            rest = f"{self.all()[-1]} is whole" if self.all() else "there is no earlier one"
            raise CheckpointError(
                f"Checkpoint {path} could not be written ({error}): make room or change permissions, then start the same "
                f"command again; {rest}."
            ) from error
        outdated = [*self.all("step")[: -self.keep], *self.all("best"), *self.all("pause")]
        for old in outdated:
            if old != path and step_of(old) != best_step:
                discard(old)
        return path

    def newest(self) -> Path | None:
        """The newest checkpoint that is whole; damaged ones are passed over with a warning."""
        for path in reversed(self.all()):
            problem = find_damage(path)
            if problem is None:
                return path
            logger.warning(f"{path} is damaged ({problem}): the checkpoint before it is used.")
        return None

    def clean(self) -> None:
        """Remove what an interrupted process has left half done."""
        for partial in self.folder.glob(".*"):
            shutil.rmtree(partial, ignore_errors=True)


def step_of(path: Path) -> int:
    return int(path.name.partition("-")[2])


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        write(partial)
        files = sorted(file for file in partial.rglob("*") if file.is_file())
        sums = {str(file.relative_to(partial)): checksum(file) for file in files}
        (partial / MANIFEST).write_text(json.dumps(sums, indent=1))
        for file in (*files, partial / MANIFEST, partial):
            sync(file)
        discard(path)
        partial.rename(path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def discard(path: Path) -> None:
    """Renamed first: a folder that is half removed must not pass for a checkpoint."""
    if path.exists():
        doomed = path.with_name(f".{path.name}.old")
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        sums = json.loads((path / MANIFEST).read_text())
        for name, expected in sums.items():
            if checksum(path / name) != expected:
                return f"{name} has changed"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, AttributeError) as error:
        return f"{MANIFEST} cannot be read: {error}"
    return None


# Optimiser state, whatever way the model is spread over processes


def gather_optimizers(model: nn.Module, optimizers: list[Optimizer]) -> dict[str, Tensor]:
    """The whole state, by parameter and name. Every process must call it; the first one gets the tensors."""
    state: dict[str, Any] = get_optimizer_state_dict(model, optimizers, options=WHOLE).get("state", {})  # type: ignore[assignment]
    return {
        f"{parameter}/{name}": torch.as_tensor(value) for parameter, values in state.items() for name, value in values.items()
    }


def restore_optimizers(model: nn.Module, optimizers: list[Optimizer], file: Path) -> None:
    """What `gather_optimizers` has saved. The first process reads it and hands it on; hyperparameters are the recipe's."""
    current: dict[str, Any] = get_optimizer_state_dict(model, optimizers, options=WHOLE)
    if current:
        saved = load_file(file)
        names = {f"{parameter}/{name}": (parameter, name) for parameter, values in current["state"].items() for name in values}
        if set(names) != set(saved):
            raise CheckpointError(f"{file} belongs to another model or optimiser: set output to another folder.")
        for key, (parameter, name) in names.items():
            was_tensor = isinstance(current["state"][parameter][name], Tensor)
            current["state"][parameter][name] = saved[key] if was_tensor else saved[key].item()
    several = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=several)
    set_optimizer_state_dict(model, optimizers, current, options=options)


def group_settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """What the groups of parameters hold beside them: the learning rate of the moment, counters of some optimisers."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def restore_groups(optimizer: Optimizer, settings: list[dict[str, Any]]) -> None:
    for group, saved in zip(optimizer.param_groups, settings):
        group |= {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}


def write_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(whole, file, metadata={"format": "pt"})


def write_json(file: Path, content: Any) -> None:
    """Complete or absent, like everything here."""
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    sync(partial)
    partial.replace(file)


# The folder of a run

# What may differ between a run and its continuation without changing what is learnt.
FREE = (
    "description", "output", "resume", "logging", "checkpoints.keep", "training.minutes", "batching.workers", "name",
    "reference", "card", "evaluation.samples",
)  # fmt: skip


@contextlib.contextmanager
def open_run(recipe: Recipe, is_main: bool) -> Iterator[Path]:
    """The output folder, for one run at a time. A folder that holds anything else is refused."""
    folder = recipe.folder
    if not is_main:
        yield folder
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise CheckpointError(f"Another process is training in {folder}: wait for it, or set output to another folder.") from None
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written to ({error.strerror}): set output to another folder.") from error
    try:
        check_folder(folder, recipe)
        yield folder
    finally:
        lock.release()


def check_folder(folder: Path, recipe: Recipe) -> None:
    written = folder / "recipe.yaml"
    if not written.exists():
        if others := [path.name for path in folder.iterdir() if path.name != ".lock"]:
            raise CheckpointError(f"{folder} holds {others[0]}, which is no training run: set output to another folder.")
    else:
        before = yaml.safe_load(written.read_text(encoding="utf-8"))
        differences = compare(before, recipe.to_dict())
        if differences and is_untrained(folder):  # refused before its first update: what stands there is of no use
            shutil.rmtree(folder / "tokenizer", ignore_errors=True)
        elif differences:
            raise CheckpointError(
                f"{folder} holds a run of another recipe: {'; '.join(differences)}. Take these back, or set output to "
                f"another folder."
            )
        if recipe.resume == "never":
            raise CheckpointError(f"{folder} holds a run already, and resume=never: remove it, or set output to another folder.")
    partial = folder / ".recipe.yaml.partial"
    partial.write_text(recipe.to_yaml(), encoding="utf-8")
    partial.replace(written)


def is_untrained(folder: Path) -> bool:
    return {path.name for path in folder.iterdir()} <= {".lock", "recipe.yaml", "tokenizer"}


def compare(before: Any, now: Any, key: str = "") -> list[str]:
    """`key was X and is now Y` for everything that a continued run must not change."""
    if key in FREE:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        names = [*before, *(name for name in now if name not in before)]
        return [
            difference
            for name in names
            for difference in compare(before.get(name), now.get(name), f"{key}.{name}" if key else name)
        ]
    return [] if before == now else [f"{key} was {before} and is now {now}"]


def read_weights(checkpoint: Path, average: bool) -> dict[str, Tensor]:
    """The weights to use: their moving average if the run keeps one."""
    return load_file(checkpoint / (AVERAGE if average else WEIGHTS))
