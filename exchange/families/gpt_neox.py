# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""GPT-NeoX (https://arxiv.org/abs/2204.06745), the architecture of Pythia: attention and feed-forward network side by side."""

from dataclasses import replace
from typing import Any

from transformers.core_model_loading import Chunk

from ..family import TOKENS, Family, Head, heads, in_layers
from ..operations import HeadsApart
from .gpt2 import GPT2
from .llama import read_rope


THEIR_NAMES = {"GPT2Model": "GPTNeoXModel", "GPT2LMHeadModel": "GPTNeoXForCausalLM"}


def renamed(head: Head) -> Head:
    return replace(head, theirs=THEIR_NAMES.get(head.theirs, head.theirs.replace("GPT2", "GPTNeoX")))


def read(theirs: Any) -> dict[str, Any]:
    return read_rope(theirs) | {"norm_position": "parallel" if theirs.use_parallel_residual else "pre"}


def write(ours: Any) -> dict[str, Any]:
    return {
        "use_parallel_residual": ours.norm_position == "parallel",
        # Where theirs is not told how much of a head to turn, it turns a quarter; ours turns all.
        "rope_parameters": {"partial_rotary_factor": 1.0, **ours.rope_parameters},
    }


GPT_NEOX = Family(
    name="gpt_neox",
    shape="decoder",
    heads={ours: renamed(head) for ours, head in GPT2.heads.items()},
    fields=TOKENS
    | {
        "d_model": "hidden_size",
        "num_heads": "num_attention_heads",
        "num_decoder_layers": "num_hidden_layers",
        "d_ff": "intermediate_size",
        "max_position_embeddings": "max_position_embeddings",
        "activation": "hidden_act",
        "norm_eps": "layer_norm_eps",
        "attention_bias": "attention_bias",
        "tie_word_embeddings": "tie_word_embeddings",
    },
    fixed={
        "norm": "layernorm",
        "position_encoding": "rope",
        "gated_feed_forward": False,
        "feed_forward_bias": True,
        "scale_embedding": False,
    },
    training={"dropout": "hidden_dropout", "attention_dropout": "attention_dropout"},
    weights=[
        ("decoder.embed_tokens", "embed_in"),
        *in_layers(
            "decoder.layers",
            "layers",
            [
                ("self_attn_norm", "input_layernorm"),
                (heads("self_attn"), "attention.query_key_value", HeadsApart(), Chunk()),
                ("self_attn.out_proj", "attention.dense"),
                ("feed_forward_norm", "post_attention_layernorm"),
                ("feed_forward.up_proj", "mlp.dense_h_to_4h"),
                ("feed_forward.down_proj", "mlp.dense_4h_to_h"),
            ],
        ),
        ("decoder.norm", "final_layer_norm"),
    ],
    read=read,
    write=write,
    by_hand=("norm_position",),
    objections=lambda ours: ["norm_position=post, needs pre or parallel"] if ours.norm_position == "post" else [],
)
