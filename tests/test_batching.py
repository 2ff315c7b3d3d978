"""Batches: every example once, within the budget, dealt fairly to the processes, and found again after a stop.

Tokens of the tables here tell where they come from: row 7 is [701, 702, 703, ...].
"""

import dataclasses
import json
from collections import Counter
from itertools import chain, product

import numpy as np
import pytest
import torch
from datasets import Dataset, load_dataset

from glassformer.training.batching import (
    BatchingError,
    Blocks,
    Loader,
    Position,
    StreamSource,
    TableSource,
    in_bursts,
    plan_batches,
    seed_for,
)
from glassformer.training.recipe import Batching


def text_lengths(count: int = 600) -> np.ndarray:
    """A spread like that of sentences: many short ones, few long ones."""
    return np.random.default_rng(1).lognormal(3, 0.7, count).astype(np.int64).clip(1, 200)


def tokens_of(row: int, length: int) -> list[int]:
    return [row * 100 + place for place in range(1, length + 1)]


def encode(rows: list[dict], first: int = 0) -> Dataset:
    """Rows {"number", "length"} as tokens. `first` is where they begin in the stream, which their tokens tell already."""
    tokens = [tokens_of(row["number"], row["length"]) for row in rows]
    return Dataset.from_dict({"input_ids": tokens, "length": [len(ids) for ids in tokens]})


COUNT = 37


def raw_rows() -> list[dict]:
    return [{"number": number, "length": number * 7 % 11 + 2} for number in range(1, COUNT + 1)]


def collate(features: list[dict]) -> dict:
    """As plain as can be: the tokens of each feature end to end, and its seed."""
    tokens = [list(chain(*feature["documents"])) if "documents" in feature else feature["input_ids"] for feature in features]
    return {"tokens": [list(map(int, ids)) for ids in tokens], "seeds": [feature["seed"] for feature in features]}


# Plans


SIZES = {"tokens": Batching(tokens=400), "examples": Batching(examples=7), "unbucketed": Batching(tokens=400, bucketing=False)}


@pytest.mark.parametrize("shuffled", [True, False], ids=["shuffled", "in-order"])
@pytest.mark.parametrize("batching", SIZES.values(), ids=SIZES.keys())
def test_every_example_comes_once_and_no_batch_is_beyond_its_size(batching, shuffled):
    lengths = text_lengths()
    plan = plan_batches(lengths, batching, np.random.default_rng(0) if shuffled else None)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(lengths)))
    for batch in plan:
        assert len(batch) > 0
        assert len(batch) <= 7 if batching.examples else lengths[batch].max() * len(batch) <= 400
    if batching.examples:
        assert sorted(map(len, plan))[1:] == [7] * (len(plan) - 1)  # all full but one


def test_a_batch_ends_where_the_next_example_would_not_fit():
    lengths = text_lengths()
    plan = plan_batches(lengths, Batching(tokens=400))  # longest first
    assert [int(lengths[batch].max()) for batch in plan] == [int(lengths[batch[0]]) for batch in plan]
    for batch in plan[:-1]:
        assert lengths[batch].max() * (len(batch) + 1) > 400


@pytest.mark.parametrize("batching", SIZES.values(), ids=SIZES.keys())
def test_a_plan_follows_from_its_seed_and_another_seed_gives_another(batching):
    first, same, other = (
        [batch.tolist() for batch in plan_batches(text_lengths(), batching, np.random.default_rng(seed))] for seed in (1, 1, 2)
    )
    assert first == same
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in other}  # within buckets


def test_a_bucket_comes_at_any_time_of_the_epoch():
    lengths = text_lengths()
    count = len(plan_batches(lengths, Batching(examples=10)))
    places = []
    for seed in range(300):
        plan = plan_batches(lengths, Batching(examples=10), np.random.default_rng(seed))
        places.append(next(place for place, batch in enumerate(plan) if lengths.argmax() in batch))
    spread = count / np.sqrt(12 * len(places))  # standard error of the mean of a uniform choice
    assert abs(np.mean(places) - (count - 1) / 2) < 5 * spread
    assert len(set(places)) > count / 2


def test_bucketing_saves_most_of_the_padding():
    def padding(batching: Batching) -> float:
        lengths, rng = text_lengths(5000), np.random.default_rng(0)
        plan = plan_batches(lengths, batching, rng)
        return 1 - lengths.sum() / sum(lengths[batch].max() * len(batch) for batch in plan)

    assert padding(Batching(tokens=2000)) < 0.05
    assert padding(Batching(tokens=2000, bucketing=False)) > 0.4


def test_an_example_longer_than_the_budget_is_refused():
    with pytest.raises(BatchingError, match=r"^An example of 31 tokens does not fit .*batching.tokens=30: raise it, or set"):
        plan_batches(np.array([3, 31, 5]), Batching(tokens=30))
    assert len(plan_batches(np.array([3, 31, 5]), Batching(tokens=31))) == 2
    assert len(plan_batches(np.array([3, 31, 5]), Batching(examples=3))) == 1


def test_no_examples_make_no_batches():
    assert plan_batches(np.array([], dtype=np.int64), Batching(tokens=30), np.random.default_rng(0)) == []
    assert len(Blocks(np.array([], dtype=np.int64), 10, np.random.default_rng(0))) == 0


# Packing


@pytest.mark.parametrize("shuffled", [True, False], ids=["shuffled", "in-order"])
@pytest.mark.parametrize("size", [1, 5, 64, 10_000])
def test_blocks_hold_every_token_once_and_documents_from_their_beginning_to_their_end(size, shuffled):
    lengths = text_lengths(100)
    blocks = Blocks(lengths, size, np.random.default_rng(0) if shuffled else None)
    rows = [blocks[number] for number in range(len(blocks))]
    assert blocks.row_lengths.tolist() == [sum(end - start for _, start, end in row) for row in rows]
    assert set(blocks.row_lengths[1:-1].tolist()) <= {size} and blocks.row_lengths.max() <= size
    tokens = [(document, place) for row in rows for document, start, end in row for place in range(start, end)]
    order = list(dict.fromkeys(document for document, _ in tokens))
    assert tokens == [(document, place) for document in order for place in range(lengths[document])]
    assert sorted(order) == list(range(100))
    assert (order == list(range(100))) != shuffled


def test_the_first_cut_falls_at_any_place():
    found = Counter(int(Blocks(np.array([30, 40]), 5, np.random.default_rng(seed)).row_lengths[0]) for seed in range(300))
    assert sorted(found) == [1, 2, 3, 4, 5] and min(found.values()) > 30
    assert Blocks(np.array([30, 40]), 5).row_lengths.tolist() == [5] * 14


@pytest.mark.parametrize("overlap", [1, 7, 15])
def test_rows_that_overlap_show_the_end_of_the_row_before_and_every_token_once_as_new(overlap):
    lengths = text_lengths(40)
    blocks = Blocks(lengths, 16, overlap=overlap)
    rows = [[(d, place) for d, start, end in blocks[n] for place in range(start, end)] for n in range(len(blocks))]
    assert list(map(len, rows)) == blocks.row_lengths.tolist() and max(map(len, rows)) <= 16
    new = [row[blocks.context(number) :] for number, row in enumerate(rows)]
    assert list(chain(*new)) == [(document, place) for document in range(40) for place in range(lengths[document])]
    seen = list(chain(*new))
    for number, row in enumerate(rows[1:], 1):
        end = sum(map(len, new[:number]))
        assert row[:overlap] == seen[end - overlap : end]


def test_packed_rows_are_the_tokens_of_their_documents():
    rows = raw_rows()
    table = encode(rows).select(range(COUNT - 1, -1, -1))  # an order that is not the stored one
    source = TableSource(table, Batching(examples=4), seed=3, block_size=16)
    window = next(source.windows(epoch=1))
    features = list(chain(*(window.examples.__getitems__(batch.tolist()) for batch in window.plan)))
    parts = [part.tolist() for feature in features for part in feature["documents"]]
    for part in parts:
        assert part == list(range(part[0], part[0] + len(part)))  # a stretch of one document
    expected = sorted(token for row in rows for token in tokens_of(row["number"], row["length"]))
    assert sorted(chain(*parts)) == expected
    lengths = Counter(sum(map(len, feature["documents"])) for feature in features)
    assert lengths[16] >= len(features) - 2
    assert len({feature["seed"] for feature in features}) == len(features)


def test_words_are_packed_along_with_their_tokens():
    tokens = [[1, 50, 51, 52, 2], [1, 60, 61, 2]]
    words = [[-1, 0, 0, 1, -1], [-1, 0, 1, -1]]
    table = Dataset.from_dict({"input_ids": tokens, "words": words, "length": [5, 4]})
    window = next(TableSource(table, Batching(examples=1), seed=0, block_size=4).windows(epoch=0))
    word_of = dict(zip(chain(*tokens), chain(*words)))
    for feature in window.examples.__getitems__(range(len(window.plan))):
        assert feature["words"].tolist() == [word_of[int(token)] for token in chain(*feature["documents"])]


# Processes


def table_source(batching: Batching, block_size: int | None = None) -> TableSource:
    return TableSource(encode(raw_rows()), batching, seed=5, block_size=block_size)


def deal(batching: Batching, world: int, source=None) -> list[list]:
    """The updates of each process."""
    source = source or table_source(batching)
    return [list(Loader(source, collate, batching, rank, world).updates(Position())) for rank in range(world)]


@pytest.mark.parametrize("accumulation", [1, 2, 3])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_processes_share_every_batch_and_keep_step(world, accumulation):
    batching = Batching(tokens=24, accumulation=accumulation)
    source = table_source(batching)
    ranks = deal(batching, world, source)
    every = [batch for updates in ranks for batches, _ in updates for batch in batches]
    counted = sorted((batch.index, batch.examples) for batch in every if batch.counts)
    assert counted == [(index, batch.tolist()) for index, batch in enumerate(source.plan(epoch=0)[1])]
    for update in zip(*ranks, strict=True):
        assert len({len(batches) for batches, _ in update}) == 1  # all processes call the model equally often
        assert len({str(position) for _, position in update}) == 1
    for batches, _ in chain(*(updates[:-1] for updates in ranks)):
        assert len(batches) == accumulation and all(batch.counts for batch in batches)
    assert sum(not batch.counts for batch in every) < world
    assert all(len(batches) >= 1 for batches, _ in chain(*ranks))


def test_a_process_for_which_nothing_is_left_goes_through_the_motions():
    batching = Batching(examples=7)  # 6 batches for 4 processes: the second update has two
    last = [updates[-1] for updates in deal(batching, world=4)]
    assert [[batch.counts for batch in batches] for batches, _ in last] == [[True], [True], [False], [False]]
    assert all(batch.tensors["tokens"] for batches, _ in last for batch in batches)


@pytest.mark.parametrize("world, accumulation", [(2, 3), (3, 2), (6, 1)])
def test_an_update_is_the_same_however_many_processes_share_it(world, accumulation):
    def updates(world: int, accumulation: int) -> list[list]:
        ranks = deal(Batching(tokens=24, accumulation=accumulation), world)
        merged = [[batch for batches, _ in update for batch in batches if batch.counts] for update in zip(*ranks)]
        return [sorted((batch.index, batch.tensors["tokens"], batch.tensors["seeds"]) for batch in one) for one in merged]

    assert updates(world, accumulation) == updates(1, 6)


# Streams and positions


@pytest.fixture
def open_stream(tmp_path):
    """Rows of two json files, with columns chosen and renamed as a recipe does, `window` at a time."""
    rows = raw_rows()
    for name, part in (("a", rows[:20]), ("b", rows[20:])):
        lines = [json.dumps({"id": row["number"], "length": row["length"], "unused": "x"}) for row in part]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    files = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    stream = load_dataset("json", data_files={"train": files}, streaming=True, cache_dir=str(tmp_path / "cache"))["train"]
    stream = stream.select_columns(["id", "length"]).rename_columns({"id": "number"})
    assert len(list(stream.take(25))) == 25 and next(iter(stream))["number"] == 1  # whoever looks at rows moves none

    def open_it(batching: Batching, block_size: int | None = None, encode=encode, window: int = 9) -> StreamSource:
        return StreamSource(stream, encode, batching, seed=5, window=window, block_size=block_size)

    return open_it


@pytest.fixture(params=["table", "packed-table", "stream", "packed-stream"])
def open_source(request, open_stream):
    block_size = 16 if "packed" in request.param else None
    return lambda batching: (open_stream if "stream" in request.param else table_source)(batching, block_size)


def readable(updates) -> list:
    """Without the state of a stream, which may say the same place in several ways."""
    return [
        ([dataclasses.astuple(batch) for batch in batches], position.batch, (position.window or {}).get("first_row"))
        for batches, position in updates
    ]


def through_json(position: Position) -> Position:
    return Position(**json.loads(json.dumps(dataclasses.asdict(position))))


@pytest.mark.parametrize("rank, world, accumulation", [(0, 1, 1), (1, 2, 2), (2, 3, 1)])
def test_a_run_goes_on_after_any_update_as_if_it_had_not_stopped(open_source, rank, world, accumulation):
    batching = Batching(tokens=20, accumulation=accumulation)  # windows do not end with updates, nor with files

    def updates(position: Position):
        return Loader(open_source(batching), collate, batching, rank, world).updates(position)

    whole = list(updates(Position(epoch=1)))
    assert len(whole) > 4
    for number, (_, position) in enumerate(whole, start=1):
        assert readable(updates(through_json(position))) == readable(whole[number:])


def test_a_run_that_stops_after_every_update_sees_the_same_batches(open_source):
    batching, position, found = Batching(tokens=20, accumulation=2), Position(epoch=2), []
    whole = list(Loader(open_source(batching), collate, batching).updates(position))
    for _ in whole:
        found.append(next(Loader(open_source(batching), collate, batching).updates(position)))
        position = through_json(found[-1][1])
    assert readable(found) == readable(whole)
    assert next(Loader(open_source(batching), collate, batching).updates(position), None) is None


def test_every_token_comes_once_an_epoch_and_in_another_order_in_the_next(open_source):
    batching = Batching(tokens=32)
    loader, epochs = Loader(open_source(batching), collate, batching), []
    for epoch in (0, 1):
        batches = list(chain(*(batches for batches, _ in loader.updates(Position(epoch)))))
        tokens = [batch.tensors["tokens"] for batch in batches]
        assert all(max(map(len, rows)) * len(rows) <= 32 for rows in tokens)
        epochs.append((list(chain(*chain(*tokens))), list(chain(*(batch.tensors["seeds"] for batch in batches)))))
    (first, seeds), (second, other_seeds) = epochs
    every = sorted(token for row in raw_rows() for token in tokens_of(row["number"], row["length"]))
    assert sorted(first) == sorted(second) == every
    assert first != second
    assert len({*seeds, *other_seeds}) == len(seeds) + len(other_seeds)


def test_rows_of_a_stream_are_shuffled_within_their_window(open_stream):
    batching = Batching(examples=4)
    batches = [batches[0] for batches, _ in Loader(open_stream(batching), collate, batching).updates(Position())]
    numbers = [tokens[0] // 100 for batch in batches for tokens in batch.tensors["tokens"]]
    windows = [numbers[start : start + 9] for start in range(0, COUNT, 9)]
    assert [sorted(window) for window in windows] == [list(range(n, min(n + 9, COUNT + 1))) for n in range(1, COUNT + 1, 9)]
    assert all(window != sorted(window) for window in windows[:-1])  # the last is a single row


def test_windows_without_a_usable_row_are_passed_over(open_stream):
    def encode_some(rows: list[dict], first: int) -> Dataset:
        return encode([row for row in rows if row["number"] % 20 < 3])

    batching = Batching(examples=1)
    source = open_stream(batching, encode=encode_some, window=4)
    ranks = deal(batching, 2, source)
    counted = [batch for batches, _ in chain(*ranks) for batch in batches if batch.counts]
    assert sorted(tokens[0] // 100 for batch in counted for tokens in batch.tensors["tokens"]) == [1, 2, 20, 21, 22]
    loader = Loader(source, collate, batching)
    whole = list(loader.updates(Position()))
    assert readable(loader.updates(through_json(whole[1][1]))) == readable(whole[2:])


def test_batches_are_made_a_few_at_a_time_and_come_one_by_one():
    made = []
    batches = in_bursts((made.append(number) or number for number in range(10)), size=4)
    seen = [(next(batches), len(made)) for _ in range(10)]
    assert seen == [(number, min(10, 4 * (number // 4 + 1))) for number in range(10)]
    assert next(batches, None) is None


def test_workers_prepare_the_same_batches():
    def updates(workers: int) -> list:
        batching = Batching(tokens=60, workers=workers)
        return readable(Loader(table_source(batching), collate, batching).updates(Position()))

    assert updates(workers=2) == updates(workers=0)


# Counting


@pytest.mark.parametrize("block_size", [None, 16], ids=["rows", "packed"])
@pytest.mark.parametrize("world, accumulation", [(1, 1), (2, 2)])
def test_updates_are_counted_as_they_come(block_size, world, accumulation):
    batching = Batching(tokens=32, accumulation=accumulation)
    loader = Loader(table_source(batching, block_size), collate, batching, 0, world)
    counts = [len(list(loader.updates(Position(epoch)))) for epoch in range(4)]
    for epochs in (1, 3):
        assert loader.num_updates(epochs) == sum(counts[:epochs])
    assert loader.num_updates(2.5) == sum(counts[:2]) + round(counts[2] / 2)
    assert loader.num_updates(0.25) == round(counts[0] / 4)


def test_a_run_has_an_update_however_small_its_share_of_an_epoch():
    batching = Batching(tokens=600)
    assert Loader(table_source(batching), collate, batching).num_updates(0.01) == 1


# Seeds


def test_the_seed_of_a_row_does_not_depend_on_its_batch():
    def seeds(batching: Batching, world: int = 1) -> dict[int, int]:
        batches = chain(*(batches for updates in deal(batching, world) for batches, _ in updates))
        return {ids[0]: seed for b in batches for ids, seed in zip(b.tensors["tokens"], b.tensors["seeds"])}

    expected = seeds(Batching(tokens=32))
    assert len(set(expected.values())) == COUNT
    assert seeds(Batching(examples=3, bucketing=False)) == expected
    assert seeds(Batching(tokens=100), world=3) == expected


def test_seeds_tell_their_numbers_apart_and_torch_takes_them():
    seeds = {seed_for(*numbers) for numbers in product(range(6), repeat=3)}
    assert len(seeds) == 6**3
    assert min(seeds) >= 0 and max(seeds) < 2**63
    torch.manual_seed(max(seeds))
