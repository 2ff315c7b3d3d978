# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Seconds of a training step, forward, backward and update, of every contestant at the same sizes on the same batch."""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .contestants import (
    CASES,
    CONTESTANTS,
    NOTES,
    OURS,
    Case,
    Sizes,
    Trainee,
    build,
    make_batch,
    our_config,
    our_head,
    uneven_lengths,
)
from .interleave import Entry, Measurements, ratios, spread
from .limit import ENTRY, LIMIT
from .options import Options
from .report import Table
from .worker import Prepared


logger = logging.getLogger("glassformer")


# In the contestant's process


def prepare(kind: str, contestant: str, dropout: float, sizes: dict[str, int], seconds: float, device: str) -> Prepared:
    trainee = build(kind, contestant, Sizes(**sizes), dropout, device)
    step = training_step(trainee)
    batch = make_batch(kind, Sizes(**sizes), device)
    repeats = how_often(lambda: step(batch), seconds, device)

    def run() -> dict[str, Any]:
        return {"seconds": timed(lambda: step(batch), repeats, device)}

    return {"parameters": sum(parameter.numel() for parameter in trainee[0].parameters())}, run


def training_step(trainee: Trainee) -> Callable[[Any], None]:
    """A function that makes one update from a batch."""
    model, loss = trainee
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(batch) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(batch).backward()
        optimizer.step()

    return step


def how_often(action: Callable[[], Any], seconds: float, device: str) -> int:
    """Repetitions that take about so long. The first ones are slow: what they take is not what counts."""
    action()
    return max(1, math.ceil(seconds / min(timed(action, 1, device), timed(action, 1, device))))


def timed(action: Callable[[], Any], repeats: int, device: str) -> float:
    """Seconds of one repetition."""
    wait_for(device)
    start = time.perf_counter()
    for _ in range(repeats):
        action()
    wait_for(device)
    return (time.perf_counter() - start) / repeats


def wait_for(device: str) -> None:
    """A GPU still computes when the calls that it has been given have returned."""
    if device != "cpu":
        torch.accelerator.synchronize(device)


# In the process that asks


def measure(options: Options) -> Iterator[Table]:
    for name, case in CASES.items():
        if case.size in options.sizes and any(map(options.wants, CONTESTANTS[case.kind])):
            for dropout in options.dropouts:
                logger.info(f"train: {name}, dropout {dropout}")
                yield step_table(name, case, dropout, options.interleave(entries(case, dropout, options)))


def entries(case: Case, dropout: float, options: Options) -> list[Entry]:
    arguments = {"kind": case.kind, "dropout": dropout, "sizes": dataclasses.asdict(case.sizes), "seconds": options.seconds}
    return [
        Entry(name, f"{__name__}:prepare", {**arguments, "contestant": name}, like_training=name == OURS)
        for name in CONTESTANTS[case.kind]
        if options.wants(name)
    ] + [ENTRY]


def step_table(name: str, case: Case, dropout: float, measured: Measurements) -> Table:
    tokens = case.sizes.batch * case.sizes.length * (2 if case.kind == "encoder-decoder" else 1)
    rate = spread(measured.values(LIMIT, "rate")).median if LIMIT in measured.names() else math.nan
    flops = arithmetic(case)
    found = compare(measured, "seconds")
    for contestant, result in found["contestants"].items():
        seconds = result["seconds"].median
        result |= {
            "tokens_per_second": tokens / seconds,
            "share_of_limit": flops / seconds / rate,
            "parameters": measured.facts[contestant]["parameters"],
        }
    return Table(
        title=f"{name}, {f'dropout {dropout}' if dropout else 'no dropout'}",
        columns=["", "ms a step", "tokens/s", "share of limit", "time / ours", "parameters"],
        rows=[
            [
                contestant, milliseconds(result["seconds"]), f"{result['tokens_per_second']:,.0f}",
                f"{result['share_of_limit']:.2f}", str(result["ratio"] or "-"), f"{result['parameters'] / 1e6:.2f} M",
            ]
            for contestant, result in found["contestants"].items()
        ],
        notes=[verdict(found), f"Limit: {rate / 1e9:.0f} GFLOP/s in bare matrix products.", *measured.notes]
        + [NOTES[contestant] for contestant in found["contestants"] if contestant in NOTES],
        bars={contestant: result["seconds"].scaled(1e3) for contestant, result in found["contestants"].items()},
        bar_label="ms a training step",
        data={"case": name, "dropout": dropout, "sizes": dataclasses.asdict(case.sizes), "flops": flops, "rate": rate, **found},
    )  # fmt: skip


def compare(measured: Measurements, key: str, setting: str = "") -> dict[str, Any]:
    """Of something that is better if it is less: spreads, the quickest first; each in relation to ours; the best peer."""
    names = [name for name in measured.names(setting) if name != LIMIT]
    values = {name: measured.values(name, key, setting) for name in names}
    contestants: dict[str, dict[str, Any]] = {
        name: {
            key: spread(values[name]),
            "ratio": ratios(values[name], values[OURS]) if OURS in values else None,
            "rounds": values[name],
        }
        for name in sorted(names, key=lambda name: spread(values[name]).median)
    }
    best = next((name for name in contestants if not name.startswith(OURS)), None)
    return {"contestants": contestants, "best_peer": best, "ratio": contestants[best]["ratio"] if best else None}


def verdict(found: dict[str, Any], does: str = "takes", like: str = "as long as") -> str:
    if found["ratio"] is None:
        return "There is nothing to compare with."
    return f"{found['best_peer']} is the best peer and {does} {found['ratio']} times {like} {OURS}."


def milliseconds(seconds) -> str:
    median, low, high = seconds.scaled(1e3)
    return f"{median:.1f} ({low:.1f}-{high:.1f})"


def arithmetic(case: Case) -> float:
    """Additions and multiplications that our model needs for a step, which are taken for all; padding is not counted."""
    from glassformer.training.estimate import training_flops

    config, head, sizes = our_config(case.kind, case.sizes), our_head(case.kind), case.sizes
    if case.kind == "encoder":
        return sum(training_flops(config, head, 1, length) for length in uneven_lengths(sizes))
    return training_flops(config, head, sizes.batch, sizes.length)
