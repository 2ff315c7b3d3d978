# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What words and phrases say about the class of a text by themselves: a linear model beside the Transformer."""

import torch
from torch import Tensor, nn

from .embeddings import hash_ngrams
from .masking import follows_previous


# B batch, T length, N longest phrase, C classes

NOBODY = -1  # the owner of a row that no phrase has
GAIN = 3.0  # a vote moves so much for each step of its weight: one row is seen rarely, the weights of a layer in every batch


class PhraseVotes(nn.Embedding):
    """Sum over the known n-grams of a text, n = 1 ... N, of votes[n-gram], divided by the root of their number: [B, C].

    Added to the logits of the Transformer's classifier, as in wide and deep learning (https://arxiv.org/abs/1606.07792). On some
    ten thousand texts a linear model of n-grams is hard to beat, for attention has to find a phrase before it can weigh it. A row
    belongs to one n-gram, its owner, and all others say nothing: hashed votes of phrases that training has hardly seen are noise.
    Owners are chosen before training, from its texts; in a new model nobody votes.
    """

    owners: Tensor

    def __init__(self, num_buckets: int, num_labels: int, size: int, dropout: float = 0.0):
        super().__init__(1 + num_buckets, num_labels, padding_idx=0)
        self.num_buckets, self.size, self.p = num_buckets, size, dropout
        self.register_buffer("owners", torch.full((1 + num_buckets,), NOBODY, dtype=torch.int32))
        nn.init.zeros_(self.weight)

    def forward(self, input_ids: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Ids [B, T] and which of them are no padding [B, T] -> [B, C]"""
        keys, rows = self.find(input_ids, tokens)  # [B, T x N]
        known = (self.owners[rows] == keys) & (keys != NOBODY)
        if self.training and self.p:
            known = known & (torch.rand(rows.shape, device=rows.device) >= self.p)
        votes = super().forward(torch.where(known, rows, 0)).sum(1)
        return GAIN * votes / known.sum(1, keepdim=True).clamp(min=1).sqrt()

    def find(self, input_ids: Tensor, tokens: Tensor | None) -> tuple[Tensor, Tensor]:
        """The keys of all n-grams, `NOBODY` where there is none, and the rows where they are found or not: [B, T x N]."""
        batch, length = input_ids.shape
        follows = follows_previous(torch.arange(length, device=input_ids.device)[None], tokens, batch)
        real = torch.ones_like(follows) if tokens is None else tokens.bool()
        keys = torch.cat([torch.where(whole & real, key, NOBODY) for key, whole in hash_ngrams(input_ids, follows, self.size)], 1)
        return keys, torch.where(keys == NOBODY, 0, self.row_of(keys))

    def row_of(self, keys: Tensor) -> Tensor:
        return 1 + keys % self.num_buckets
