# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The decoder (section 3.1 of https://arxiv.org/abs/1706.03762): one layer, then the stack of them.

With an encoder below it, each layer also attends to the encoder's output; alone, it is a language model.
"""

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.import_utils import is_tracing
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import MultiHeadAttention
from .checks import check_position_ids, check_same_batch, check_width
from .dropout import Dropout
from .masking import cross_mask, decoder_mask
from .stack import RESIDUALS, Stack, make_attention, make_feed_forward, make_norm, make_self_attention_norm


# B batch, T target length, S source length, D model width


class DecoderLayer(GradientCheckpointingLayer):
    """Causal self-attention, attention to the encoder's output (if there is an encoder), feed-forward network."""

    def __init__(self, config, layer_idx: int = 0):
        super().__init__()
        self.self_attn = make_attention(config, "decoder", layer_idx, window=config.attention_window)
        self.self_attn_norm = make_self_attention_norm(config, layer_idx)
        self.has_memory = config.is_encoder_decoder
        if self.has_memory:
            self.cross_attn = make_attention(config, "cross", layer_idx)
            self.cross_attn_norm = make_norm(config)
        self.feed_forward = make_feed_forward(config)
        self.feed_forward_norm = make_norm(config)
        self.dropout = Dropout(config.dropout)
        self.residual = RESIDUALS[config.norm_position]

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
        **kwargs,
    ) -> Tensor:
        """x [B, T, D], memory [B, S, D] (the encoder's output) -> [B, T, D]"""
        check_width("DecoderLayer", x, self.self_attn.d_model)
        if (memory is not None) != self.has_memory:
            what = "needs the encoder's output" if memory is None else "has no cross-attention for the encoder's output"
            raise ValueError(f"This DecoderLayer {what}: the layer counts in its config decide whether there is an encoder.")

        def self_attention(x: Tensor) -> Tensor:
            return self.self_attn(x, mask=mask, position_bias=position_bias, rotary=rotary, **kwargs)[0]

        def cross_attention(x: Tensor) -> Tensor:
            return self.cross_attn(x, memory, mask=memory_mask, **kwargs)[0]

        start = x
        x = self.residual(x, self.self_attn_norm, self_attention, self.dropout, start)
        if self.has_memory:
            x = self.residual(x, self.cross_attn_norm, cross_attention, self.dropout, start)
        return self.residual(x, self.feed_forward_norm, self.feed_forward, self.dropout, start)


class Decoder(Stack):
    """Writes the target from left to right; what it has computed for earlier tokens is kept in a cache."""

    shapes = ("encoder-decoder", "decoder")
    _can_record_outputs = {
        "hidden_states": DecoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="cross_attn"),
    }

    def __init__(self, config):
        super().__init__(config, is_decoder=True)
        if config.is_encoder_decoder:
            self.ids_name, self.embeds_name = "decoder_input_ids", "decoder_inputs_embeds"
            self.mask_name = "decoder_attention_mask"
        self.layers = nn.ModuleList(DecoderLayer(config, index) for index in range(config.num_decoder_layers))
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        x = self.embed(input_ids, inputs_embeds)
        check_position_ids(position_ids, *x.shape[:2])
        if use_cache and past_key_values is None:
            past_key_values = self.new_cache()
        cache = getattr(past_key_values, "self_attention_cache", past_key_values)
        slots, key_slots = self.place_in_cache(x, cache)
        if cache is None or not cache.is_compileable:  # `generate` makes the masks of static caches itself
            num_keys = x.shape[1] + (0 if cache is None else cache.get_seq_length())
            attention_mask = self.check_mask(self.mask_name, attention_mask, x, num_keys)

        mask = decoder_mask(self.config, x, attention_mask, cache, position_ids)
        memory_mask = self.mask_memory(x, encoder_hidden_states, encoder_attention_mask)
        position_ids = slots if position_ids is None else position_ids
        bias, rotary = self.attention_positions(x, position_ids, slots, key_slots)
        x = self.enter(x, position_ids)
        kwargs |= {"rotary": rotary, "past_key_values": past_key_values}
        for layer in self.layers:
            # Tensors that need a gradient go by place, or gradient checkpointing loses them.
            x = self.layer_drop(x, layer(x, encoder_hidden_states, mask, memory_mask, bias, **kwargs))
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.norm(x), past_key_values=past_key_values if use_cache else None
        )

    def new_cache(self) -> Cache:
        # The source is seen whole: its cache is made without the config, whose window would cut it.
        cache = DynamicCache(config=self.config)
        return EncoderDecoderCache(cache, DynamicCache()) if self.config.is_encoder_decoder else cache

    def place_in_cache(self, x: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor]:
        """Places of the new tokens [1, T], which are their positions unless told otherwise, and of all keys [1, S]."""
        slots = torch.arange(x.shape[1], device=x.device)[None]
        if cache is None:
            return slots, slots
        seen = cache.get_seq_length()
        # A static cache counts in place: take the count as it is now.
        slots = slots + (seen.clone().to(x.device) if isinstance(seen, Tensor) else seen)
        num_keys, first_key = cache.get_mask_sizes(x.shape[1], 0)
        return slots, torch.arange(num_keys, device=x.device)[None] + first_key

    def mask_memory(self, x: Tensor, memory: Tensor | None, memory_mask: Tensor | None):
        if memory is not None:
            return cross_mask(self.config, x, memory, self.check_memory(x, memory, memory_mask))
        if self.config.is_encoder_decoder:
            raise ValueError("The encoder's output is missing: pass input_ids, inputs_embeds or encoder_outputs.")
        return None

    def check_memory(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None) -> Tensor | None:
        """Whether the encoder's output, and the mask that is returned, suit each other and the target."""
        if memory.dim() != 3 or memory.shape[-1] != self.config.d_model or not (is_tracing(memory) or memory.shape[1]):
            raise ValueError(
                f"The encoder's output must be [batch, length, {self.config.d_model}] and not empty, but has the shape "
                f"{list(memory.shape)}."
            )
        check_same_batch(self.ids_name, x.shape[0], "the encoder's output", memory.shape[0])
        return self.check_mask("attention_mask", memory_mask, x, memory.shape[1])
