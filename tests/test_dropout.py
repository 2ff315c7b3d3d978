"""Dropout drops as often as it says, anywhere alike, and keeps the mean."""

import pytest
import torch
from models import tiny_config
from torch.testing import assert_close

from glassformer import GlassformerModel
from glassformer.dropout import Dropout, TokenDropout


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_it_drops_with_its_probability_in_every_place(p):
    x = torch.ones(1000, 101)  # an odd width: the four coins of a number fall into all columns
    kept = Dropout(p)(x) != 0
    margin = 5 * (p * (1 - p) / 101_000) ** 0.5
    for lane in range(4):
        assert kept.flatten()[lane::4].float().mean() == pytest.approx(1 - p, abs=2 * margin)
    assert kept.float().mean() == pytest.approx(1 - p, abs=margin)


def test_neighbours_are_dropped_independently():
    dropped = (Dropout(0.3)(torch.ones(400_000)) == 0).float()
    for distance in range(1, 9):
        both = (dropped[distance:] * dropped[:-distance]).mean()
        assert both == pytest.approx(0.09, abs=0.003)


def test_what_stays_is_scaled_so_that_the_mean_stays():
    y = Dropout(0.1)(torch.full((300, 300), 2.0))
    assert_close(y[y != 0], torch.full_like(y[y != 0], 2 / 0.9), rtol=1e-4, atol=0)  # p is a multiple of 1 / 65536
    assert y.mean() == pytest.approx(2.0, abs=0.02)


def test_the_gradient_passes_where_the_value_did():
    x = torch.randn(50, 60, requires_grad=True)
    y = Dropout(0.4)(x)
    y.backward(torch.ones_like(y))
    assert_close(x.grad, (y / x).detach(), atol=1e-6, rtol=1e-5)


def test_the_seed_decides():
    drop, x = Dropout(0.5), torch.ones(99)
    torch.manual_seed(3)
    first, second = drop(x), drop(x)
    torch.manual_seed(3)
    assert torch.equal(first, drop(x)) and not torch.equal(first, second)


@pytest.mark.parametrize(("p", "training", "expected"), [(0.0, True, 1.0), (0.5, False, 1.0), (1.0, True, 0.0)])
def test_nothing_everything_and_evaluation(p, training, expected):
    assert torch.equal(Dropout(p).train(training)(torch.ones(7)), torch.full((7,), expected))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_it_keeps_the_dtype(dtype):
    assert Dropout(0.5)(torch.ones(3, dtype=dtype)).dtype == dtype


def test_an_empty_tensor_stays_empty():
    assert Dropout(0.5)(torch.ones(0, 4)).shape == (0, 4)


def test_token_dropout_takes_whole_tokens_and_keeps_the_mean():
    torch.manual_seed(0)
    dropout, x = TokenDropout(0.3), torch.rand(40, 50, 8) + 1
    dropped = dropout(x)
    gone = (dropped == 0).all(-1)
    assert torch.equal(gone, (dropped == 0).any(-1))
    assert 0.27 < float(gone.float().mean()) < 0.33
    assert torch.allclose(dropped[~gone], x[~gone] / 0.7, rtol=1e-3)
    assert dropout.eval()(x) is x and TokenDropout(0.0)(x) is x


def test_a_model_drops_tokens_while_it_is_trained():
    config = tiny_config("encoder", token_dropout=0.5, dropout=0.0)
    model = GlassformerModel(config)
    ids = torch.full((1, 30), 7)
    model.eval()
    assert torch.equal(model(ids).last_hidden_state, model(ids).last_hidden_state)
    model.train()
    assert not torch.allclose(model(ids).last_hidden_state, model(ids).last_hidden_state)
