# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Llama (https://arxiv.org/abs/2302.13971) and what shares its architecture: Mistral, Qwen2, the dense Qwen3, the first Gemma."""

from dataclasses import replace
from typing import Any

from ..family import TOKENS, Family, Head, in_layers


def read_rope(theirs: Any) -> dict[str, Any]:
    return {"rope_parameters": dict(theirs.rope_parameters)}


def write_rope(ours: Any) -> dict[str, Any]:
    return {"rope_parameters": dict(ours.rope_parameters)}


def partly_rotated(*sets: dict[str, Any]) -> list[str]:
    """The objection of classes that rotate all of a head, whatever these sets of RoPE parameters say."""
    factors = [parameters.get("partial_rotary_factor") or 1.0 for parameters in sets]
    return [f"partial_rotary_factor={factor}, needs 1.0" for factor in factors if factor != 1.0][:1]


def rope_objections(config: Any) -> list[str]:
    """Of either config."""
    return partly_rotated(getattr(config, "rope_parameters", None) or {})


def decoder_heads(name: str) -> dict[str, Head]:
    """The heads of transformers' newer decoders."""
    return {
        "GlassformerModel": Head(f"{name}Model"),
        "GlassformerForCausalLM": Head(f"{name}ForCausalLM", (("lm_head", "lm_head"),)),
        "GlassformerForSequenceClassification": Head(
            f"{name}ForSequenceClassification", (("classifier", "score"),), {"classifier_bias": False, "pooling": "last"}
        ),
        "GlassformerForTokenClassification": Head(f"{name}ForTokenClassification", (("classifier", "score"),)),
        "GlassformerForQuestionAnswering": Head(f"{name}ForQuestionAnswering", (("qa_outputs", "qa_outputs"),)),
    }


LLAMA = Family(
    name="llama",
    shape="decoder",
    heads=decoder_heads("Llama"),
    fields=TOKENS
    | {
        "d_model": "hidden_size",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
        "head_width": "head_dim",
        "num_decoder_layers": "num_hidden_layers",
        "d_ff": "intermediate_size",
        "max_position_embeddings": "max_position_embeddings",
        "activation": "hidden_act",
        "norm_eps": "rms_norm_eps",
        "attention_bias": "attention_bias",
        "feed_forward_bias": "mlp_bias",
        "tie_word_embeddings": "tie_word_embeddings",
    },
    fixed={
        "norm": "rmsnorm",
        "norm_position": "pre",
        "position_encoding": "rope",
        "gated_feed_forward": True,
        "scale_embedding": False,
    },
    training={"attention_dropout": "attention_dropout"},
    weights=[
        ("decoder.embed_tokens", "embed_tokens"),
        *in_layers(
            "decoder.layers",
            "layers",
            [
                ("self_attn_norm", "input_layernorm"),
                ("self_attn.q_proj", "self_attn.q_proj"),
                ("self_attn.k_proj", "self_attn.k_proj"),
                ("self_attn.v_proj", "self_attn.v_proj"),
                ("self_attn.out_proj", "self_attn.o_proj"),
                ("self_attn.q_norm", "self_attn.q_norm"),
                ("self_attn.k_norm", "self_attn.k_norm"),
                ("feed_forward_norm", "post_attention_layernorm"),
                ("feed_forward.gate_proj", "mlp.gate_proj"),
                ("feed_forward.up_proj", "mlp.up_proj"),
                ("feed_forward.down_proj", "mlp.down_proj"),
            ],
        ),
        ("decoder.norm", "norm"),
    ],
    read=read_rope,
    write=write_rope,
    objections=rope_objections,
    their_objections=rope_objections,
)


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


MISTRAL = replace(
    LLAMA,
    name="mistral",
    heads=decoder_heads("Mistral"),
    fields=without(LLAMA.fields, "attention_bias", "feed_forward_bias") | {"attention_window": "sliding_window"},
    fixed=LLAMA.fixed | {"attention_bias": False, "feed_forward_bias": False},
)


def qwen_objections(theirs: Any) -> list[str]:
    kinds, reasons = set(theirs.layer_types), rope_objections(theirs)
    if len(kinds) > 1:
        reasons.append(f"layer_types are {' and '.join(sorted(kinds))}, needs one of them for all layers")
    return reasons


def read_qwen(theirs: Any) -> dict[str, Any]:
    windowed = "sliding_attention" in theirs.layer_types
    return read_rope(theirs) | {"attention_window": theirs.sliding_window if windowed else None}


def write_qwen(ours: Any) -> dict[str, Any]:
    if ours.attention_window is None:
        return write_rope(ours)
    return write_rope(ours) | {"use_sliding_window": True, "sliding_window": ours.attention_window, "max_window_layers": 0}


QWEN2 = replace(
    LLAMA,
    name="qwen2",
    heads=decoder_heads("Qwen2"),
    fields=without(LLAMA.fields, "attention_bias", "feed_forward_bias", "head_width"),
    fixed=LLAMA.fixed | {"attention_bias": True, "attention_out_bias": False, "feed_forward_bias": False},
    read=read_qwen,
    write=write_qwen,
    by_hand=("attention_window",),
    their_objections=qwen_objections,
)

QWEN3 = replace(
    QWEN2,
    name="qwen3",
    heads=decoder_heads("Qwen3"),
    fields=without(LLAMA.fields, "feed_forward_bias"),
    fixed=LLAMA.fixed | {"feed_forward_bias": False, "qk_norm": True},
)


def gemma_objections(ours: Any) -> list[str]:
    gelu = ["activation=gelu, needs another name, for gelu means gelu_pytorch_tanh there"] if ours.activation == "gelu" else []
    return rope_objections(ours) + gelu


def their_gemma_objections(theirs: Any) -> list[str]:
    two_sided = ["use_bidirectional_attention=True, needs False"] if theirs.use_bidirectional_attention else []
    return rope_objections(theirs) + two_sided


GEMMA = replace(
    LLAMA,
    name="gemma",
    heads=without(decoder_heads("Gemma"), "GlassformerForQuestionAnswering"),
    fields=without(LLAMA.fields, "feed_forward_bias"),
    fixed=LLAMA.fixed | {"norm": "rmsnorm1p", "scale_embedding": True, "feed_forward_bias": False},
    objections=gemma_objections,
    their_objections=their_gemma_objections,
)
