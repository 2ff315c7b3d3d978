"""Watching a model: what is told is what went through it, and nothing is left behind."""

import pytest
import torch
from models import tiny_config
from torch import nn

from glassformer import GlassformerModel
from glassformer.analysis import ActivationStats, AttentionHealth, GradientMonitor


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def small_network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2, bias=False))


def test_hooks_are_gone_afterwards_even_after_an_error():
    model = small_network()
    with pytest.raises(RuntimeError), ActivationStats(model):
        assert hooks_of(model) == 3
        model(torch.zeros(4, 99))
    assert hooks_of(model) == 0


def test_activations_by_hand():
    model = small_network()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.copy_(torch.tensor([-9.0, 0.0, 0.0, 1.0, 2.0]))
    with ActivationStats(model) as stats:
        model(torch.ones(2, 3))
    row = stats.rows["1"]  # relu of [-6, 3, 3, 4, 5]
    assert (row.mean, row.largest, row.finite) == (3.0, 5.0, True)
    assert row.zeros == pytest.approx(0.2) and row.std == pytest.approx((14 / 5) ** 0.5)
    with ActivationStats(model) as stats:
        model(torch.full((2, 3), torch.inf))
    assert not stats.rows["1"].finite


def test_gradients_and_updates_by_hand():
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 4.0]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with GradientMonitor(model) as monitor:
        model(torch.tensor([[6.0, 8.0]])).sum().backward()
        optimizer.step()
    row = monitor.rows["weight"]
    assert (row.norm, row.weight_norm, row.update_ratio) == pytest.approx((10.0, 5.0, 0.2))
    assert monitor.exploding == [] and monitor.vanishing == []
    optimizer.zero_grad()
    with GradientMonitor(model) as monitor:
        (model(torch.tensor([[6.0, 8.0]])) * 1e-9).sum().backward()
    assert monitor.vanishing == ["weight"] and monitor.rows["weight"].update_ratio is None
    with GradientMonitor(model) as monitor:
        (model(torch.tensor([[6.0, 8.0]])) * 5).sum().backward()
    assert monitor.exploding == ["weight"]


def test_heads_that_see_one_place_or_everything_are_ill():
    model = GlassformerModel(tiny_config("decoder", position_encoding="alibi", num_heads=2)).eval()
    with torch.no_grad():
        for layer in model.decoder.layers:
            layer.self_attn.q_proj.weight.zero_()
            layer.self_attn.q_proj.bias.zero_()
        model.decoder.position_bias.slopes.copy_(torch.tensor([50.0, 0.0]))
        with AttentionHealth(model) as health:
            model(torch.randint(5, 20, (2, 12)))
    verdicts = {(row.layer, row.head): row.verdict for row in health.rows}
    assert {verdict for (_, head), verdict in verdicts.items() if head == 0} == {"collapsed"}
    assert {verdict for (_, head), verdict in verdicts.items() if head == 1} == {"even"}
    assert len(health.ill) == len(health.rows) == 2 * model.config.num_decoder_layers
