# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Whether training waits for its data: the share of time in which the next batch was not ready, recipe by recipe.

Each recipe trains as `glassformer train` does it, in a process of its own, but is neither evaluated nor saved meanwhile: all that
is counted are updates, and what it took to get their batches. What an epoch begins with, an order of its own or words cut anew,
is spread over the updates of the epoch, of which a turn may see few.
"""

import dataclasses
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.training.loop import Training
from glassformer.training.recipe import load_recipe, recipe_names

from .interleave import Entry, Measurements, spread
from .options import Options
from .report import Table
from .worker import Prepared


logger = logging.getLogger("glassformer")

GOAL = 0.02
TURN = 20  # times as long as those of other benchmarks
ROUNDS = 3
CORPORA = "GLASSFORMER_DATA"


# In the recipe's process


def prepare(recipe: str, folder: str, seconds: float, device: str) -> Prepared:
    from glassformer.training.devices import make_accelerator
    from glassformer.training.task import prepare as prepare_task

    if device == "cpu":
        os.environ["ACCELERATE_USE_CPU"] = "true"
    endless = ["training.epochs=null", "training.steps=1000000", f"training.minutes={seconds / 60}", f"output={folder}"]
    loaded = load_recipe(recipe, endless)
    task, accelerator = prepare_task(loaded, Path(folder)), make_accelerator(loaded)

    def run() -> dict[str, Any]:
        training = UpdatesAlone(task, accelerator, Path(folder))
        training.run()
        accelerator.free_memory()  # it would keep the models of all rounds
        return training.of_an_update()

    return {}, run


class UpdatesAlone(Training):
    """Neither evaluated nor saved."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.beginnings: list[float] = []  # seconds until the first batch of each epoch

    def is_due(self, every: int | None, ends_epoch: bool) -> bool:
        return False

    def timed(self, updates: Iterator[Any]) -> Iterator[Any]:
        before = self.state.waited
        for number, update in enumerate(super().timed(updates)):
            if number == 0:
                self.beginnings.append(self.state.waited - before)
            yield update

    def of_an_update(self) -> dict[str, float]:
        """Its seconds, and the share of them that it waits."""
        updates, waited = self.state.step, self.state.waited
        computing = (self.state.seconds - waited) / updates
        waiting = (waited - sum(self.beginnings)) / updates + np.mean(self.beginnings) / self.loader.num_updates(1)
        return {"waiting": float(waiting / (computing + waiting)), "seconds": float(computing + waiting)}


# In the process that asks


def measure(options: Options) -> Iterator[Table]:
    assert options.rounds is not None
    options = dataclasses.replace(options, rounds=1 if options.quick else min(options.rounds, ROUNDS))
    measured, absent = Measurements(rounds={"": {}}), []
    for recipe in filter(options.wants, recipe_names()):
        if CORPORA in str(load_recipe(recipe).data) and CORPORA not in os.environ:
            absent.append(recipe)
            continue
        logger.info(f"data: {recipe}")
        # One after the other: a share of a run's own time is not compared with that of others.
        with tempfile.TemporaryDirectory() as folder:
            arguments = {"recipe": recipe, "folder": folder, "seconds": TURN * options.seconds}
            of_recipe = options.interleave([Entry(recipe, f"{__name__}:prepare", arguments)])
        measured.rounds[""].update(of_recipe.rounds[""])
        measured.notes += of_recipe.notes
    if absent:
        measured.notes.append(f"Left out, for ${CORPORA}, the folder of their corpora, is not set: {', '.join(absent)}.")
    yield waiting_table(measured)


def waiting_table(measured: Measurements) -> Table:
    found: dict[str, dict[str, Any]] = {
        recipe: {
            "waiting": spread(measured.values(recipe, "waiting")),
            "seconds": spread(measured.values(recipe, "seconds")),
            "rounds": measured.rounds[""][recipe],
        }
        for recipe in measured.names()
    }
    late = [recipe for recipe, result in found.items() if result["waiting"].median >= GOAL]
    verdict = (
        f"Longer than {GOAL:.0%} of the time: {', '.join(late)}." if late else f"None waits longer than {GOAL:.0%} of its time."
    )
    return Table(
        title="time that training waits for data",
        columns=["recipe", "ms an update", "waiting, %"],
        rows=[
            [recipe, f"{1e3 * result['seconds'].median:.1f}", str(result["waiting"].scaled(100))]
            for recipe, result in found.items()
        ],
        notes=[verdict if found else "There is nothing to measure.", *measured.notes],
        bars={recipe: result["waiting"].scaled(100) for recipe, result in found.items()},
        bar_label="% of the time of training",
        data={"goal": GOAL, "recipes": found},
    )
