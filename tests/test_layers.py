"""Embedding, feed-forward, norm, and the layers made of them."""

import math

import pytest
import torch
from models import B, D, S, T, V, tiny_config
from torch import nn
from torch.testing import assert_close

from glassformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    GlassformerConfig,
    RMSNorm,
    SinusoidalPositionEncoding,
    TokenEmbedding,
    causal_mask,
)
from glassformer.stack import LayerDrop


def test_embeddings_are_scaled_by_the_root_of_the_width():
    embedding = TokenEmbedding(3, 4)
    with torch.no_grad():
        embedding.weight[1] = torch.tensor([0.2, -0.3, 0.1, 0.4])
    assert_close(embedding(torch.tensor([[1]]))[0, 0], torch.tensor([0.4, -0.6, 0.2, 0.8]))
    plain = TokenEmbedding(3, 4, scale=False)
    assert torch.equal(plain(torch.tensor([[1]]))[0, 0], plain.weight[1])


def test_embedding_and_position_add_up():
    embedding = TokenEmbedding(3, 4)
    with torch.no_grad():
        embedding.weight[1] = torch.tensor([0.2, -0.3, 0.1, 0.4])
    entered = SinusoidalPositionEncoding(4)(embedding(torch.tensor([[1]])))
    assert_close(entered[0, 0], torch.tensor([0.4, 0.4, 0.2, 1.8]))


def test_embeddings_enter_with_variance_one():
    assert TokenEmbedding(5000, 64)(torch.arange(1, 5000)[None]).var().item() == pytest.approx(1, rel=0.02)


def test_the_pad_row_is_zero_and_learns_nothing():
    embedding = TokenEmbedding(V, D, pad_token_id=2)
    out = embedding(torch.tensor([[1, 2, 3]]))
    assert (out[0, 1] == 0).all()
    out.sum().backward()
    assert (embedding.weight.grad[2] == 0).all() and (embedding.weight.grad[1] == math.sqrt(D)).all()


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_feed_forward_is_two_linear_maps_with_an_activation_between(activation):
    act = {"relu": torch.relu, "gelu": nn.functional.gelu, "silu": nn.functional.silu}[activation]
    x = torch.randn(B, T, D)
    plain = FeedForward(D, 40, activation)
    inner = act(x @ plain.up_proj.weight.T + plain.up_proj.bias)
    assert_close(plain(x), inner @ plain.down_proj.weight.T + plain.down_proj.bias)
    gated = FeedForward(D, 40, activation, gated=True, bias=False)
    inner = act(x @ gated.gate_proj.weight.T) * (x @ gated.up_proj.weight.T)
    assert_close(gated(x), inner @ gated.down_proj.weight.T)


def test_feed_forward_treats_every_position_alike():
    feed_forward, x = FeedForward(D, 40), torch.randn(B, T, D)
    order = torch.randperm(T)
    assert_close(feed_forward(x[:, order]), feed_forward(x)[:, order])


def test_rms_norm_against_torch():
    ours, theirs, x = RMSNorm(D, eps=1e-5), nn.RMSNorm(D, eps=1e-5), torch.randn(B, T, D)
    with torch.no_grad():
        theirs.weight.copy_(ours.weight.uniform_())
    assert_close(ours(x), theirs(x))
    assert ours.half()(torch.full((1, D), 300.0).half()).isfinite().all()  # 300^2 is beyond float16


# Layers


def test_shapes_of_the_base_size():
    config = GlassformerConfig()
    x, memory = torch.randn(2, 8, 512), torch.randn(2, 10, 512)
    encoder, decoder = EncoderLayer(config), DecoderLayer(config)
    seen = {}
    for name, attention in (("e", encoder.self_attn), ("d", decoder.self_attn), ("c", decoder.cross_attn)):
        attention.register_forward_hook(lambda m, i, output, name=name: seen.update({name: output[1].shape}))
    config._attn_implementation = "eager"
    assert encoder(memory).shape == (2, 10, 512)
    assert decoder(x, memory, mask=causal_mask(8)).shape == (2, 8, 512)
    assert seen == {"e": (2, 8, 10, 10), "d": (2, 8, 8, 8), "c": (2, 8, 8, 10)}


def pre(x, norm, sublayer):
    return x + sublayer(norm(x))


def post(x, norm, sublayer):
    return norm(x + sublayer(x))


@pytest.mark.parametrize("residual", [pre, post], ids=["pre", "post"])
def test_layers_are_sublayers_in_residual_connections(residual):
    config = tiny_config(norm_position=residual.__name__, attn_implementation="eager")
    x, memory = torch.randn(B, T, D), torch.randn(B, S, D)
    layer = EncoderLayer(config).eval()
    expected = residual(memory, layer.self_attn_norm, lambda h: layer.self_attn(h)[0])
    expected = residual(expected, layer.feed_forward_norm, layer.feed_forward)
    assert_close(layer(memory), expected)

    layer = DecoderLayer(config).eval()
    expected = residual(x, layer.self_attn_norm, lambda h: layer.self_attn(h, mask=causal_mask(T))[0])
    expected = residual(expected, layer.cross_attn_norm, lambda h: layer.cross_attn(h, memory)[0])
    expected = residual(expected, layer.feed_forward_norm, layer.feed_forward)
    assert_close(layer(x, memory, causal_mask(T)), expected)


def test_dropout_is_active_only_in_training():
    config = tiny_config(dropout=0.5, attn_implementation="eager")
    x = torch.randn(B, S, D)
    for layer, inputs in ((EncoderLayer(config), (x,)), (DecoderLayer(config), (x, x))):
        assert not torch.allclose(layer(*inputs), layer(*inputs))
        layer.eval()
        assert torch.equal(layer(*inputs), layer(*inputs))


def test_layer_drop_skips_whole_examples_at_its_rate_and_only_in_training():
    drop, before, after = LayerDrop(0.3), torch.zeros(4000, 2, 3), torch.ones(4000, 2, 3)
    mixed = drop(before, after)
    assert torch.equal(mixed, mixed[:, :1, :1].expand_as(mixed))
    assert mixed.mean() == pytest.approx(0.7, abs=0.03)
    assert torch.equal(drop.eval()(before, after), after)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_decoder_layer_is_causal_without_being_told(implementation):
    layer = DecoderLayer(tiny_config("decoder", attn_implementation=implementation)).eval()
    x = torch.randn(B, T, D)
    assert_close(layer(x), layer(x, mask=causal_mask(T)))
    changed = x.clone()
    changed[:, -1] += 1
    assert_close(layer(changed)[:, :-1], layer(x)[:, :-1])


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("shape", [(S, S), (B, S), (B, S, S), (B, 1, S, S), (B, 4, S, S)], ids=str)
def test_layers_take_every_shape_of_mask_on_every_kernel(shape, implementation):
    torch.manual_seed(1)
    layer = EncoderLayer(tiny_config("encoder", attn_implementation=implementation)).eval()
    x, mask = torch.randn(B, S, D), torch.rand(shape) > 0.3
    mask[..., 0] = True
    places = {2: mask[None, None] if shape == (S, S) else mask[:, None, None], 3: mask[:, None] if len(shape) == 3 else mask}
    whole = places.get(len(shape), mask).expand(B, 4, S, S)
    assert_close(layer(x, mask), layer(x, whole))


def test_layers_say_what_is_missing():
    x = torch.randn(B, T, D)
    with pytest.raises(ValueError, match="needs the encoder's output"):
        DecoderLayer(tiny_config())(x)
    with pytest.raises(ValueError, match="has no cross-attention"):
        DecoderLayer(tiny_config("decoder"))(x, x)
    for block in (EncoderLayer(tiny_config("encoder")), DecoderLayer(tiny_config("decoder")), FeedForward(D, 8), RMSNorm(D)):
        with pytest.raises(ValueError, match=f"width {D}, but got the shape"):
            block(torch.randn(B, T, D + 1))
