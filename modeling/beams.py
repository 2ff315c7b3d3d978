# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Beam search, the case that most people use: transformers' own rules, without looking at what cannot have changed.

Every example has `width` running sequences and as many places for finished ones. At each step the best continuations of
all running sequences are ranked; those that end compete for the places of the finished, the others run on. Ranking reads
a score for each word and is torch's; everything else is about a few numbers, for which numpy's operations start sooner.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


# B examples, W beams of an example, C candidates for them, R = B * W rows, L longest length, V vocabulary

NEVER = np.float32(-1.0e9)  # a score that loses against any other


class Beams:
    """The state of a search, with the settings and the rules of transformers' `generate`.

    Args:
        prompt: tokens [R, length], each example's rows alike.
        width: beams of an example.
        longest: how long a sequence may get, with its prompt.
        ends: tokens that end a sequence.
        pad: what follows an end.
    """

    def __init__(
        self,
        prompt: np.ndarray,
        width: int,
        longest: int,
        ends: Sequence[int] = (),
        pad: int | None = None,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
    ):
        self.width, self.longest, self.ends = width, longest, np.array(ends, dtype=prompt.dtype)
        self.length_penalty, self.early_stopping = length_penalty, early_stopping
        self.length = self.prompt_length = prompt.shape[1]
        rows = prompt.reshape(-1, width, self.length)
        filler = (pad or ends[0]) if len(ends) else -1
        self.running = np.full((len(rows), width, longest), filler, prompt.dtype)  # [B, W, L]
        self.running[:, :, : self.length] = rows
        self.scores = np.zeros(rows.shape[:2], np.float32)  # [B, W]
        self.scores[:, 1:] = NEVER  # the first candidates come from one row, for all rows of an example are alike
        self.finished = self.running.copy()
        self.finished_scores = np.full_like(self.scores, NEVER)
        self.finished_lengths = np.zeros_like(self.scores, dtype=int)
        self.is_finished = np.zeros_like(self.scores, dtype=bool)
        self.can_improve = np.ones_like(self.scores[:, :1], dtype=bool)  # [B, 1]
        self.some_finished = self.is_over = False

    @property
    def newest(self) -> np.ndarray:
        """The last token of every running sequence [B, W]."""
        return self.running[:, :, self.length - 1]

    @property
    def wanted(self) -> int:
        """How many candidates to rank: so many that enough are left to run on, even if the best ones all end."""
        return self.width * max(2, 1 + len(self.ends))

    def advance(self, scores: np.ndarray, origin: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Candidates, best first, the sequences that they continue, their tokens, each [B, C] -> what is continued [B, W]."""
        self.length += 1
        ended = (tokens[..., None] == self.ends).any(axis=-1)
        is_last = self.length >= self.longest
        if is_last or ended.any():
            self.finish(scores, origin, tokens, ended | is_last)
            best = highest(scores + ended * NEVER, self.width)
            scores, origin, tokens = (take(candidates, best) for candidates in (scores, origin, tokens))
        self.scores, origin = scores[:, : self.width], origin[:, : self.width]
        self.running = take(self.running, origin)
        self.newest[:] = tokens[:, : self.width]
        if self.some_finished:
            self.is_over = is_last or not self.goes_on(ended)
        return origin

    def finish(self, scores: np.ndarray, origin: np.ndarray, tokens: np.ndarray, ended: np.ndarray) -> None:
        """Candidates that end, and are among the best, take the places of worse finished ones."""
        scores = scores / np.float32((self.length - self.prompt_length) ** self.length_penalty)
        ended = ended & (np.arange(scores.shape[1]) < self.width)  # among the best
        closed = ~self.can_improve | (self.is_finished.all(axis=1, keepdims=True) & (self.early_stopping is True))
        scores = scores + closed * NEVER + ~ended * NEVER
        sequences = take(self.running, origin)
        sequences[:, :, self.length - 1] = tokens
        known = self.finished_scores, self.finished, self.finished_lengths, self.is_finished
        new = scores, sequences, np.full_like(tokens, self.length), ended
        places = [np.concatenate(pair, axis=1) for pair in zip(known, new)]
        best = highest(places[0], self.width)
        self.finished_scores, self.finished, self.finished_lengths, self.is_finished = (take(each, best) for each in places)
        self.some_finished = True

    def goes_on(self, ended: np.ndarray) -> bool:
        """Whether a running sequence may still beat a finished one, by transformers' estimate of how good it can get."""
        never = self.early_stopping == "never" and self.length_penalty > 0.0
        length = (self.longest if never else self.length) - self.prompt_length
        hoped_for = self.scores[:, :1] / np.float32(length**self.length_penalty)
        worst = np.where(self.is_finished, self.finished_scores.min(axis=1, keepdims=True), NEVER)
        self.can_improve = self.can_improve & (hoped_for > worst).any(axis=1, keepdims=True)
        all_finished = self.early_stopping is True and self.is_finished.all()
        return bool(self.can_improve.any() and not all_finished and not ended.all())

    def best(self, how_many: int) -> np.ndarray:
        """The best finished sequences of each example: [B * how_many, longest of them]"""
        longest = self.finished_lengths[:, :how_many].max()
        return self.finished[:, :how_many, :longest].reshape(-1, longest)


def rank(logits: Tensor, scores: np.ndarray, wanted: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The best candidates, given logits of the next token [R, V] and the scores of all sequences [B, W]: what `advance` takes."""
    size, before = logits.shape[-1], torch.from_numpy(scores).to(logits.device)
    after = logits.float().log_softmax(dim=-1).view(*scores.shape, size).add_(before[..., None])
    best, places = topk_of_many(after.flatten(1), wanted)
    return best, *np.divmod(places, size)


def topk_of_many(scores: Tensor, wanted: int, group: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """`scores.topk(wanted)` for rows [B, n] that are long: only groups whose best are among the best of all are looked into."""
    if scores.shape[1] < 2 * wanted * group or scores.numel() < 2**15:
        best, places = scores.topk(wanted)
        return best.cpu().numpy(), places.cpu().numpy()
    if scores.shape[1] % group:
        scores = F.pad(scores, (0, -scores.shape[1] % group), value=float("-inf"))
    groups = scores.view(len(scores), -1, group)
    which = groups.amax(dim=2).topk(wanted).indices  # [B, wanted]
    likely = groups.gather(1, which[..., None].expand(-1, -1, group)).flatten(1)
    best, places = likely.topk(wanted)
    found = places.cpu().numpy()
    return best.cpu().numpy(), take(which.cpu().numpy(), found // group) * group + found % group


def highest(scores: np.ndarray, how_many: int) -> np.ndarray:
    """Where in each row the highest scores are, the best first: [B, n] -> [B, how_many]"""
    return np.argsort(-scores, axis=1, kind="stable")[:, :how_many]


def take(candidates: np.ndarray, which: np.ndarray) -> np.ndarray:
    """candidates [B, n, ...], which [B, m] -> [B, m, ...]"""
    return candidates[np.arange(len(which))[:, None], which]
