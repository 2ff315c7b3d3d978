# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Heads that are taken out for good: smaller matrices, and a line in the config, so that the model saves and loads without them.

With grouped heads, a key/value head goes when the last query head that it serves does. What is left of the groups may differ in
size: keys and values are then laid out by query head before they meet, and are kept in the cache once all the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


# B batch, H heads that are left, G key/value heads that are left, T queries, S keys, K width of one head


class Pruned:
    """Which heads a layer still has, by the numbers that they had at first."""

    def __init__(self, num_heads: int, num_kv_heads: int, pruned: Sequence[int]):
        group = num_heads // num_kv_heads
        self.heads = [head for head in range(num_heads) if head not in pruned]
        self.kv_heads = sorted({head // group for head in self.heads})
        served_by = [self.kv_heads.index(head // group) for head in self.heads]
        evenly = sorted(list(range(len(self.kv_heads))) * (len(self.heads) // len(self.kv_heads)))
        self.served_by = None if served_by == evenly else served_by
        self.group = 1 if self.served_by else len(self.heads) // len(self.kv_heads)  # query heads to a key/value head that attend

    def match(self, k: Tensor, v: Tensor, mask: Any, bias: Tensor | None) -> tuple[Tensor, Tensor, Any, Tensor | None]:
        """Keys and values [B, G, S, K], mask and bias [.., all heads, T, S], such that they fit the queries [B, H, T, K]."""
        if self.served_by is not None:
            k, v = k[:, self.served_by], v[:, self.served_by]
        if isinstance(mask, Tensor) and mask.dim() == 4 and mask.shape[1] > 1:
            mask = mask[:, self.heads]
        return k, v, mask, None if bias is None else bias[:, self.heads]


def prune_heads(model: Any, heads: Mapping[tuple[str, int], Sequence[int]]) -> None:
    """Takes heads out of a glassformer model, in place: {("encoder", 0): [1, 3]} two of the encoder's first layer.

    Heads are numbered as they are now, from 0; kinds are "encoder", "decoder" (the self-attention of each) and "cross". The
    output is that of the model with these heads masked. An optimizer has to be made anew, for the matrices are new.
    """
    attentions = {place: attention_of(model, *place) for place in heads}
    config = model.config
    pruned = dict(config.pruned_heads or {})
    for (kind, layer), attention in attentions.items():
        present = range(config.num_heads) if attention.pruned is None else attention.pruned.heads
        if wrong := [head for head in heads[kind, layer] if not 0 <= head < len(present)]:
            raise ValueError(f"There is no head {wrong[0]} in {kind} layer {layer}, which has 0 to {len(present) - 1}.")
        gone = {present[head] for head in heads[kind, layer]}
        if len(gone) == len(present):
            raise ValueError(f"These are all heads of {kind} layer {layer}: leave at least one.")
        if gone:
            pruned[f"{kind}.{layer}"] = sorted(set(range(config.num_heads)) - (set(present) - gone))
    for (kind, layer), attention in attentions.items():
        shrink(attention, Pruned(config.num_heads, config.num_kv_heads, pruned.get(f"{kind}.{layer}", ())))
    for part in model.modules():
        if hasattr(part, "config"):
            part.config.pruned_heads = pruned or None


def attention_of(model: nn.Module, kind: str, layer: int) -> Any:
    stack = {"encoder": "encoder", "decoder": "decoder", "cross": "decoder"}.get(kind)
    name = f"{stack}.layers.{layer}.{'cross_attn' if kind == 'cross' else 'self_attn'}"
    for path, module in model.named_modules():
        if path == name or path.endswith(f".{name}"):
            return module
    raise ValueError(f"There is no {kind} attention in layer {layer} of this {type(model).__name__}.")


@torch.no_grad()
def shrink(attention: Any, left: Pruned) -> None:
    """Only the rows (queries, keys, values) and columns (output) of the heads that are left, of those that are there."""
    config, before = attention.config, attention.pruned
    heads = list(range(config.num_heads)) if before is None else before.heads
    kv_heads = list(range(config.num_kv_heads)) if before is None else before.kv_heads
    queries = places([heads.index(head) for head in left.heads], attention.d_k)
    keys = places([kv_heads.index(head) for head in left.kv_heads], attention.d_k)
    attention.q_proj = select(attention.q_proj, queries, dim=0)
    attention.k_proj, attention.v_proj = (select(linear, keys, dim=0) for linear in (attention.k_proj, attention.v_proj))
    attention.out_proj = select(attention.out_proj, queries, dim=1)
    attention.pruned = left if len(left.heads) < config.num_heads else None
    attention.num_heads = len(left.heads)
    attention.num_key_value_groups = left.group


def places(heads: Sequence[int], width: int) -> list[int]:
    return [head * width + place for head in heads for place in range(width)]


def select(linear: nn.Linear, chosen: list[int], dim: int) -> nn.Linear:
    """Some outputs (dim 0) or inputs (dim 1) of a linear layer; the biases belong to the outputs."""
    if type(linear) is not nn.Linear:
        raise ValueError(f"Heads are taken out of plain matrices, not of {type(linear).__name__}: prune before it is put there.")
    weight = linear.weight[chosen] if dim == 0 else linear.weight[:, chosen]
    smaller = nn.Linear(weight.shape[1], weight.shape[0], bias=linear.bias is not None, device="meta")
    smaller.weight = nn.Parameter(weight.clone(), requires_grad=linear.weight.requires_grad)
    if linear.bias is not None:
        bias = linear.bias[chosen] if dim == 0 else linear.bias
        smaller.bias = nn.Parameter(bias.clone(), requires_grad=linear.bias.requires_grad)
    return smaller
