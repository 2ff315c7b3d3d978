# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Signs, while a run is going on, that it will come to nothing."""

from dataclasses import dataclass, field
from statistics import fmean


PATIENCE = 100  # updates within which the loss must have fallen
LONG = 20  # updates in a row that are no accident
HIGH, LOW = 10.0, 1e-6  # gradient norms that are too large and too small to learn from


@dataclass
class Health:
    """Watches loss and gradient norm. Every warning is given once; all fields are plain values, to be saved with the run."""

    first_losses: list[float] = field(default_factory=list)
    last_losses: list[float] = field(default_factory=list)
    high: int = 0
    low: int = 0
    given: list[str] = field(default_factory=list)

    def observe(self, step: int, loss: float, gradient_norm: float) -> list[str]:
        """Warnings that this update gives rise to."""
        if len(self.first_losses) < LONG // 2:
            self.first_losses.append(loss)
        self.last_losses = [*self.last_losses[-(LONG - 1) :], loss]
        self.high = self.high + 1 if gradient_norm > HIGH else 0
        self.low = self.low + 1 if gradient_norm < LOW else 0
        warnings = []
        if step == PATIENCE and fmean(self.last_losses) >= fmean(self.first_losses):
            warnings.append(
                f"The loss has not fallen in {PATIENCE} updates ({fmean(self.first_losses):.3g} at first, now "
                f"{fmean(self.last_losses):.3g}): check that source and target belong together, or change optimizer.lr."
            )
        if self.high == LONG:
            warnings.append(
                f"The gradient norm has been above {HIGH:g} for {LONG} updates: lower optimizer.lr or warm up for longer."
            )
        if self.low == LONG:
            warnings.append(f"The gradient norm has been below {LOW:g} for {LONG} updates: nothing is being learnt any more.")
        new = [warning for warning in warnings if warning not in self.given]
        self.given += new
        return new
