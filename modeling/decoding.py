# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""One token at a time: the decoder as `generate` uses it, without what only a whole sequence needs.

transformers' strategies hand the prompt to the ordinary forward pass, and from then on ask for the logits of one more token:
`DecoderSteps` answers. The loops around it are transformers' own, except for plain greedy and beam search, where the rules are
the same but little else is computed, and where a target that begins with its start token alone is written in steps from there
on. A step runs the same layers on the same weights, but keeps keys and values in memory that is set aside once, does not copy
what belongs to the source for every beam, and makes no masks where nothing is hidden.
"""

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.generation import EosTokenCriteria, GenerationMixin, GenerationMode, MaxLengthCriteria
from transformers.utils import ModelOutput

from .attention import scaled_dot_product_attention
from .beams import Beams, rank
from .checks import check_token_ids
from .decoder import Decoder, DecoderLayer
from .embeddings import TokenEmbedding, softcap
from .packed_linear import Product, join
from .positions import SinusoidalPositionEncoding, rotate


# R rows (examples x beams), B examples, H heads, G key/value heads, T tokens so far, S source length, D model width, K of a head


STEP_BY_STEP = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE, GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE)


class StepwiseGeneration(GenerationMixin):
    """Leads `generate` to `DecoderSteps` wherever they give what it asks for."""

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, generation_mode, *args, **kwargs) -> None:
        given = model_kwargs.get("past_key_values")
        super()._prepare_cache_for_generation(generation_config, model_kwargs, generation_mode, *args, **kwargs)
        cache, mask = model_kwargs.get("past_key_values"), model_kwargs.get("attention_mask")
        wants_more = generation_config.return_dict_in_generate or generation_mode not in STEP_BY_STEP
        told = {"decoder_attention_mask", "decoder_position_ids", "decoder_inputs_embeds"} & set(model_kwargs)
        knows_more = told or (mask is not None and mask.dim() > 2)
        if cache is not None and cache is not given and not wants_more and not knows_more and can_step(self, cache):
            # A mark: this cache is nobody else's, each example has so many rows in it, and it will hold so many tokens.
            cache.rows_per_example = max(generation_config.num_beams, generation_config.num_return_sequences)
            cache.room = generation_config.max_length

    def prepare_inputs_for_generation(
        self, input_ids, next_sequence_length=None, past_key_values=None, attention_mask=None, inputs_embeds=None, **kwargs
    ):
        kwargs |= {"past_key_values": past_key_values, "attention_mask": attention_mask}
        if is_marked(past_key_values) and next_sequence_length == 1 and past_key_values.get_seq_length() > 0:
            if steps_of(past_key_values) is None:
                past_key_values.steps = DecoderSteps(self, **kwargs)
            name = "decoder_input_ids" if self.config.is_encoder_decoder else "input_ids"
            return {name: input_ids[:, -1:], "past_key_values": past_key_values}
        return super().prepare_inputs_for_generation(input_ids, next_sequence_length, inputs_embeds=inputs_embeds, **kwargs)

    def _sample(self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
        if is_simple(logits_processor, stopping_criteria, generation_config, **kwargs):
            return self.write_greedily(input_ids, generation_config, **kwargs)
        return super()._sample(input_ids, logits_processor, stopping_criteria, generation_config, **kwargs)

    def _beam_search(self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
        if is_simple(logits_processor, stopping_criteria, generation_config, **kwargs):
            return self.write_with_beams(input_ids, generation_config, **kwargs)
        return super()._beam_search(input_ids, logits_processor, stopping_criteria, generation_config, **kwargs)

    def write_greedily(self, input_ids: Tensor, generation_config, **kwargs) -> Tensor:
        """The likeliest token, until every row has ended or is long enough."""
        ends, pad = generation_config._eos_token_tensor, generation_config._pad_token_tensor
        logits, steps = self.read_prompt(input_ids, generation_config, **kwargs)
        tokens, ended = [input_ids], torch.zeros_like(input_ids[:, :1], dtype=torch.bool)
        for left in reversed(range(generation_config.max_length - input_ids.shape[1])):
            token = logits.float().argmax(dim=-1, keepdim=True)  # [R, 1]
            if ends is not None:
                token = torch.where(ended, pad, token)
                ended = ended | torch.isin(token, ends)
            tokens.append(token)
            if left == 0 or (ends is not None and ended.all()):
                break
            logits = steps(token)[:, 0]
        return torch.cat(tokens, dim=1)

    def write_with_beams(self, input_ids: Tensor, generation_config, **kwargs) -> Tensor:
        """The likeliest sequences that beam search finds."""
        logits, steps = self.read_prompt(input_ids, generation_config, **kwargs)
        settings, ends, pad = generation_config, generation_config._eos_token_tensor, generation_config._pad_token_tensor
        beams = Beams(
            input_ids.cpu().numpy(), settings.num_beams, settings.max_length, () if ends is None else ends.tolist(),
            None if pad is None else int(pad), settings.length_penalty, settings.early_stopping,
        )  # fmt: skip
        first_rows = np.arange(0, len(input_ids), beams.width)[:, None]  # of each example
        while True:
            origin = beams.advance(*rank(logits, beams.scores, beams.wanted))
            if beams.is_over:
                return torch.from_numpy(beams.best(settings.num_return_sequences)).to(input_ids.device)
            steps.reorder(torch.from_numpy(first_rows + origin).flatten().to(input_ids.device))
            logits = steps(torch.from_numpy(beams.newest.reshape(-1, 1)).to(input_ids.device))[:, 0]

    def read_prompt(self, input_ids: Tensor, generation_config, past_key_values, **kwargs) -> "tuple[Tensor, DecoderSteps]":
        """Logits of the first new token [R, V], and steps for those after it.

        So far the rows of an example are alike, and one of them is enough to compute.
        """
        copies, past_key_values.rows_per_example = past_key_values.rows_per_example, 1
        kwargs = {name: every(copies, value) for name, value in kwargs.items() if name not in ("synced_gpus", "streamer")}
        kwargs["past_key_values"] = past_key_values
        input_ids = input_ids[::copies]
        if self.config.is_encoder_decoder and input_ids.shape[1] == 1:
            check_token_ids(input_ids, self.config.vocab_size)
            read_source(self.get_decoder(), **kwargs)
            steps = DecoderSteps(self, **kwargs)
            logits = steps(input_ids)
        else:
            outputs = self._prefill(input_ids, generation_config, kwargs)
            kwargs = self._update_model_kwargs_for_generation(outputs, kwargs, self.config.is_encoder_decoder)
            logits, steps = outputs.logits, DecoderSteps(self, **kwargs)
        steps.repeat(copies)
        return logits[:, -1].repeat_interleave(copies, dim=0), steps

    def _reorder_cache(self, past_key_values: Cache, rows: Tensor) -> Cache:
        """Beam search goes on with these rows."""
        past_key_values.reorder_cache(rows) if steps_of(past_key_values) is None else past_key_values.steps.reorder(rows)
        return past_key_values


def every(step: int, value: Any) -> Any:
    """One of each `step` rows of a tensor, for `generate` has repeated all that it was given; other settings as they are."""
    if isinstance(value, ModelOutput):
        return type(value)(**{name: every(step, part) for name, part in value.items()})
    return value[::step] if isinstance(value, Tensor) else value


def is_simple(logits_processor, stopping_criteria, generation_config, past_key_values=None, **kwargs) -> bool:
    """Whether a search is only about likely tokens, end tokens and length: then its loop is ours too."""
    known = all(type(criterion) in (MaxLengthCriteria, EosTokenCriteria) for criterion in stopping_criteria)
    follows = generation_config.do_sample or logits_processor or kwargs.get("streamer") or kwargs.get("synced_gpus")
    return is_marked(past_key_values) and known and not follows and stopping_criteria.max_length == generation_config.max_length


def can_step(model: Any, cache: Cache) -> bool:
    """Whether the next token can be computed from what this cache holds, and nothing is watching how."""
    caches = [cache.self_attention_cache, cache.cross_attention_cache] if isinstance(cache, EncoderDecoderCache) else [cache]
    plain_caches = all(type(part) is DynamicCache and not part.offloading for part in caches)
    config = model.config
    plain_heads = config.attention_window is None and not config.pruned_heads
    plain_config = plain_heads and config._attn_implementation in ("sdpa", "eager")
    recorded = config.output_attentions or config.output_hidden_states
    spread_out = hasattr(model, "hf_device_map") or any(isinstance(weight, DTensor) for weight in model.parameters())
    watched = any(module._forward_hooks or module._forward_pre_hooks for module in model.get_decoder().modules())
    return plain_caches and plain_config and not (recorded or spread_out or watched or model.training)


def is_marked(cache: Cache | None) -> bool:
    return getattr(cache, "rows_per_example", None) is not None


def read_source(decoder: Decoder, past_key_values: EncoderDecoderCache, encoder_outputs, attention_mask=None, **kwargs) -> None:
    """Fills a cache with keys and values of the source, and with none of the target: it has not begun."""
    memory = encoder_outputs[0]
    decoder.check_memory(memory, memory, attention_mask)
    for layer in decoder.layers:
        keys, values = layer.cross_attn.memory_keys_and_values(memory, memory, past_key_values)
        past_key_values.self_attention_cache.update(keys[:, :, :0], values[:, :, :0], layer.self_attn.layer_idx)


def steps_of(cache: Cache | None) -> "DecoderSteps | None":
    return getattr(cache, "steps", None)


class DecoderSteps:
    """Logits of the next token, given those before it in a cache that the prompt has filled.

    Args:
        model: a language model with a decoder.
        past_key_values: keys and values of the prompt and, with an encoder, of the source.
        attention_mask: which tokens are no padding, of the source if there is one, else of the prompt.
        position_ids: positions of prompt and next token, where they are not 0, 1, 2, ...; with an encoder, those of the source.
    """

    def __init__(self, model: Any, past_key_values: Cache, attention_mask: Tensor | None = None, position_ids=None, **kwargs):
        cache = past_key_values
        self.decoder: Decoder = model.get_decoder()
        embedding = self.decoder.embed_tokens
        self.embed = embedding.look_up if type(embedding) is TokenEmbedding else embedding  # which an adapter may wrap
        self.layers, self.logits = prepared(model)
        has_memory = isinstance(cache, EncoderDecoderCache)
        past: list[DynamicLayer] = (cache.self_attention_cache if has_memory else cache).layers
        rows, heads, self.length, width = past[0].keys.shape
        room = max(self.length + 1, min(cache.room, self.length + 256))
        self.past = past[0].keys.new_empty(len(past), 2, rows, heads, room, width)  # [layers, 2, R, G, T, K]
        for layer, kept in zip(past, self.past):
            kept[0, :, :, : self.length], kept[1, :, :, : self.length] = layer.keys, layer.values
        self.memory: list[tuple[Tensor, Tensor] | None] = [None] * len(past)
        self.memory_mask = self.prompt_mask = None
        self.position = torch.full((1, 1), self.length, device=self.past.device)  # [R or 1, 1]
        mask = None if attention_mask is None or attention_mask.all() else attention_mask.bool()[:, None, None]
        if has_memory:
            apart = slice(None, None, cache.rows_per_example)  # the rows of an example have one source
            self.memory = [(layer.keys[apart], layer.values[apart]) for layer in cache.cross_attention_cache.layers]
            self.memory_mask = None if mask is None else mask[apart]  # [B, 1, 1, S]
        else:
            self.prompt_mask = None if mask is None else mask[..., : self.length]  # [R, 1, 1, T of the prompt]
            self.position = self.position if position_ids is None else position_ids[:, -1:].to(self.past.device)
        self.steps = 0

    def repeat(self, copies: int) -> None:
        """So many rows in the place of each; an example's source stays one."""
        if copies == 1:
            return
        self.past = self.past.repeat_interleave(copies, dim=2)
        if self.prompt_mask is not None:
            self.prompt_mask = self.prompt_mask.repeat_interleave(copies, dim=0)
        if len(self.position) > 1:
            self.position = self.position.repeat_interleave(copies, dim=0)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Tokens [R, 1], the newest of each row -> logits [R, 1, V]"""
        decoder = self.decoder
        x = self.enter(self.embed(tokens))
        self.make_room()
        self.length += 1
        slots = torch.arange(self.length, device=x.device)[None]
        bias, rotary = decoder.attention_positions(x, self.position, slots[:, -1:], slots)
        mask = self.token_mask(bias)
        self.position = self.position + 1
        x = x[:, 0]  # [R, D]
        for layer, past, memory in zip(self.layers, self.past, self.memory):
            x = layer(x, past[:, :, :, : self.length], mask, rotary, memory, self.memory_mask)
        return self.logits(decoder.norm(x))[:, None]

    def enter(self, x: Tensor) -> Tensor:
        """`decoder.enter`, with sines and cosines computed for many steps at once where all rows are at the same position."""
        positions, ahead = self.decoder.positions, 64
        if not isinstance(positions, SinusoidalPositionEncoding) or len(self.position) > 1:
            return self.decoder.enter(x, self.position)
        if self.steps % ahead == 0:
            coming = self.position + torch.arange(ahead, device=x.device)
            self.encodings = positions(x.new_zeros(1, ahead, x.shape[-1]), coming)
        self.steps += 1
        return self.decoder.embedding_norm(x + self.encodings[:, (self.steps - 1) % ahead, None])

    def make_room(self) -> None:
        """Space for as many tokens again, whenever it is used up: on the whole, a token is copied once."""
        if self.length == self.past.shape[4]:
            self.past = torch.cat((self.past, torch.empty_like(self.past)), dim=4)

    def token_mask(self, bias: Tensor | None) -> Tensor | None:
        """Padding in the prompt and a bias on the scores, as one mask: [R or 1, H or 1, 1, T]."""
        if self.prompt_mask is None:
            return bias
        mask = F.pad(self.prompt_mask, (0, self.length - self.prompt_mask.shape[-1]), value=True)
        return mask if bias is None else bias.masked_fill(~mask, float("-inf"))

    def reorder(self, rows: Tensor) -> None:
        """Row r goes on from row rows[r]. Only rows that change are copied; the source of an example is that of all its rows."""
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
        if len(moved) == 0:
            return
        for part in self.past.flatten(0, 1):  # keys and values layer by layer, for memory of a moderate size is used again
            past = part[:, :, : self.length]
            past.index_copy_(0, moved, past.index_select(0, rows[moved]))


class LayerStep:
    """A decoder layer for one new token a row. It uses the layer's own weights; products of the same input are joined."""

    def __init__(self, layer: DecoderLayer):
        self.layer, attention, feed_forward = layer, layer.self_attn, layer.feed_forward
        self.query_key_value = join(attention.q_proj, attention.k_proj, attention.v_proj)
        self.past_output = join(attention.out_proj)
        if layer.has_memory:
            self.memory_query, self.memory_output = join(layer.cross_attn.q_proj), join(layer.cross_attn.out_proj)
        gate = [] if feed_forward.gate_proj is None else [feed_forward.gate_proj]
        self.is_gated, self.up = bool(gate), join(*gate, feed_forward.up_proj)
        self.down = join(feed_forward.down_proj)

    def __call__(self, x: Tensor, past: Tensor, mask: Tensor | None, rotary, memory, memory_mask: Tensor | None) -> Tensor:
        """x [R, D], past [2, R, G, T, K] with room for the new token at its end, memory two [B, G, S, K] -> [R, D]"""
        layer = self.layer

        def self_attention(x: Tensor) -> Tensor:
            return self.attend_to_past(x, past, mask, rotary)

        def cross_attention(x: Tensor) -> Tensor:
            keys, values = memory
            return self.attend_to_memory(x, keys, values, memory_mask)

        start = x
        x = layer.residual(x, layer.self_attn_norm, self_attention, keep, start)
        if memory is not None:
            x = layer.residual(x, layer.cross_attn_norm, cross_attention, keep, start)
        return layer.residual(x, layer.feed_forward_norm, self.feed_forward, keep, start)

    def attend_to_past(self, x: Tensor, past: Tensor, mask: Tensor | None, rotary) -> Tensor:
        attention, (_, rows, kv_heads, _, width) = self.layer.self_attn, past.shape
        heads = self.query_key_value(x).view(rows, -1, 1, width)  # [R, H + 2G, 1, K]
        q, k, v = heads.split((attention.num_heads, kv_heads, kv_heads), dim=1)
        q, k = attention.q_norm(q), attention.k_norm(k)
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        keys, values = past
        keys[:, :, -1:], values[:, :, -1:] = k, v
        q = q.reshape(rows, kv_heads, -1, width)  # heads that share keys become queries of one head
        if mask is not None and mask.shape[1] > 1:
            mask = mask.view(mask.shape[0], kv_heads, -1, mask.shape[-1])
        output = attend(q, keys, values, mask, attention.scaling)
        return self.past_output(output.reshape(rows, -1))

    def attend_to_memory(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        attention, (examples, kv_heads, _, width) = self.layer.cross_attn, keys.shape
        q = attention.q_norm(self.memory_query(x).view(examples, -1, kv_heads, attention.num_key_value_groups, width))
        # The rows of an example, and the heads that share keys, become queries of one head: [B, G, R/B * H/G, K]
        q = q.transpose(1, 2)
        output = attend(q.flatten(2, 3), keys, values, mask, attention.scaling)
        return self.memory_output(output.view(q.shape).transpose(1, 2).reshape(len(x), -1))

    def feed_forward(self, x: Tensor) -> Tensor:
        activation, hidden = self.layer.feed_forward.activation, self.up(x)
        if self.is_gated:
            gate, hidden = hidden.chunk(2, dim=-1)
            return self.down(activation(gate) * hidden)
        return self.down(activation(hidden))


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The kernel is made for one query or many; for the few queries of a beam, plain products are faster."""
    if q.shape[2] > 1 and (mask is None or mask.dtype == torch.bool):
        return scaled_dot_product_attention(q, keys, values, mask, scale=scale)[0]
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale)


def keep(x: Tensor) -> Tensor:
    """In the place of dropout, which is for training."""
    return x


Prepared = tuple[list[LayerStep], Product]

_prepared: WeakKeyDictionary[Any, tuple[list[Any], Prepared]] = WeakKeyDictionary()


def prepared(model: Any) -> Prepared:
    """The layers and the output layer, ready for steps; made anew only when weights have changed."""
    decoder = model.get_decoder()
    weights = [*decoder.layers.parameters(), *model.lm_head.parameters()]
    versions = [None if weight.is_inference() else weight._version for weight in weights]
    with torch.no_grad():  # `.data` is written without a new version
        sums = torch.stack([weight.sum(dtype=torch.float32) for weight in weights]).tolist()
    state = [*map(id, weights), *map(id, decoder.modules()), *versions, *sums]
    if model not in _prepared or _prepared[model][0] != state:
        _prepared[model] = state, ([LayerStep(layer) for layer in decoder.layers], output_product(model))
    return _prepared[model][1]


def output_product(model: Any) -> Product:
    """`model.logits`, its product made ready."""
    product, transform, cap = join(model.lm_head), model.output_transform, model.config.logit_softcap
    if isinstance(transform, nn.Identity) and cap is None:
        return product
    return lambda x: softcap(product(transform(x)), cap)
