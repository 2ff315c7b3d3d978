# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Models for the benchmark that their libraries leave to the user: `torch.nn`'s Transformer with all around it, and a small GPT.

Each computes its own loss. They are written the way that their documentation suggests, and as fast as that allows.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


# B batch, T target length, S source length, D model width, V vocabulary

START = 1  # the token that a target begins with


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` with one scaled embedding matrix for source, target and output, and sinusoidal positions."""

    positions: Tensor

    def __init__(self, vocab_size: int, d_model: int, heads: int, d_ff: int, layers: tuple[int, int], dropout: float):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        self.dropout = nn.Dropout(dropout)
        self.transformer = nn.Transformer(d_model, heads, *layers, d_ff, dropout, batch_first=True)
        drop_outputs_only(self.transformer)
        self.register_buffer("positions", sinusoidal_positions(512, d_model))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """[B, S], [B, T] -> loss"""
        decoder_input = F.pad(labels[:, :-1], (1, 0), value=START)
        causal = nn.Transformer.generate_square_subsequent_mask(labels.shape[1], device=labels.device)
        hidden = self.transformer(self.embed(input_ids), self.embed(decoder_input), tgt_mask=causal, tgt_is_causal=True)
        logits = F.linear(hidden, self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def embed(self, ids: Tensor) -> Tensor:
        scaled = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(scaled + self.positions[: ids.shape[1]])


class TorchEncoderClassifier(nn.Module):
    """`torch.nn.TransformerEncoder` with learned positions, and a linear layer on the first token."""

    def __init__(self, vocab_size: int, d_model: int, heads: int, d_ff: int, layers: int, positions: int, dropout: float):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(positions, d_model)
        self.norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(d_model, heads, d_ff, dropout, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        drop_outputs_only(self.encoder)
        self.classifier = nn.Linear(d_model, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        """[B, S], [B, S], [B] -> loss"""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        embedded = self.dropout(self.norm(self.embedding(input_ids) + self.positions(places)))
        hidden = self.encoder(embedded, src_key_padding_mask=attention_mask == 0)
        return F.cross_entropy(self.classifier(self.dropout(hidden[:, 0])), labels)


def drop_outputs_only(model: nn.Module) -> None:
    """`torch.nn` drops attention weights and the inside of the feed-forward network by the same number: not here."""
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
        elif isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
            module.dropout.p = 0.0  # between the two matrices


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    angles = torch.arange(length)[:, None] * 10000 ** (-torch.arange(0, d_model, 2) / d_model)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # [length, D]


class SmallGPT(nn.Module):
    """The architecture of nanoGPT: pre-norm GPT-2 with one matrix for query, key and value, and torch's own attention."""

    def __init__(self, vocab_size: int, d_model: int, heads: int, d_ff: int, layers: int, positions: int, dropout: float):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(positions, d_model)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(SmallGPTBlock(d_model, heads, d_ff, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """[B, T] twice, the same tokens -> loss"""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.dropout(self.tokens(input_ids) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class SmallGPTBlock(nn.Module):
    def __init__(self, d_model: int, heads: int, d_ff: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        activation = nn.GELU("tanh")  # as in GPT-2
        self.feed_forward = nn.Sequential(nn.Linear(d_model, d_ff), activation, nn.Linear(d_ff, d_model), nn.Dropout(dropout))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.out(self.attend(self.qkv(self.attention_norm(x)))))
        return x + self.feed_forward(self.feed_forward_norm(x))

    def attend(self, qkv: Tensor) -> Tensor:
        """[B, T, 3 D] -> [B, T, D]"""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
