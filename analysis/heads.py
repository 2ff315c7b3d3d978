# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What a head does, in a word: which places its attention goes to, beyond what it would give them by looking everywhere alike.

A pattern is a set of pairs of places (a token and the one before it, a token and itself, ...). Its score is the share of
attention that falls on such pairs, averaged over the tokens that have any; its gain is the score minus that of a head which
spreads its attention evenly over all that it may see. A head is called after the pattern with the highest gain, if that is high
enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


# H heads, T queries, S keys

CLEAR = 0.25  # gain from which a head has a name
BROAD = 0.8  # share of the highest possible entropy from which a head without one looks everywhere
MIXED = "mixed"


def self_patterns(ids: Sequence[int], delimiters: set[int]) -> dict[str, Tensor]:
    """Pairs [T, T] of a sequence that attends to itself."""
    tokens, places = torch.tensor(ids), torch.arange(len(ids))
    distance = places[:, None] - places  # how far back
    same = (tokens[:, None] == tokens) & (distance != 0)
    return {
        "previous token": distance == 1,
        "next token": distance == -1,
        "itself": distance == 0,
        "first token": (places == 0).expand(len(ids), -1) & (distance != 0),
        "delimiter": torch.tensor([token in delimiters for token in ids]).expand(len(ids), -1) & (distance != 0),
        "same token": same,
        "induction": shifted_right(same) & (distance > 0),  # what came after an earlier occurrence
        "local": (distance.abs() <= 2) & (distance != 0),
    }


def cross_patterns(queries: int, keys: Sequence[int], delimiters: set[int]) -> dict[str, Tensor]:
    """Pairs [T, S] of a target that attends to a source."""
    places = torch.arange(len(keys))
    diagonal = torch.arange(queries)[:, None] * (len(keys) / max(queries, 1))
    return {
        "diagonal": (places - diagonal).abs() <= max(1.0, len(keys) / 10),
        "first token": (places == 0).expand(queries, -1),
        "delimiter": torch.tensor([token in delimiters for token in keys]).expand(queries, -1),
    }


def shifted_right(pairs: Tensor) -> Tensor:
    """(t, s) -> (t, s + 1)"""
    return torch.nn.functional.pad(pairs[:, :-1], (1, 0), value=False)


@dataclass
class HeadStatistics:
    """Sums over many texts, of all heads of a layer."""

    heads: int
    scores: dict[str, Tensor] = field(default_factory=dict)  # pattern -> sum of shares [H]
    chances: dict[str, float] = field(default_factory=dict)  # the same for a head that looks everywhere alike
    counts: dict[str, int] = field(default_factory=dict)  # tokens that have such pairs
    entropy: Tensor = field(default_factory=lambda: torch.zeros(()))  # as a share of the highest possible, sum over tokens [H]
    distance: Tensor = field(default_factory=lambda: torch.zeros(()))  # of what is looked at, in tokens [H]
    tokens: int = 0

    def add(self, weights: Tensor, patterns: dict[str, Tensor], is_causal: bool) -> None:
        """The attention of one text [H, T, S]."""
        queries, keys = weights.shape[1:]
        visible = torch.ones(queries, keys, dtype=torch.bool)
        visible = visible.tril() if is_causal else visible
        for name, pairs in patterns.items():
            pairs = pairs & visible
            has_pairs = pairs.any(1)
            if not has_pairs.any():
                continue
            shares = (weights * pairs).sum(-1)[:, has_pairs].sum(1)
            even = (pairs.sum(1) / visible.sum(1))[has_pairs].sum()
            self.scores[name] = self.scores.get(name, torch.zeros(self.heads)) + shares
            self.chances[name] = self.chances.get(name, 0.0) + float(even)
            self.counts[name] = self.counts.get(name, 0) + int(has_pairs.sum())
        seen = visible.sum(1).float()
        several = seen > 1  # a token that sees one other has no choice
        highest = seen[several].log()
        self.entropy = self.entropy + (entropy_of(weights)[:, several] / highest).sum(1)
        places = (torch.arange(queries)[:, None] - torch.arange(keys)).abs().float()
        self.distance = self.distance + (weights * places).sum(-1)[:, several].sum(1)
        self.tokens += int(several.sum())

    def describe(self) -> list[dict[str, float | str]]:
        """A row for each head: its name, the gain of that pattern, every score, entropy and distance."""
        names = list(self.scores)
        scores = {name: self.scores[name] / self.counts[name] for name in names}
        gains = {name: scores[name] - self.chances[name] / self.counts[name] for name in names}
        entropy, distance = (total / max(self.tokens, 1) for total in (self.entropy, self.distance))
        rows: list[dict[str, float | str]] = []
        for head in range(self.heads):
            best = max(names, key=lambda name: float(gains[name][head]))
            gain = float(gains[best][head])
            name = best if gain >= CLEAR else "broad" if float(entropy[head]) >= BROAD else MIXED
            row: dict[str, float | str] = {"pattern": name, "gain": gain}
            row |= {"entropy": float(entropy[head]), "distance": float(distance[head])}
            rows.append(row | {pattern: float(scores[pattern][head]) for pattern in names})
        return rows


def entropy_of(weights: Tensor) -> Tensor:
    """In nats, of each row: [..., T, S] -> [..., T]"""
    return -(weights * weights.clamp(min=1e-12).log()).sum(-1)
