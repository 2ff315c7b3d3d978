# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Who may look at whom. One convention in the whole package: boolean, True = may attend, combined with AND.

    causal_mask(4)      window_mask(4, window=2)      both, combined
    1 0 0 0             1 1 0 0                       1 0 0 0
    1 1 0 0             1 1 1 0                       1 1 0 0
    1 1 1 0             0 1 1 1                       0 1 1 0
    1 1 1 1             0 0 1 1                       0 0 1 1

The first half builds masks by hand, for use with the blocks; the second half asks transformers for the same masks in the form
that the chosen attention kernel wants (a tensor, a block mask, or nothing at all where the kernel knows the pattern).
"""

import functools
import warnings

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_causal_mask,
    create_sliding_window_causal_mask,
    sliding_window_bidirectional_overlay,
)
from transformers.utils.import_utils import is_tracing

from .near import near_or_none


# B batch, H heads, T queries (target), S keys (source)


def padding_mask(input_ids: Tensor, pad_token_id: int = 0) -> Tensor:
    """True where there is a token, False where there is padding: [B, S]."""
    return input_ids != pad_token_id


def causal_mask(num_queries: int, num_keys: int | None = None, device: torch.device | str | None = None) -> Tensor:
    """Each token sees itself and what came before: [T, S].

    With more keys than queries, the queries are the last positions, as when decoding on top of a cache.
    """
    return _distance(num_queries, num_keys, device) >= 0


def window_mask(
    num_queries: int, num_keys: int | None = None, *, window: int, device: torch.device | str | None = None
) -> Tensor:
    """Each token sees those less than `window` positions away, on both sides: [T, S]."""
    return _distance(num_queries, num_keys, device).abs() < window


def _distance(num_queries: int, num_keys: int | None, device: torch.device | str | None) -> Tensor:
    """How far each key lies before each query: [T, S]."""
    num_keys = num_queries if num_keys is None else num_keys
    queries = torch.arange(num_keys - num_queries, num_keys, device=device)
    return queries[:, None] - torch.arange(num_keys, device=device)


def combine_masks(*masks: Tensor | None, padding: Tensor | None = None) -> Tensor | None:
    """What every mask allows. `padding` is a [B, S] mask over keys; None stands for "no restriction".

    Two-dimensional masks are [T, S]. One that does not fit the others' [T, S] is taken for padding, but say
    `padding=` where a batch may be as large as a sequence is long.
    """
    given = [mask for mask in masks if mask is not None]
    for mask in given:
        check_boolean(mask)
    plain = [mask for mask in given if mask.dim() == 2]
    if len({mask.shape for mask in plain}) > 1:
        square = [mask for mask in plain if mask.shape[0] == mask.shape[1]]
        keys = {mask.shape[1] for mask in plain}
        if not square or len(keys) > 1:
            shapes = ", ".join(str(tuple(mask.shape)) for mask in plain)
            raise ValueError(f"Masks of shapes {shapes} do not combine: [T, S] masks must agree; pass [B, S] as `padding=`.")
        given = [mask[:, None, :] if mask.dim() == 2 and mask.shape[0] != mask.shape[1] else mask for mask in given]
    if padding is not None:
        check_boolean(padding)
        if padding.dim() != 2:
            raise ValueError(f"padding must be [B, S], but has the shape {tuple(padding.shape)}.")
        given.append(padding[:, None, :])
    # A [B, T, S] mask meets [B, H, T, S] ones with room for the heads.
    rank = max((mask.dim() for mask in given), default=0)
    given = [mask[:, None] if mask.dim() == 3 and rank == 4 else mask for mask in given]
    try:
        torch.broadcast_shapes(*(mask.shape for mask in given))
    except RuntimeError:
        shapes = ", ".join(str(tuple(mask.shape)) for mask in (*masks, padding) if mask is not None)
        raise ValueError(f"Masks of shapes {shapes} do not combine: [T, S] masks must agree.") from None
    return functools.reduce(torch.logical_and, given) if given else None


def expand_mask(mask: Tensor, batch: int, heads: int, num_queries: int, num_keys: int) -> Tensor:
    """Any accepted mask, ready to meet scores of shape [B, H, T, S].

    Accepted are [T, S], [B, S], [B, T, S], [B, 1, T, S] and [B, H, T, S], with 1 in any place that is to be repeated.
    """
    if is_tracing(mask) and mask.dim() == 4:
        return mask
    check_boolean(mask)
    shape = tuple(mask.shape)
    if mask.dim() == 2:
        per_query, per_example = shape == (num_queries, num_keys), shape == (batch, num_keys)
        if per_query and per_example and batch > 1:
            warnings.warn(
                f"A mask of shape {shape} may mean [T, S] or [B, S] here: it is read as [T, S]. Pass padding as [B, 1, S] "
                f"to make it certain.",
                stacklevel=2,
            )
        mask = mask[None, None] if per_query or not per_example else mask[:, None, None, :]
    elif mask.dim() == 3:
        mask = mask[:, None]
    wanted = (batch, heads, num_queries, num_keys)
    if mask.dim() != 4 or any(have not in (1, want) for have, want in zip(mask.shape, wanted)):
        raise ValueError(
            f"A mask of shape {shape} does not fit {batch} sequences with {heads} heads, {num_queries} queries and {num_keys} "
            f"keys: expected [T, S]={list(wanted[2:])}, [B, S]={[batch, num_keys]}, [B, T, S], [B, 1, T, S] or [B, H, T, S]."
        )
    return mask


def check_boolean(mask: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise ValueError(
            f"Masks are boolean, True = may attend, but this one is {mask.dtype}: convert a 0/1 mask with mask.bool(), an "
            f"additive one with mask == 0."
        )


def visible_keys(mask: Tensor, batch: int) -> Tensor:
    """Which keys some query may attend to, of a mask [B, T, S] or [B, H, T, S], boolean or additive: [B, S]."""
    visible = mask > -1e4 if mask.is_floating_point() else mask.bool()
    visible = visible.flatten(1, -2).any(1)
    return visible.expand(batch, visible.shape[1])


def follows_previous(position_ids: Tensor, mask: Tensor | None, batch: int) -> Tensor:
    """Which tokens continue the text of the token before them: [B or 1, T].

    Not the first one, nor one whose position does not go on, nor one that may not attend to the token before it, under a mask
    [B, S], [B, T, S] or [B, H, T, S], boolean or additive. Padding follows nothing.

    positions    0 1 2 0 1 2
    padding      1 1 1 1 1 0
    follows      0 1 1 0 1 0
    """
    follows = position_ids > one_before(position_ids, first=2**31 - 1)
    if mask is None:
        return follows
    mask = mask > -1e4 if mask.dim() == 4 and mask.is_floating_point() else mask.bool()  # as `check_attention_mask` has it
    if mask.dim() == 2:
        return follows & mask & one_before(mask)
    mask = mask.any(1) if mask.dim() == 4 else mask
    length = position_ids.shape[1]
    return follows & one_before(mask.expand(batch, length, length)).diagonal(0, -2, -1)


def one_before(x: Tensor, first: int = 0) -> Tensor:
    """What stands one place before each token, and `first` before the first: [..., T] -> [..., T]"""
    return F.pad(x, (1, 0), value=first)[..., :-1]


def one_after(x: Tensor) -> Tensor:
    """What stands one place after each token, and zero after the last: [..., T] -> [..., T]"""
    return F.pad(x, (0, 1))[..., 1:]


# The same masks, made by transformers for the attention kernel in use.
#
# A caller's mask of two dimensions tells tokens from padding, one of three who sees whom; both are combined with what the
# stack itself demands. One of four dimensions is transformers' way to replace every other mask, and is taken as it is.


def encoder_mask(config, x: Tensor, attention_mask: Tensor | None, window: int | None):
    """Everybody sees every token that is not padding, within the window if there is one: the config's, or none."""
    if window is not None and (blocks := near_or_none(config, x, attention_mask, is_causal=False)) is not None:
        return blocks
    length = x.shape[1]
    if attention_mask is not None and attention_mask.dim() > 2:
        near = None if window is None else window_mask(length, window=window, device=x.device)
        return _for_kernel(config, x, attention_mask, near)
    overlay = None
    if window is not None:
        overlay = sliding_window_bidirectional_overlay(window - 1)  # counts the distance inclusively
    return create_bidirectional_mask(config, x, attention_mask, and_mask_function=overlay)


def decoder_mask(config, x: Tensor, attention_mask: Tensor | None, past_key_values, position_ids: Tensor | None):
    """Nobody sees the future, nor padding, nor what lies outside the window."""
    maybe_packed = position_ids is not None  # transformers takes a jump in them for the beginning of another text
    blocks = near_or_none(config, x, attention_mask, is_causal=True, past=past_key_values, packed=maybe_packed)
    if blocks is not None:
        return blocks
    length, window = x.shape[1], config.attention_window
    if attention_mask is not None and attention_mask.dim() > 2:
        num_keys = attention_mask.shape[-1]
        past = causal_mask(length, num_keys, device=x.device)
        near = None if window is None else window_mask(length, num_keys, window=window, device=x.device)
        mask = _for_kernel(config, x, attention_mask, past, near)
        # A sliding cache has dropped the keys that are too far.
        return mask if past_key_values is None else mask[..., -past_key_values.get_mask_sizes(length, 0)[0] :]
    create = create_causal_mask if window is None else create_sliding_window_causal_mask
    return create(config, x, attention_mask, past_key_values, position_ids=position_ids)


def cross_mask(config, x: Tensor, memory: Tensor, memory_mask: Tensor | None):
    """Every target token sees every source token that is not padding."""
    return create_bidirectional_mask(config, x, memory_mask, encoder_hidden_states=memory)


def _for_kernel(config, x: Tensor, mask: Tensor, *others: Tensor | None) -> Tensor:
    """A caller's mask [B, T, S] with the stack's own, or its [B, 1 or H, T, S] as it is -> [B, 1 or H, T, S]."""
    if mask.dim() == 3:
        mask = functools.reduce(torch.logical_and, [other for other in others if other is not None], mask)[:, None]
    if config._attn_implementation == "flex_attention" and mask.dtype == torch.bool:
        if mask.shape[1] > 1:
            raise ValueError("flex_attention takes no mask of its own for each head: use sdpa or eager for that.")
        mask = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, torch.finfo(x.dtype).min)  # it adds tensors
        mask = mask.expand(x.shape[0], -1, -1, -1)
    return mask
