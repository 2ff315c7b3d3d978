# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What the curves of a run say about it: what is wrong, why it may be so, and what to do."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


NOTHING_LEFT = 0.05  # a loss below which there is nothing more to learn
ENOUGH = 8  # points of a curve, below which nothing is said about its shape


@dataclass(frozen=True)
class Finding:
    name: str
    what: str
    cause: str
    cure: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what} Likely cause: {self.cause} Cure: {self.cure}"


def diagnose_curve(training: Sequence[float], validation: Sequence[float] = (), chance: float | None = None) -> list[Finding]:
    """Findings about the losses of a run, in the order of updates and of evaluations.

    Args:
        chance: the loss of a model that knows nothing, ln V for a vocabulary of V.
    """
    if any(not math.isfinite(loss) for loss in training):
        return [
            Finding(
                "diverged", "The loss is no number any more.", "the learning rate is too high, or a batch holds bad values.",
                "lower optimizer.lr to a third, raise schedule.warmup_steps, keep optimizer.clip_norm at 1.",
            )
        ]  # fmt: skip
    if len(training) < ENOUGH:
        return []
    checks = (rising(training, chance), flat(training, chance), spikes(training), oscillating(training))
    findings = [finding for finding in checks if finding is not None]
    return findings + [finding for finding in (overfit(validation), too_good(training, validation)) if finding is not None]


def thirds(losses: Sequence[float]) -> tuple[float, float]:
    """The median of the first and of the last third."""
    size = max(len(losses) // 3, 1)
    return statistics.median(losses[:size]), statistics.median(losses[-size:])


def rising(losses: Sequence[float], chance: float | None) -> Finding | None:
    begin, end = thirds(losses)
    lowest = min(losses)
    if end > 1.2 * begin or (chance is not None and end > 1.1 * chance > 1.1 * lowest):
        what = f"The loss rises from {begin:.3g} to {end:.3g}."
        return Finding("diverging", what, "the learning rate is too high.", "lower optimizer.lr to a third and start anew.")
    return None


def flat(losses: Sequence[float], chance: float | None) -> Finding | None:
    begin, end = thirds(losses)
    if end > 1.2 * begin or begin - end > 0.02 * begin or end < NOTHING_LEFT:
        return None
    near_chance = chance is not None and end > 0.9 * chance
    where = f", what a guess gets ({chance:.3g})" if near_chance else ""
    return Finding(
        "flat", f"The loss stays at {end:.3g}{where}.",
        "the learning rate is far too low or too high, or inputs and labels do not belong together.",
        "try a learning rate ten times as high and a tenth of it; if one batch alone is not learnt either, the data is wrong.",
    )  # fmt: skip


def spikes(losses: Sequence[float]) -> Finding | None:
    """Points far above their neighbours, judged by how much the curve moves as a rule."""
    steps = [abs(b - a) for a, b in pairwise(losses)]
    usual = statistics.median(steps)
    places = [
        number
        for number in range(2, len(losses))
        if losses[number] - losses[number - 1] > max(10 * usual, 0.3 * losses[number - 1])
    ]
    if not places or len(places) > len(losses) // 5:  # so many are a habit
        return None
    times, before, after = len(places), losses[places[0] - 1], losses[places[0]]
    return Finding(
        "spike", f"The loss jumps {times} time{'s' * (times > 1)}, first from {before:.3g} to {after:.3g}.",
        "single batches with a very large gradient.", "clip gradients (optimizer.clip_norm=1), or raise betas[1] to 0.99.",
    )  # fmt: skip


def oscillating(losses: Sequence[float]) -> Finding | None:
    """Up and down by much, in turns."""
    steps = [b - a for a, b in pairwise(losses)]
    turns = sum(a * b < 0 for a, b in pairwise(steps)) / max(len(steps) - 1, 1)
    size = statistics.median(map(abs, steps)) / max(statistics.median(losses), 1e-9)
    if turns < 0.6 or size < 0.15:
        return None
    what = f"The loss goes up and down by {size:.0%} from one record to the next."
    return Finding(
        "oscillating",
        what,
        "the learning rate is too high, or batches are too small.",
        "halve optimizer.lr, or double the batch.",
    )


def overfit(validation: Sequence[float]) -> Finding | None:
    if len(validation) < 3:
        return None
    best = min(range(len(validation)), key=validation.__getitem__)
    if best == len(validation) - 1 or validation[-1] < 1.05 * validation[best]:
        return None
    lowest, last, count = validation[best], validation[-1], len(validation)
    return Finding(
        "overfit", f"The validation loss was best at evaluation {best + 1} of {count} ({lowest:.3g}) and is {last:.3g} now.",
        "the model learns the training rows by heart.",
        "stop earlier (training.patience), raise dropout, use a smaller model or more data.",
    )  # fmt: skip


def too_good(training: Sequence[float], validation: Sequence[float]) -> Finding | None:
    """Nearly nothing is left to learn, early: true of toys, suspicious of texts."""
    early = training[: max(len(training) // 4, 2)]
    if min(early) > NOTHING_LEFT or (validation and min(validation) > NOTHING_LEFT):
        return None
    return Finding(
        "too good to be true", f"The loss is {min(early):.2g} within the first quarter of the run.",
        "the answer is part of the input: labels are not shifted, the mask lets the future through, or rows are repeated.",
        "see whether the logits of a position change with later tokens, and whether training and validation share rows.",
    )  # fmt: skip
