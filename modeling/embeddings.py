# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Token ids to vectors, and vectors to logits over tokens (section 3.4 of https://arxiv.org/abs/1706.03762)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .checks import check_token_ids
from .feed_forward import activation_function
from .masking import one_before
from .norms import make_norm


class TokenEmbedding(nn.Embedding):
    """embedding[id] * sqrt(d_model); the row of the pad token is zero and gets no gradient.

    The rows have variance 1 / d_model, which suits the output layer that shares them; the factor brings the input to
    variance 1.
    """

    def __init__(self, vocab_size: int, d_model: int, pad_token_id: int | None = 0, scale: bool = True):
        super().__init__(vocab_size, d_model, padding_idx=pad_token_id)
        self.scale = math.sqrt(d_model) if scale else 1.0
        nn.init.normal_(self.weight, std=d_model**-0.5)
        self._fill_padding_idx_with_zero()

    def forward(self, input_ids: Tensor) -> Tensor:
        check_token_ids(input_ids, self.num_embeddings)
        return self.look_up(input_ids)

    def look_up(self, input_ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, D]. Ids that the model itself has chosen need no check."""
        return super().forward(input_ids) * self.scale


class NgramEmbedding(nn.Embedding):
    """Sum over n = 2 ... N of table[hash(the n ids that end here)] * sqrt(d_model): what tokens mean together.

    Attention has to work out "not good" from two words; with a row of its own it is learnt as fast as a word. N-grams of all
    lengths are hashed into one table, as in fastText (https://arxiv.org/abs/1607.04606) and over-encoding
    (https://arxiv.org/abs/2501.16975). It starts at zero, so that the model begins as the one without it; row 0 stays zero, for
    n-grams that are not whole.
    """

    def __init__(self, num_buckets: int, d_model: int, size: int, scale: bool = True):
        super().__init__(1 + num_buckets, d_model, padding_idx=0)
        self.num_buckets, self.size = num_buckets, size
        self.scale = math.sqrt(d_model) if scale else 1.0
        nn.init.zeros_(self.weight)

    def forward(self, input_ids: Tensor, follows: Tensor | None = None) -> Tensor:
        """Ids [B, T], and whether each continues the text of the one before it [B or 1, T], by default all -> [B, T, D]"""
        if follows is None:
            follows = torch.arange(input_ids.shape[1], device=input_ids.device)[None] > 0
        rows = torch.stack(self.rows(input_ids, follows))  # [N - 1, B, T]
        return super().forward(rows).sum(0) * self.scale

    def rows(self, input_ids: Tensor, follows: Tensor) -> list[Tensor]:
        """Where the pairs, triples, ... that end at each token are found, each [B, T]."""
        _, *longer = hash_ngrams(input_ids, follows, self.size)
        return [torch.where(whole, 1 + key % self.num_buckets, 0) for key, whole in longer]


FACTOR, PRIME = 1_540_483_477, 2**31 - 1  # below 2^31, so that products stay below 2^63


def hash_ngrams(input_ids: Tensor, follows: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """For n = 1 ... size a number below 2^31 for the n ids that end at each token [B, T], and whether they are one text."""
    key, whole = input_ids.long(), torch.ones_like(follows)
    found = [(key, whole)]
    for n in range(2, size + 1):
        input_ids = one_before(input_ids)
        key = (key * FACTOR + input_ids + n) % PRIME
        key = key * key % PRIME  # sums alone would crowd neighbouring ids into few rows
        whole, follows = whole & follows, one_before(follows)
        found.append((key, whole))
    return found


class DenseActivation(nn.Module):
    """activation(x W + b): [..., D] -> [..., D]"""

    def __init__(self, d_model: int, activation: str, bias: bool = True):
        super().__init__()
        self.dense = nn.Linear(d_model, d_model, bias=bias)
        self.activation = activation_function(activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.dense(x))


class DenseNorm(DenseActivation):
    """norm(activation(x W + b)), by which BERT prepares its hidden states for the output layer."""

    def __init__(self, d_model: int, activation: str, norm: nn.Module, bias: bool = True):
        super().__init__(d_model, activation, bias)
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x))


class Scale(nn.Module):
    """x / sqrt(d_model), by which T5 prepares them: its output matrix is that of the embeddings, which it does not scale."""

    def __init__(self, d_model: int):
        super().__init__()
        self.factor = d_model**-0.5

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def make_output_transform(config) -> nn.Module:
    """What happens to hidden states before the output layer: in most models, nothing."""
    if config.output_transform == "dense":
        return DenseNorm(config.d_model, config.activation, make_norm(config), config.dense_bias)
    return Scale(config.d_model) if config.output_transform == "scale" else nn.Identity()


def make_pre_classifier(config) -> nn.Module:
    """What happens to hidden states before a classifier: in most models, nothing."""
    if config.classifier_activation is None:
        return nn.Identity()
    if config.classifier_norm:
        return DenseNorm(config.d_model, config.classifier_activation, make_norm(config), config.dense_bias)
    return DenseActivation(config.d_model, config.classifier_activation, config.dense_bias)


def softcap(logits: Tensor, cap: float | None) -> Tensor:
    """Squeezes logits into (-cap, cap), or leaves them alone."""
    return logits if cap is None else cap * torch.tanh(logits / cap)


class OutputProjection(nn.Linear):
    """Hidden states to logits, one for each word of the vocabulary: [..., D] -> [..., V].

    Where the matrix is that of the embeddings, it would learn to move the pad token's row away from zero, which
    `padding_idx` prevents on the input side only: `zero_row` prevents it here.
    """

    def __init__(self, d_model: int, vocab_size: int, zero_row: int | None = None, bias: bool = False):
        super().__init__(d_model, vocab_size, bias=bias)
        self.zero_row = zero_row

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.matrix(), self.bias)

    def matrix(self) -> Tensor:
        """The weight, as gradients see it."""
        # A shard of a tensor-parallel matrix has rows of its own.
        if self.zero_row is None or not torch.is_grad_enabled() or self.is_shard:
            return self.weight
        return _KeepRowZero.apply(self.weight, self.zero_row)

    @property
    def is_shard(self) -> bool:
        return len(self.weight) != self.out_features


class _KeepRowZero(torch.autograd.Function):
    """A matrix as it is, but without a gradient for one row."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, row: int) -> Tensor:
        return weight.view_as(weight)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.row = inputs[1]

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.clone()
        gradient[ctx.row] = 0.0
        return gradient, None
