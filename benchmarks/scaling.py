# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""How the time of a step grows with depth and batch, and that of attention with length: measured, with fitted powers.

Attention's share is the time of a layer less that of the same layer without the formula. With sdpa a window is a mask, behind
which the kernel may still compute everything: what comes out is what is reported.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .contestants import OURS, Sizes, build, make_batch, our_config
from .interleave import Entry, spread
from .options import Options
from .report import Table
from .training_step import how_often, timed, training_step
from .worker import Prepared


logger = logging.getLogger("glassformer")

SIZES = {"vocab_size": 8192, "d_model": 256, "num_heads": 4, "d_ff": 1024, "encoder_layers": 0}
DEPTHS, BATCHES = (1, 2, 3, 4, 6, 8), (1, 2, 4, 8, 16)
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
WINDOW = 128


# In the contestant's process


def prepare(seconds: float, device: str) -> Prepared:
    actions: dict[str, tuple[Callable[[], Any], int]] = {}

    def clock(name: str, make: Callable[..., Callable[[], Any]], **settings: Any) -> float:
        if name not in actions:
            action = make(device, **settings)
            actions[name] = action, how_often(action, seconds, device)
        return timed(*actions[name], device)

    def run(what: str, value: int) -> dict[str, Any]:
        if what in ("depth", "batch"):
            return {"seconds": clock(f"{what} {value}", full_step, **{what: value})}
        with_it = clock(f"{what} {value}", one_layer, length=value, window=WINDOW if what == "window" else None)
        return {"seconds": with_it - clock(f"without {value}", one_layer, length=value, attention=False)}

    return {}, run


def full_step(device: str, depth: int = 4, batch: int = 8) -> Callable[[], None]:
    sizes = Sizes(**SIZES, decoder_layers=depth, batch=batch, length=128)
    step, tensors = training_step(build("llama-like", OURS, sizes, device=device)), make_batch("llama-like", sizes, device)
    return lambda: step(tensors)


def one_layer(device: str, length: int, window: int | None = None, attention: bool = True) -> Callable[[], None]:
    """Forward and backward of a layer over one text; without attention, values go where they are."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from glassformer import GlassformerModel

    sizes = Sizes(**{**SIZES, "d_ff": 256}, decoder_layers=1, batch=1, length=length)
    model = GlassformerModel(our_config("llama-like", sizes, attention_window=window)).to(device).train()
    if not attention:
        ALL_ATTENTION_FUNCTIONS.register("values_as_they_are", lambda module, q, k, v, *args, **kwargs: (v.transpose(1, 2), None))
        model.config._attn_implementation = "values_as_they_are"
    ids = make_batch("llama-like", sizes, device)["input_ids"]
    return lambda: model(ids, use_cache=False).last_hidden_state.sum().backward()


# In the process that asks


def measure(options: Options) -> Iterator[Table]:
    if not options.wants(OURS):
        return
    logger.info("scaling")
    series = {"depth": DEPTHS, "batch": BATCHES, "length": LENGTHS, "window": LENGTHS}
    settings = {f"{what} {value}": {"what": what, "value": value} for what, values in series.items() for value in values}
    entry = Entry(OURS, f"{__name__}:prepare", {"seconds": options.seconds / 2}, like_training=True)
    measured = options.interleave([entry], settings)
    titles = {
        "depth": "a step against the number of layers",
        "batch": "a step against the batch",
        "length": "attention against length, sdpa",
        "window": f"attention against length, sdpa with a window of {WINDOW}",
    }
    for what, values in series.items():
        if all(measured.names(f"{what} {value}") for value in values):
            medians = [spread(measured.values(OURS, "seconds", f"{what} {value}")).median for value in values]
            yield growth_table(titles[what], what, list(values), medians, measured.notes)
        else:
            yield Table(titles[what], [""], [], measured.notes)


def growth_table(title: str, what: str, values: list[int], seconds: list[float], notes: list[str]) -> Table:
    fit, axis = fit_growth(values, seconds), "length" if what == "window" else what
    note = "It does not grow in a way that could be told."
    curves: dict[str, list[tuple[float, float]]] = {
        "measured": [(value, 1e3 * one) for value, one in zip(values, seconds) if one > 0]
    }
    if fit is not None:
        note = f"It takes {1e3 * fit.constant:.2f} ms in any case; what comes on top grows with the power {fit.power:.2f}."
        curves[f"fitted, power {fit.power:.2f}"] = [(value, 1e3 * fit(value)) for value in values]
    return Table(
        title=title,
        columns=[axis, "ms"],
        rows=[[str(value), f"{1e3 * one:.2f}"] for value, one in zip(values, seconds)],
        notes=[note, *notes],
        curves=curves,
        curve_labels=(axis, "ms"),
        data={"against": what, "values": values, "seconds": seconds, **(fit._asdict() if fit else {})},
    )


class Growth(NamedTuple):
    """constant + factor * value ** power"""

    constant: float
    factor: float
    power: float

    def __call__(self, value: float) -> float:
        return self.constant + self.factor * value**self.power


def fit_growth(values: list[int], seconds: list[float]) -> Growth | None:
    """Of the powers to two decimals, that whose best curve is nearest, in parts of what was measured. None if nothing grows.

    A difference that noise made negative is left out. There are three unknowns: fewer points than four say nothing.
    """
    points = [(value, one) for value, one in zip(values, seconds) if one > 0]
    if len(points) < 4:
        return None
    x, y = np.array(points).T
    fits = [fit for power in np.arange(20, 301) / 100 if (fit := best_curve(x, y, power)).factor > 0]
    return min(fits, key=lambda fit: sum((fit(value) / one - 1) ** 2 for value, one in points), default=None)


def best_curve(values: np.ndarray, seconds: np.ndarray, power: float) -> Growth:
    """By least squares; its constant is not below 0."""
    terms = np.stack([np.ones_like(values), values**power], axis=1) / seconds[:, None]
    constant, factor = np.linalg.lstsq(terms, np.ones_like(values))[0]
    if constant < 0:
        constant, [factor] = 0.0, np.linalg.lstsq(terms[:, 1:], np.ones_like(values))[0]
    return Growth(float(constant), float(factor), float(power))
