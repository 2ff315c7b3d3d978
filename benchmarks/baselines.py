# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""transformers' models in the place of ours, for `baseline: NAME` in a recipe: same sizes, batches, loss, optimiser and updates.

Each is its library's model as it is, built to the sizes of our config. Only the loss is computed as ours is, for a loss that is a
mean over another number of tokens, or without label smoothing, would be another experiment.
"""

from typing import Any

from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
)

from glassformer import GlassformerConfig
from glassformer.losses import cross_entropy, shift_left, shift_right


class OurLoss:
    """Mixed into a model of transformers: it is called as ours is, and returns our loss."""

    config: Any
    training: bool

    def forward(self, *args, labels: Tensor | None = None, num_items_in_batch=None, return_logits: bool = True, **kwargs):
        if labels is not None and self.config.is_encoder_decoder:
            kwargs["decoder_input_ids"] = shift_right(labels, self.config.decoder_start_token_id, self.config.pad_token_id)
        outputs = super().forward(*args, **kwargs)  # type: ignore[misc]
        if labels is not None:
            smoothing = self.config.label_smoothing if self.training else 0.0
            targets = shift_left(labels) if isinstance(self, GPT2LMHeadModel) else labels
            outputs.loss = cross_entropy(outputs.logits, targets, smoothing, num_items_in_batch)
        return outputs


class MarianBaseline(OurLoss, MarianMTModel):
    @staticmethod
    def config_like(config: GlassformerConfig) -> MarianConfig:
        return MarianConfig(
            vocab_size=config.vocab_size, d_model=config.d_model, max_position_embeddings=config.max_position_embeddings,
            encoder_layers=config.num_encoder_layers, decoder_layers=config.num_decoder_layers,
            encoder_attention_heads=config.num_heads, decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ff, decoder_ffn_dim=config.d_ff, activation_function="relu", scale_embedding=True,
            decoder_start_token_id=config.decoder_start_token_id, **dropouts(config), **special_tokens(config),
        )  # fmt: skip


class GPT2Baseline(OurLoss, GPT2LMHeadModel):
    @staticmethod
    def config_like(config: GlassformerConfig) -> GPT2Config:
        return GPT2Config(
            vocab_size=config.vocab_size, n_positions=config.max_position_embeddings, n_embd=config.d_model,
            n_inner=config.d_ff, n_layer=config.num_decoder_layers, n_head=config.num_heads,
            resid_pdrop=config.dropout, embd_pdrop=config.dropout, attn_pdrop=config.attention_dropout,
            **special_tokens(config),
        )  # fmt: skip


class BertBaseline(OurLoss, BertForSequenceClassification):
    @staticmethod
    def config_like(config: GlassformerConfig) -> BertConfig:
        return BertConfig(
            vocab_size=config.vocab_size, hidden_size=config.d_model, num_hidden_layers=config.num_encoder_layers,
            num_attention_heads=config.num_heads, intermediate_size=config.d_ff, hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.attention_dropout, max_position_embeddings=config.max_position_embeddings,
            id2label=config.id2label, label2id=config.label2id, **special_tokens(config),
        )  # fmt: skip


def dropouts(config: GlassformerConfig) -> dict[str, float]:
    return {"dropout": config.dropout, "attention_dropout": config.attention_dropout, "activation_dropout": 0.0}


def special_tokens(config: GlassformerConfig) -> dict[str, Any]:
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "label_smoothing")
    return {name: getattr(config, name) for name in names}


BASELINES: dict[str, type[PreTrainedModel]] = {"marian": MarianBaseline, "gpt2": GPT2Baseline, "bert": BertBaseline}
