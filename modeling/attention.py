# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Attention (section 3.2 of https://arxiv.org/abs/1706.03762): the formula as a function, the heads as a module.

`scaled_dot_product_attention` is the textbook: matmul, scale, mask, softmax, matmul. `MultiHeadAttention` projects, splits
into heads, and hands them to the attention function that the config names: ours ("eager"), or transformers' "sdpa",
"flex_attention" and "flash_attention_2", which compute the same.
"""

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.import_utils import is_tracing

from .masking import causal_mask, check_boolean, expand_mask
from .near import Near, near_attention_forward
from .norms import build_norm
from .positions import rotate
from .pruning import Pruned


# B batch, H heads, G key/value heads, T queries (target), S keys (source), D model width, K width of one head


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """softmax(query key^T / sqrt(K) + bias) value, and the attention weights before dropout.

    Args:
        query: [B, H, T, K], also [B, T, K] or [T, K].
        key, value: the same with S in the place of T.
        mask: boolean, True = may attend; [T, S], [B, S], [B, T, S], [B, 1, T, S] or [B, H, T, S]. A query that may attend
            to nothing gets zeros.
        bias: added to the scores, broadcast to [B, H, T, S].
        scale: instead of 1 / sqrt(K).
        dropout: probability with which a weight is left out of the sum.
    """
    _check_attention_inputs(query, key, value)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * scale) @ key.transpose(-2, -1)  # [B, H, T, S]; scaled first, or float16 may overflow
    if bias is not None:
        if not is_tracing(scores) and any(b not in (1, s) for b, s in zip(bias.shape[::-1], scores.shape[::-1])):
            raise ValueError(f"A bias of shape {list(bias.shape)} does not fit scores of shape {list(scores.shape)}.")
        scores = scores + bias
    if mask is not None:
        batch, heads = (*query.shape[:-2], 1, 1)[:2]
        hidden = ~expand_mask(mask, batch, heads, *scores.shape[-2:])  # [B, H, T, S]
        if scores.dim() < 4:
            hidden = hidden[:, 0] if scores.dim() == 3 else hidden[0, 0]
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    if mask is not None:
        weights = weights.masked_fill(hidden, 0.0)  # exactly zero, also where a whole row is hidden
    return F.dropout(weights, dropout) @ value, weights


def _check_attention_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    if is_tracing(query):
        return
    q, k, v = list(query.shape), list(key.shape), list(value.shape)
    if not 2 <= len(q) <= 4 or not len(q) == len(k) == len(v):
        raise ValueError(f"query {q}, key {k} and value {v} must all be [B, H, length, K], or all without H, or without B and H.")
    if q[-1] != k[-1]:
        raise ValueError(f"query {q} and key {k} must have the same width, but {q[-1]} is not {k[-1]}.")
    if k[-2] != v[-2]:
        raise ValueError(f"key {k} and value {v} must have the same length, but {k[-2]} is not {v[-2]}.")
    if not q[:-2] == k[:-2] == v[:-2]:
        raise ValueError(f"query {q}, key {k} and value {v} must agree in batch and heads.")


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, Tensor]:
    """The textbook formula behind the signature of transformers' attention functions: [B, H, T, K] -> [B, T, H, K]."""
    if attention_mask is None and module.is_causal:
        attention_mask = causal_mask(query.shape[2], key.shape[2], device=query.device)[None, None]  # [1, 1, T, S]
    groups = query.shape[1] // key.shape[1]
    if groups > 1:  # each key/value head serves a group of query heads
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    if attention_mask is not None and attention_mask.is_floating_point():
        # transformers' eager masks are additive: the least number of the dtype hides, anything else is a bias.
        position_bias = attention_mask if position_bias is None else position_bias + attention_mask
        attention_mask = attention_mask > torch.finfo(attention_mask.dtype).min / 2
    output, weights = scaled_dot_product_attention(
        query, key, value, attention_mask, bias=position_bias, scale=scaling, dropout=dropout
    )
    return output.transpose(1, 2), weights


SHORT = 128  # tokens


def is_short(query: Tensor, key: Tensor) -> bool:
    """Whether plain products, forward and backward, are faster than a kernel's (docs/performance.md)."""
    return query.device.type == "cpu" and query.shape[2] <= SHORT and key.shape[2] <= SHORT


def short_attention_forward(*args, **kwargs) -> tuple[Tensor, None]:
    """The textbook formula in the place of a kernel, which does not hand out weights."""
    return eager_attention_forward(*args, **kwargs)[0], None


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = concat(head_1, ..., head_H) W_O with head_i = attention(Q W_Q[i], K W_K[i], V W_V[i]).

    Args:
        num_kv_heads: fewer key/value heads than query heads, each shared by a group (grouped-query attention); 1 is
            multi-query, None one for each query head.
        qk_norm: name of a norm applied to each head's queries and keys, None for none.
        config: names the attention function by `_attn_implementation`; without a config it is the textbook one.
        layer_idx: where this layer's keys and values are kept in a cache.
        is_causal: whether "no mask" means "causal", as in a decoder's self-attention.
        window: how far self-attention looks, for kernels that take this as a number beside the mask.
        pruned: heads that are left out, and key/value heads that serve nobody with them (see `pruning.py`).
        out_bias: whether the output projection has a bias; None: if the others have.
        scaled: whether scores are divided by sqrt(d_k).
        d_k: width of a head; None: d_model / num_heads.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        qk_norm: str | None = None,
        norm_eps: float = 1e-6,
        config=None,
        layer_idx: int | None = None,
        is_causal: bool = False,
        window: int | None = None,
        pruned: Sequence[int] = (),
        out_bias: bool | None = None,
        scaled: bool = True,
        d_k: int | None = None,
        norm_bias: bool = True,
    ):
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        for name, value in {"num_heads": num_heads, "num_kv_heads": num_kv_heads}.items():
            if value < 1:
                raise ValueError(f"{name}={value} must be positive.")
        if d_k is None and d_model % num_heads:
            raise ValueError(f"d_model={d_model} is not divisible by num_heads={num_heads}.")
        if num_heads % num_kv_heads:
            raise ValueError(f"num_kv_heads={num_kv_heads} does not divide num_heads={num_heads}.")
        self.d_model = d_model
        self.d_k = d_k or d_model // num_heads
        self.pruned = Pruned(num_heads, num_kv_heads, pruned) if pruned else None
        self.num_key_value_groups = num_heads // num_kv_heads
        if self.pruned is not None:
            num_heads, num_kv_heads = len(self.pruned.heads), len(self.pruned.kv_heads)
            self.num_key_value_groups = self.pruned.group
        self.num_heads = num_heads
        self.scaling = self.d_k**-0.5 if scaled else 1.0
        self.dropout = dropout
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.window = window

        self.q_proj = nn.Linear(d_model, num_heads * self.d_k, bias=bias)
        self.k_proj = nn.Linear(d_model, num_kv_heads * self.d_k, bias=bias)
        self.v_proj = nn.Linear(d_model, num_kv_heads * self.d_k, bias=bias)
        self.out_proj = nn.Linear(num_heads * self.d_k, d_model, bias=bias if out_bias is None else out_bias)
        self.q_norm = build_norm(qk_norm, self.d_k, norm_eps, norm_bias) if qk_norm else nn.Identity()
        self.k_norm = build_norm(qk_norm, self.d_k, norm_eps, norm_bias) if qk_norm else nn.Identity()

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
        position_bias: Tensor | None = None,
        past_key_values: Cache | None = None,
        lengths: list[int] | None = None,
        **kwargs,
    ) -> tuple[Tensor, Tensor | None]:
        """query [B, T, D] -> output [B, T, D] and weights [B, H, T, S] (None from kernels that do not form them).

        Without `key` this is self-attention; without `value`, values are read where keys are. With `lengths`, the one row
        of the batch is made of sequences (see `packing.py`), each of which sees itself alone.
        """
        _check_multi_head_inputs(query, key, value, self.d_model)
        q = self.q_norm(self.split_heads(self.q_proj(query)))  # [B, H, T, K]
        if rotary is not None:
            q = rotate(q, *rotary)
        if key is None:
            k, v = self.keys_and_values(query, query if value is None else value, rotary)
            if past_key_values is not None:
                k, v = _self_cache(past_key_values).update(k, v, self.layer_idx)
        else:
            k, v = self.memory_keys_and_values(key, key if value is None else value, past_key_values)
        if isinstance(mask, Tensor) and not self.implementation.startswith("flash"):  # which reads [B, S] itself
            mask = self.place_mask(mask, q, k)
        attend = self.attend if lengths is None else functools.partial(self.attend_within, lengths)
        output, weights = attend(q, k, v, mask, position_bias, **kwargs)
        return self.out_proj(output.reshape(*query.shape[:-1], -1)), weights  # [B, T, H, K] -> [B, T, D]

    def split_heads(self, x: Tensor) -> Tensor:
        """[B, T, H*K] -> [B, H, T, K]"""
        return x.view(*x.shape[:-1], -1, self.d_k).transpose(1, 2)

    def keys_and_values(self, key: Tensor, value: Tensor, rotary=None) -> tuple[Tensor, Tensor]:
        k = self.k_norm(self.split_heads(self.k_proj(key)))  # [B, G, S, K]
        v = self.split_heads(self.v_proj(value))
        return (k if rotary is None else rotate(k, *rotary)), v

    def memory_keys_and_values(self, key: Tensor, value: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor]:
        """Cross-attention: the encoder's output does not change, so it is projected once and kept."""
        if not isinstance(cache, EncoderDecoderCache):
            return self.keys_and_values(key, value)
        memory_cache = cache.cross_attention_cache
        if cache.is_updated.get(self.layer_idx):
            layer = memory_cache.layers[self.layer_idx]
            return layer.keys, layer.values
        cache.is_updated[self.layer_idx] = True
        return memory_cache.update(*self.keys_and_values(key, value), self.layer_idx)

    def place_mask(self, mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """A mask of any accepted shape -> [B, 1 or H, T, S]. Additive masks come from transformers, never without a config."""
        if self.config is None:
            check_boolean(mask)
        if mask.dim() == 4:
            return mask
        return expand_mask(mask, q.shape[0], q.shape[1], q.shape[2], k.shape[2])

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask, bias: Tensor | None, **kwargs) -> tuple[Tensor, Tensor | None]:
        """[B, H, T, K] -> [B, T, H, K]"""
        if self.pruned is not None:
            k, v, mask, bias = self.pruned.match(k, v, mask, bias)
        return self.attention_function(q, k, mask)(
            self,
            q,
            k,
            v,
            mask,
            dropout=self.dropout if self.training else 0.0,
            scaling=self.scaling,
            position_bias=bias,
            sliding_window=self.window,
            **kwargs,
        )

    def attend_within(
        self, lengths: list[int], q: Tensor, k: Tensor, v: Tensor, mask, bias: Tensor | None, **kwargs
    ) -> tuple[Tensor, None]:
        """Each sequence of a packed row by itself: [1, H, N, K] -> [1, N, H, K]"""
        outputs = []
        for length, *heads in zip(lengths, *(x.split(lengths, dim=2) for x in (q, k, v))):
            query, key, value = heads
            near = None if bias is None else bias[..., :length, :length]
            outputs.append(self.attend(query, key, value, None, near, **kwargs)[0])
        return torch.cat(outputs, dim=1), None

    def attention_function(self, q: Tensor, k: Tensor, mask) -> Callable[..., tuple[Tensor, Tensor | None]]:
        if isinstance(mask, Near):
            return near_attention_forward
        if self.training and self.implementation == "sdpa" and is_short(q, k) and not is_tracing(q):
            return short_attention_forward
        return ALL_ATTENTION_FUNCTIONS.get_interface(self.implementation, eager_attention_forward)

    @property
    def implementation(self) -> str:
        return getattr(self.config, "_attn_implementation", None) or "eager"


def _self_cache(cache: Cache) -> Cache:
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def _check_multi_head_inputs(query: Tensor, key: Tensor | None, value: Tensor | None, d_model: int) -> None:
    if is_tracing(query):
        return
    given = {"query": query, "key": key, "value": value}
    shapes = {name: list(tensor.shape) for name, tensor in given.items() if tensor is not None}
    for name, shape in shapes.items():
        if len(shape) != 3 or shape[-1] != d_model:
            raise ValueError(f"{name} must be [batch, length, {d_model}], but has the shape {shape}.")
        if shape[0] != query.shape[0]:
            raise ValueError(f"{name} has {shape[0]} sequences, query has {query.shape[0]}: they must be as many.")
    if key is not None and value is not None and key.shape[1] != value.shape[1]:
        raise ValueError(f"key has {key.shape[1]} positions, value has {value.shape[1]}: there is one value for each key.")
