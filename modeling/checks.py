# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Bad input, told in one sentence that names the cause and the cure.

Checks that must look at values wait for the device, so they are left out while a graph is being traced or compiled.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers.utils.import_utils import is_tracing


IGNORED = -100  # the label of positions that do not count


def check_token_ids(input_ids: Tensor, vocab_size: int) -> None:
    """Token ids are whole numbers below the size of the vocabulary."""
    if input_ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"Token ids must be integers, not {input_ids.dtype}: convert them with .long().")
    if is_tracing(input_ids) or input_ids.numel() == 0 or input_ids.is_meta:
        return
    low, high = input_ids.aminmax()
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"Token ids go from {int(low)} to {int(high)}, but the vocabulary has {vocab_size} tokens (0 to {vocab_size - 1}): "
            f"use the tokenizer that belongs to this model, or call resize_token_embeddings after adding tokens."
        )


def check_token_types(token_type_ids: Tensor, batch: int, length: int, num_types: int) -> None:
    """One type for each token, below the number of types."""
    if is_tracing(token_type_ids) or token_type_ids.is_meta:
        return
    if token_type_ids.shape != (batch, length):
        raise ValueError(f"token_type_ids has the shape {list(token_type_ids.shape)}, but there are {[batch, length]} tokens.")
    low, high = token_type_ids.aminmax()
    if low < 0 or high >= num_types:
        raise ValueError(f"Token types go from {int(low)} to {int(high)}, but there are {num_types} (0 to {num_types - 1}).")


def check_inputs(name: str, input_ids: Tensor | None, embeds_name: str, inputs_embeds: Tensor | None, d_model: int) -> None:
    """Exactly one of ids [B, T] and embeddings [B, T, D], and at least one token."""
    if (input_ids is None) == (inputs_embeds is None):
        what = f"neither {name} nor {embeds_name}" if input_ids is None else f"both {name} and {embeds_name}"
        raise ValueError(f"Got {what}: pass exactly one of them.")
    for given_name, given in ((name, input_ids), (embeds_name, inputs_embeds)):
        if given is not None and not isinstance(given, Tensor):
            raise ValueError(f"{given_name} must be a tensor, not {type(given).__name__}: convert it with torch.tensor(...).")
    if input_ids is not None and input_ids.dim() != 2:
        raise ValueError(f"{name} must be [batch, length], but has the shape {list(input_ids.shape)}.")
    if inputs_embeds is not None and (inputs_embeds.dim() != 3 or inputs_embeds.shape[-1] != d_model):
        raise ValueError(f"{embeds_name} must be [batch, length, {d_model}], but has the shape {list(inputs_embeds.shape)}.")
    for given_name, given in ((name, input_ids), (embeds_name, inputs_embeds)):
        if given is not None and not is_tracing(given) and 0 in given.shape[:2]:
            raise ValueError(f"{given_name} of shape {list(given.shape)} is empty: pass at least one sequence of one token.")


def check_modality(image_size: int | None, pixel_values: Any, others: dict[str, Any]) -> None:
    """A model reads pictures or text, as its config says."""
    if image_size is None and pixel_values is not None:
        raise ValueError("Got pixel_values, but this model reads text: pass input_ids, or set image_size in the config.")
    if image_size is not None and (given := [name for name, value in others.items() if value is not None]):
        raise ValueError(f"Got {given[0]}, but this model reads pictures (image_size={image_size}): pass pixel_values alone.")


def check_pixel_values(pixel_values: Any, image_size: int, num_channels: int) -> None:
    """Pictures [B, C, H, W] of the size that the model was made for, at least one."""
    if not isinstance(pixel_values, Tensor):
        what = "no pixel_values" if pixel_values is None else f"pixel_values of type {type(pixel_values).__name__}"
        raise ValueError(f"Got {what}: pass the tensor [B, C, H, W] that an image processor makes of pictures.")
    if not pixel_values.is_floating_point():
        raise ValueError(f"pixel_values must be floats, not {pixel_values.dtype}: scale them with the model's image processor.")
    wanted, shape = (num_channels, image_size, image_size), list(pixel_values.shape)
    if len(shape) != 4 or tuple(shape[1:]) != wanted:
        raise ValueError(
            f"pixel_values has the shape {shape}, but this model reads [B, {', '.join(map(str, wanted))}]: make pictures of "
            f"{num_channels} channels and {image_size} x {image_size} pixels, as the model's image processor does."
        )
    if not is_tracing(pixel_values) and shape[0] == 0:
        raise ValueError(f"pixel_values of shape {shape} is empty: pass at least one picture.")


def check_attention_mask(name: str, mask: Any, batch: int, heads: int, num_queries: int, num_keys: int) -> Any:
    """A padding mask [B, S], or a boolean mask [B, T, S], or one that is used as it is, [B, 1 or H, T, S]."""
    if mask is None or isinstance(mask, BlockMask):
        return mask
    if not isinstance(mask, Tensor):
        raise ValueError(f"{name} must be a tensor, not {type(mask).__name__}: convert it with torch.tensor(...).")
    if is_tracing(mask):
        return mask
    if mask.dim() == 2 and tuple(mask.shape) != (batch, num_keys):
        raise ValueError(
            f"{name} has the shape {list(mask.shape)}, but masks {batch} sequences of {num_keys} tokens: pass "
            f"[{batch}, {num_keys}], cached tokens included."
        )
    wanted = (batch, heads, num_queries, num_keys) if mask.dim() == 4 else (batch, num_queries, num_keys)
    if mask.dim() not in (2, 3, 4) or (mask.dim() > 2 and any(a not in (1, b) for a, b in zip(mask.shape, wanted))):
        raise ValueError(
            f"{name} has the shape {list(mask.shape)}: pass [B, S]={[batch, num_keys]}, [B, T, S]="
            f"{[batch, num_queries, num_keys]} or [B, 1, T, S], True = may attend."
        )
    # Ones and zeros are taken for truth values, floats of four dimensions for transformers' additive masks.
    return mask if mask.dim() == 4 and mask.is_floating_point() else mask.bool()


def check_position_ids(position_ids: Tensor | None, batch: int, length: int) -> None:
    if position_ids is None or is_tracing(position_ids):
        return
    if position_ids.dim() != 2 or position_ids.shape[0] not in (1, batch) or position_ids.shape[1] != length:
        raise ValueError(
            f"Position ids have the shape {list(position_ids.shape)}, but there are {batch} sequences of {length} tokens: pass "
            f"[{batch}, {length}] or [1, {length}]."
        )


def check_same_batch(name: str, batch: int, other_name: str, other_batch: int) -> None:
    if batch != other_batch:
        raise ValueError(f"{name} has {batch} sequences, {other_name} has {other_batch}: they must come in pairs.")


def check_labels(labels: Tensor, shape: torch.Size, num_classes: int) -> None:
    """One label for each prediction, the number of a class or -100."""
    if is_tracing(labels) or labels.is_meta:
        return
    if labels.shape != shape:
        raise ValueError(f"Labels have the shape {list(labels.shape)}, but there are {list(shape)} positions: pass one for each.")
    if labels.is_floating_point():
        raise ValueError(f"Labels must be integers, not {labels.dtype}: convert them with .long().")
    if labels.numel() == 0:
        return
    low, high = labels.masked_fill(labels == IGNORED, 0).aminmax()
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"Labels go from {int(low)} to {int(high)}, but the vocabulary or set of classes has {num_classes}: use "
            f"-100 where nothing is asked, and the tokenizer or label names that belong to this model."
        )


def check_width(name: str, x: Tensor, width: int) -> None:
    if x.shape[-1] != width:
        raise ValueError(f"{name} takes vectors of width {width}, but got the shape {list(x.shape)}.")
