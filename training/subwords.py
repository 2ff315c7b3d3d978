# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""BPE-dropout (https://aclanthology.org/2020.acl-main.170): while training, a word is cut now this way, now that.

The tokenizers library can do this too, but from a source of random numbers that cannot be seeded, so that no run could be
repeated. Here every word of the corpus has a few ways to be cut, made once from a seed of its own; each epoch chooses among them.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from .recipe import RecipeError


VARIANTS = 16  # ways to cut a word
SPACE = "▁"  # stands before the first piece of every word

Pieces = tuple[int, ...]


class BPEDropout:
    """Words in other pieces than the tokenizer's, with each merge left out at the given rate."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, rate: float, seed: int = 0):
        model: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
        if model["type"] != "BPE" or SPACE not in model["vocab"]:
            raise RecipeError("tokenizer.dropout is for tokenizer.kind=bpe: choose it, or drop tokenizer.dropout.")
        self.rate, self.seed, self.vocabulary = rate, seed, model["vocab"]
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
        self.pieces = {number: piece for piece, number in self.vocabulary.items()}
        self.special = set(tokenizer.all_special_ids)
        self.starts_word = np.zeros(len(tokenizer), dtype=bool)
        for piece, number in self.vocabulary.items():
            self.starts_word[number] = piece.startswith(SPACE) or number in self.special

    def words(self, ids: Sequence[int]) -> list[Pieces]:
        text = np.asarray(ids, dtype=np.int64)
        parts = np.split(text, np.flatnonzero(self.starts_word[text]))
        return [tuple(part.tolist()) for part in parts if len(part)]

    def variants(self, word: Pieces) -> list[Pieces]:
        rng = np.random.default_rng((self.seed, *word))
        return [self.cut(word, rng) for _ in range(VARIANTS)]

    def cut(self, word: Pieces, rng: np.random.Generator) -> Pieces:
        """Characters, merged as the tokenizer would, except that each possible merge is overlooked at the given rate."""
        if word[0] in self.special:
            return word
        parts = list("".join(self.pieces[number] for number in word))
        while len(parts) > 1:
            found = [(self.ranks[pair], place) for place, pair in enumerate(pairwise(parts)) if pair in self.ranks]
            found = [merge for merge, luck in zip(found, rng.random(len(found))) if luck >= self.rate]
            if not found:
                break
            _, place = min(found)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        return tuple(self.vocabulary[part] for part in parts)


class CutAnew:
    """Texts, as token ids, that can be cut in other ways: all variants of all their words, laid end to end."""

    def __init__(self, texts: Iterable[Sequence[int]], dropout: BPEDropout):
        known: dict[Pieces, int] = {}
        rows = [[known.setdefault(word, len(known)) for word in dropout.words(ids)] for ids in texts]
        self.word_counts = np.array([len(row) for row in rows])
        self.words = np.array([word for row in rows for word in row], dtype=np.int64)
        variants = [variant for word in known for variant in dropout.variants(word)]
        self.lengths = np.array([len(variant) for variant in variants], dtype=np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.pool = np.array([piece for variant in variants for piece in variant], dtype=np.int64)

    def __call__(self, rng: np.random.Generator) -> list[np.ndarray]:
        """The ids of each text, cut in one of very many ways."""
        chosen = self.words * VARIANTS + rng.integers(VARIANTS, size=len(self.words))
        lengths = self.lengths[chosen]
        before = np.cumsum(lengths) - lengths
        places = np.repeat(self.starts[chosen] - before, lengths) + np.arange(lengths.sum())
        row_ends = np.cumsum(lengths)[np.cumsum(self.word_counts) - 1] if len(lengths) else []
        return np.split(self.pool[places], row_ends)[:-1]
