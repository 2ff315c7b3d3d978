# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The training loop, told from top to bottom: `train` prepares and runs, `update` is one step of learning.

Three rules make it exact. The loss of an update is a sum over its labels divided by their number in all batches of all
processes, so the gradient does not depend on how they were split. Order of data, noise and dropout are functions of the seed and
of counters, so a run that was stopped goes on as if it had not been. And a step is followed by log, evaluation and checkpoint in
this order, so a checkpoint knows everything that was told before it.
"""

import contextlib
import dataclasses
import json
import logging
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, broadcast_object_list
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import DTensor

from .batching import Loader, MicroBatch, Position, seed_for
from .checkpoints import (
    AVERAGE,
    LOOP,
    OPTIMIZER,
    WEIGHTS,
    WHOLE,
    CheckpointFolder,
    LoopState,
    gather_optimizers,
    group_settings,
    open_run,
    read_weights,
    restore_groups,
    restore_optimizers,
    write_json,
    write_tensors,
)
from .devices import make_accelerator, reshard, spread
from .evaluation import ALONE, Group, check_metrics, describe, evaluate_model, evaluation_group
from .finish import finish
from .health import Health
from .logs import RunLog
from .metrics import is_better
from .optimization import WeightAverage, make_optimizers, make_schedule
from .recipe import Recipe, RecipeError, pretraining_of, scaled, starting_from, without_pretraining
from .task import Task, build_model, prepare


logger = logging.getLogger("glassformer")

Update = tuple[list[MicroBatch], Position, bool]  # batches, the place after them, and whether they end the epoch


class Diverged(RuntimeError):
    """The loss is no number any more."""


class Interrupted(Exception):
    """Stopped by a signal, with everything saved."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.exit_code = 128 + signal_number


def train(recipe: Recipe) -> Path:
    """Train what the recipe says -> the folder with the model, or with what it takes to go on."""
    recipe = scaled(recipe)
    if recipe.pretraining is not None and recipe.baseline is not None:
        recipe = without_pretraining(recipe)
    if recipe.pretraining is not None:
        recipe = starting_from(train(pretraining_of(recipe)), recipe)
    accelerator = make_accelerator(recipe)
    with open_run(recipe, accelerator.is_main_process) as folder:
        accelerator.wait_for_everyone()
        if (folder / "run.json").exists():
            logger.info(f"{folder} holds this run already, finished: nothing is left to do.")
            return folder
        with accelerator.main_process_first():
            task = prepare(recipe, folder)
        training = Training(task, accelerator, folder)
        training.run()
        finish(task, accelerator, folder, training.checkpoints, training.state)
        accelerator.wait_for_everyone()
    return folder


class Training:
    """A run in memory: model, optimisers, data, and where it stands."""

    def __init__(self, task: Task, accelerator: Accelerator, folder: Path):
        self.task, self.recipe, self.objective = task, task.recipe, task.objective
        self.accelerator, self.folder = accelerator, folder
        check_metrics(self.objective, self.recipe.evaluation.metrics or ())
        self.checkpoints = CheckpointFolder(folder / "checkpoints", self.recipe.checkpoints.keep)
        self.loader = Loader(
            task.source(), self.objective.collate, self.recipe.batching, accelerator.process_index, accelerator.num_processes
        )
        self.total = total_updates(self.recipe, self.loader)
        checkpoint = self.newest_checkpoint()
        self.build(checkpoint)
        self.resume(checkpoint)
        self.last_norms: deque[float] = deque(maxlen=5)
        self.session_start, self.seconds_before = time.perf_counter(), self.state.seconds

    # The story

    def run(self) -> None:
        self.log = RunLog(
            self.folder, self.accelerator, self.recipe, self.state.step, self.total, self.state.log_bytes
        )  # fmt: skip
        self.log.say(self.introduction())
        try:
            with StopSignal() as self.stop:
                while not self.is_over:
                    self.run_epoch()
        finally:
            self.log.close()

    def run_epoch(self) -> None:
        self.model.train()
        epoch = self.state.position.epoch
        for batches, position, ends_epoch in self.timed(with_last(self.loader.updates(self.state.position))):
            with self.looking_inside(batches):
                self.update(batches)
            self.state.position = Position(epoch + 1) if ends_epoch else position
            self.after_update(ends_epoch)
            if self.is_over:
                return
        if self.state.position.epoch == epoch:
            raise RecipeError("The training data has no rows: nothing can be learnt from it.")

    def timed(self, updates: Iterator[Update]) -> Iterator[Update]:
        """The same, with a note of how long each one let us wait."""
        while True:
            start = time.perf_counter()
            update = next(updates, None)
            self.state.waited += time.perf_counter() - start
            if update is None:
                return
            yield update

    def update(self, batches: list[MicroBatch]) -> None:
        """One step: the gradient of the mean loss over all labels of all batches of all processes."""
        total, tokens, padded = self.measure(batches)
        losses = [self.backward(batch, max(total, 1), last=batch is batches[-1]) for batch in batches]
        [self.loss] = self.sum_over_processes(sum(losses))
        self.norm = self.clip_gradients()
        self.stop_if_diverged(batches)
        self.lr = float(self.schedulers[0].get_last_lr()[0])
        for optimizer, scheduler in zip(self.optimizers, self.schedulers):
            optimizer.step()
            if not optimizer.step_was_skipped:  # float16 skips where gradients overflow
                scheduler.step()
            optimizer.zero_grad()
        if self.average is not None:
            self.average.update(self.plain_model)
        self.count(tokens, padded)

    def backward(self, batch: MicroBatch, total: int, last: bool) -> float:
        """Adds this batch's part of the gradient -> its part of the mean loss."""
        torch.manual_seed(seed_for(self.recipe.seed, self.state.position.epoch, batch.index))  # of dropout
        tensors = {name: tensor.to(self.accelerator.device, non_blocking=True) for name, tensor in batch.tensors.items()}
        with contextlib.nullcontext() if last else self.accelerator.no_sync(self.model):
            loss = self.model(**tensors, num_items_in_batch=total, **self.loss_options).loss
            if not batch.counts:
                loss = loss * 0.0
            # Processes average their gradients, but what is wanted is the sum.
            self.accelerator.backward(loss * self.accelerator.num_processes, **self.backward_options)
        return float(loss.detach())

    def after_update(self, ends_epoch: bool) -> None:
        """Log, evaluation and checkpoint, as far as they are due, in this order."""
        self.tell()
        stopped = self.agree_to_stop()
        evaluates = self.is_due(self.recipe.evaluation.every, ends_epoch)
        improved = evaluates and self.has_validation and self.evaluate()
        saves = self.is_due(self.recipe.checkpoints.every, ends_epoch) if self.recipe.checkpoints.every else evaluates
        if saves or improved:
            self.save("step" if saves else "best")
        if stopped:
            if not saves:
                self.save("pause")
            raise self.interruption()

    @contextlib.contextmanager
    def looking_inside(self, batches: list[MicroBatch]) -> Iterator[None]:
        """Around an update; what hooks see goes to the log if that is due."""
        every, step = self.recipe.logging.inside, self.state.step + 1
        if not every or step % every:
            yield
            return
        from glassformer.analysis.inside import look_inside

        batch = {name: tensor.to(self.accelerator.device) for name, tensor in batches[0].tensors.items()}
        with look_inside(self.plain_model, batch) as found:
            yield
        self.log.record(step, inside=found)

    # Beginnings

    def newest_checkpoint(self) -> Path | None:
        found: list[Any] = [None]
        if self.accelerator.is_main_process:
            self.checkpoints.clean()
            found = [self.checkpoints.newest()]
        return broadcast_object_list(found)[0]

    def build(self, checkpoint: Path | None) -> None:
        options = self.recipe.training
        model = build_model(self.task, checkpoint)
        if options.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        self.backward_options: dict[str, Any] = {}
        self.loss_options = self.objective.loss_options
        if self.recipe.optimizer.name == "sophia":  # which differentiates the gradient once more
            model.set_attn_implementation("eager")
            self.loss_options = {}
            self.backward_options["create_graph"] = True
        if options.compile:
            model.compile(dynamic=True)
        optimizers = make_optimizers(model, self.recipe.optimizer, self.recipe.schedule)
        self.schedulers = [
            make_schedule(optimizer, self.recipe.schedule, self.task.config.d_model, self.total) for optimizer in optimizers
        ]
        self.inner_optimizers = optimizers
        self.model, *self.optimizers = spread(self.accelerator, model, optimizers)
        self.plain_model = self.accelerator.unwrap_model(self.model)
        self.average = None if options.ema is None else WeightAverage(self.plain_model, options.ema)

    def resume(self, checkpoint: Path | None) -> None:
        self.state = LoopState(processes=self.accelerator.num_processes)
        if checkpoint is not None:
            self.state = LoopState.from_dict(json.loads((checkpoint / LOOP).read_text()))
            if self.state.processes != self.accelerator.num_processes:
                raise RecipeError(
                    f"{self.folder} was trained by {self.state.processes} processes, now there are "
                    f"{self.accelerator.num_processes}: launch as many, or set output to another folder."
                )
            if self.is_deepspeed:
                self.model.load_checkpoint(self.folder / "deepspeed", tag=str(self.state.step))
            else:
                restore_optimizers(self.model, self.inner_optimizers, checkpoint / OPTIMIZER)
            for optimizer, groups in zip(self.inner_optimizers, self.state.optimizer_groups):
                restore_groups(optimizer, groups)
            for scheduler, saved in zip(self.schedulers, self.state.schedulers):
                scheduler.load_state_dict(saved)
            if self.accelerator.scaler is not None and self.state.scaler is not None:
                self.accelerator.scaler.load_state_dict(self.state.scaler)
            if self.average is not None:
                self.average.load(read_weights(checkpoint, average=True))
        self.health = Health(**self.state.health)

    def introduction(self) -> str:
        batching, processes = self.recipe.batching, self.accelerator.num_processes
        count = sum(p.numel() for p in self.plain_model.parameters())
        size = f"{batching.tokens} tokens" if batching.tokens else f"{batching.examples} examples"
        start = f"goes on after update {self.state.step}" if self.state.step else "begins"
        return (
            f"{self.recipe.name}: {start}, {self.total or 'any number of'} updates in all; {count:,} parameters; batches of "
            f"{size} x {batching.accumulation} x {processes} process{'es' * (processes > 1)} on {self.accelerator.device}."
        )

    # Steps

    def measure(self, batches: list[MicroBatch]) -> tuple[int, ...]:
        """Labels, tokens, and tokens with padding in the batches of all processes."""
        tensors = [batch.tensors for batch in batches if batch.counts]
        labels = sum(self.objective.num_items(each) for each in tensors)
        tokens, padded = (sum(counts) for counts in zip((0, 0), *map(self.objective.count_tokens, tensors)))
        return tuple(map(int, self.sum_over_processes(labels, tokens, padded)))

    def sum_over_processes(self, *values: float) -> list[float]:
        if self.accelerator.num_processes == 1:
            return list(values)
        mine = torch.tensor(values, dtype=torch.float64, device=self.accelerator.device)
        return self.accelerator.reduce(mine, "sum").tolist()

    def clip_gradients(self) -> float:
        limit = self.recipe.optimizer.clip_norm
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), math.inf if limit is None else limit)
        return 0.0 if norm is None else float(whole(norm))  # DeepSpeed does not always tell

    def stop_if_diverged(self, batches: list[MicroBatch]) -> None:
        overflow_is_normal = self.accelerator.mixed_precision == "fp16"
        if math.isfinite(self.loss) and (math.isfinite(self.norm) or overflow_is_normal):
            self.last_norms.append(self.norm)
            return
        what, value = ("loss", self.loss) if not math.isfinite(self.loss) else ("gradient norm", self.norm)
        rows = [row for batch in batches for row in batch.examples][:8]
        norms = ", ".join(f"{norm:.3g}" for norm in self.last_norms) or "none"
        last = self.checkpoints.all()
        raise Diverged(
            f"The {what} became {value} at step {self.state.step + 1} (epoch {self.state.position.epoch}, rows {rows}...; "
            f"gradient norms before: {norms}). Lower optimizer.lr or raise schedule.warmup_steps; the last good checkpoint is "
            f"{last[-1] if last else 'none yet'}."
        )

    def count(self, tokens: int, padded: int) -> None:
        state = self.state
        state.step += 1
        state.loss_sum += self.loss
        state.loss_count += 1
        state.tokens += tokens
        state.padded += padded
        self.log.progress(self.loss, self.lr, tokens)
        for warning in self.health.observe(state.step, self.loss, self.norm):
            self.log.record(state.step, warning=warning)
            logger.warning(warning)

    @property
    def padding(self) -> float:
        """The share of padding in all that was computed on."""
        return 1 - self.state.tokens / max(self.state.padded, 1)

    def tell(self) -> None:
        state = self.state
        state.seconds = self.seconds_before + time.perf_counter() - self.session_start
        if state.step % self.recipe.logging.every and not self.is_over:
            return
        loss = state.loss_sum / state.loss_count
        self.log.report(state.step, loss, self.lr)
        self.log.record(
            state.step,
            epoch=state.position.epoch,
            loss=loss,
            lr=self.lr,
            gradient_norm=self.norm,
            tokens=state.tokens,
            padding=self.padding,
            seconds=state.seconds,
            waited=state.waited,
            tokens_per_second=self.log.tokens_per_second if self.log.is_main else 0.0,
        )
        state.loss_sum, state.loss_count = 0.0, 0

    def is_due(self, every: int | None, ends_epoch: bool) -> bool:
        return self.is_over or (ends_epoch if every is None else self.state.step % every == 0)

    # Ends

    @property
    def is_over(self) -> bool:
        state, limits = self.state, self.recipe.training
        if self.total is not None and state.step >= self.total:
            return True
        if limits.patience is not None and state.evaluations_without_gain >= limits.patience:
            return True
        return limits.minutes is not None and state.seconds > limits.minutes * 60

    def agree_to_stop(self) -> bool:
        """Whether any process was told to stop; and one clock for all."""
        shared = torch.tensor([float(self.stop.number or 0), self.state.seconds], device=self.accelerator.device)
        if self.accelerator.num_processes > 1:
            shared = self.accelerator.gather(shared[None]).max(0).values
            self.state.seconds = float(shared[1])
        self.stop.number = int(shared[0]) or None
        return self.stop.number is not None

    def interruption(self) -> Interrupted:
        number = self.stop.number or signal.SIGTERM
        return Interrupted(
            f"Stopped by {signal.Signals(number).name} after update {self.state.step}; everything is saved in {self.folder}. "
            f"Start the same command again to go on.",
            number,
        )

    # Evaluation and checkpoints

    @property
    def is_deepspeed(self) -> bool:
        return self.accelerator.distributed_type == DistributedType.DEEPSPEED

    @property
    def has_validation(self) -> bool:
        return "validation" in self.task.rows

    @property
    def group(self) -> Group:
        """How processes share an evaluation. A sharded model answers only if all of them ask it the same."""
        if self.is_deepspeed or self.accelerator.distributed_type == DistributedType.FSDP:
            return ALONE
        return evaluation_group(self.accelerator)

    def evaluate(self) -> bool:
        """Record how the model does on validation rows -> whether it is the best so far."""
        rows, encoded = self.task.rows["validation"], self.task.encoded["validation"]
        if (limit := self.recipe.evaluation.limit) is not None:
            rows, encoded = rows.select(range(min(limit, len(rows)))), encoded.select(range(min(limit, len(encoded))))
        with self.averaged_weights(), self.accelerator.autocast():
            results, _ = evaluate_model(
                self.plain_model, self.objective, rows, encoded, self.recipe.evaluation, self.task.block_size, self.group
            )
            reshard(self.plain_model)
        self.log.record(self.state.step, validation=results)
        self.log.say(f"update {self.state.step}: validation {describe(results)}")
        return self.note_best(results)

    def note_best(self, results: dict[str, Any]) -> bool:
        state, key = self.state, self.recipe.evaluation.best or self.objective.best
        if key not in results:
            raise RecipeError(f"evaluation.best={key} is not among the results: choose one of {', '.join(results)}.")
        if not is_better(key, results[key], state.best):
            state.evaluations_without_gain += 1
            return False
        state.best, state.best_step, state.evaluations_without_gain = results[key], state.step, 0
        return True

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        if self.average is None:
            yield
            return
        self.average.swap(self.plain_model)
        try:
            yield
        finally:
            self.average.swap(self.plain_model)

    def save(self, kind: str) -> None:
        state = self.state
        state.health = dataclasses.asdict(self.health)
        state.schedulers = [scheduler.state_dict() for scheduler in self.schedulers]
        state.optimizer_groups = [group_settings(optimizer) for optimizer in self.inner_optimizers]
        state.scaler = None if self.accelerator.scaler is None else self.accelerator.scaler.state_dict()
        state.log_bytes = self.log.size
        weights = self.gather_weights()
        optimizers = {} if self.is_deepspeed else gather_optimizers(self.model, self.inner_optimizers)
        if self.is_deepspeed:  # its engine keeps the optimiser, in files and a format of its own
            self.model.save_checkpoint(self.folder / "deepspeed", tag=str(state.step))
        average = None if self.average is None else {name: whole(tensor) for name, tensor in self.average.weights.items()}

        def write(path: Path) -> None:
            self.task.config.save_pretrained(path)
            write_tensors(path / WEIGHTS, weights)
            write_tensors(path / OPTIMIZER, optimizers)
            if average is not None:
                write_tensors(path / AVERAGE, average)
            write_json(path / LOOP, dataclasses.asdict(state))

        if self.accelerator.is_main_process:
            self.checkpoints.save(kind, state.step, write, state.best_step)
        self.accelerator.wait_for_everyone()

    def gather_weights(self) -> dict[str, Tensor]:
        """Every weight once, tied ones under one name, whole even if they are spread over processes."""
        gather = self.accelerator.get_state_dict if self.is_deepspeed else partial(get_model_state_dict, options=WHOLE)
        state: dict[str, Any] = gather(self.model) or {}
        names = {name for name, _ in self.plain_model.named_parameters()}
        return {name: tensor for name, tensor in state.items() if name in names}


def total_updates(recipe: Recipe, loader: Loader) -> int | None:
    """Where steps and epochs end the run; None if only the clock does."""
    limits = recipe.training
    counts = [] if limits.steps is None else [limits.steps]
    if limits.epochs is not None and not recipe.data.streaming:
        counts.append(loader.num_updates(limits.epochs))
    return min(counts) if counts else None


class StopSignal:
    """Notes SIGTERM and Ctrl-C instead of dying of them; a second one is obeyed at once."""

    def __init__(self) -> None:
        self.number: int | None = None

    def __enter__(self) -> "StopSignal":
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def _note(self, number: int, frame: Any) -> None:
        self.number = number
        logger.warning(f"{signal.Signals(number).name}: saving after this update; send it again to stop at once.")
        signal.signal(number, self.before[number])

    def __exit__(self, *error: Any) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def with_last(updates: Iterator[tuple[list[MicroBatch], Position]]) -> Iterator[Update]:
    """Each update with whether it is the last of its epoch."""
    before = next(updates, None)
    if before is None:
        return
    for update in updates:
        yield *before, False
        before = update
    yield *before, True


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be spread over processes."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
