# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What encoder and decoder have in common: the residual connection, the parts of a layer, embeddings and positions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .attention import MultiHeadAttention
from .checks import check_attention_mask, check_inputs
from .dropout import Dropout, TokenDropout
from .embeddings import TokenEmbedding
from .feed_forward import FeedForward
from .norms import make_norm
from .positions import (
    AlibiBias,
    LearnedPositionEncoding,
    RelativePositionBias,
    RotaryByLayerType,
    RotaryPositionEncoding,
    SinusoidalPositionEncoding,
)
from .pretrained import GlassformerPreTrainedModel


# B batch, H heads, T queries (target), S keys (source), D model width


Map = Callable[[Tensor], Tensor]


# x is what the sub-layers before have made of `start`, the input of the layer, which only the last of these looks at.


def pre_norm(x: Tensor, norm: Map, sublayer: Map, dropout: Map, start: Tensor | None = None) -> Tensor:
    """x + sublayer(norm(x)): the residual path is never normalised, so deep stacks train without warm-up tricks."""
    return x + dropout(sublayer(norm(x)))


def post_norm(x: Tensor, norm: Map, sublayer: Map, dropout: Map, start: Tensor | None = None) -> Tensor:
    """norm(x + sublayer(x)), as in the paper."""
    return norm(x + dropout(sublayer(x)))


def parallel_norm(x: Tensor, norm: Map, sublayer: Map, dropout: Map, start: Tensor) -> Tensor:
    """x + sublayer(norm(start)): the sub-layers stand side by side, so that none waits for another, as in GPT-NeoX."""
    return x + dropout(sublayer(norm(start)))


RESIDUALS = {"pre": pre_norm, "post": post_norm, "parallel": parallel_norm}


def make_self_attention_norm(config, layer_idx: int) -> nn.Module:
    """Before the first attention of a stack, the norm of the embeddings may be enough."""
    return make_norm(config) if layer_idx or config.first_norm else nn.Identity()


def make_attention(config, kind: str, layer_idx: int, window: int | None = None) -> MultiHeadAttention:
    """`kind` is whose queries look where: "encoder" and "decoder" at themselves, "cross" from the decoder at the encoder."""
    return MultiHeadAttention(
        config.d_model,
        config.num_heads,
        config.num_kv_heads,
        dropout=config.attention_dropout,
        bias=config.attention_bias,
        qk_norm=config.norm if config.qk_norm else None,
        norm_eps=config.norm_eps,
        norm_bias=config.norm_bias,
        config=config,
        layer_idx=layer_idx,
        is_causal=kind == "decoder",
        window=window,
        pruned=(config.pruned_heads or {}).get(f"{kind}.{layer_idx}", ()),
        out_bias=config.attention_out_bias,
        scaled=config.scale_attention,
        d_k=config.d_k,
    )


def make_feed_forward(config) -> FeedForward:
    return FeedForward(
        config.d_model,
        config.d_ff,
        activation=config.activation,
        gated=config.gated_feed_forward,
        bias=config.feed_forward_bias,
        dropout=config.activation_dropout,
    )


class LayerDrop(nn.Module):
    """Stochastic depth (https://arxiv.org/abs/1603.09382): while training, an example skips a layer with probability p.

    A choice between two tensors rather than a branch: it compiles, and every process of a distributed run calls every layer.
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return after
        keep = torch.rand(after.shape[0], 1, 1, device=after.device) >= self.p
        return torch.where(keep, after, before)


class Stack(GlassformerPreTrainedModel):
    """Embeds tokens and their positions; subclasses add the layers.

    Positions enter in one of three places, and the other two stay empty: added to the embeddings (`positions`), turning
    queries and keys (`rotary_emb`), or as a bias on the scores (`position_bias`).
    """

    # Names in error messages; the decoder of an encoder-decoder has others.
    ids_name, embeds_name, mask_name = "input_ids", "inputs_embeds", "attention_mask"

    def __init__(self, config, is_decoder: bool):
        super().__init__(config)
        kind = config.position_encoding
        self.embed_tokens: Any = None  # an encoder of pictures has none
        if config.image_size is None:
            self.embed_tokens = TokenEmbedding(config.vocab_size, config.d_model, config.padding_idx, config.scale_embedding)
        self.positions: nn.Module | None = None
        if kind == "sinusoidal":
            self.positions = SinusoidalPositionEncoding(config.d_model)
        elif kind == "learned":
            self.positions = LearnedPositionEncoding(config.d_model, config.max_position_embeddings, config.position_offset)
        self.rotary_emb: nn.Module | None = None
        if kind == "rope":
            self.rotary_emb = (RotaryByLayerType if config.rope_by_layer_type() else RotaryPositionEncoding)(config)
        self.position_bias: nn.Module | None = None
        if kind == "alibi":
            self.position_bias = AlibiBias(config.num_heads)
        elif kind == "relative":
            self.position_bias = RelativePositionBias(
                config.num_heads,
                config.relative_attention_num_buckets,
                config.relative_attention_max_distance,
                bidirectional=not is_decoder,
            )
        self.embedding_norm = make_norm(config) if config.embedding_norm else nn.Identity()
        self.token_dropout = TokenDropout(config.token_dropout)
        self.dropout = Dropout(config.dropout)
        self.layer_drop = LayerDrop(config.layer_drop)
        # Pre-norm layers hand on an unnormalised sum: it is normalised once, at the end.
        self.norm = make_norm(config) if config.norm_position != "post" else nn.Identity()
        self.gradient_checkpointing = False

    def init_parallel_plans(self) -> None:
        """The plans in the config are written from the whole model's point of view: none of them is a stack's own."""
        super().init_parallel_plans()
        self._tp_plan: dict[str, str] = {}
        self._fsdp_plan: dict[str, str] = {}

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Ids [B, T], or what a caller has embedded already -> [B, T, D]."""
        check_inputs(self.ids_name, input_ids, self.embeds_name, inputs_embeds, self.config.d_model)
        return self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds

    def check_mask(self, name: str, mask: Tensor | None, x: Tensor, num_keys: int) -> Tensor | None:
        return check_attention_mask(name, mask, x.shape[0], self.config.num_heads, x.shape[1], num_keys)

    def enter(self, inputs_embeds: Tensor, position_ids: Tensor) -> Tensor:
        """The input of the first layer."""
        x = self.token_dropout(inputs_embeds)
        x = x if self.positions is None else self.positions(x, position_ids)
        return self.dropout(self.embedding_norm(x))

    def attention_positions(self, x: Tensor, position_ids: Tensor, slots: Tensor, key_slots: Tensor) -> tuple[Tensor | None, Any]:
        """What attention itself is told about positions: a bias [B or 1, H, T, S], a rotation or one for each type of layer.

        A rotation goes by the given positions. A bias goes by the places of queries [1, T] and keys [1, S] in the sequence,
        for those are known of cached keys too; padding and packing do not change the distances that count.
        """
        rotary = None if self.rotary_emb is None else self.rotary_emb(x, position_ids)
        if self.position_bias is None:
            return None, rotary
        bias = self.position_bias(slots, key_slots).to(x.dtype)
        if self.config._attn_implementation == "flex_attention":  # which indexes the bias by example
            bias = bias.expand(x.shape[0], -1, -1, -1)
        return bias, rotary
