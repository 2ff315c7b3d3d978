# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What a run tells while it is going on: a progress bar, `log.jsonl`, TensorBoard and, if asked for, Weights & Biases."""

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import transformers
from accelerate import Accelerator
from tqdm.auto import tqdm

from .estimate import readable_time
from .recipe import Logging, Recipe, RecipeError


logger = logging.getLogger("glassformer")


def tracker_names(options: Logging) -> list[str]:
    if options.wandb:
        try:
            import wandb  # noqa: F401
        except ImportError:
            raise RecipeError("logging.wandb=true needs the package wandb: pip install wandb.") from None
    return ["tensorboard"] * options.tensorboard + ["wandb"] * options.wandb


def hide_small_progress_bars() -> None:
    """transformers draws a bar for every file that it reads or writes: of no use where that takes a second."""
    transformers.utils.logging.disable_progress_bar()


class RunLog:
    """One line of JSON a record. A run that goes on cuts off what an earlier process wrote after the checkpoint."""

    def __init__(self, folder: Path, accelerator: Accelerator, recipe: Recipe, step: int, total: int | None, size: int):
        self.accelerator, self.is_main = accelerator, accelerator.is_main_process
        self.path = folder / "log.jsonl"
        if not self.is_main:
            return
        self.path.touch()
        # After a crash of the machine there may be less than the checkpoint knew of, and half a line at the end.
        os.truncate(self.path, self.path.read_bytes()[:size].rfind(b"\n") + 1)
        self.file = self.path.open("a", encoding="utf-8")
        accelerator.init_trackers(recipe.name, init_kwargs={"tensorboard": {"purge_step": step + 1}})
        self.first, self.total = step, total
        self.bar = tqdm(total=total, initial=step, unit="step", dynamic_ncols=True, disable=not sys.stderr.isatty())
        self.started, self.tokens = time.perf_counter(), 0

    @property
    def size(self) -> int:
        """Bytes written so far, which a checkpoint notes."""
        return self.path.stat().st_size if self.is_main else 0

    def record(self, step: int, **values: Any) -> None:
        if self.is_main:
            self.file.write(json.dumps({"step": step, **values}) + "\n")
            self.file.flush()
            numbers = {name: value for name, value in flat(values).items() if isinstance(value, (int, float))}
            self.accelerator.log(numbers, step=step)

    def report(self, step: int, loss: float, lr: float) -> None:
        """A line for those who do not see the bar."""
        if self.is_main and self.bar.disable:
            rate = (time.perf_counter() - self.started) / max(step - self.first, 1)
            left = "" if self.total is None else f", {readable_time(rate * (self.total - step))} left"
            total = "" if self.total is None else f"/{self.total}"
            logger.info(f"update {step}{total}: loss {loss:.4f}, lr {lr:.2e}, {self.tokens_per_second:,.0f} tokens/s{left}")

    def progress(self, loss: float, lr: float, tokens: int) -> None:
        if self.is_main:
            self.tokens += tokens
            self.bar.update(1)
            self.bar.set_postfix_str(f"loss {loss:.3f}, lr {lr:.2e}, {self.tokens_per_second:,.0f} tokens/s", refresh=False)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(time.perf_counter() - self.started, 1e-9)

    def say(self, text: str) -> None:
        if self.is_main:
            if not self.bar.disable:
                self.bar.clear()
            logger.info(text)

    def close(self) -> None:
        if self.is_main:
            self.bar.close()
            self.file.close()
            for tracker in self.accelerator.trackers:
                tracker.finish()


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"validation": {"loss": 1}} -> {"validation/loss": 1}"""
    pairs: dict[str, Any] = {}
    for name, value in values.items():
        pairs |= flat(value, f"{prefix}{name}/") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return pairs


def read_log(path: Path) -> list[dict[str, Any]]:
    """JSON, a record a line; a text in it may hold what Unicode calls the end of a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
