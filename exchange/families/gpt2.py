# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""GPT-2 (https://openai.com/research/better-language-models): its linear layers are stored [in, out], queries, keys and values
in one."""

from transformers.core_model_loading import Chunk, Transpose

from ..family import TOKENS, Family, Head, heads, in_layers


GPT2 = Family(
    name="gpt2",
    shape="decoder",
    heads={
        "GlassformerModel": Head("GPT2Model"),
        "GlassformerForCausalLM": Head("GPT2LMHeadModel", (("lm_head", "lm_head"),)),
        "GlassformerForSequenceClassification": Head(
            "GPT2ForSequenceClassification", (("classifier", "score"),), {"classifier_bias": False, "pooling": "last"}
        ),
        "GlassformerForTokenClassification": Head("GPT2ForTokenClassification", (("classifier", "classifier"),)),
        "GlassformerForQuestionAnswering": Head("GPT2ForQuestionAnswering", (("qa_outputs", "qa_outputs"),)),
    },
    fields=TOKENS
    | {
        "d_model": "n_embd",
        "num_heads": "n_head",
        "num_decoder_layers": "n_layer",
        "d_ff": "n_inner",
        "max_position_embeddings": "n_positions",
        "activation": "activation_function",
        "norm_eps": "layer_norm_epsilon",
        "scale_attention": "scale_attn_weights",
        "tie_word_embeddings": "tie_word_embeddings",
    },
    fixed={
        "norm": "layernorm",
        "norm_position": "pre",
        "position_encoding": "learned",
        "gated_feed_forward": False,
        "attention_bias": True,
        "feed_forward_bias": True,
        "scale_embedding": False,
    },
    their_fixed={"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    training={"dropout": ("resid_pdrop", "embd_pdrop"), "attention_dropout": "attn_pdrop"},
    weights=[
        ("decoder.embed_tokens", "wte"),
        ("decoder.positions", "wpe"),
        *in_layers(
            "decoder.layers",
            "h",
            [
                ("self_attn_norm", "ln_1"),
                (heads("self_attn"), "attn.c_attn", Transpose(), Chunk()),
                ("self_attn.out_proj", "attn.c_proj", Transpose()),
                ("feed_forward_norm", "ln_2"),
                ("feed_forward.up_proj", "mlp.c_fc", Transpose()),
                ("feed_forward.down_proj", "mlp.c_proj", Transpose()),
            ],
        ),
        ("decoder.norm", "ln_f"),
    ],
    read=lambda theirs: {"d_ff": theirs.n_inner or 4 * theirs.n_embd},
    write=lambda ours: {"n_inner": None if ours.d_ff == 4 * ours.d_model else ours.d_ff},
)
