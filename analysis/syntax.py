# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Which heads follow the syntax: rows with parses tell for each word the word that governs it, and by what relation.

    {"words": ["the", "dog", "barks"], "governors": [1, 2, -1], "relations": ["det", "nsubj", "root"]}

Governors are places of words, -1 for the root. A word may be cut into several tokens: attention from any of them to any of the
governor's counts.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


# T tokens


def check_parse(words: Sequence[str], governors: Sequence[int], relations: Sequence[str] | None) -> None:
    if len(words) != len(governors) or (relations is not None and len(relations) != len(words)):
        raise ValueError(f"A parse of {len(words)} words needs as many governors and relations: pass one for each word.")
    if wrong := [governor for governor in governors if not -1 <= governor < len(words)]:
        raise ValueError(f"The governor {wrong[0]} is no place among {len(words)} words: count from 0, with -1 for the root.")


def syntactic_patterns(
    word_of: Sequence[int | None], governors: Sequence[int], relations: Sequence[str] | None = None
) -> dict[str, Tensor]:
    """Pairs [T, T] of tokens: from a word to its governor, from a governor to its words, and by the name of the relation.

    `word_of` is the word that each token belongs to, None for special tokens.
    """
    places = torch.tensor([-1 if word is None else word for word in word_of])
    governed_by = torch.tensor([-2 if word is None or governors[word] < 0 else governors[word] for word in word_of])
    to_governor = governed_by[:, None] == places  # -2 is nobody's place
    patterns = {"governor": to_governor, "governed": to_governor.T}
    for relation in dict.fromkeys(relations or ()):
        has_relation = torch.tensor([word is not None and (relations or ())[word] == relation for word in word_of])
        patterns[f"governor ({relation})"] = to_governor & has_relation[:, None]
    return {name: pairs for name, pairs in patterns.items() if pairs.any()}
