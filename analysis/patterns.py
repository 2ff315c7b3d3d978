# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What all heads of a model do over many texts: a table, as CSV and JSON, and a figure of layers and heads."""

import csv
import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from . import pictures
from .capture import KINDS, Attention, evaluating, record_attention
from .heads import HeadStatistics, cross_patterns, self_patterns
from .redundancy import HeadDistances, draw_distances, head_names
from .syntax import check_parse, syntactic_patterns


Row = str | dict[str, Any]  # a text, a source with its target, or words with their parse (see `syntax.py`)
Heads = dict[tuple[str, int], HeadStatistics]  # kind and layer


@dataclass
class HeadReport:
    """A row for each head: kind, layer, head, the name of its pattern, its gain, entropy, distance and all scores."""

    rows: list[dict[str, Any]]
    texts: int
    distances: dict[str, Tensor]  # by kind, [N, N]: how far apart its heads are, in the order of the rows

    def save(self, path: Path) -> list[Path]:
        """`path`.csv, `path`.json, `path`.png and `path`-likeness.png"""
        path.parent.mkdir(parents=True, exist_ok=True)
        table, facts, picture = (path.with_suffix(suffix) for suffix in (".csv", ".json", ".png"))
        likeness = path.with_name(f"{path.stem}-likeness.png")
        columns = list(dict.fromkeys(key for row in self.rows for key in row))
        with table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.rows)
        facts.write_text(json.dumps({"texts": self.texts, "heads": self.rows}, indent=2) + "\n", encoding="utf-8")
        pictures.draw_summary(self.rows, picture)
        draw_distances(self.distances, {kind: head_names(self.rows, kind) for kind in self.distances}, likeness)
        return [table, facts, picture, likeness]


def analyze_heads(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Iterable[Row], batch_size: int = 32
) -> HeadReport:
    """Rows are texts or, for models of two stacks, dicts with `source` and `target`; parses stand beside `words`."""
    heads: Heads = {}
    distances: dict[str, HeadDistances] = {}
    delimiters, count, iterator = delimiter_ids(tokenizer), 0, iter(rows)
    while batch := list(islice(iterator, batch_size)):
        inputs, syntax = tokenize(model, tokenizer, batch)
        with evaluating(model), record_attention(model) as attention:
            model(**inputs)
        add_batch(heads, distances, attention, inputs, delimiters, syntax)
        count += len(batch)
    if not count:
        raise ValueError("There are no texts to look at: pass at least one.")
    places = sorted(heads, key=lambda place: (KINDS.index(place[0]), place[1]))
    described = [
        {"kind": kind, "layer": layer, "head": head, **row}
        for kind, layer in places
        for head, row in enumerate(heads[kind, layer].describe())
    ]
    clusters = [f"{kind} {number}" for kind, several in distances.items() for number in several.clusters()]
    for row, cluster in zip(described, clusters, strict=True):
        row["cluster"] = cluster
    return HeadReport(described, count, {kind: several.mean() for kind, several in distances.items()})


def tokenize(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row]
) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """A batch, padded on the right, targets as the decoder reads them; and patterns of the source's syntax, where it is known."""
    two_stacks = model.config.is_encoder_decoder
    if two_stacks and not all(isinstance(row, dict) and "target" in row and {"source", "words"} & row.keys() for row in rows):
        raise ValueError("A model of two stacks reads pairs: pass dicts with source and target.")
    options: dict[str, Any] = {"padding": True, "truncation": True, "return_tensors": "pt", "padding_side": "right"}
    parsed = isinstance(rows[0], dict) and "words" in rows[0]
    texts = [row if isinstance(row, str) else row.get("words") or row.get("source", row.get("text", "")) for row in rows]
    read = tokenizer(texts, is_split_into_words=parsed, **options)
    inputs = {name: read[name] for name in ("input_ids", "attention_mask")}
    if two_stacks:
        targets = tokenizer([row["target"] for row in rows if isinstance(row, dict)], add_special_tokens=False, **options)
        inputs |= {f"decoder_{name}": after(start, targets[name]) for name, start in starts(model).items()}
    syntax = [parse_of(row, read.word_ids(number)) for number, row in enumerate(rows)] if parsed else [{} for _ in rows]
    return {name: tensor.to(model.device) for name, tensor in inputs.items()}, syntax


def starts(model: PreTrainedModel) -> dict[str, int]:
    """What stands before a target: the start token, which is seen."""
    return {"input_ids": model.config.decoder_start_token_id, "attention_mask": 1}


def after(first: int, rows: Tensor) -> Tensor:
    return torch.nn.functional.pad(rows, (1, 0), value=first)


def parse_of(row: Row, word_of: list[int | None]) -> dict[str, Tensor]:
    """Pairs of tokens [T, T], padding included."""
    if isinstance(row, str) or "governors" not in row:
        raise ValueError("A row with words needs their governors, as all rows beside it: see glassformer.analysis.syntax.")
    check_parse(row["words"], row["governors"], row.get("relations"))
    return syntactic_patterns(word_of, row["governors"], row.get("relations"))


def add_batch(
    heads: Heads,
    distances: dict[str, HeadDistances],
    attention: Attention,
    inputs: dict[str, Tensor],
    delimiters: set[int],
    syntax: list[dict[str, Tensor]],
) -> None:
    source = unpadded(inputs["input_ids"], inputs["attention_mask"])
    target = unpadded(inputs["decoder_input_ids"], inputs["decoder_attention_mask"]) if "decoder_input_ids" in inputs else source
    for kind in KINDS:
        layers = [attention.weights(kind, layer) for layer in attention.layers(kind)]  # each [B, H, T, S]
        for example in range(len(source)) if layers else ():
            queries = source[example] if kind == "encoder" else target[example]
            keys = target[example] if kind == "decoder" else source[example]
            if kind == "cross":
                patterns = cross_patterns(len(queries), keys, delimiters)
            else:
                patterns = self_patterns(queries, delimiters)
                if queries is source[example]:
                    patterns |= {name: pairs[: len(queries), : len(keys)] for name, pairs in syntax[example].items()}
            maps = [weights[example, :, : len(queries), : len(keys)] for weights in layers]
            for layer, weights in zip(attention.layers(kind), maps):
                statistics = heads.setdefault((kind, layer), HeadStatistics(len(weights)))
                statistics.add(weights, patterns, is_causal=kind == "decoder")
            distances.setdefault(kind, HeadDistances()).add(torch.cat(maps))


def unpadded(ids: Tensor, mask: Tensor) -> list[list[int]]:
    return [row[: int(length)].tolist() for row, length in zip(ids, mask.sum(1))]


def delimiter_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Special tokens, and tokens of punctuation alone."""
    marks = {number for number in tokenizer.get_vocab().values() if is_punctuation(tokenizer.decode([number]).strip())}
    return marks | set(tokenizer.all_special_ids)


def is_punctuation(text: str) -> bool:
    return bool(text) and all(unicodedata.category(character).startswith("P") for character in text)
