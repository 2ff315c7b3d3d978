# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Peak memory of a training step, and of three things that may need much: the loss, long attention, kept activations.

Peaks are resident memory as Linux counts it, in each contestant's own process, above what it held before: weights and the
state of the optimiser are there already, gradients and activations are not. Other systems have no counter that can be reset.
On a GPU, what counts is the memory that torch has given out there.
"""

import dataclasses
import gc
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .contestants import CASES, CONTESTANTS, OURS, Sizes, build, loss_of, make_batch, our_config, our_head
from .interleave import Entry, Measurements
from .options import Options
from .report import Table
from .training_step import compare, training_step, verdict
from .worker import Prepared


logger = logging.getLogger("glassformer")

COUNTER = Path("/proc/self/clear_refs")
LARGE_VOCABULARY = Sizes(32000, 256, 8, 1024, 0, 2, batch=8, length=256)
LONG = Sizes(1000, 256, 8, 256, 0, 1, batch=1, length=4096)
SIX_LAYERS = Sizes(1000, 256, 8, 1024, 0, 6, batch=4, length=256)
ROUNDS = 3  # memory hardly differs from one to the next


# In the contestant's process


def prepare_step(kind: str, contestant: str, sizes: dict[str, int], device: str) -> Prepared:
    """A whole training step."""
    trainee = build(kind, contestant, Sizes(**sizes), 0.1, device)
    step, batch = training_step(trainee), make_batch(kind, Sizes(**sizes), device)
    step(batch)  # makes the state of the optimiser
    return {}, lambda: peak(lambda: step(batch), trainee[0], device)


def prepare_loss(sizes: dict[str, int], return_logits: bool, device: str) -> Prepared:
    """Forward and backward with a large vocabulary."""
    model = our_head("llama-like")(our_config("llama-like", Sizes(**sizes))).to(device).train()
    _, loss = loss_of(model, return_logits=return_logits)
    batch = make_batch("llama-like", Sizes(**sizes), device)
    return {}, lambda: peak(lambda: loss(batch).backward(), model, device)


def prepare_attention(sizes: dict[str, int], implementation: str, device: str) -> Prepared:
    """Forward and backward of one layer over a long text."""
    from glassformer import GlassformerModel

    config = our_config("llama-like", Sizes(**sizes), attn_implementation=implementation)
    model = GlassformerModel(config).to(device).train()
    ids = make_batch("llama-like", Sizes(**sizes), device)["input_ids"]
    return {}, lambda: peak(lambda: model(ids, use_cache=False).last_hidden_state.sum().backward(), model, device)


def prepare_activations(sizes: dict[str, int], checkpointing: bool, device: str) -> Prepared:
    """What the forward pass keeps for the backward pass, counted and not estimated from a peak."""
    model: Any = our_head("llama-like")(our_config("llama-like", Sizes(**sizes), dropout=0.1)).to(device).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    batch = make_batch("llama-like", Sizes(**sizes), device)
    return {}, lambda: {"bytes": kept_bytes(lambda: model(**batch, return_logits=False, use_cache=False).loss, model)}


def peak(action: Callable[[], Any], model: torch.nn.Module, device: str) -> dict[str, Any]:
    """Bytes: most during the action above what there was before, and most of all."""
    model.zero_grad(set_to_none=True)
    gc.collect()
    return peak_of_process(action) if device == "cpu" else peak_of_gpu(action, torch.get_device_module(device))


def peak_of_gpu(action: Callable[[], Any], counter: Any) -> dict[str, Any]:
    counter.reset_peak_memory_stats()
    before = counter.memory_allocated()
    action()
    highest = counter.max_memory_allocated()
    return {"bytes": highest - before, "whole": highest}


def peak_of_process(action: Callable[[], Any]) -> dict[str, Any]:
    give_back()
    before = status("VmRSS")
    COUNTER.write_text("5")  # the highest so far becomes what is there now
    action()
    highest = status("VmHWM")
    return {"bytes": highest - before, "whole": highest}


def give_back() -> None:
    """Freed memory goes back to the system, whatever the allocator was told; else a step would reuse it unseen."""
    import ctypes

    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def status(name: str) -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


def kept_bytes(forward: Callable[[], Tensor], model: torch.nn.Module) -> int:
    """Memory that autograd holds on to after the forward pass, parameters left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, tuple[int, Tensor]] = {}  # the tensors too, so that no address is given out twice

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = forward()
    del loss
    return sum(size for size, _ in kept.values())


# In the process that asks


def measure(options: Options) -> Iterator[Table]:
    if options.device == "cpu" and not COUNTER.exists():
        logger.info(f"memory: left out, for peaks are read from {COUNTER}, which only Linux has.")
        return
    if not has_counter(options.device):
        logger.info(f"memory: left out, for torch does not tell the peaks of {options.device}.")
        return
    options = dataclasses.replace(options, rounds=1 if options.quick else min(options.rounds or ROUNDS, ROUNDS))
    for name, case in CASES.items():
        if case.size in options.sizes:
            logger.info(f"memory: {name}")
            yield bytes_table(f"a training step, {name}", options.interleave(step_entries(name, options)), {"case": name})
    if options.wants(OURS):
        yield from our_tables(options)


def has_counter(device: str) -> bool:
    return device == "cpu" or hasattr(torch.get_device_module(device), "reset_peak_memory_stats")


def step_entries(name: str, options: Options) -> list[Entry]:
    case = CASES[name]
    arguments = {"kind": case.kind, "sizes": dataclasses.asdict(case.sizes)}
    return [
        Entry(contestant, f"{__name__}:prepare_step", {**arguments, "contestant": contestant}, like_training=contestant == OURS)
        for contestant in CONTESTANTS[case.kind]
        if options.wants(contestant)
    ]


def our_tables(options: Options) -> Iterator[Table]:
    """Ours in two ways each, and what a matrix would take that is not made."""
    logger.info("memory: loss, attention, checkpointing")
    sizes = LARGE_VOCABULARY
    logits = sizes.batch * sizes.length * sizes.vocab_size * 4
    yield two_ways(
        options, "prepare_loss", sizes, "forward and backward, vocabulary of 32,000",
        {f"{OURS}, loss alone": {"return_logits": False}, f"{OURS}, with logits": {"return_logits": True}},
        f"The logits alone are {megabytes(logits)}.",
    )  # fmt: skip
    scores = LONG.num_heads * LONG.length**2 * 4
    yield two_ways(
        options, "prepare_attention", LONG, "one layer, 4096 tokens",
        {f"{OURS}, sdpa": {"implementation": "sdpa"}, f"{OURS}, eager": {"implementation": "eager"}},
        f"A matrix of scores for all heads is {megabytes(scores)}.",
    )  # fmt: skip
    table = two_ways(
        options, "prepare_activations", SIX_LAYERS, "activations of 6 layers",
        {f"{OURS}, checkpointing": {"checkpointing": True}, f"{OURS}, all kept": {"checkpointing": False}},
    )  # fmt: skip
    table.columns[1] = "kept for backward"
    kept = {name: result["bytes"].median for name, result in table.data["contestants"].items()}
    if len(kept) == 2:
        few, many = (kept[name] for name in (f"{OURS}, checkpointing", f"{OURS}, all kept"))
        saved, again = 1 - few / many, 1 - (few + many / SIX_LAYERS.decoder_layers) / many
        table.notes.append(f"Checkpointing saves {saved:.0%}, or {again:.0%} with the one layer that is computed again.")
        table.data |= {"saved": saved, "saved_with_a_layer": again}
    yield table


def two_ways(
    options: Options, prepare: str, sizes: Sizes, title: str, ways: dict[str, dict[str, Any]], note: str | None = None
) -> Table:
    entries = [
        Entry(name, f"{__name__}:{prepare}", {"sizes": dataclasses.asdict(sizes), **way}, like_training=True)
        for name, way in ways.items()
    ]
    table = bytes_table(title, options.interleave(entries), {"sizes": dataclasses.asdict(sizes)})
    table.notes += [note] if note else []
    return table


def bytes_table(title: str, measured: Measurements, data: dict[str, Any]) -> Table:
    found = compare(measured, "bytes")
    for name, result in found["contestants"].items():
        wholes = [one["whole"] for one in measured.rounds[""][name] if one is not None and "whole" in one]
        result["whole"] = max(wholes, default=None)
    return Table(
        title=title,
        columns=["", "peak above start", "in all", "memory / ours"],
        rows=[
            [
                name, megabytes(result["bytes"].median), megabytes(result["whole"]) if result["whole"] else "-",
                f"{result['ratio'].median:.2f}" if result["ratio"] else "-",
            ]
            for name, result in found["contestants"].items()
        ],
        notes=[verdict(found, "needs", "as much as")] * bool(found["ratio"]) + measured.notes,
        bars={name: result["bytes"].scaled(1e-6) for name, result in found["contestants"].items()},
        bar_label="MB",
        data={**data, **found},
    )  # fmt: skip


def megabytes(n: float) -> str:
    return f"{n / 1e6:,.0f} MB"
