# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""How the time of a step grows with depth and batch, and that of attention with length: measured, with fitted exponents.

Attention's share is the time of a layer less that of the same layer without the formula. With sdpa a window is a mask, behind
which the kernel may still compute everything: what comes out is what is reported.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

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
LENGTHS = (256, 512, 1024, 2048, 4096)
WINDOW = 128


# In the contestant's process


def prepare(seconds: float) -> Prepared:
    actions: dict[str, tuple[Callable[[], Any], int]] = {}

    def clock(name: str, make: Callable[[], Callable[[], Any]]) -> float:
        if name not in actions:
            action = make()
            actions[name] = action, how_often(action, seconds)
        return timed(*actions[name])

    def run(what: str, value: int) -> dict[str, Any]:
        if what in ("depth", "batch"):
            return {"seconds": clock(f"{what} {value}", lambda: full_step(**{what: value}))}
        window = WINDOW if what == "window" else None
        with_it = clock(f"{what} {value}", lambda: one_layer(value, window))
        return {"seconds": with_it - clock(f"without {value}", lambda: one_layer(value, attention=False))}

    return {}, run


def full_step(depth: int = 4, batch: int = 8) -> Callable[[], None]:
    sizes = Sizes(**SIZES, decoder_layers=depth, batch=batch, length=128)
    step, tensors = training_step(build("llama-like", OURS, sizes)), make_batch("llama-like", sizes)
    return lambda: step(tensors)


def one_layer(length: int, window: int | None = None, attention: bool = True) -> Callable[[], None]:
    """Forward and backward of a layer over one text; without attention, values go where they are."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from glassformer import GlassformerModel

    sizes = Sizes(**{**SIZES, "d_ff": 256}, decoder_layers=1, batch=1, length=length)
    model = GlassformerModel(our_config("llama-like", sizes, attention_window=window)).train()
    if not attention:
        ALL_ATTENTION_FUNCTIONS.register("values_as_they_are", lambda module, q, k, v, *args, **kwargs: (v.transpose(1, 2), None))
        model.config._attn_implementation = "values_as_they_are"
    ids = make_batch("llama-like", sizes)["input_ids"]
    return lambda: model(ids, use_cache=False).last_hidden_state.sum().backward()


# In the process that asks


def measure(options: Options) -> Iterator[Table]:
    logger.info("scaling")
    step = 2 if options.quick else 1
    series = {"depth": DEPTHS[::step], "batch": BATCHES[::step], "length": LENGTHS[::step], "window": LENGTHS[::step]}
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
    power, straight = exponent(values, seconds), straightness(values, seconds)
    axis = "length" if what == "window" else what
    return Table(
        title=title,
        columns=[axis, "ms"],
        rows=[[str(value), f"{1e3 * one:.2f}"] for value, one in zip(values, seconds)],
        notes=[f"Grows with the power {power:.2f}; a straight line explains {straight:.1%} of it.", *notes],
        curves={f"power {power:.2f}": [(value, 1e3 * one) for value, one in zip(values, seconds) if one > 0]},
        curve_labels=(axis, "ms"),
        data={"against": what, "values": values, "seconds": seconds, "exponent": power, "straightness": straight},
    )


def exponent(values: list[int], seconds: list[float]) -> float:
    """Least squares in log-log. A difference that noise made negative has no logarithm and is left out."""
    points = np.log([(value, one) for value, one in zip(values, seconds) if one > 0])
    return float(np.polyfit(points[:, 0], points[:, 1], 1)[0]) if len(points) > 1 else float("nan")


def straightness(values: list[int], seconds: list[float]) -> float:
    """R^2 of a straight line with a constant: what a step takes however small it is."""
    return float(np.corrcoef(values, seconds)[0, 1] ** 2)
