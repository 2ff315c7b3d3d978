# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Beam search, the case that most people use: transformers' own rules, without looking at what cannot have changed.

Every example has `width` running sequences and as many places for finished ones. At each step the best continuations of
all running sequences are ranked; those that end compete for the places of the finished, the others run on.
"""

import torch
from torch import Tensor


# B examples, W beams of an example, C candidates for them, R = B * W rows, L longest length, V vocabulary

NEVER = -1.0e9  # a score that loses against any other


class Beams:
    """The state of a search, with the settings and the rules of transformers' `generate`.

    Args:
        prompt: tokens [R, length], each example's rows alike.
        settings: transformers' GenerationConfig.
    """

    def __init__(self, prompt: Tensor, settings):
        self.width, self.longest = settings.num_beams, settings.max_length
        self.length_penalty, self.early_stopping = settings.length_penalty, settings.early_stopping
        self.ends, pad = settings._eos_token_tensor, settings._pad_token_tensor
        self.length = self.prompt_length = prompt.shape[1]
        rows = prompt.view(-1, self.width, self.length)
        filler = -1 if self.ends is None else (pad or self.ends[0])
        self.running = prompt.new_full((len(rows), self.width, self.longest), filler)  # [B, W, L]
        self.running[:, :, : self.length] = rows
        self.scores = torch.zeros(rows.shape[:2], device=prompt.device)  # [B, W]
        self.scores[:, 1:] = NEVER  # the first candidates come from one row, for all rows of an example are alike
        self.finished = self.running.clone()
        self.finished_scores = torch.full_like(self.scores, NEVER)
        self.finished_lengths = torch.zeros_like(self.scores, dtype=torch.long)
        self.is_finished = torch.zeros_like(self.scores, dtype=torch.bool)
        self.can_improve = torch.ones_like(self.scores[:, :1], dtype=torch.bool)  # [B, 1]
        self.is_over = False

    def advance(self, logits: Tensor) -> Tensor:
        """Logits of the next token [R, V] -> the rows that the new running sequences come from [R]."""
        scores, origin, tokens = self.rank(logits)
        self.length += 1
        ended = torch.zeros_like(tokens, dtype=torch.bool) if self.ends is None else torch.isin(tokens, self.ends)
        is_last = self.length >= self.longest
        some_ended = is_last or bool(ended[:, : self.width].any())
        if some_ended:
            self.finish(scores, origin, tokens, ended | is_last)
        if self.ends is not None:
            scores = scores + ended * NEVER
            best = scores.topk(self.width).indices
            scores, origin, tokens = (candidates.gather(1, best) for candidates in (scores, origin, tokens))
        self.scores, origin, tokens = scores[:, : self.width], origin[:, : self.width], tokens[:, : self.width]
        self.running = take(self.running, origin)
        self.running[:, :, self.length - 1] = tokens
        if some_ended:
            self.is_over = is_last or not self.goes_on(ended)
        elif self.is_finished.any():
            self.is_over = not self.goes_on(ended)
        return (origin + torch.arange(len(origin), device=origin.device)[:, None] * self.width).flatten()

    def rank(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best candidates of each example: their scores, the sequences they continue and their tokens, each [B, C]."""
        size = logits.shape[-1]
        scores = logits.float().log_softmax(dim=-1).view(-1, self.width, size).add_(self.scores[..., None])
        # So many that enough are left to run on, even if the best ones all end.
        wanted = self.width * max(2, 1 + (0 if self.ends is None else len(self.ends)))
        best, places = topk_of_many(scores.flatten(1), wanted)
        return best, places // size, places % size

    def finish(self, scores: Tensor, origin: Tensor, tokens: Tensor, ended: Tensor) -> None:
        """Candidates that end, and are among the best, take the places of worse finished ones."""
        scores = scores / (self.length - self.prompt_length) ** self.length_penalty
        among_best = torch.arange(scores.shape[1], device=scores.device) < self.width
        closed = ~self.can_improve | (self.is_finished.all(dim=1, keepdim=True) & (self.early_stopping is True))
        scores = scores + closed * NEVER + ~(ended & among_best) * NEVER
        sequences = take(self.running, origin)
        sequences[:, :, self.length - 1] = tokens
        lengths = torch.full_like(tokens, self.length)
        best = torch.cat((self.finished_scores, scores), dim=1).topk(self.width).indices
        self.finished_scores = torch.cat((self.finished_scores, scores), dim=1).gather(1, best)
        self.finished = take(torch.cat((self.finished, sequences), dim=1), best)
        self.finished_lengths = torch.cat((self.finished_lengths, lengths), dim=1).gather(1, best)
        self.is_finished = torch.cat((self.is_finished, ended & among_best), dim=1).gather(1, best)

    def goes_on(self, ended: Tensor) -> bool:
        """Whether a running sequence may still beat a finished one, by transformers' estimate of how good it can get."""
        never = self.early_stopping == "never" and self.length_penalty > 0.0
        length = (self.longest if never else self.length) - self.prompt_length
        hoped_for = self.scores[:, :1] / length**self.length_penalty
        worst = torch.where(self.is_finished, self.finished_scores.min(dim=1, keepdim=True).values, NEVER)
        self.can_improve = self.can_improve & (hoped_for > worst).any(dim=1, keepdim=True)
        all_finished = self.early_stopping is True and bool(self.is_finished.all())
        return bool(self.can_improve.any()) and not all_finished and not bool(ended.all())

    def best(self, how_many: int) -> Tensor:
        """The best finished sequences of each example: [B * how_many, longest of them]"""
        return self.finished[:, :how_many, : self.finished_lengths[:, :how_many].max()].flatten(0, 1)


def topk_of_many(scores: Tensor, wanted: int, group: int = 64) -> tuple[Tensor, Tensor]:
    """`scores.topk(wanted)` for rows [B, n] that are long: only groups whose best are among the best of all are looked into."""
    length = scores.shape[1] // group * group
    if length < 2 * wanted * group or scores.numel() < 2**16:
        best, places = scores.topk(wanted)
        return best, places
    groups, rest = scores[:, :length].unflatten(1, (-1, group)), scores[:, length:]  # [B, n / group, group], [B, n % group]
    which = groups.amax(dim=2).topk(wanted).indices[..., None]  # [B, wanted, 1]
    places = torch.arange(group, device=scores.device) + which * group
    places = torch.cat((places.flatten(1), torch.arange(length, scores.shape[1], device=scores.device).expand(rest.shape)), dim=1)
    best, found = torch.cat((groups.gather(1, which.expand(-1, -1, group)).flatten(1), rest), dim=1).topk(wanted)
    return best, places.gather(1, found)


def take(sequences: Tensor, which: Tensor) -> Tensor:
    """sequences [B, n, L], which [B, m] -> [B, m, L]"""
    return sequences.gather(1, which[..., None].expand(-1, -1, sequences.shape[-1]))
