# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""T5 (https://arxiv.org/abs/1910.10683) and T5 v1.1, which has a gated feed-forward network and an output matrix of its own."""

from typing import Any

from ..family import TOKENS, Family, Head, Pair, in_layers


def attention(ours: str, layer: int, theirs: str) -> list[Pair]:
    return [
        (f"{ours}.q_proj", f"layer.{layer}.{theirs}.q"),
        (f"{ours}.k_proj", f"layer.{layer}.{theirs}.k"),
        (f"{ours}.v_proj", f"layer.{layer}.{theirs}.v"),
        (f"{ours}.out_proj", f"layer.{layer}.{theirs}.o"),
        (f"{ours}_norm", f"layer.{layer}.layer_norm"),
    ]


def feed_forward(layer: int) -> list[Pair]:
    return [
        ("feed_forward.up_proj", f"layer.{layer}.DenseReluDense.wi"),
        ("feed_forward.gate_proj", f"layer.{layer}.DenseReluDense.wi_0"),
        ("feed_forward.up_proj", f"layer.{layer}.DenseReluDense.wi_1"),
        ("feed_forward.down_proj", f"layer.{layer}.DenseReluDense.wo"),
        ("feed_forward_norm", f"layer.{layer}.layer_norm"),
    ]


def read(theirs: Any) -> dict[str, Any]:
    return {
        "activation": theirs.dense_act_fn,
        "gated_feed_forward": theirs.is_gated_act,
        "output_transform": "scale" if theirs.scale_decoder_outputs else "none",
    }


def write(ours: Any) -> dict[str, Any]:
    activation = ours.activation
    if ours.gated_feed_forward:
        activation = "gated-gelu" if activation == "gelu_new" else f"gated-{activation}"
    # This is how their config is told whether to scale; matrices are one or two as the weights are.
    return {"feed_forward_proj": activation, "tie_word_embeddings": ours.output_transform == "scale"}


def look(model: Any) -> dict[str, Any]:
    if not hasattr(model, "lm_head"):
        return {}
    one_matrix = model.lm_head.weight.data_ptr() == model.shared.weight.data_ptr()
    return {"embedding_tying": "three-way" if one_matrix else "source-target"}


def objections(ours: Any) -> list[str]:
    found = []
    if ours.embedding_tying == "target-output":
        found.append("embedding_tying=target-output, needs three-way or source-target")
    if ours.output_transform == "dense":
        found.append("output_transform=dense, needs none or scale")
    if ours.gated_feed_forward and ours.activation == "gelu":
        found.append("activation=gelu, needs gelu_new, for that is what gated-gelu means there")
    return found


def shallow_cache(model: Any) -> str | None:
    if model.config.num_decoder_layers <= model.config.num_layers:
        return None
    return (
        "The decoder is deeper than the encoder, and transformers' generate makes a cache for as many layers as a T5's encoder "
        "has: pass it use_cache=False."
    )


T5 = Family(
    name="t5",
    shape="encoder-decoder",
    heads={
        "GlassformerModel": Head("T5Model"),
        "GlassformerForConditionalGeneration": Head("T5ForConditionalGeneration", (("lm_head", "lm_head"),)),
    },
    fields=TOKENS
    | {
        "decoder_start_token_id": "decoder_start_token_id",
        "d_model": "d_model",
        "num_heads": "num_heads",
        "head_width": "d_kv",
        "d_ff": "d_ff",
        "num_encoder_layers": "num_layers",
        "num_decoder_layers": "num_decoder_layers",
        "norm_eps": "layer_norm_epsilon",
        "relative_attention_num_buckets": "relative_attention_num_buckets",
        "relative_attention_max_distance": "relative_attention_max_distance",
    },
    fixed={
        "norm": "rmsnorm",
        "norm_position": "pre",
        "position_encoding": "relative",
        "attention_bias": False,
        "feed_forward_bias": False,
        "scale_attention": False,
        "scale_embedding": False,
        "tie_word_embeddings": True,
    },
    training={"attention_dropout": "dropout_rate", "activation_dropout": "dropout_rate", "dropout": "dropout_rate"},
    weights=[
        ("encoder.embed_tokens", "encoder.embed_tokens"),
        ("encoder.embed_tokens", "shared"),
        ("encoder.position_bias.table", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"),
        *in_layers("encoder.layers", "encoder.block", attention("self_attn", 0, "SelfAttention") + feed_forward(1)),
        ("encoder.norm", "encoder.final_layer_norm"),
        ("decoder.embed_tokens", "decoder.embed_tokens"),
        ("decoder.position_bias.table", "decoder.block.0.layer.0.SelfAttention.relative_attention_bias"),
        *in_layers(
            "decoder.layers",
            "decoder.block",
            attention("self_attn", 0, "SelfAttention") + attention("cross_attn", 1, "EncDecAttention") + feed_forward(2),
        ),
        ("decoder.norm", "decoder.final_layer_norm"),
    ],
    read=read,
    write=write,
    look=look,
    by_hand=("activation", "gated_feed_forward", "output_transform", "embedding_tying"),
    objections=objections,
    caution=shallow_cache,
)
