"""Rollout and flow, by hand and against every cut of a small network."""

from itertools import product

import pytest
import torch
from torch.testing import assert_close

from glassformer.analysis.rollout import flow, passed_on, rollout


def random_layers(depth: int, length: int, causal: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(0)
    scores = torch.randn(depth, 2, length, length) * 2
    if causal:
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    return list(scores.softmax(-1))


def test_rollout_is_the_product_of_what_layers_pass_on():
    first, second = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]), torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    assert_close(rollout([first]), torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
    assert_close(rollout([second]), torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    assert_close(rollout([second, first]), torch.tensor([[0.75, 0.25], [0.75, 0.25]]))


@pytest.mark.parametrize("causal", [True, False])
def test_what_reaches_an_output_is_a_whole(causal):
    layers = random_layers(3, 5, causal)
    for found in (rollout(layers), flow(layers)):
        assert_close(found.sum(-1), torch.ones(5))
        assert (found >= 0).all()
        if causal:
            assert not found.triu(1).any()


def smallest_cut(layers: list[torch.Tensor], query: int, key: int) -> float:
    """By trying all of them: the edges that lead from the side of the output to the side of the input."""
    length, depth = layers[0].shape[-1], len(layers)
    widths = [passed_on(weights) for weights in layers]
    nodes = [(layer, token) for layer in range(depth + 1) for token in range(length)]
    free = [node for node in nodes if node not in ((depth, query), (0, key))]
    best = float("inf")
    for sides in product((True, False), repeat=len(free)):
        above = {**dict(zip(free, sides)), (depth, query): True, (0, key): False}
        cut = sum(
            float(widths[layer][q, k])
            for layer in range(depth)
            for q in range(length)
            for k in range(length)
            if above[layer + 1, q] and not above[layer, k]
        )
        best = min(best, cut)
    return best


def test_flow_is_the_smallest_cut():
    layers = random_layers(2, 3)
    cuts = torch.tensor([[smallest_cut(layers, query, key) for key in range(3)] for query in range(3)])
    assert_close(flow(layers), cuts / cuts.sum(-1, keepdim=True))
    assert_close(flow(layers, [2]), flow(layers)[2:])
