# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Tokens as a person reads them: pieces of words without marks, special tokens by name, bytes joined to characters."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase


SPACE = "·"  # stands for a token of white space alone
PART = "�"  # of a character that several tokens make up together


def token_labels(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """What each token adds to the text."""
    labels, written = [], ""
    special = set(tokenizer.all_special_ids)
    for number, token in enumerate(ids):
        if token in special:
            labels.append(str(tokenizer.convert_ids_to_tokens(int(token))))
            continue
        text = tokenizer.decode([t for t in ids[: number + 1] if t not in special])
        added = text[len(written) :] if text.startswith(written) else tokenizer.decode([token])
        if PART not in added:
            written = text
        labels.append(added.strip() or SPACE)
    return labels


def word_groups(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[list[int]]:
    """Which tokens make up a word: places, in order. Special tokens stand alone."""
    groups: list[list[int]] = []
    special, written = set(tokenizer.all_special_ids), ""
    for number, token in enumerate(ids):
        text = tokenizer.decode([t for t in ids[: number + 1] if t not in special])
        added = text[len(written) :]
        begins = token in special or not groups or ids[groups[-1][-1]] in special or added[:1].isspace()
        written = text
        if begins:
            groups.append([number])
        else:
            groups[-1].append(number)
    return groups


def join_words(weights: Tensor, queries: list[list[int]], keys: list[list[int]]) -> Tensor:
    """Attention between words: what a word gets is the sum over its pieces, what it gives the mean over them. [..., T, S]"""
    gets = torch.stack([weights[..., group].sum(-1) for group in keys], dim=-1)
    return torch.stack([gets[..., group, :].mean(-2) for group in queries], dim=-2)
