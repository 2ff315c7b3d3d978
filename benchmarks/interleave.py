# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The asking side: contestants in processes of their own take turns, round by round, and statistics of what they report.

A process each, so that every library has the settings that it usually has, and memory can be read for each alone. In turns and in
a new order each round, so that whatever else the machine does meets all of them alike. A ratio is taken within a round.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


Result = dict[str, Any]


@dataclass
class Entry:
    """A contestant: `prepare` names a function as "module:function", which is called with the arguments in a new process.

    `like_training` sets up the process as `glassformer train` does: its memory, and its matrix products. `threads` are its own
    where it does not have as many as the others.
    """

    name: str
    prepare: str
    arguments: dict[str, Any] = field(default_factory=dict)
    like_training: bool = False
    threads: int | None = None


@dataclass
class Measurements:
    """What the contestants have reported: facts at the start, then for each setting and contestant a result a round."""

    facts: dict[str, Result] = field(default_factory=dict)
    rounds: dict[str, dict[str, list[Result | None]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def values(self, name: str, key: str, setting: str = "") -> list[float | None]:
        """One number of each round, None where there is no result."""
        return [None if result is None else result[key] for result in self.rounds[setting][name]]

    def names(self, setting: str = "") -> list[str]:
        """Contestants that have a result."""
        return [name for name, results in self.rounds[setting].items() if any(result is not None for result in results)]


class WorkerDied(Exception):
    """The message is the last thing that the process said."""


class LeftOut(Exception):
    """The message says which package is missing."""


class Worker:
    """A process that prepares one contestant and runs a round of it whenever it is asked to."""

    def __init__(self, entry: Entry, environment: Mapping[str, str]):
        self.entry = entry
        # Not a pipe: one that nobody reads would fill up.
        self.stderr = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "glassformer.benchmarks.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr, text=True, env={**os.environ, **environment},
        )  # fmt: skip
        self.send({"prepare": entry.prepare, "arguments": entry.arguments, "like_training": entry.like_training})

    def send(self, message: Result) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `receive` finds out why
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def receive(self) -> Result:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise WorkerDied(self.last_words())
        answer = json.loads(line)
        if "missing" in answer:
            raise LeftOut(answer["missing"])
        return answer

    def run(self, setting: Mapping[str, Any]) -> Result:
        self.send({"round": dict(setting)})
        return self.receive()["result"]

    def last_words(self) -> str:
        code = self.process.wait()
        self.stderr.seek(0)
        lines = [line.strip() for line in self.stderr if line.strip()]
        return lines[-1] if lines else f"it ended with code {code} and said nothing"

    def close(self) -> None:
        self.process.kill()  # there is nothing to save
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # what it was told last, it has not read
                    stream.close()


def interleave(
    entries: Iterable[Entry],
    rounds: int,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    threads: int = 1,
    seed: int = 0,
) -> Measurements:
    """Every contestant once a round, in each of the `settings`, after one round that does not count."""
    settings = {"": {}} if settings is None else settings
    rng = random.Random(seed)
    measured = Measurements(rounds={label: {} for label in settings})
    workers: dict[str, Worker] = {}
    try:
        for entry in entries:
            workers[entry.name] = Worker(entry, thread_settings(entry.threads or threads))
        for name in list(workers):
            _ask(workers, name, measured, lambda worker: measured.facts.update({worker.entry.name: worker.receive()["ready"]}))
        for number in range(rounds + 1):
            for label, setting in settings.items():
                for name in rng.sample(list(workers), len(workers)):
                    result = _ask(workers, name, measured, lambda worker, setting=setting: worker.run(setting))
                    if number > 0:
                        measured.rounds[label].setdefault(name, [None] * rounds)[number - 1] = result
    finally:
        for worker in workers.values():
            worker.close()
    order = list(measured.facts)
    measured.rounds = {label: {name: by[name] for name in order if name in by} for label, by in measured.rounds.items()}
    return measured


def _ask(workers: dict[str, Worker], name: str, measured: Measurements, question) -> Any:
    """The answer, or None from a worker that cannot give one: it is taken out, with a note."""
    try:
        return question(workers[name])
    except LeftOut as missing:
        measured.notes.append(f"{name} is left out, for {missing} is not installed: pip install 'glassformer[benchmark]'.")
    except WorkerDied as last_words:
        measured.notes.append(f"{name} is left out from here on, for its process has died: {last_words}")
    workers.pop(name).close()
    return None


def thread_settings(threads: int) -> dict[str, str]:
    """Every library that we know reads one of these."""
    return {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


# Statistics


class Spread(NamedTuple):
    """The median, and the quartiles below and above it."""

    median: float
    low: float
    high: float

    def scaled(self, factor: float) -> "Spread":
        return Spread(self.median * factor, self.low * factor, self.high * factor)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def spread(values: Iterable[float | None]) -> Spread:
    low, median, high = np.percentile([value for value in values if value is not None], [25, 50, 75])
    return Spread(float(median), float(low), float(high))


def ratios(above: Iterable[float | None], below: Iterable[float | None]) -> Spread | None:
    """Of two contestants' values in the same rounds; None if there is no round that both have finished."""
    pairs = [(a, b) for a, b in zip(above, below) if a is not None and b is not None]
    return spread([a / b for a, b in pairs]) if pairs else None
