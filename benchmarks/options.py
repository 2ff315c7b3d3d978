# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What the user asks of a benchmark, and the checks of it."""

import dataclasses
import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .interleave import Entry, Measurements, interleave


SIZES = ("small", "base")


@dataclass
class Options:
    """`rounds` None: 9, or 3 if quick. `only` names contestants, all if empty. `device` is a kind, as torch calls it."""

    rounds: int | None = None
    threads: int | None = None
    size: str | None = None
    only: list[str] = field(default_factory=list)
    output: Path = Path("runs/benchmark")
    quick: bool = False
    same_settings: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.size is not None and self.size not in SIZES:
            raise ValueError(f"There is no size {self.size!r}: choose one of {', '.join(SIZES)}, or leave it out for both.")
        for name in ("rounds", "threads"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"--{name} {value} is too few: give at least 1.")
        if self.quick and self.size == "base":
            raise ValueError("--quick measures the small size only: leave out --quick or --size base.")
        check_device(self.device)
        self.rounds = self.rounds or (3 if self.quick else 9)
        self.threads = self.threads or available_cores()

    @property
    def sizes(self) -> tuple[str, ...]:
        return ("small",) if self.quick else SIZES if self.size is None else (self.size,)

    @property
    def dropouts(self) -> tuple[float, ...]:
        return (0.1,) if self.quick else (0.1, 0.0)

    @property
    def seconds(self) -> float:
        """Of one contestant's turn, at least: what takes less is done several times."""
        return 0.2 if self.quick else 0.5

    def wants(self, name: str) -> bool:
        return not self.only or name in self.only

    def check_names(self, known: Iterable[str]) -> None:
        known = list(known)
        for name in self.only:
            if name not in known:
                nearest = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {nearest[0]}?" if nearest else f"choose from {', '.join(known)}."
                raise ValueError(f"There is no contestant {name!r}: {hint}")

    def interleave(self, entries: Iterable[Entry], settings: Mapping[str, Mapping[str, Any]] | None = None) -> Measurements:
        assert self.rounds is not None and self.threads is not None
        return interleave(map(self.placed, entries), self.rounds, settings, threads=self.threads)

    def placed(self, entry: Entry) -> Entry:
        """On the device. What `glassformer train` sets up is for a CPU."""
        like_training = (entry.like_training or self.same_settings) and self.device == "cpu"
        return dataclasses.replace(entry, like_training=like_training, arguments={**entry.arguments, "device": self.device})


def check_device(device: str) -> None:
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    known = ["cpu"] if accelerator is None else ["cpu", accelerator.type]
    if device not in known:
        raise ValueError(f"torch sees no device {device!r} on this machine: give --device {' or '.join(known)}.")


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
