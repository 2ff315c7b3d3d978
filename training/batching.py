# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Which examples share a batch, and in which order batches come.

Everything here is a function of the seed, the epoch and the place in it. So a run that was stopped finds its place again by two
numbers, and what a process sees does not depend on what it has seen before.
"""

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset, IterableDataset
from torch import Tensor
from torch.utils.data import DataLoader

from .data import Column
from .recipe import Batching


class BatchingError(ValueError):
    """Examples that fit no batch; the message says why and what to do."""


def seed_for(*numbers: int) -> int:
    """A seed of its own for each combination of numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


# Plans


def plan_batches(lengths: np.ndarray, batching: Batching, rng: np.random.Generator | None = None) -> list[np.ndarray]:
    """Every example once. With `rng`, in random order between and within buckets of like length; without, longest first.

    A batch is `batching.examples` large, or as large as longest x examples <= `batching.tokens` allows.
    """
    if batching.tokens is not None and len(lengths) and lengths.max() > batching.tokens:
        raise BatchingError(
            f"An example of {lengths.max()} tokens does not fit a batch of batching.tokens={batching.tokens}: raise it, or set "
            f"data.max_length."
        )
    order = np.arange(len(lengths)) if rng is None else rng.permutation(len(lengths))
    if batching.bucketing or rng is None:
        order = order[np.argsort(-lengths[order], kind="stable")]  # stable: equal lengths stay in random order
    batches = _cut(order, lengths[order], batching)
    if rng is not None:
        batches = [batches[i] for i in rng.permutation(len(batches))]
    return batches


def _cut(order: np.ndarray, lengths: np.ndarray, batching: Batching) -> list[np.ndarray]:
    if batching.examples is not None:
        return [order[start : start + batching.examples] for start in range(0, len(order), batching.examples)]
    batches, start, longest = [], 0, 0
    for end, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        if longest * (end + 1 - start) > batching.tokens:
            batches.append(order[start:end])
            start, longest = end, length
    return [*batches, order[start:]] if len(order) else batches


@dataclass
class Blocks:
    """Documents laid end to end and cut into rows of `size` tokens: every token once, no padding but in the first and last row.

    With `rng`, documents come in random order and the first cut falls at a random place. With an `overlap`, a row shows the
    last tokens of the row before once more, as context of what is new.
    """

    lengths: np.ndarray
    size: int
    rng: np.random.Generator | None = None
    overlap: int = 0

    def __post_init__(self):
        count = len(self.lengths)
        self.order = np.arange(count) if self.rng is None else self.rng.permutation(count)
        self.ends = np.cumsum(self.lengths[self.order])
        total = int(self.ends[-1]) if count else 0
        first = self.size if self.rng is None else int(self.rng.integers(1, self.size + 1))
        self.cuts = np.unique([0, *range(first, total, self.size - self.overlap), total])

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def __getitem__(self, block: int) -> list[tuple[int, int, int]]:
        """The parts of a row: (document, first token, token after the last)."""
        start, end = int(self.cuts[block]) - self.context(block), int(self.cuts[block + 1])
        parts = []
        place = int(np.searchsorted(self.ends, start, side="right"))
        while start < end:
            document, stop = int(self.order[place]), min(end, int(self.ends[place]))
            begin = int(self.ends[place] - self.lengths[document])
            parts.append((document, start - begin, stop - begin))
            start, place = stop, place + 1
        return parts

    def context(self, block: int) -> int:
        """Tokens at the beginning of a row that the row before has too."""
        return self.overlap if block else 0

    @property
    def row_lengths(self) -> np.ndarray:
        return np.diff(self.cuts) + self.overlap * (np.arange(len(self)) > 0)


# Sources: an epoch is one window of a table that is at hand, or many windows of a stream


@dataclass
class Window:
    """Examples that are shuffled and batched together. `state` is what it takes to open the same window again."""

    state: dict[str, Any] | None
    examples: Any  # [numbers] -> features
    plan: list[np.ndarray]


class TableSource:
    """Encoded rows, all at hand. `block_size` packs the documents of a language model into rows of that many tokens.

    `vary` gives columns of the rows as they are in one epoch only.
    """

    def __init__(
        self,
        rows: Dataset,
        batching: Batching,
        seed: int,
        block_size: int | None = None,
        shuffle: bool = True,
        overlap: int = 0,
        vary: Callable[[np.random.Generator], dict[str, list]] | None = None,
    ):
        self.rows, self.batching, self.seed, self.block_size, self.shuffle = rows, batching, seed, block_size, shuffle
        self.overlap, self.vary = overlap, vary
        self.lengths = np.asarray(rows.with_format("numpy")["length"][:], dtype=np.int64)
        self.columns = {name: Column(rows, name) for name in rows.column_names if name not in ("length", "cut")}

    def plan(self, epoch: int) -> tuple[Blocks | None, list[np.ndarray]]:
        rng = np.random.default_rng([self.seed, epoch]) if self.shuffle else None
        if self.block_size is None:
            return None, plan_batches(self.lengths, self.batching, rng)
        blocks = Blocks(self.lengths, self.block_size, rng, self.overlap)
        return blocks, plan_batches(blocks.row_lengths, self.batching, rng)

    def windows(self, epoch: int, state: dict[str, Any] | None = None) -> Iterator[Window]:
        seed = seed_for(self.seed, epoch)
        if self.vary is not None:
            yield self._varied(epoch, seed)
            return
        blocks, plan = self.plan(epoch)
        examples = RowExamples(self.columns, seed) if blocks is None else PackedExamples(self.columns, blocks, seed)
        yield Window(None, examples, plan)

    def _varied(self, epoch: int, seed: int) -> Window:
        assert self.vary is not None
        columns = self.vary(np.random.default_rng([seed, 1]))
        lengths = np.max([[len(ids) for ids in column] for column in columns.values()], axis=0)
        rng = np.random.default_rng([self.seed, epoch])
        return Window(None, RowExamples(self.columns, seed, columns), plan_batches(lengths, self.batching, rng))

    def num_batches(self, epoch: int) -> int:
        return len(self.plan(epoch)[1])


class StreamSource:
    """Rows read while training, `window` of them at a time."""

    def __init__(
        self,
        rows: IterableDataset,
        encode: Callable[[list[dict], int], Dataset],
        batching: Batching,
        seed: int,
        window: int,
        block_size: int | None = None,
    ):
        self.rows, self.encode, self.batching, self.seed, self.window = rows, encode, batching, seed, window
        self.block_size = block_size

    def windows(self, epoch: int, state: dict[str, Any] | None = None) -> Iterator[Window]:
        stream = copy.deepcopy(self.rows)  # keeps no memory of an earlier epoch
        state = state or {"stream": None, "first_row": 0}
        if state["stream"] is not None:
            stream.load_state_dict(state["stream"])
        iterator = iter(stream)
        while rows := list(itertools.islice(iterator, self.window)):
            first = state["first_row"]
            table = TableSource(self.encode(rows, first), self.batching, seed_for(self.seed, epoch, first), self.block_size)
            window = next(table.windows(0))
            if window.plan:  # which is empty if no row can be used
                yield dataclasses.replace(window, state=state)
            # Asked only now: a stream that was just opened does not know yet where it was told to begin.
            state = {"stream": stream.state_dict(), "first_row": first + len(rows)}


class RowExamples:
    """Encoded rows by number, each with a seed of its own for whatever noise the objective adds.

    `others` are columns in the place of those of the rows.
    """

    def __init__(self, columns: dict[str, Column], seed: int, others: dict[str, list] | None = None):
        self.columns, self.seed, self.others = columns, seed, others or {}

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        columns = {name: column.take(numbers) for name, column in self.columns.items() if name not in self.others}
        columns |= {name: [column[number] for number in numbers] for name, column in self.others.items()}
        seeds = [(self.seed, number) for number in numbers]
        return [dict(zip(("seed", *columns), values)) for values in zip(seeds, *columns.values())]


class PackedExamples:
    """Rows made of parts of documents; `words` numbers the word of each token, where the objective wants to know."""

    def __init__(self, columns: dict[str, Column], blocks: Blocks, seed: int):
        self.columns, self.blocks, self.seed = columns, blocks, seed

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        return [self.row(number) for number in numbers]

    def row(self, number: int) -> dict[str, Any]:
        parts = self.blocks[number]
        documents = [self.columns["input_ids"][document][start:end] for document, start, end in parts]
        context = self.blocks.context(number)
        feature: dict[str, Any] = {"documents": documents, "seed": (self.seed, number), "context": context}
        if "words" in self.columns:
            feature["words"] = np.concatenate([self.columns["words"][document][start:end] for document, start, end in parts])
        return feature


# Batches of one process


@dataclass
class MicroBatch:
    """What one process computes on at a time. `index` counts the batches of all processes within the epoch."""

    index: int
    tensors: dict[str, Tensor]
    examples: list[int]  # numbers of the rows, for messages
    counts: bool = True  # False: nothing was left for this process, which goes through the motions


@dataclass
class Position:
    """Where in the data a run is: enough to go on from there."""

    epoch: int = 0
    batch: int = 0  # batches of this epoch that all processes together have seen
    window_start: int = 0  # the first batch of the open window
    window: dict[str, Any] | None = None


class Loader:
    """Deals the planned batches to the processes, `accumulation` to each for every update."""

    def __init__(self, source, collate: Callable[[list], dict], batching: Batching, rank: int = 0, world: int = 1):
        self.source, self.collate, self.batching, self.rank, self.world = source, collate, batching, rank, world
        self.group = batching.accumulation * world  # batches that make one update

    def updates(self, position: Position) -> Iterator[tuple[list[MicroBatch], Position]]:
        """What this process computes for each update to the end of the epoch, and the position after it."""
        done, window_start, mine = position.batch, position.window_start, []
        for window in self.source.windows(position.epoch, position.window):
            seen = done - window_start
            for batch in self._deal(window, seen, window_start):
                done += 1
                mine += [] if batch is None else [batch]
                if done % self.group == 0:
                    yield mine, Position(position.epoch, done, window_start, window.state)
                    mine = []
            last, window_start = window, window_start + len(window.plan)
        if done > position.batch and (rest := done % self.group):
            while len(mine) < -(-rest // self.world):
                mine.append(self._filler(last, done))
            yield mine, Position(position.epoch, done, window_start - len(last.plan), last.state)

    def _deal(self, window: Window, seen: int, window_start: int) -> Iterator[MicroBatch | None]:
        """The rest of the window's batches in order, None for those of other processes."""
        numbers = range(seen, len(window.plan))
        mine = [number for number in numbers if (window_start + number) % self.world == self.rank]
        loaded = in_bursts(self._load(window, mine))
        for number in numbers:
            if (window_start + number) % self.world == self.rank:
                yield MicroBatch(window_start + number, next(loaded), window.plan[number].tolist())
            else:
                yield None

    def _filler(self, window: Window, index: int) -> MicroBatch:
        number = len(window.plan) - 1
        return MicroBatch(index, next(iter(self._load(window, [number]))), window.plan[number].tolist(), counts=False)

    def _load(self, window: Window, numbers: Sequence[int]) -> DataLoader:
        plan = [window.plan[number].tolist() for number in numbers]
        return DataLoader(
            window.examples, batch_sampler=plan, collate_fn=self.collate, num_workers=self.batching.workers,
            pin_memory=torch.cuda.is_available(),
        )  # fmt: skip

    def num_updates(self, epochs: float) -> int:
        """Updates in so many epochs of a table, at least one."""
        whole = sum(-(-self.source.num_batches(epoch) // self.group) for epoch in range(int(epochs)))
        part = epochs - int(epochs)
        return max(1, whole + (round(part * -(-self.source.num_batches(int(epochs)) // self.group)) if part else 0))


def in_bursts(batches: Iterable[Any], size: int = 8) -> Iterator[Any]:
    """The same, a few made at a time: an update drives out of the cache what makes a batch, and the next few find it there."""
    iterator = iter(batches)
    while burst := list(itertools.islice(iterator, size)):
        yield from burst
