# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""BERT (https://arxiv.org/abs/1810.04805), RoBERTa (https://arxiv.org/abs/1907.11692) and DistilBERT
(https://arxiv.org/abs/1910.01108)."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..family import TOKENS, Family, Head, Pair, in_layers


def layers(theirs: str) -> list[Pair]:
    return in_layers(
        "encoder.layers",
        theirs,
        [
            ("self_attn.q_proj", "attention.self.query"),
            ("self_attn.k_proj", "attention.self.key"),
            ("self_attn.v_proj", "attention.self.value"),
            ("self_attn.out_proj", "attention.output.dense"),
            ("self_attn_norm", "attention.output.LayerNorm"),
            ("feed_forward.up_proj", "intermediate.dense"),
            ("feed_forward.down_proj", "output.dense"),
            ("feed_forward_norm", "output.LayerNorm"),
        ],
    )


def zeros(table: nn.Embedding) -> Tensor:
    return torch.zeros(table.num_embeddings, table.embedding_dim)


def has_token_types(model: Any) -> dict[str, Any]:
    """A table of nothing is no table: an encoder of ours without token types becomes one, and none again."""
    table = model.get_submodule(model.base_model_prefix if hasattr(model, model.base_model_prefix) else "")
    return {} if table.embeddings.token_type_embeddings.weight.any() else {"num_token_types": 0}


NO_POOLER = {"add_pooling_layer": False}
MASKED = {"output_transform": "dense", "output_bias": True}
CLASSIFIES = {"pooling": "first", "classifier_activation": "tanh", "classifier_bias": True}

BERT = Family(
    name="bert",
    shape="encoder",
    heads={
        "GlassformerModel": Head("BertModel", arguments=NO_POOLER),
        "GlassformerForMaskedLM": Head(
            "BertForMaskedLM",
            (
                ("output_transform.dense", "cls.predictions.transform.dense"),
                ("output_transform.norm", "cls.predictions.transform.LayerNorm"),
                ("lm_head", "cls.predictions.decoder"),
                ("lm_head.bias", "cls.predictions.bias"),
            ),
            MASKED,
        ),
        "GlassformerForSequenceClassification": Head(
            "BertForSequenceClassification",
            (("pre_classifier.dense", "bert.pooler.dense"), ("classifier", "classifier")),
            CLASSIFIES,
        ),
        "GlassformerForTokenClassification": Head("BertForTokenClassification", (("classifier", "classifier"),)),
        "GlassformerForQuestionAnswering": Head("BertForQuestionAnswering", (("qa_outputs", "qa_outputs"),)),
    },
    fields=TOKENS
    | {
        "d_model": "hidden_size",
        "num_heads": "num_attention_heads",
        "num_encoder_layers": "num_hidden_layers",
        "d_ff": "intermediate_size",
        "max_position_embeddings": "max_position_embeddings",
        "activation": "hidden_act",
        "norm_eps": "layer_norm_eps",
        "num_token_types": "type_vocab_size",
        "tie_word_embeddings": "tie_word_embeddings",
    },
    fixed={
        "norm": "layernorm",
        "norm_position": "post",
        "position_encoding": "learned",
        "embedding_norm": True,
        "gated_feed_forward": False,
        "attention_bias": True,
        "feed_forward_bias": True,
        "scale_embedding": False,
    },
    their_fixed={"is_decoder": False, "add_cross_attention": False},
    training={"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"},
    weights=[
        ("encoder.embed_tokens", "embeddings.word_embeddings"),
        ("encoder.token_types", "embeddings.token_type_embeddings"),
        ("encoder.positions", "embeddings.position_embeddings"),
        ("encoder.embedding_norm", "embeddings.LayerNorm"),
        *layers("encoder.layer"),
    ],
    made={"embeddings.token_type_embeddings": zeros},
    unused=("pooler",),
    write=lambda ours: {"type_vocab_size": ours.num_token_types or 2},
    look=has_token_types,
)


def roberta_offset(theirs: Any) -> dict[str, Any]:
    offset = theirs.pad_token_id + 1
    return {"position_offset": offset, "max_position_embeddings": theirs.max_position_embeddings - offset}


def write_roberta(ours: Any) -> dict[str, Any]:
    rows = ours.max_position_embeddings + ours.position_offset
    return {"type_vocab_size": ours.num_token_types or 1, "max_position_embeddings": rows}


def roberta_objections(ours: Any) -> list[str]:
    needed = None if ours.pad_token_id is None else ours.pad_token_id + 1
    if needed is None:
        return ["pad_token_id=None, needs one"]
    return (
        [] if ours.position_offset == needed else [f"position_offset={ours.position_offset}, needs pad_token_id + 1 = {needed}"]
    )


ROBERTA = replace(
    BERT,
    name="roberta",
    heads={
        "GlassformerModel": Head("RobertaModel", arguments=NO_POOLER),
        "GlassformerForMaskedLM": Head(
            "RobertaForMaskedLM",
            (
                ("output_transform.dense", "lm_head.dense"),
                ("output_transform.norm", "lm_head.layer_norm"),
                ("lm_head", "lm_head.decoder"),
                ("lm_head.bias", "lm_head.bias"),
            ),
            MASKED | {"activation": "gelu"},
        ),
        "GlassformerForSequenceClassification": Head(
            "RobertaForSequenceClassification",
            (("pre_classifier.dense", "classifier.dense"), ("classifier", "classifier.out_proj")),
            CLASSIFIES,
        ),
        "GlassformerForTokenClassification": Head("RobertaForTokenClassification", (("classifier", "classifier"),)),
        "GlassformerForQuestionAnswering": Head("RobertaForQuestionAnswering", (("qa_outputs", "qa_outputs"),)),
    },
    read=roberta_offset,
    write=write_roberta,
    by_hand=("position_offset",),
    objections=roberta_objections,
)

DISTILBERT = replace(
    BERT,
    name="distilbert",
    heads={
        "GlassformerModel": Head("DistilBertModel"),
        "GlassformerForMaskedLM": Head(
            "DistilBertForMaskedLM",
            (
                ("output_transform.dense", "vocab_transform"),
                ("output_transform.norm", "vocab_layer_norm"),
                ("lm_head", "vocab_projector"),
            ),
            MASKED,
        ),
        "GlassformerForSequenceClassification": Head(
            "DistilBertForSequenceClassification",
            (("pre_classifier.dense", "pre_classifier"), ("classifier", "classifier")),
            CLASSIFIES | {"classifier_activation": "relu"},
        ),
        "GlassformerForTokenClassification": Head("DistilBertForTokenClassification", (("classifier", "classifier"),)),
        "GlassformerForQuestionAnswering": Head("DistilBertForQuestionAnswering", (("qa_outputs", "qa_outputs"),)),
    },
    fields=TOKENS
    | {
        "d_model": "dim",
        "num_heads": "n_heads",
        "num_encoder_layers": "n_layers",
        "d_ff": "hidden_dim",
        "max_position_embeddings": "max_position_embeddings",
        "activation": "activation",
        "tie_word_embeddings": "tie_word_embeddings",
    },
    fixed=BERT.fixed | {"norm_eps": 1e-12},
    their_fixed={},
    training={"dropout": "dropout", "attention_dropout": "attention_dropout"},
    weights=[
        ("encoder.embed_tokens", "embeddings.word_embeddings"),
        ("encoder.positions", "embeddings.position_embeddings"),
        ("encoder.embedding_norm", "embeddings.LayerNorm"),
        *in_layers(
            "encoder.layers",
            "transformer.layer",
            [
                ("self_attn.q_proj", "attention.q_lin"),
                ("self_attn.k_proj", "attention.k_lin"),
                ("self_attn.v_proj", "attention.v_lin"),
                ("self_attn.out_proj", "attention.out_lin"),
                ("self_attn_norm", "sa_layer_norm"),
                ("feed_forward.up_proj", "ffn.lin1"),
                ("feed_forward.down_proj", "ffn.lin2"),
                ("feed_forward_norm", "output_layer_norm"),
            ],
        ),
    ],
    made={},
    unused=(),
    write=lambda ours: {},
    look=lambda model: {},
)
