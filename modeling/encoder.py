# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The encoder (section 3.1 of https://arxiv.org/abs/1706.03762): one layer, then the stack of them."""

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .attention import MultiHeadAttention
from .checks import check_modality, check_position_ids, check_token_types, check_width
from .convolution import Convolution
from .dropout import Dropout
from .embeddings import NgramEmbedding
from .masking import encoder_mask, follows_previous
from .packing import lengths_to_pack, pack, pack_rotation, unpack
from .patches import PatchEmbedding
from .stack import RESIDUALS, Stack, make_attention, make_feed_forward, make_norm, make_self_attention_norm


# B batch, S source length, D model width


class EncoderLayer(GradientCheckpointingLayer):
    """Self-attention, then the feed-forward network, each inside a residual connection with a norm."""

    def __init__(self, config, layer_idx: int = 0):
        super().__init__()
        self.layer_type = config.type_of_layer(layer_idx)
        self.self_attn = make_attention(config, "encoder", layer_idx, window=config.window_of(self.layer_type))
        self.self_attn_norm = make_self_attention_norm(config, layer_idx)
        self.feed_forward = make_feed_forward(config)
        self.feed_forward_norm = make_norm(config)
        self.dropout = Dropout(config.dropout)
        self.residual = RESIDUALS[config.norm_position]

    def forward(self, x: Tensor, mask: Tensor | None = None, position_bias: Tensor | None = None, **kwargs) -> Tensor:
        """x [B, S, D] -> [B, S, D]"""
        check_width("EncoderLayer", x, self.self_attn.d_model)

        def self_attention(x: Tensor) -> Tensor:
            return self.self_attn(x, mask=mask, position_bias=position_bias, **kwargs)[0]

        start = x
        x = self.residual(x, self.self_attn_norm, self_attention, self.dropout, start)
        return self.residual(x, self.feed_forward_norm, self.feed_forward, self.dropout, start)


class Encoder(Stack):
    """Reads the whole source at once, in both directions: tokens or, with an `image_size`, patches of a picture."""

    shapes = ("encoder-decoder", "encoder")
    _can_record_outputs = {"hidden_states": EncoderLayer, "attentions": MultiHeadAttention}

    def __init__(self, config):
        super().__init__(config, is_decoder=False)
        sizes = config.image_size, config.patch_size, config.num_channels
        self.embed_patches = PatchEmbedding(config.d_model, *sizes) if config.image_size else None
        self.token_types = nn.Embedding(config.num_token_types, config.d_model) if config.num_token_types else None
        sizes = config.ngram_buckets, config.d_model, config.ngram_size
        self.embed_ngrams = NgramEmbedding(*sizes, config.scale_embedding) if config.ngram_size > 1 else None
        sizes = config.d_model, config.conv_size
        self.convolution = Convolution(*sizes, config.activation) if config.conv_size > 1 else None
        self.layers = nn.ModuleList(EncoderLayer(config, index) for index in range(config.num_encoder_layers))
        self.layer_types = sorted({layer.layer_type for layer in self.layers})  # one, unless layers differ
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutput:
        check_modality(self.config.image_size, pixel_values, {"input_ids": input_ids, "inputs_embeds": inputs_embeds})
        x = self.embed(input_ids, inputs_embeds) if self.embed_patches is None else self.embed_patches(pixel_values)
        batch, length = x.shape[:2]
        if self.token_types is not None:
            x = x + self.embed_types(token_type_ids, batch, length)
        attention_mask = self.token_mask(input_ids, attention_mask)
        attention_mask = self.check_mask(self.mask_name, attention_mask, x, length)
        check_position_ids(position_ids, batch, length)
        slots = torch.arange(length, device=x.device)[None]
        position_ids = slots if position_ids is None else position_ids
        if self.embed_ngrams is not None:
            x = x + self.embed_phrases(input_ids, follows_previous(position_ids, attention_mask, batch))

        bias, rotary = self.attention_positions(x, position_ids, slots, slots)
        x = self.enter(x, position_ids)
        if self.convolution is not None:
            x = self.convolution(x, follows_previous(position_ids, attention_mask, batch))
        lengths = self.lengths_to_pack(attention_mask, **kwargs)
        types = self.layer_types
        turns = rotary if isinstance(rotary, dict) else dict.fromkeys(types, rotary)
        if lengths is None:
            masks = {kind: encoder_mask(self.config, x, attention_mask, self.config.window_of(kind)) for kind in types}
        else:
            x, masks = pack(x, lengths), dict.fromkeys(types)
            turns = {kind: pack_rotation(turn, batch, lengths) for kind, turn in turns.items()}
        for layer in self.layers:
            mask, turn = masks[layer.layer_type], turns[layer.layer_type]
            # Tensors that need a gradient go by place, or gradient checkpointing loses them.
            x = self.layer_drop(x, layer(x, mask, bias, rotary=turn, lengths=lengths, **kwargs))
        x = self.norm(x)
        return BaseModelOutput(last_hidden_state=x if lengths is None else unpack(x, lengths, length))

    def embed_types(self, token_type_ids: Tensor | None, batch: int, length: int) -> Tensor:
        """[B, S, D]; where no types are given, all tokens are of type 0."""
        if token_type_ids is None:
            token_type_ids = torch.zeros(batch, length, dtype=torch.long, device=self.token_types.weight.device)
        check_token_types(token_type_ids, batch, length, self.config.num_token_types)
        return self.token_types(token_type_ids)

    def embed_phrases(self, input_ids: Tensor | None, follows: Tensor) -> Tensor:
        """[B, S, D], of each token with those before it."""
        if input_ids is None:
            raise ValueError(
                f"ngram_size={self.config.ngram_size} looks up the ids of neighbours, which inputs_embeds do not tell: pass "
                f"input_ids."
            )
        return self.embed_ngrams(input_ids, follows)

    def lengths_to_pack(self, attention_mask: Tensor | None, **kwargs) -> list[int] | None:
        """How long each sequence is, where padding is left out: while training, if nothing asks for it."""
        recorded = any(kwargs.get(name) or getattr(self.config, name) for name in ("output_hidden_states", "output_attentions"))
        windowed = self.config.attention_window is not None or self.config._attn_implementation != "sdpa"
        if not self.training or recorded or windowed or self.layer_drop.p:
            return None
        return lengths_to_pack(attention_mask)
