# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Tokens per second of greedy and beam search: sources of 24 tokens, exactly 24 new tokens each, random weights.

No contestant knows an end token, so that none stops early, and none pays for being kept from it. On a CPU each runs with one
thread and with as many as there are, for a small model may lose by a second one; the better of the two counts.
"""

import dataclasses
import importlib
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from glassformer.packed_linear import quantize_int8

from .contestants import CASES, FIRST_WORD, OURS, Sizes, bart_model, marian_model, our_config, our_head
from .interleave import Entry, Measurements, Spread, ratios, spread
from .options import Options
from .report import Table
from .training_step import how_often, timed
from .worker import Prepared


logger = logging.getLogger("glassformer")

LENGTH = 24  # of sources, and of what is written
BEAMS = {"greedy": 1, "4 beams": 4}
BATCHES = (1, 8, 32)

Sources = list[list[int]]
Writer = Callable[[Sources, int], int]  # sources and beams -> how many tokens each answer has
Start = Callable[[Sizes, int, str], Writer]  # of a model, on so many threads and a device


# In the contestant's process


def prepare(contestant: str, sizes: dict[str, int], threads: int, seconds: float, device: str) -> Prepared:
    torch.manual_seed(0)
    write = CONTESTANTS[contestant](Sizes(**sizes), threads, device)
    repeats: dict[tuple[int, int], int] = {}

    def run(beams: int, batch: int) -> dict[str, Any]:
        sources = make_sources(batch, sizes["vocab_size"])
        if (beams, batch) not in repeats:
            check_length(write(sources, beams))
            repeats[beams, batch] = how_often(lambda: write(sources, beams), seconds, device)
        return {"seconds": timed(lambda: write(sources, beams), repeats[beams, batch], device) / (batch * LENGTH)}  # of one token

    return {}, run


def make_sources(batch: int, vocab_size: int) -> Sources:
    rng = torch.Generator().manual_seed(batch)
    return torch.randint(FIRST_WORD, vocab_size - 1, (batch, LENGTH), generator=rng).tolist()


def check_length(length: int) -> None:
    if length != LENGTH:
        raise ValueError(f"It wrote {length} tokens instead of {LENGTH}: its speed cannot be compared.")


def by_generate(model: Any, device: str) -> Writer:
    """`model.generate`, which all models for transformers have, ours too."""
    model.to(device).eval()
    settings = model.generation_config
    settings.eos_token_id = settings.forced_eos_token_id = None
    options = {"max_new_tokens": LENGTH, "do_sample": False}

    @torch.inference_mode()
    def write(sources: Sources, beams: int) -> int:
        ids = torch.tensor(sources, device=device)
        written = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), num_beams=beams, **options)
        return written.shape[1] - 1  # without the token that it starts from

    return write


def ours(way: Callable[[nn.Module], nn.Module]) -> Start:
    def start(sizes: Sizes, threads: int, device: str) -> Writer:
        return by_generate(way(our_head("encoder-decoder")(our_config("encoder-decoder", sizes)).eval()), device)

    return start


def exported(int8: bool) -> Start:
    """Our model as graphs for ONNX Runtime, with the loop that comes along."""

    def start(sizes: Sizes, threads: int, device: str) -> Writer:
        for package in ("onnx", "onnxruntime", "onnxscript"):
            importlib.import_module(package)  # `worker.py` tells which one is missing

        from glassformer.exchange.onnx import export_onnx
        from glassformer.exchange.runtime import ExportedModel, share_threads

        share_threads(threads)
        model = our_head("encoder-decoder")(our_config("encoder-decoder", sizes))
        model.generation_config.eos_token_id = None
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(f"{folder}/model")
            export_onnx(f"{folder}/model", f"{folder}/onnx", int8)
            graphs = ExportedModel(f"{folder}/onnx")

        def write(sources: Sources, beams: int) -> int:
            ids = np.array(sources)
            return graphs.generate(ids, np.ones_like(ids), LENGTH, beams).shape[1] - 1

        return write

    return start


def ctranslate2(compute_type: str) -> Start:
    """CTranslate2 with the weights of a random Marian."""

    def start(sizes: Sizes, threads: int, device: str) -> Writer:
        import ctranslate2

        # Threads of torch that have worked here make those of CTranslate2 sleep as if there were no core for them.
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            converted = convert_marian(marian_model(sizes).eval(), f"{folder}/model", compute_type)
            translator = ctranslate2.Translator(
                converted, device, compute_type=compute_type, intra_threads=threads, inter_threads=1
            )  # fmt: skip

        def write(sources: Sources, beams: int) -> int:
            answers = translator.translate_batch(
                [[word(token) for token in source] for source in sources], beam_size=beams, max_batch_size=0,
                max_decoding_length=LENGTH, min_decoding_length=LENGTH, return_scores=False,
            )  # fmt: skip
            return len(answers[0].hypotheses[0])

        return write

    return start


def convert_marian(model: nn.Module, folder: str, quantization: str) -> str:
    from ctranslate2.converters import Converter
    from ctranslate2.converters.transformers import MarianMTLoader

    config: Any = model.config
    tokens = [word(token) for token in range(config.vocab_size)]
    tokens[0], tokens[1], tokens[config.pad_token_id] = "</s>", "<unk>", "<pad>"
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = SimpleNamespace(eos_token="</s>", unk_token="<unk>", get_vocab=lambda: vocabulary)

    class MarianConverter(Converter):
        def _load(self):
            with torch.no_grad():
                return MarianMTLoader()(model, tokenizer)

    return MarianConverter().convert(folder, quantization=quantization)


def word(token: int) -> str:
    """CTranslate2 reads and writes words."""
    return f"w{token}"


# Ways to run our model; a name that ends with int8 is compared with others in eight bits.
OUR_WAYS: dict[str, Start] = {
    OURS: ours(lambda model: model),
    "glassformer int8": ours(quantize_int8),
    "glassformer, ONNX Runtime": exported(int8=False),
    "glassformer, ONNX Runtime int8": exported(int8=True),
}

CONTESTANTS: dict[str, Start] = {
    **OUR_WAYS,
    "Marian": lambda sizes, threads, device: by_generate(marian_model(sizes), device),
    "BART": lambda sizes, threads, device: by_generate(bart_model(sizes), device),
    "CTranslate2": ctranslate2("float32"),
    "CTranslate2 int8": ctranslate2("int8"),
}
# What runs wherever torch does, and where CTranslate2 does too; the other ways are for a CPU.
ON_GPUS = (OURS, "Marian", "BART")
ON_CUDA = (*ON_GPUS, "CTranslate2", "CTranslate2 int8")


# In the process that asks


def measure(options: Options) -> Iterator[Table]:
    assert options.threads is not None
    batches = BATCHES[::2] if options.quick else BATCHES
    settings = {f"{how}, batch {batch}": {"beams": beams, "batch": batch} for how, beams in BEAMS.items() for batch in batches}
    for size in options.sizes:
        logger.info(f"generate: {size}")
        case = f"encoder-decoder {size}"
        arguments = {"sizes": dataclasses.asdict(CASES[case].sizes), "seconds": options.seconds}
        entries = [
            Entry(
                entry_name(name, threads), f"{__name__}:prepare", {**arguments, "contestant": name, "threads": threads},
                threads=threads,
            )
            for name in contestants_on(options.device)
            for threads in thread_counts(options)
            if options.wants(name)
        ]  # fmt: skip
        measured = options.interleave(entries, settings)
        if absent := [name for name in CONTESTANTS if options.wants(name) and name not in contestants_on(options.device)]:
            measured.notes.append(f"Left out, for they do not run on {options.device}: {'; '.join(absent)}.")
        turns = {setting: best_turns(measured, setting) for setting in settings}
        for setting in settings:
            yield rate_table(case, setting, turns[setting], measured.notes)
        yield best_table(case, turns, measured.notes)


def contestants_on(device: str) -> Iterable[str]:
    return {"cpu": CONTESTANTS, "cuda": ON_CUDA}.get(device, ON_GPUS)


def thread_counts(options: Options) -> list[int]:
    assert options.threads is not None
    return sorted({1, options.threads}) if options.device == "cpu" else [options.threads]


def entry_name(name: str, threads: int) -> str:
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


class Turns(NamedTuple):
    """Seconds of a contestant's turns, one a round, with as many threads as it is fastest with."""

    threads: int
    seconds: list[float | None]

    @property
    def median(self) -> float:
        return spread(self.seconds).median


def best_turns(measured: Measurements, setting: str) -> dict[str, Turns]:
    """By contestant, the fastest first."""
    found: dict[str, Turns] = {}
    for entry in measured.names(setting):
        name, _, count = entry.rpartition(", ")
        turns = Turns(int(count.split()[0]), measured.values(entry, "seconds", setting))
        found[name] = min(found.get(name, turns), turns, key=lambda turns: turns.median)
    return dict(sorted(found.items(), key=lambda item: item[1].median))


def rate_table(case: str, setting: str, turns: dict[str, Turns], notes: list[str]) -> Table:
    found: dict[str, dict[str, Any]] = {}
    for name, (threads, seconds) in turns.items():
        found[name] = {
            "tokens_per_second": spread([None if value is None else 1 / value for value in seconds]),
            "threads": threads,
            "to_marian": compare(turns, name, "Marian"),
            "to_ctranslate2": compare(turns, name, "CTranslate2 int8" if name.endswith("int8") else "CTranslate2"),
            "rounds": seconds,
        }
    return Table(
        title=f"{case}, {setting}",
        columns=["", "tokens/s", "threads", "x Marian", "x CTranslate2 of its precision"],
        rows=[
            [name, "{:,.0f} ({:,.0f}-{:,.0f})".format(*result["tokens_per_second"]), str(result["threads"])]
            + [str(result[key] or "-") for key in ("to_marian", "to_ctranslate2")]
            for name, result in found.items()
        ],
        notes=list(notes),
        bars={name: result["tokens_per_second"] for name, result in found.items()},
        bar_label="tokens/s",
        data={"case": case, "setting": setting, "contestants": found},
    )


def best_table(case: str, turns: dict[str, dict[str, Turns]], notes: list[str]) -> Table:
    """`generate` beside Marian's, and the quickest of our ways beside CTranslate2 in each precision."""
    found: dict[str, dict[str, Any]] = {}
    for setting, by_name in turns.items():
        found[setting] = {"generate": (OURS, compare(by_name, OURS, "Marian"))}
        for peer in ("CTranslate2", "CTranslate2 int8"):
            ways = (name for name in by_name if name in OUR_WAYS and name.endswith("int8") == peer.endswith("int8"))
            best = next(ways, "")
            found[setting][peer] = best, compare(by_name, best, peer)
    return Table(
        title=f"{case}: ours beside the others",
        columns=["", "generate / Marian's", "best of ours / CTranslate2", "int8: best of ours / CTranslate2"],
        rows=[
            [setting, *(f"{ratio}, {name}" if ratio else "-" for name, ratio in row.values())] for setting, row in found.items()
        ],
        notes=list(notes),
        data={"case": case, "best": found},
    )


def compare(turns: dict[str, Turns], name: str, peer: str) -> Spread | None:
    """How many times as fast as the peer, if both have run."""
    return ratios(turns[peer].seconds, turns[name].seconds) if name in turns and peer in turns else None
