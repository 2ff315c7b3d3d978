# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Attention within a window, block by block, so that time and memory grow with the length and not with its square.

A sequence is cut into blocks at least as long as the window is wide. Whatever a query may see then lies in its own block or in
the one before, or after if it may look ahead: [block | block | block] becomes, for the second, [block | block] or all three.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.cache_utils import Cache
from transformers.utils.import_utils import is_tracing


# B batch, H heads, G key/value heads, T tokens, K width of one head, N blocks, W tokens of a block, S tokens that a block sees

SHORTEST = 64  # tokens of a block: below, there is more to arrange than to multiply
WORTHWHILE = 4  # blocks: fewer are as fast in one piece


@dataclass
class Near:
    """In the place of a mask: every token sees those less than `window` away, before it or on both sides, except padding."""

    window: int
    is_causal: bool
    tokens: Tensor | None  # [B, T], False for padding


def near_or_none(
    config, x: Tensor, attention_mask: Tensor | None, is_causal: bool, past: Cache | None = None, packed: bool = False
) -> Near | None:
    """`Near` where the kernel is torch's own, the sequence long and all of it at hand; None where an ordinary mask is due."""
    window, length = config.attention_window, x.shape[1]
    if window is None or config._attn_implementation != "sdpa" or packed or is_tracing(x):
        return None
    if attention_mask is not None and (attention_mask.dim() != 2 or attention_mask.shape[1] != length):
        return None
    if past is not None and (past.get_seq_length() or past.is_compileable):
        return None
    has_bias = config.position_encoding in ("alibi", "relative")  # for every pair of tokens
    if has_bias or length < WORTHWHILE * max(window, SHORTEST):
        return None
    return Near(window, is_causal, None if attention_mask is None else attention_mask.bool())


def near_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    near: Near,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[Tensor, None]:
    """As transformers' attention functions: query [B, H, T, K], key and value [B, G, T, K] -> [B, T, H, K]."""
    length, block, groups = query.shape[2], max(near.window, SHORTEST), query.shape[1] // key.shape[1]
    sides = (1, 0) if near.is_causal else (1, 1)  # blocks to see before and after one's own
    queries = in_blocks(query, block, (0, 0))  # [B, N, H, W, K]
    keys, values = (in_blocks(x, block, sides).repeat_interleave(groups, dim=2) for x in (key, value))  # [B, N, H, S, K]
    mask = block_mask(near, length, block, sides, query.device)  # [B or 1, N, 1, W, S]
    mask = mask.expand(len(query), -1, -1, -1, -1)
    q, k, v, mask = (x.flatten(0, 1) for x in (queries, keys, values, mask))  # a block is an example of its own
    output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
    output = output.unflatten(0, queries.shape[:2]).transpose(2, 3).flatten(1, 2)  # [B, N * W, H, K]
    return output[:, :length], None


def in_blocks(x: Tensor, block: int, sides: tuple[int, int]) -> Tensor:
    """[B, H, T, K] -> [B, N, H, S, K], where S is a block with its neighbours, zeros beyond the ends."""
    before, after = sides
    length = x.shape[2]
    rest = -length % block
    padded = F.pad(x, (0, 0, before * block, rest + after * block))
    return padded.unfold(2, (1 + before + after) * block, block).permute(0, 2, 1, 4, 3)


def block_mask(near: Near, length: int, block: int, sides: tuple[int, int], device: torch.device) -> Tensor:
    """Who sees whom within the blocks: [B or 1, N, 1, W, S]. A query sees itself in any case, or padding would see nothing."""
    count, before = -(-length // block), sides[0]
    queries = torch.arange(block, device=device)[:, None]
    keys = torch.arange((1 + sum(sides)) * block, device=device) - before * block  # places relative to the block
    distance = queries - keys  # [W, S]
    within = (distance >= 0 if near.is_causal else distance > -near.window) & (distance < near.window)
    tokens = torch.ones(1, length, dtype=torch.bool, device=device) if near.tokens is None else near.tokens
    seen = in_blocks(tokens[:, None, :, None].to(torch.uint8), block, sides)[:, :, 0, :, 0].bool()  # [B, N, S]
    return ((within & seen[:, :, None]) | (distance == 0))[:, :count, None]
