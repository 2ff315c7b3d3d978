# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""BART (https://arxiv.org/abs/1910.13461) and its kin: mBART, Marian (https://arxiv.org/abs/1804.00344) and Pegasus.

Marian and Pegasus have the sinusoids of the paper in another order: all sines before all cosines, where ours take turns. As
no part of a Transformer cares for the order of the features in a vector, as long as it is the same everywhere, their
weights are ours with the features of every vector reordered.
"""

from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers.core_model_loading import Interleave

from ..family import TOKENS, Family, Head, Pair, in_layers, several
from ..operations import Row


def seq2seq_heads(name: str, generates: str = "ForConditionalGeneration") -> dict[str, Head]:
    output = (("lm_head", "lm_head"), ("lm_head.bias", "final_logits_bias", Row()))
    return {
        "GlassformerModel": Head(f"{name}Model"),
        "GlassformerForConditionalGeneration": Head(f"{name}{generates}", output),
    }


LAYER: list[Pair] = [
    ("self_attn.q_proj", "self_attn.q_proj"),
    ("self_attn.k_proj", "self_attn.k_proj"),
    ("self_attn.v_proj", "self_attn.v_proj"),
    ("self_attn.out_proj", "self_attn.out_proj"),
    ("self_attn_norm", "self_attn_layer_norm"),
    ("feed_forward.up_proj", "fc1"),
    ("feed_forward.down_proj", "fc2"),
    ("feed_forward_norm", "final_layer_norm"),
]
CROSS_ATTENTION: list[Pair] = [
    ("cross_attn.q_proj", "encoder_attn.q_proj"),
    ("cross_attn.k_proj", "encoder_attn.k_proj"),
    ("cross_attn.v_proj", "encoder_attn.v_proj"),
    ("cross_attn.out_proj", "encoder_attn.out_proj"),
    ("cross_attn_norm", "encoder_attn_layer_norm"),
]


def write(ours: Any) -> dict[str, Any]:
    return {
        # What has to come at the end is a matter of generation, whose settings travel by themselves.
        "forced_eos_token_id": None,
        # No longer read by transformers, but told by checkpoints of these models and read by others, such as CTranslate2.
        "normalize_before": ours.norm_position == "pre",
        "add_final_layer_norm": ours.norm_position == "pre",
        "normalize_embedding": ours.embedding_norm,
    }


BART = Family(
    name="bart",
    shape="encoder-decoder",
    heads=seq2seq_heads("Bart"),
    fields=TOKENS
    | {
        "decoder_start_token_id": "decoder_start_token_id",
        "d_model": "d_model",
        "num_heads": ("encoder_attention_heads", "decoder_attention_heads"),
        "d_ff": ("encoder_ffn_dim", "decoder_ffn_dim"),
        "num_encoder_layers": "encoder_layers",
        "num_decoder_layers": "decoder_layers",
        "max_position_embeddings": "max_position_embeddings",
        "activation": "activation_function",
        "scale_embedding": "scale_embedding",
        "tie_word_embeddings": "tie_word_embeddings",
    },
    fixed={
        "norm": "layernorm",
        "norm_position": "post",
        "norm_eps": 1e-5,
        "position_encoding": "learned",
        "position_offset": 2,
        "embedding_norm": True,
        "gated_feed_forward": False,
        "attention_bias": True,
        "feed_forward_bias": True,
    },
    training={
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation_dropout": "activation_dropout",
        "layer_drop": ("encoder_layerdrop", "decoder_layerdrop"),
    },
    weights=[
        ("encoder.embed_tokens", "encoder.embed_tokens"),
        ("encoder.embed_tokens", "shared"),
        ("encoder.positions", "encoder.embed_positions"),
        ("encoder.embedding_norm", "encoder.layernorm_embedding"),
        *in_layers("encoder.layers", "encoder.layers", LAYER),
        ("encoder.norm", "encoder.layer_norm"),
        ("decoder.embed_tokens", "decoder.embed_tokens"),
        ("decoder.positions", "decoder.embed_positions"),
        ("decoder.embedding_norm", "decoder.layernorm_embedding"),
        *in_layers("decoder.layers", "decoder.layers", LAYER + CROSS_ATTENTION),
        ("decoder.norm", "decoder.layer_norm"),
    ],
    unused=("final_logits_bias",),  # unless it is our bias: theirs is always there; where it is zero, we have none
    look=lambda model: {"output_bias": hasattr(model, "final_logits_bias") and bool(model.final_logits_bias.any())},
    write=write,
    by_hand=("output_bias",),
)

MBART = replace(BART, name="mbart", heads=seq2seq_heads("MBart"), fixed=BART.fixed | {"norm_position": "pre"})


def reordered(pairs: list[Pair]) -> list[Pair]:
    """The same pairs, for vectors whose features are in the order of Marian's sinusoids."""
    return [(ours, theirs, *operations, take_turns(several(ours)[0])) for ours, theirs, *operations in pairs]


def take_turns(module: str) -> Interleave:
    """Modules that write or scale vectors have their features in the first dimension; those that read them, in the second."""
    writes = module.endswith(("out_proj", "down_proj", "norm"))
    return Interleave(dim=0 if writes else 1, inverse=True)


def with_logits(heads: dict[str, Head]) -> dict[str, Head]:
    """The head that ends in logits, whose order is that of the vocabulary; a bare model's vectors would come out reordered."""
    writer = heads["GlassformerForConditionalGeneration"]
    matrix, bias = writer.weights
    return {"GlassformerForConditionalGeneration": replace(writer, weights=(*reordered([matrix]), bias))}


def sinusoids(table: Any) -> Tensor:
    return table.create_weight()


def starts_from_padding(model: Any) -> str | None:
    start, pad = model.config.decoder_start_token_id, model.config.pad_token_id
    if start == pad:
        return None
    return (
        f"CTranslate2's converter starts a Pegasus from padding, and this one starts from token {start}: for use there, train a "
        f"model with decoder_start_token_id={pad}."
    )


PEGASUS = replace(
    BART,
    name="pegasus",
    heads=with_logits(seq2seq_heads("Pegasus")),
    fixed=BART.fixed | {"norm_position": "pre", "position_encoding": "sinusoidal", "position_offset": 0, "embedding_norm": False},
    weights=reordered([pair for pair in BART.weights if "positions" not in pair[0]]),
    made={"encoder.embed_positions": sinusoids, "decoder.embed_positions": sinusoids},
    caution=starts_from_padding,
)


def read_sharing(theirs: Any) -> dict[str, Any]:
    return {"embedding_tying": "three-way" if theirs.share_encoder_decoder_embeddings else "target-output"}


def write_sharing(ours: Any) -> dict[str, Any]:
    shared = ours.tie_word_embeddings and ours.embedding_tying == "three-way"
    return write(ours) | {"share_encoder_decoder_embeddings": shared}


def sharing_objections(ours: Any) -> list[str]:
    if ours.tie_word_embeddings and ours.embedding_tying == "source-target":
        return ["embedding_tying=source-target, needs three-way or target-output"]
    return []


def their_sharing_objections(theirs: Any) -> list[str]:
    if theirs.share_encoder_decoder_embeddings and not theirs.tie_word_embeddings:
        return ["share_encoder_decoder_embeddings=True with tie_word_embeddings=False, needs both or none"]
    return []


def starts_from_nothing(model: Any) -> str | None:
    """As the models of the Marian project do, to which transformers adds padding as a last token for this purpose."""
    start = model.config.decoder_start_token_id
    if start == model.config.vocab_size - 1 and not model.get_decoder().embed_tokens.weight[start].any():
        return None
    return (
        "CTranslate2's converter drops the last token of a Marian and starts from a vector of zeros, as this one does not: for "
        "use there, train a model in the layout of bart or pegasus."
    )


MARIAN = replace(
    PEGASUS,
    name="marian",
    heads=with_logits(seq2seq_heads("Marian", "MTModel")),
    fields=PEGASUS.fields | {"vocab_size": ("vocab_size", "decoder_vocab_size")},
    fixed=PEGASUS.fixed | {"norm_position": "post"},
    read=read_sharing,
    write=write_sharing,
    by_hand=("output_bias", "embedding_tying"),
    objections=sharing_objections,
    their_objections=their_sharing_objections,
    caution=starts_from_nothing,
)
