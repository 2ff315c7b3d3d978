# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""ModernBERT (https://arxiv.org/abs/2412.13663): an encoder most of whose layers see a window, and every third sees all."""

import copy
from typing import Any

from transformers.core_model_loading import Chunk

from ..family import TOKENS, Family, Head, Names, Pair, heads, in_layers
from .llama import partly_rotated


POOLINGS = {"mean": "mean", "first": "cls"}  # ours and theirs
DENSE: tuple[Pair, ...] = (("pre_classifier.dense", "head.dense"), ("pre_classifier.norm", "head.norm"))
CLASSIFIES: dict[str, Names] = {"classifier_activation": "classifier_activation", "dense_bias": "classifier_bias"}


def read(theirs: Any) -> dict[str, Any]:
    """Layers that are all alike are so by our other choices."""
    kinds, rope = set(theirs.layer_types), theirs.rope_parameters
    is_mixed = len(kinds) > 1
    return {
        "layer_types": list(theirs.layer_types) if is_mixed else None,
        "rope_parameters": copy.deepcopy(rope if is_mixed else rope[theirs.layer_types[0]]),
        # They count the tokens seen on both sides, we how far is too far.
        "attention_window": theirs.sliding_window + 1 if "sliding_attention" in kinds else None,
        "pooling": {cls: ours for ours, cls in POOLINGS.items()}[theirs.classifier_pooling],
    }


def write(ours: Any) -> dict[str, Any]:
    types = [ours.type_of_layer(layer) for layer in range(ours.num_encoder_layers)]
    rope = ours.rope_by_layer_type() or {kind: dict(ours.rope_parameters) for kind in types}
    window = {} if ours.attention_window is None else {"local_attention": 2 * (ours.attention_window - 1)}
    end = ours.eos_token_id
    return window | {
        "layer_types": types,
        "rope_parameters": copy.deepcopy(rope),
        "classifier_pooling": POOLINGS.get(ours.pooling, "cls"),
        "cls_token_id": ours.bos_token_id,
        "sep_token_id": end[0] if isinstance(end, list) else end,
    }


def objections(ours: Any) -> list[str]:
    if ours.position_encoding != "rope":  # which is said already
        return []
    return partly_rotated(*ours.rope_by_layer_type().values() or [ours.rope_parameters])


def their_objections(theirs: Any) -> list[str]:
    reasons = partly_rotated(*(theirs.rope_parameters[kind] for kind in set(theirs.layer_types)))
    if "sliding_attention" in theirs.layer_types and theirs.local_attention < 2:
        reasons.append(f"local_attention={theirs.local_attention}, needs 2 or more")
    return reasons


def pooling_objection(ours: Any) -> list[str]:
    return [] if ours.pooling in POOLINGS else [f"pooling={ours.pooling}, needs {' or '.join(POOLINGS)}"]


MODERNBERT = Family(
    name="modernbert",
    shape="encoder",
    heads={
        "GlassformerModel": Head("ModernBertModel"),
        "GlassformerForMaskedLM": Head(
            "ModernBertForMaskedLM",
            (
                ("output_transform.dense", "head.dense"),
                ("output_transform.norm", "head.norm"),
                ("lm_head", "decoder"),
            ),
            fixed={"output_transform": "dense"},
            fields={
                "activation": ("hidden_activation", "classifier_activation"),
                "dense_bias": "classifier_bias",
                "output_bias": "decoder_bias",
            },
        ),
        "GlassformerForSequenceClassification": Head(
            "ModernBertForSequenceClassification",
            (*DENSE, ("classifier", "classifier")),
            fixed={"classifier_norm": True, "classifier_bias": True},
            fields=CLASSIFIES,
            objections=pooling_objection,
        ),
        "GlassformerForTokenClassification": Head(
            "ModernBertForTokenClassification",
            (*DENSE, ("classifier", "classifier")),
            fixed={"classifier_norm": True, "classifier_bias": True},
            fields=CLASSIFIES,
        ),
        "GlassformerForQuestionAnswering": Head(
            "ModernBertForQuestionAnswering",
            (*DENSE, ("qa_outputs", "classifier")),
            fixed={"classifier_norm": True},
            fields=CLASSIFIES,
        ),
    },
    fields=TOKENS
    | {
        "d_model": "hidden_size",
        "num_heads": "num_attention_heads",
        "num_encoder_layers": "num_hidden_layers",
        "d_ff": "intermediate_size",
        "max_position_embeddings": "max_position_embeddings",
        "activation": "hidden_activation",
        "norm_eps": "norm_eps",
        "norm_bias": "norm_bias",
        "attention_bias": "attention_bias",
        "feed_forward_bias": "mlp_bias",
        "tie_word_embeddings": "tie_word_embeddings",
    },
    fixed={
        "norm": "layernorm",
        "norm_position": "pre",
        "first_norm": False,
        "embedding_norm": True,
        "position_encoding": "rope",
        "gated_feed_forward": True,
        "scale_embedding": False,
    },
    training={
        "dropout": ("embedding_dropout", "classifier_dropout"),
        "attention_dropout": "attention_dropout",
        "activation_dropout": "mlp_dropout",
    },
    weights=[
        ("encoder.embed_tokens", "embeddings.tok_embeddings"),
        ("encoder.embedding_norm", "embeddings.norm"),
        *in_layers(
            "encoder.layers",
            "layers",
            [
                ("self_attn_norm", "attn_norm"),
                (heads("self_attn"), "attn.Wqkv", Chunk()),
                ("self_attn.out_proj", "attn.Wo"),
                ("feed_forward_norm", "mlp_norm"),
                (("feed_forward.gate_proj", "feed_forward.up_proj"), "mlp.Wi", Chunk()),
                ("feed_forward.down_proj", "mlp.Wo"),
            ],
        ),
        ("encoder.norm", "final_norm"),
    ],
    read=read,
    write=write,
    by_hand=("layer_types", "attention_window"),
    objections=objections,
    their_objections=their_objections,
)
