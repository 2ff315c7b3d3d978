# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""ViT (https://arxiv.org/abs/2010.11929), the encoder of pictures."""

from typing import Any

from ..family import Family, Head, in_layers
from ..operations import FlatPatches, Row


SIZES = ("image_size", "patch_size")


def sides(theirs: Any, name: str) -> list[int]:
    """Height and width, which their config may tell as one number."""
    size = getattr(theirs, name)
    return [size, size] if isinstance(size, int) else list(size)


def read_vit(theirs: Any) -> dict[str, Any]:
    return {name: sides(theirs, name)[0] for name in SIZES} | {"head_width": getattr(theirs, "head_dim", None)}


def write_vit(ours: Any) -> dict[str, Any]:
    return {} if ours.head_width is None else {"head_dim": ours.head_width}


def vit_objections(ours: Any) -> list[str]:
    return ["image_size=None, needs the size of pictures"] if ours.image_size is None else []


def their_objections(theirs: Any) -> list[str]:
    if oblong := [name for name in SIZES if len(set(sides(theirs, name))) > 1]:
        return [f"{name}={getattr(theirs, name)}, needs a square" for name in oblong]
    size, patch = (sides(theirs, name)[0] for name in SIZES)
    return [f"image_size={size} is not divisible by patch_size={patch}, needs to be"] if size % patch else []


VIT = Family(
    name="vit",
    shape="encoder",
    heads={
        "GlassformerModel": Head("ViTModel", arguments={"add_pooling_layer": False}),
        "GlassformerForImageClassification": Head(
            "ViTForImageClassification", (("classifier", "classifier"),), {"pooling": "first"}
        ),
    },
    fields={
        "image_size": "image_size",
        "patch_size": "patch_size",
        "num_channels": "num_channels",
        "d_model": "hidden_size",
        "num_heads": "num_attention_heads",
        "num_encoder_layers": "num_hidden_layers",
        "d_ff": "intermediate_size",
        "activation": "hidden_act",
        "norm_eps": "layer_norm_eps",
        "attention_bias": "qkv_bias",
    },
    fixed={
        "norm": "layernorm",
        "norm_position": "pre",
        "position_encoding": "learned",
        "gated_feed_forward": False,
        "attention_out_bias": True,
        "feed_forward_bias": True,
    },
    training={"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"},
    weights=[
        ("encoder.embed_patches.projection", "embeddings.patch_embeddings.projection", FlatPatches()),
        ("encoder.embed_patches.class_token", "embeddings.cls_token"),
        ("encoder.positions.weight", "embeddings.position_embeddings", Row()),
        *in_layers(
            "encoder.layers",
            "layers",
            [
                ("self_attn.q_proj", "attention.q_proj"),
                ("self_attn.k_proj", "attention.k_proj"),
                ("self_attn.v_proj", "attention.v_proj"),
                ("self_attn.out_proj", "attention.o_proj"),
                ("self_attn_norm", "layernorm_before"),
                ("feed_forward.up_proj", "mlp.fc1"),
                ("feed_forward.down_proj", "mlp.fc2"),
                ("feed_forward_norm", "layernorm_after"),
            ],
        ),
        ("encoder.norm", "layernorm"),
    ],
    unused=("pooler",),
    read=read_vit,
    write=write_vit,
    by_hand=("head_width",),
    objections=vit_objections,
    their_objections=their_objections,
)
