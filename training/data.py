# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Rows: where they come from, which column plays which role, and what is wrong with them.

A source is a corpus that the project generates, a dataset of the Hub, the folder of a saved dataset or local files. Whatever
it is, what leaves this file has one column a role (`source` and `target`, `text` and `label`, ...) and no incomplete row.
"""

import codecs
import dataclasses
import gzip
import hashlib
import json
import logging
import math
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
from datasets import Dataset, IterableDataset, ReadInstruction

from . import corpora
from .recipe import BUILT_IN, Data, expand_path, nearest


SPLITS = ("train", "validation", "test")
OTHER_NAMES = {"validation": ("valid", "val", "dev"), "train": (), "test": ()}
FORMATS = {
    ".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".txt": "text", ".text": "text",
}  # fmt: skip
TEXTS = ("source", "target", "text", "text_pair", "question", "context")  # roles that are texts
FEW_ROWS = 100_000  # which are encoded so soon that a progress bar is of no use
Rows: TypeAlias = Dataset | IterableDataset


logger = logging.getLogger("glassformer")


class DataError(ValueError):
    """Rows that cannot be used; the message says why and what to do."""


def load_rows(data: Data, roles: dict[str, bool], seed: int = 0, share: float = 1.0) -> dict[str, Rows]:
    """The rows of every split that there is, or a share of them, with one column a role.

    `roles` says which ones a row cannot do without.
    """
    splits = _load_splits(data, seed)
    if "train" not in splits:
        raise DataError("The data has no training split: name it with data.splits.train.")
    whole = {split: rows if split == "train" else _read_whole(rows, split) for split, rows in splits.items()}
    complete = {split: _with_roles(rows, split, data, roles) for split, rows in whole.items()}
    return complete if share == 1 else {split: _share_of(rows, share) for split, rows in complete.items()}


def _share_of(rows: Rows, share: float) -> Rows:
    """The first rows, at least 8; where a single one holds all the text, the beginning of that. A stream is left as it is."""
    if isinstance(rows, IterableDataset):
        return rows
    if (text := single_text(rows)) is not None:
        return one_row(text[: math.ceil(len(text) * share)])
    return rows.take(min(len(rows), max(8, math.ceil(len(rows) * share))))


def load_split(data: Data, roles: dict[str, bool], source: str | None, split: str, seed: int = 0) -> Rows:
    """The rows of one split of the recipe's data, or of another source: of a file all there are."""
    if source is not None:
        is_file = Path(expand_path(source)).is_file()
        data = dataclasses.replace(data, source="" if is_file else source, files={split: source} if is_file else None)
        data = dataclasses.replace(data, config=None, splits={}, validation_fraction=0.0, size=None)
    splits = _load_splits(data, seed)
    if split not in splits:
        raise DataError(f"There are no {split} rows: choose one of {', '.join(splits)}.")
    return _with_roles(_read_whole(splits[split], split), split, data, roles)


def fingerprint(rows: Rows) -> str | None:
    """A checksum of the content, however it lies in memory; None for a stream, which nobody has seen whole."""
    if isinstance(rows, IterableDataset):
        return None
    digest = hashlib.sha256()
    for table in rows.with_format("arrow").iter(batch_size=1000):
        digest.update(json.dumps(table.to_pydict(), default=str).encode())
    return digest.hexdigest()


# Sources


def _load_splits(data: Data, seed: int) -> dict[str, Rows]:
    """Splits by our names for them, as the recipe cuts them."""
    splits = _pick_splits(_load_source(data), data)
    if data.validation_fraction and "train" in splits and "validation" not in splits:
        splits |= _cut_validation(splits["train"], data.validation_fraction, seed)
    if data.size is not None and "train" in splits:
        splits["train"] = splits["train"].take(data.size)
    return splits


def hub_id(data: Data) -> str | None:
    """The id of a dataset that comes from the Hub."""
    is_local = bool(data.files) or Path(expand_path(data.source)).exists() or data.source.startswith(BUILT_IN)
    return None if is_local else data.source


def _load_source(data: Data) -> dict[str, Rows] | Rows:
    if data.source.startswith(BUILT_IN):
        name = data.source.removeprefix(BUILT_IN)
        return {split: corpora.generate(name, split, data.size if split == "train" else None) for split in SPLITS}
    folder = Path(expand_path(data.source))
    if data.files or folder.is_file():
        return _load_files(data)
    if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
        return _load_saved(folder, data.streaming)
    return _load_named(data)


def _load_saved(folder: Path, streaming: bool) -> dict[str, Rows] | Rows:
    try:
        loaded = datasets.load_from_disk(str(folder))
    except Exception as error:
        raise DataError(f"{folder} cannot be read as a saved dataset: {_one_line(error)}.") from error
    if not streaming:
        return loaded
    if isinstance(loaded, Dataset):
        return loaded.to_iterable_dataset()
    return {name: rows.to_iterable_dataset() for name, rows in loaded.items()}


def _load_named(data: Data) -> dict[str, Rows] | Rows:
    """A dataset of the Hub, or a local folder that is laid out like one."""
    try:
        return datasets.load_dataset(expand_path(data.source), data.config, streaming=data.streaming)
    except Exception as error:  # the Hub fails in many ways: missing, gated, offline, ...
        raise DataError(
            f"data.source={data.source!r} is no local file or folder, and as a dataset of the Hub it cannot be loaded: "
            f"{_one_line(error)}."
        ) from error


def _load_files(data: Data) -> dict[str, Rows]:
    files = data.files or {"train": data.source}
    if unknown := [split for split in files if split not in SPLITS]:
        raise DataError(f"data.files has no split {unknown[0]!r}{nearest(unknown[0], SPLITS)}")
    paths = {
        split: [expand_path(one) for one in ([given] if isinstance(given, str) else given)] for split, given in files.items()
    }
    every_path = [path for several in paths.values() for path in several]
    kind = _format_of(every_path)
    if kind != "parquet":
        for path in every_path:
            check_text_file(path, data.encoding, kind)
    builder = "csv" if kind == "tsv" else kind
    loaded = {}
    for split, several in paths.items():  # one by one: they may differ in their columns
        try:
            options = {"streaming": data.streaming, **_reading_options(kind, several, data)}
            loaded[split] = datasets.load_dataset(builder, data_files={split: several}, split=split, **options)
        except Exception as error:
            raise DataError(f"{', '.join(several)} cannot be read as {kind}: {_one_line(error)}.") from error
    return loaded


def _reading_options(kind: str, paths: list[str], data: Data) -> dict[str, Any]:
    """What the reader of a format is told."""
    if kind == "parquet" and len(paths) > 1:  # what all of them have
        columns = [pyarrow.parquet.read_schema(path).names for path in paths]
        return {"columns": [name for name in columns[0] if all(name in others for others in columns)]}
    if kind in ("csv", "tsv"):  # where texts are texts, 007 and NA among them
        texts = dict.fromkeys([name for role in TEXTS for name in _names(data, role)], str)
        separator = "\t" if kind == "tsv" else ","
        return {"encoding": data.encoding, "sep": separator, "keep_default_na": False, "converters": texts}
    if kind == "text":
        encoding = "utf-8-sig" if _is_utf8(data.encoding) else data.encoding  # without the mark that some editors put first
        return {"encoding": encoding, "sample_by": data.sample_by}
    return {"encoding": data.encoding} if kind == "json" else {}


def _is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name == "utf-8"


def _format_of(paths: list[str]) -> str:
    kinds = set()
    for path in paths:
        if not os.path.isfile(path):
            raise DataError(f"There is no file {path}.")
        if not os.access(path, os.R_OK):
            raise DataError(f"{path} may not be read: change its permissions.")
        suffixes = [suffix for suffix in Path(path).suffixes if suffix != ".gz"]
        kind = FORMATS.get(suffixes[-1].lower()) if suffixes else None
        if kind is None:
            raise DataError(f"{path} is of no known kind: rename it to one of *{', *'.join(FORMATS)}, or one of these with .gz.")
        kinds.add(kind)
    if len(kinds) > 1:
        raise DataError(f"The files of a recipe must be of one kind, but these are {' and '.join(sorted(kinds))}.")
    return kinds.pop()


def check_text_file(path: str, encoding: str, kind: str) -> None:
    """Not empty, and in the encoding that it is said to be in, which `datasets` does not always heed."""
    opener: Callable = gzip.open if path.endswith(".gz") else open
    place, start = 0, ""
    try:
        decoder = codecs.getincrementaldecoder(encoding)()
        with opener(path, "rb") as file:
            while piece := file.read(1 << 20):
                text = decoder.decode(piece)
                start, place = start or text.lstrip("\ufeff \t\r\n")[:1], place + len(piece)
        piece = b""
        decoder.decode(piece, final=True)
    except UnicodeDecodeError as error:
        place += error.start - (len(error.object) - len(piece))  # the decoder may have kept bytes of an earlier piece
        raise DataError(
            f"{path} is not {encoding} (byte 0x{error.object[error.start]:02x} at place {place}): set data.encoding to what it "
            f"is, such as latin-1 or utf-16."
        ) from None
    except LookupError:
        raise DataError(f"data.encoding={encoding!r} is unknown: try utf-8, latin-1 or utf-16.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise DataError(f"{path} is damaged or no gzip file: make it again, or drop the .gz from its name.") from None
    if not start:
        raise DataError(f"{path} is empty.")
    if kind == "json" and start == "[" and not _is_utf8(encoding):
        raise DataError(f"{path} is a JSON array, which must be utf-8: convert it, or write one object a line.")
    if kind == "text" and path.endswith(".gz") and not _is_utf8(encoding):
        raise DataError(f"{path} is a packed text, which must be utf-8: convert or unpack it.")


def _pick_splits(loaded: Any, data: Data) -> dict[str, Rows]:
    if isinstance(loaded, (Dataset, IterableDataset)):
        loaded = {"train": loaded}
    if unknown := [split for split in data.splits if split not in SPLITS]:
        raise DataError(f"data.splits has no split {unknown[0]!r}{nearest(unknown[0], SPLITS)}")
    picked = {}
    for split in SPLITS:
        asked = data.splits.get(split, split)
        if asked is None:
            continue
        names = [asked] if split in data.splits else [split, *OTHER_NAMES[split]]
        name = next((name for name in names if name.partition("[")[0] in loaded), None)
        if name is None and split in data.splits:
            raise DataError(f"{data.source or 'data.files'} has no split {names[0]!r}: it has {', '.join(loaded)}.")
        if name is not None:
            picked[split] = _slice(loaded, name)
    return picked


def _slice(loaded: Any, name: str) -> Rows:
    """`train`, or a part of it such as `train[:90%]`: rows, or characters where a single row holds all the text."""
    whole = loaded[name.partition("[")[0]]
    if "[" not in name:
        return whole
    if isinstance(whole, IterableDataset):
        raise DataError(f"{name} cannot be cut from a stream: set data.streaming=false, or name a whole split.")
    text = single_text(whole)
    size, unit = (len(whole), "rows") if text is None else (len(text), "characters")
    try:
        [part] = ReadInstruction.from_spec(name).to_absolute({name.partition("[")[0]: size})
    except ValueError:
        raise DataError(f"{name!r} is no slice of a split: write train[:90%] or train[1000:].") from None
    if part.from_ >= part.to:
        raise DataError(f"{name} holds no {unit}: the whole split has {size}.")
    return whole.select(range(part.from_, part.to)) if text is None else one_row(text[part.from_ : part.to])


def single_text(rows: Dataset) -> str | None:
    """The text of a document that is all there is."""
    return rows[0]["text"] if len(rows) == 1 and rows.column_names == ["text"] else None


def one_row(text: str) -> Dataset:
    return Dataset.from_dict({"text": [text]})


def _cut_validation(rows: Dataset, fraction: float, seed: int) -> dict[str, Rows]:
    try:
        parts = rows.train_test_split(test_size=fraction, seed=seed)
    except ValueError:
        raise DataError(f"data.validation_fraction={fraction} of {len(rows)} rows leaves none to train on: lower it.") from None
    return {"train": parts["train"], "validation": parts["test"]}


def _read_whole(rows: Rows, split: str) -> Dataset:
    """Evaluation is about all rows: those of a stream are read now."""
    if isinstance(rows, Dataset):
        return rows
    try:
        return Dataset.from_list(list(rows), features=rows.features)
    except Exception as error:
        raise DataError(f"The {split} rows cannot be read: {_one_line(error)}.") from error


def _one_line(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(".!")[:300]


# Columns and rows


def _with_roles(rows: Rows, split: str, data: Data, roles: dict[str, bool]) -> Rows:
    """Columns renamed to the roles that they play; the others dropped; incomplete rows refused or dropped."""
    if unknown := [role for role in data.columns if role not in roles]:
        raise DataError(f"data.columns.{unknown[0]} plays no part in this objective{nearest(unknown[0], roles)}")
    rows = _flat(rows, [name for role in data.columns for name in _names(data, role)])
    existing = _columns(rows, split)
    wanted: dict[str, str] = {}
    for role, needed in roles.items():
        column = next((name for name in _names(data, role) if name in existing), _names(data, role)[0])
        if column in wanted:
            raise DataError(f"{column!r} is to be {wanted[column]} and {role} at once: name another column in data.columns.")
        if column in existing:
            wanted[column] = role
        elif needed or role in data.columns:
            raise DataError(
                f"The {split} rows have no column {column!r} for the role {role!r}: they have {', '.join(existing)}; set "
                f"data.columns.{role} to one of these."
            )
        if role in TEXTS and (kind := existing.get(column, "null")) not in ("string", "large_string", "null"):
            raise DataError(f"The {split} rows have {kind} in the column {column!r}, not texts: put the values in quotes.")
    rows = rows.select_columns(list(wanted))
    names = {column: role for column, role in wanted.items() if column != role}
    if names:  # in two steps, for a stream cannot swap two names in one
        rows = rows.rename_columns({column: f"new {role}" for column, role in names.items()})
        rows = rows.rename_columns({f"new {role}": role for role in names.values()})
    complete = [role for role in wanted.values() if roles[role]]
    if isinstance(rows, IterableDataset):
        return rows
    return _without_incomplete(rows, split, complete, data)


def _names(data: Data, role: str) -> list[str]:
    """The columns that may play this role."""
    names = data.columns.get(role, role)
    return [names] if isinstance(names, str) else names


def _flat(rows: Rows, columns: Iterable[str]) -> Rows:
    """With the inside of a column as columns of its own, where a recipe asks for them: `translation.de`."""
    nested = [column for column in columns if "." in column]
    if not nested or all(column in (rows.column_names or ()) for column in nested):
        return rows
    if isinstance(rows, Dataset):
        return rows.flatten()
    return rows.map(lambda row: {**row, **{name: _inside(row, name) for name in nested}})


def _inside(row: dict[str, Any], name: str) -> Any:
    outer, _, inner = name.partition(".")
    return (row.get(outer) or {}).get(inner)


def _columns(rows: Rows, split: str) -> dict[str, str]:
    """Every column with what is in it; of a stream that does not say, in its first row."""
    try:
        first = next(iter(rows), None)
    except Exception as error:
        raise DataError(f"The {split} rows cannot be read: {_one_line(error)}.") from error
    if first is None:
        raise DataError(f"There are no {split} rows.")
    if rows.features is not None:
        return {name: getattr(feature, "dtype", type(feature).__name__) for name, feature in rows.features.items()}
    kinds = {str: "string", type(None): "null"}
    return {name: kinds.get(type(value), type(value).__name__) for name, value in first.items()}


def is_complete(row: dict[str, Any], needed: Iterable[str]) -> bool:
    return all(not is_missing(row[role], role) for role in needed)


def is_missing(value: Any, role: str) -> bool:
    """Whether a row has nothing there; no label at all is an answer too, where there may be several."""
    if isinstance(value, dict):  # the answers to a question
        return not all(value.values())
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, list):
        return not value and role != "label"
    return value is None or (isinstance(value, float) and math.isnan(value))


def _without_incomplete(rows: Dataset, split: str, needed: list[str], data: Data) -> Dataset:
    missing = {role: [i for i, value in enumerate(rows[role]) if is_missing(value, role)] for role in needed}
    bad = sorted({i for several in missing.values() for i in several})
    if not bad:
        return rows
    role = next(role for role in needed if bad[0] in missing[role])
    what = f"{len(bad)} of {len(rows)} {split} rows have no {' or no '.join(r for r in needed if missing[r])}"
    if len(bad) == len(rows):
        raise DataError(f"{what}: no row is left.")
    if data.incomplete == "refuse":
        raise DataError(f"{what} (the first is row {bad[0] + 1}, without {role}): fill them in, or set data.incomplete=drop.")
    logger.warning(f"{what} and were left out.")
    return rows.select(sorted(set(range(len(rows))) - set(bad)))


# Tokenised rows


def encode_rows(rows: Dataset, encode: Callable[[dict[str, list]], dict[str, list]], key: str, cache: Path | None) -> Dataset:
    """`rows` as tokens, or the result of an earlier run with the same `key`, which stands for all that decides the outcome.

    Without a `cache`, nothing is read or left behind.
    """
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    file = None if cache is None else str(cache / f"{name}.arrow")
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
    hide_progress = len(rows) < FEW_ROWS and datasets.are_progress_bars_disabled() is False
    if hide_progress:
        datasets.disable_progress_bars()
    # Under other names: `map` would press a label, once it is a number, into the type of the column that it came from.
    raw = rows.rename_columns({name: f"raw {name}" for name in rows.column_names})

    def encode_raw(columns: dict[str, list]) -> dict[str, list]:
        return encode({name.removeprefix("raw "): values for name, values in columns.items()})

    try:
        return raw.map(
            encode_raw, batched=True, remove_columns=raw.column_names, cache_file_name=file, new_fingerprint=name,
            load_from_cache_file=cache is not None, keep_in_memory=cache is None, desc="Tokenising",
        )  # fmt: skip
    finally:
        if hide_progress:
            datasets.enable_progress_bars()


def default_cache() -> Path:
    return Path(os.environ.get("GLASSFORMER_CACHE") or Path(datasets.config.HF_DATASETS_CACHE) / "glassformer")


class Column:
    """The values of a column by row, read where they lie: lists of whole numbers as numpy arrays, all else as Python has it."""

    def __init__(self, rows: Dataset, name: str):
        self.rows, self.name = rows, name
        self.order = None if rows._indices is None else rows._indices.column(0).to_numpy().astype(np.int64)
        column = rows.data.column(name)
        self.numbers = column.to_numpy() if pa.types.is_primitive(column.type) else None
        self.ends = np.cumsum([len(chunk) for chunk in column.chunks])
        self.readers = [reader_of(chunk) for chunk in column.chunks]

    def __reduce__(self):
        return Column, (self.rows, self.name)  # for a process that loads data: the file, not what is in it

    def __getitem__(self, row: int) -> Any:
        return self.take([row])[0]

    def take(self, rows: Sequence[int]) -> list[Any]:
        places = np.asarray(rows) if self.order is None else self.order[rows]
        if self.numbers is not None:
            return self.numbers[places].tolist()
        chunks = np.searchsorted(self.ends, places, side="right")
        from_end = (places - self.ends[chunks]).tolist()  # of its chunk, and so below zero
        return [self.readers[chunk](place) for chunk, place in zip(chunks.tolist(), from_end)]


def reader_of(chunk: pa.Array) -> Callable[[int], Any]:
    """The function of a place, counted from the end, that gives what stands there."""
    if not pa.types.is_list(chunk.type) or not pa.types.is_integer(chunk.type.value_type):
        return lambda place: chunk[place].as_py()
    limits, numbers = chunk.offsets.to_numpy(), chunk.values.to_numpy()
    return lambda place: numbers[limits[place - 1] : limits[place]]
