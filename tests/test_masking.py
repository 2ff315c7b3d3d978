"""Masks: True = may attend, combined with AND."""

import pytest
import torch
from models import tiny_config, tiny_language_model

from glassformer import causal_mask, combine_masks, padding_mask, window_mask
from glassformer.masking import cross_mask, decoder_mask, encoder_mask, expand_mask


IDS = torch.tensor([[1, 2, 3, 0, 0], [4, 5, 0, 0, 0]])


def test_padding_is_false_and_tokens_are_true():
    assert padding_mask(IDS).tolist() == [[True, True, True, False, False], [True, True, False, False, False]]
    assert padding_mask(IDS, pad_token_id=5).sum() == 9


def test_each_token_sees_itself_and_the_past():
    mask = causal_mask(4)
    assert mask.dtype == torch.bool
    assert mask.tolist() == [[key <= query for key in range(4)] for query in range(4)]


def test_with_a_cache_the_queries_are_the_last_positions():
    assert torch.equal(causal_mask(2, 5), causal_mask(5)[3:])
    assert torch.equal(window_mask(2, 5, window=2), window_mask(5, window=2)[3:])


def test_a_window_is_as_wide_on_both_sides():
    assert window_mask(4, window=2).int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]


def test_combined_masks_allow_what_all_allow():
    combined = combine_masks(padding_mask(IDS), causal_mask(5), None)
    assert combined.shape == (2, 5, 5)
    for example, query, key in torch.cartesian_prod(torch.arange(2), torch.arange(5), torch.arange(5)).tolist():
        assert combined[example, query, key] == (key <= query and IDS[example, key] != 0)


def test_padding_by_name_is_certain_where_the_batch_is_as_large_as_the_sequence_is_long():
    padding = torch.tensor([[True, False], [True, True]])
    combined = combine_masks(causal_mask(2), padding=padding)
    assert combined.tolist() == [[[True, False], [True, False]], [[True, False], [True, True]]]


def test_masks_with_and_without_heads_combine():
    per_head = torch.rand(2, 3, 5, 5) > 0.5
    combined = combine_masks(per_head, causal_mask(5), padding=padding_mask(IDS))
    assert torch.equal(combined, per_head & causal_mask(5) & padding_mask(IDS)[:, None, None])


def test_nothing_to_combine_is_no_restriction():
    assert combine_masks(None, None) is None


@pytest.mark.parametrize(
    "shape, place",
    [
        ((5, 7), lambda mask: mask[None, None]),
        ((2, 7), lambda mask: mask[:, None, None]),
        ((2, 5, 7), lambda mask: mask[:, None]),
        ((1, 5, 7), lambda mask: mask[:, None]),
        ((2, 1, 7), lambda mask: mask[:, None]),
        ((2, 1, 5, 7), lambda mask: mask),
        ((2, 3, 5, 7), lambda mask: mask),
    ],
    ids=["T-S", "B-S", "B-T-S", "1-T-S", "B-1-S", "B-1-T-S", "B-H-T-S"],
)
def test_accepted_shapes_expand_to_scores(shape, place):
    mask = torch.rand(shape) > 0.5
    expanded = expand_mask(mask, batch=2, heads=3, num_queries=5, num_keys=7)
    assert torch.equal(expanded.expand(2, 3, 5, 7), place(mask).expand(2, 3, 5, 7))


@pytest.mark.parametrize("shape", [(7,), (4, 7), (2, 5, 6), (3, 5, 7), (2, 2, 5, 7), (1, 2, 3, 5, 7)], ids=str)
def test_other_shapes_are_refused_with_what_was_expected(shape):
    with pytest.raises(
        ValueError, match=r"does not fit 2 sequences with 3 heads, 5 queries and 7 keys: expected \[T, S\]=\[5, 7\]"
    ):
        expand_mask(torch.ones(shape, dtype=torch.bool), batch=2, heads=3, num_queries=5, num_keys=7)


def test_a_mask_that_can_be_read_two_ways_warns():
    with pytest.warns(UserWarning, match=r"read as \[T, S\]"):
        expand_mask(causal_mask(3), batch=3, heads=1, num_queries=3, num_keys=3)


@pytest.mark.parametrize("window", [None, 2], ids=["full", "window"])
def test_masks_made_for_the_kernels_are_the_masks_made_by_hand(window):
    padding, x = padding_mask(IDS), torch.zeros(2, 5, 8)
    config = tiny_config(attention_window=window, attn_implementation="sdpa")
    near = None if window is None else window_mask(5, window=window)
    by_hand = combine_masks(near, padding=padding)
    assert torch.equal(encoder_mask(config, x, padding, window).expand(2, 1, 5, 5)[:, 0], by_hand.expand(2, 5, 5))
    by_hand = combine_masks(near, causal_mask(5), padding=padding)
    assert torch.equal(decoder_mask(config, x, padding, None, None)[:, 0], by_hand)
    memory = torch.zeros(2, 5, 8)
    assert torch.equal(cross_mask(config, x[:, :3], memory, padding)[:, 0], padding[:, None].expand(2, 3, 5))


def test_a_caller_s_mask_reaches_flex_attention_as_numbers_to_add():
    """That kernel adds tensors to the scores: a boolean one would hide nothing."""
    config, x = tiny_config("decoder", attn_implementation="flex_attention"), torch.zeros(2, 3, 8)
    allowed = torch.ones(2, 3, 3, dtype=torch.bool)
    allowed[1, 2, 0] = False
    mask = decoder_mask(config, x, allowed, None, None)
    assert mask.shape == (2, 1, 3, 3)
    assert torch.equal(mask[:, 0] == 0, allowed & causal_mask(3)) and mask.min() == torch.finfo(torch.float32).min
    assert torch.equal(encoder_mask(config, x, allowed, None)[:, 0] == 0, allowed)
    with pytest.raises(ValueError, match="no mask of its own for each head"):
        encoder_mask(config, x, torch.ones(2, 4, 3, 3, dtype=torch.bool), None)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_caller_s_mask_is_cut_to_the_keys_that_a_sliding_cache_still_has(implementation):
    model = tiny_language_model("decoder", attention_window=3, attn_implementation=implementation)
    ids, allowed = torch.randint(5, 31, (2, 7)), torch.ones(2, 7, 7, dtype=torch.bool)
    allowed[0, 6, 5] = False
    whole = model(ids, attention_mask=allowed).logits
    cache = model(ids[:, :6], attention_mask=allowed[:, :6, :6]).past_key_values
    step = model(ids[:, 6:], attention_mask=allowed[:, 6:], past_key_values=cache).logits
    torch.testing.assert_close(step[:, 0], whole[:, 6])
