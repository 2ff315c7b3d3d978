"""Attention within a window, block by block: what the formula gives with a window mask, without a matrix of all pairs."""

import pytest
import torch
from models import tiny_config

from glassformer import GlassformerModel
from glassformer.masking import causal_mask, window_mask
from glassformer.near import Near, near_attention_forward, near_or_none


def by_the_book(q, k, v, window, is_causal, tokens):
    """softmax(q k^T / sqrt(K)) v over the visible keys, one query at a time."""
    length, groups = q.shape[2], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    seen = window_mask(length, window=window) & (causal_mask(length) if is_causal else True)
    seen = seen[None, None] & tokens[:, None, None]
    scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ v


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "both-sides"])
@pytest.mark.parametrize(("length", "window"), [(256, 64), (257, 2), (300, 70), (450, 100)])
def test_output_and_gradients_are_those_of_the_formula(length, window, is_causal):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, length, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2))
    tokens = torch.ones(2, length, dtype=torch.bool)
    tokens[0, :5] = tokens[1, -9:] = False  # padding on the left, and on the right
    expected = by_the_book(q, k, v, window, is_causal, tokens).transpose(1, 2)
    found, _ = near_attention_forward(None, q, k, v, Near(window, is_causal, tokens))
    assert torch.allclose(found[tokens], expected[tokens], atol=1e-12)
    weights = torch.randn_like(expected) * tokens[:, :, None, None]
    gradients = [torch.autograd.grad((output * weights).sum(), (q, k, v)) for output in (found, expected)]
    for one, other in zip(*gradients):
        assert torch.allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("shape", ["decoder", "encoder"])
def test_a_model_computes_the_same_with_and_without_blocks(shape):
    layers = {"num_encoder_layers": 2 * (shape == "encoder"), "num_decoder_layers": 2 * (shape == "decoder")}
    config = tiny_config(attention_window=10, position_encoding="rope", max_position_embeddings=400, dropout=0.0, **layers)
    torch.manual_seed(0)
    model = GlassformerModel(config).eval()
    ids = torch.randint(5, config.vocab_size, (2, 300))
    mask = torch.ones_like(ids)
    mask[0, -20:] = 0
    outputs = {}
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            outputs[implementation] = model(ids, attention_mask=mask).last_hidden_state[mask.bool()]
    assert torch.allclose(outputs["sdpa"], outputs["eager"], atol=1e-5)


def test_blocks_are_for_long_texts_that_are_there_whole():
    config, long, short = tiny_config(attention_window=10), torch.zeros(1, 256, 8), torch.zeros(1, 255, 8)
    config._attn_implementation = "sdpa"
    assert near_or_none(config, long, None, True) == Near(10, True, None)
    assert near_or_none(config, short, None, True) is None
    assert near_or_none(config, long, None, True, packed=True) is None
    assert near_or_none(config, long, torch.ones(1, 256, 256), True) is None
    assert near_or_none(tiny_config(), long, None, True) is None
    config._attn_implementation = "eager"
    assert near_or_none(config, long, None, True) is None


def test_no_matrix_of_all_pairs_is_made():
    """The largest tensor of a forward pass over 4096 tokens has far fewer elements than 4096 x 4096."""
    sizes = []

    class Sizes(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, kinds, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            sizes.extend(x.numel() for x in (result if isinstance(result, tuple) else (result,)) if isinstance(x, torch.Tensor))
            return result

    config = tiny_config(attention_window=64, position_encoding="rope", num_encoder_layers=0, max_position_embeddings=4096)
    model = GlassformerModel(config).eval()
    with Sizes(), torch.no_grad():
        model(torch.full((1, 4096), 7), use_cache=False)
    assert 0 < max(sizes) < 4096**2 / 8
