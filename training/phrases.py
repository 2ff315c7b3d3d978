# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Before the first update: which phrases a classifier knows, and what naive Bayes says of them.

A phrase is known if it is in several training rows. Its votes begin as the logarithms of how much more often it stands in rows
of a class than in others, from which a linear model learns better than from zero (https://aclanthology.org/P12-2018).
"""

from collections.abc import Iterator

import numpy as np
import torch
from datasets import Dataset

from glassformer.phrases import GAIN, PhraseVotes


# R rows, K phrases, C classes

FEW_ROWS = 3  # a phrase of fewer tells these rows from all others, not one class from another
TRUST = 0.15  # in naive Bayes, which takes phrases that go together for independent witnesses
ROWS_AT_ONCE = 5000


def get_to_know(phrases: PhraseVotes, rows: Dataset, num_labels: int, with_votes: bool) -> None:
    """Gives the rows of the table to the phrases of the training rows, the more frequent first, and votes to begin with."""
    keys, counts = count_phrases(phrases, rows, num_labels)
    enough = counts[:, -1] >= FEW_ROWS
    keys, counts = keys[enough], counts[enough]
    order = np.argsort(counts[:, -1], kind="stable")  # who comes last stays
    keys, counts = keys[order], counts[order]
    places = phrases.row_of(torch.from_numpy(keys))
    phrases.owners[places] = torch.from_numpy(keys).int()
    if with_votes:
        votes = naive_bayes(counts[:, :-1], counts[:, -1:])
        with torch.no_grad():
            phrases.weight[places] = torch.from_numpy(votes * TRUST / GAIN).to(phrases.weight.dtype)


def naive_bayes(of_class: np.ndarray, of_all: np.ndarray) -> np.ndarray:
    """Rows that have each phrase, by class [K, C] and in all [K, 1] -> log P(phrase | class) / P(phrase | others) [K, C]"""
    inside, outside = of_class + 1, of_all - of_class + 1
    return np.log(inside / inside.sum(0)) - np.log(outside / outside.sum(0))


def count_phrases(phrases: PhraseVotes, rows: Dataset, num_labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys [K], and how many rows of each class and of all have them [K, C + 1]."""
    keys, counts = np.empty(0, np.int64), np.empty((0, num_labels + 1), np.int64)
    for some, classes in found_in(phrases, rows, num_labels):
        keys, places = np.unique(np.concatenate([keys, some]), return_inverse=True)
        both = np.zeros((len(keys), num_labels + 1), np.int64)
        np.add.at(both, places, np.concatenate([counts, classes]))
        counts = both
    return keys, counts


def found_in(phrases: PhraseVotes, rows: Dataset, num_labels: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Some rows at a time: the key of every phrase of every row, once a row, with the row's classes and a 1."""
    for batch in rows.select_columns(["input_ids", "label"]).iter(ROWS_AT_ONCE):
        found = [row_keys(phrases, ids) for ids in batch["input_ids"]]
        classes = classes_of(np.asarray(batch["label"]), num_labels)
        classes = np.concatenate([classes, np.ones((len(classes), 1), np.int64)], 1)
        yield np.concatenate(found), classes.repeat([len(keys) for keys in found], 0)


def classes_of(labels: np.ndarray, num_labels: int) -> np.ndarray:
    """Classes [R], several of them as 0 and 1 [R, C], or numbers [R], which have none -> [R, C]"""
    if labels.ndim == 2:
        return labels.astype(np.int64)
    is_class = labels.dtype.kind == "i"
    return np.eye(num_labels, dtype=np.int64)[labels] if is_class else np.zeros((len(labels), num_labels), np.int64)


def row_keys(phrases: PhraseVotes, ids: list[int]) -> np.ndarray:
    keys, rows = phrases.find(torch.as_tensor(ids)[None], None)
    return np.unique(keys[rows > 0].numpy())
