# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Training on sentences of all lengths, batching included: real tokens, source and target, per second.

English-German Multi30k if $GLASSFORMER_DATA/multi30k is there, else pairs of random ids whose lengths are drawn from a log-normal
distribution. Ours is batched by `glassformer.training.batching`, peers as transformers' Trainer does it, without and with its
grouping by length. A batch has as many real tokens for all, on average.
"""

import dataclasses
import gzip
import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from .contestants import CASES, FIRST_WORD, OURS, Batch, Sizes, build, to_device
from .interleave import Entry, Measurements, spread
from .options import Options
from .report import Table
from .training_step import compare, training_step, verdict, wait_for
from .worker import Prepared


logger = logging.getLogger("glassformer")

CASE = CASES["encoder-decoder small"]
BUDGET = CASE.sizes.batch * CASE.sizes.length  # longest x examples of our batches
PAD, END = 0, 2  # in the corpus; peers whose models want others are given theirs
LONGEST = 100
LOG_NORMAL = (2.6, 0.35)  # mean and deviation of the logarithm of a length: like Multi30k, about 14 tokens
PAIRS = 8000  # of random ids

Pairs = list[tuple[list[int], list[int]]]
Batches = Iterator[tuple[Batch, int]]  # tensors, and how many of their tokens are real


# The corpus, made once


def find_corpus(folder: Path, vocab_size: int = CASE.sizes.vocab_size) -> tuple[Path, str]:
    """A file with pairs of token ids, and what they are."""
    given = os.environ.get("GLASSFORMER_DATA")
    texts = Path(given) / "multi30k" / "train.jsonl.gz" if given else None
    folder.mkdir(parents=True, exist_ok=True)
    if texts is not None and texts.is_file():
        path = folder / "multi30k.json"
        if not path.is_file():
            path.write_text(json.dumps(tokenized(texts, vocab_size)))
        return path, "Multi30k, English to German"
    path = folder / "random_pairs.json"
    path.write_text(json.dumps(random_pairs(PAIRS, vocab_size)))
    mean, deviation = LOG_NORMAL
    return path, f"random ids, lengths log-normal with {mean} and {deviation} (for Multi30k, set GLASSFORMER_DATA)"


def tokenized(texts: Path, vocab_size: int) -> Pairs:
    from glassformer.training.tokenization import train_tokenizer

    with gzip.open(texts, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    both = [[row[language] for row in rows] for language in ("en", "de")]
    tokenizer = train_tokenizer(itertools.chain(*both), "bpe", vocab_size, adds="eos")
    sources, targets = (tokenizer(side, return_attention_mask=False).input_ids for side in both)
    return [pair for pair in zip(sources, targets) if max(map(len, pair)) <= LONGEST]


def random_pairs(count: int, vocab_size: int) -> Pairs:
    """The target a little longer or shorter than the source."""
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(*LOG_NORMAL, count))[:, None] * np.exp(rng.normal(0, 0.15, (count, 2)))
    lengths = lengths.round().clip(2, LONGEST).astype(int)

    def ids(length: int) -> list[int]:
        return rng.integers(FIRST_WORD, vocab_size, length).tolist()

    return [(ids(source), ids(target)) for source, target in lengths]


# In the contestant's process


def prepare(
    contestant: str, grouping: str, file: str, sizes: dict[str, int], dropout: float, tokens: int, device: str
) -> Prepared:
    """A round goes on for so many real tokens."""
    pairs = json.loads(Path(file).read_text())
    trainee = build("encoder-decoder", contestant, Sizes(**sizes), dropout, device)
    step = training_step(trainee)
    batches = BATCHINGS[grouping](pairs, trainee[0].config)
    rest = iter(batches)

    def run() -> dict[str, Any]:
        seen, updates, start = 0, 0, time.perf_counter()
        while seen < tokens:
            batch, real = next(rest)
            step(to_device(batch, device))
            seen, updates = seen + real, updates + 1
        wait_for(device)
        return {"seconds": (time.perf_counter() - start) / seen, "tokens_a_batch": seen / updates}

    return {"parameters": sum(parameter.numel() for parameter in trainee[0].parameters())}, run


def our_batches(pairs: Pairs, config: Any) -> Batches:
    """As `glassformer train` makes them."""
    from glassformer.training.batching import Position

    loader, objective = our_loader(pairs)
    for epoch in itertools.count():
        for [micro_batch], _ in loader.updates(Position(epoch)):
            tensors = micro_batch.tensors
            yield tensors, objective.count_tokens(tensors)[0]


def our_loader(pairs: Pairs):
    from datasets import Dataset

    from glassformer.training import recipe
    from glassformer.training.batching import Loader, TableSource
    from glassformer.training.objectives import Seq2Seq

    tokenizer: Any = SimpleNamespace(pad_token_id=PAD, eos_token_id=END)
    objective = Seq2Seq(recipe.Objective("seq2seq"), tokenizer, LONGEST)
    columns = {"input_ids": [source for source, _ in pairs], "labels": [target for _, target in pairs]}
    rows = Dataset.from_dict({**columns, "length": [max(map(len, pair)) for pair in pairs]})
    batching = recipe.Batching(tokens=BUDGET)
    return Loader(TableSource(rows, batching, seed=0), objective.collate, batching), objective


def shuffled_batches(pairs: Any, config: Any) -> Batches:
    """As transformers' Trainer makes them: any sentences together, padded to the longest."""
    rng = torch.Generator().manual_seed(0)
    return endless(pairs, config, batch_size=usual_batch(pairs), shuffle=True, generator=rng)


def grouped_batches(pairs: Any, config: Any) -> Batches:
    """As transformers' Trainer makes them with `group_by_length`, by the length of the source.

    Trainer takes fifty batches from long to short: here in random order, so that the few of a round stand for all.
    """
    from transformers.trainer_pt_utils import LengthGroupedSampler

    batch, rng = usual_batch(pairs), torch.Generator().manual_seed(0)
    order = list(LengthGroupedSampler(batch, lengths=[len(source) for source, _ in pairs], generator=rng))
    batches = [order[start : start + batch] for start in range(0, len(order), batch)]
    shuffled = [batches[number] for number in torch.randperm(len(batches), generator=rng).tolist()]
    return endless(pairs, config, batch_sampler=shuffled)


def usual_batch(pairs: Pairs) -> int:
    """Sentences in a batch, so that it has as many real tokens as ours have on average."""
    loader, _ = our_loader(pairs)
    return max(1, round(len(pairs) / loader.source.num_batches(0)))


def padding(pad: int) -> Callable[[Pairs], Batch]:
    def collate(pairs: Pairs) -> Batch:
        from glassformer.training.objectives import stack

        sources = [source for source, _ in pairs]
        mask = stack([np.ones(len(source), dtype=np.int64) for source in sources], 0)
        labels = stack([target for _, target in pairs], -100)
        return {"input_ids": stack(sources, pad), "attention_mask": mask, "labels": labels}

    return collate


def endless(pairs: Any, config: Any, **order: Any) -> Batches:
    loader = DataLoader(pairs, collate_fn=padding(config.pad_token_id), pin_memory=torch.cuda.is_available(), **order)
    while True:
        for batch in loader:
            yield batch, int(batch["attention_mask"].sum() + (batch["labels"] != -100).sum())


BATCHINGS: dict[str, Callable[[Pairs, Any], Batches]] = {
    "by length, token budget": our_batches,
    "shuffled": shuffled_batches,
    "grouped by length": grouped_batches,
}
CONTESTANTS = {
    OURS: (OURS, "by length, token budget"),
    **{f"{name}, {how}": (name, how) for name in ("Marian", "BART") for how in ("shuffled", "grouped by length")},
}


# In the process that asks


def measure(options: Options) -> Iterator[Table]:
    if CASE.size not in options.sizes:
        return
    logger.info("train: corpus")
    file, what = find_corpus(options.output)
    arguments = {
        "file": str(file), "sizes": dataclasses.asdict(CASE.sizes), "dropout": 0.1, "tokens": 8_000 if options.quick else 24_000,
    }  # fmt: skip
    measured = options.interleave(
        Entry(
            name, f"{__name__}:prepare", {**arguments, "contestant": contestant, "grouping": grouping},
            like_training=contestant == OURS,
        )
        for name, (contestant, grouping) in CONTESTANTS.items()
        if options.wants(contestant)
    )  # fmt: skip
    yield corpus_table(what, measured)


def corpus_table(what: str, measured: Measurements) -> Table:
    found = compare(measured, "seconds")
    for name, result in found["contestants"].items():
        result["tokens_per_second"] = spread([None if value is None else 1 / value for value in result["rounds"]])
        result["tokens_a_batch"] = spread(measured.values(name, "tokens_a_batch"))
    return Table(
        title=f"encoder-decoder small on a corpus: {what}",
        columns=["", "real tokens/s", "real tokens a batch", "time / ours"],
        rows=[
            [
                name, "{:,.0f} ({:,.0f}-{:,.0f})".format(*result["tokens_per_second"]),
                f"{result['tokens_a_batch'].median:,.0f}", str(result["ratio"] or "-"),
            ]
            for name, result in found["contestants"].items()
        ],
        notes=[verdict(found), *measured.notes],
        bars={name: result["tokens_per_second"] for name, result in found["contestants"].items()},
        bar_label="real tokens/s",
        data={"case": "corpus", "corpus": what, **found},
    )  # fmt: skip
