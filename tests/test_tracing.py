"""What a pass costs: shapes, parameters, arithmetic and memory, held against counts by hand and against torch's own."""

import pytest
import torch
from models import tiny_config, tiny_language_model
from torch import nn

from glassformer import GlassformerForCausalLM
from glassformer.analysis import MemoryEstimate, ShapeTracer
from glassformer.training.estimate import estimate_memory


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def small_network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2, bias=False))


def test_shapes_in_the_order_of_the_forward_pass():
    model = small_network()
    with ShapeTracer(model) as shapes:
        model(torch.zeros(4, 3))
    rows = [(row.name, row.inputs, row.outputs, row.parameters, row.memory, row.flops) for row in shapes.rows]
    assert rows == [
        ("0", [(4, 3)], [(4, 5)], 20, 48, 2 * 4 * 3 * 5),  # keeps its input
        ("1", [(4, 5)], [(4, 5)], 0, 80, 0),  # keeps its output, which the next one need not keep again
        ("2", [(4, 5)], [(4, 2)], 10, 0, 2 * 4 * 5 * 2),
    ]
    assert shapes.table().splitlines()[1].split() == ["0", "Linear", "[4,", "3]", "[4,", "5]", "20", "48", "B", "120"]


def test_nothing_is_kept_where_there_is_no_way_back():
    model = small_network()
    with ShapeTracer(model) as shapes, torch.no_grad():
        model(torch.zeros(4, 3))
    assert [row.memory for row in shapes.rows] == [0, 0, 0]


def test_every_parameter_of_a_model_is_in_the_table_once():
    model = tiny_language_model()
    with ShapeTracer(model) as shapes:
        model(torch.full((2, 7), 5), decoder_input_ids=torch.full((2, 4), 5))
    own = {row.name: row.parameters for row in shapes.rows}
    tied = model.lm_head.weight.numel()
    assert sum(own.values()) - tied in (model.num_parameters(), model.num_parameters() + tied)
    attention = next(row for row in shapes.rows if row.name.endswith("decoder.layers.0.cross_attn"))
    assert attention.outputs[0] == (2, 4, model.config.d_model)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_attention_is_counted_whatever_computes_it(implementation):
    """4 products of [D, D] a token, and 2 products a head with all keys, each multiplication with an addition."""
    model = tiny_language_model("decoder", d_model=32)
    model.set_attn_implementation(implementation)
    with ShapeTracer(model) as shapes:
        model(torch.full((2, 40), 5))
    attention = next(row for row in shapes.rows if row.name.endswith("layers.0.self_attn"))
    assert attention.flops == 2 * (4 * 2 * 40 * 32 * 32 + 2 * 2 * 40 * 40 * 32)


@pytest.mark.parametrize("watch", [ShapeTracer, MemoryEstimate])
def test_hooks_are_gone_afterwards_even_after_an_error(watch):
    model = small_network()
    with pytest.raises(RuntimeError), watch(model):
        assert hooks_of(model)
        model(torch.zeros(4, 99))
    assert hooks_of(model) == 0


def test_memory_by_hand():
    model = small_network()
    model[0].requires_grad_(False)
    with MemoryEstimate(model, "adamw") as memory:
        model(torch.zeros(4, 3)).sum().backward()
    assert memory.rows == {"weights": 120, "gradients": 40, "optimizer": 80, "attention": 0, "activations": 80, "total": 320}
    assert memory.table().splitlines()[1].split() == ["weights", "120", "B"]
    with pytest.raises(ValueError, match="did you mean adamw"):
        MemoryEstimate(model, "adam")


@pytest.mark.parametrize("length", [24, 200])
def test_what_was_estimated_is_what_is_kept(length):
    """The count from the architecture beside a measurement, within 15 %."""
    config = tiny_config("decoder", d_model=64, d_ff=256, vocab_size=100, max_position_embeddings=256)
    model = GlassformerForCausalLM(config).train()
    ids = torch.randint(5, 100, (4, length))
    mask = torch.ones_like(ids)
    mask[0, :-5] = 0  # the estimate is for batches that have padding
    expected = estimate_memory(config, GlassformerForCausalLM, 4, length)
    with MemoryEstimate(model) as memory:
        model(input_ids=ids, labels=ids, attention_mask=mask)
    found = memory.rows
    assert [found[name] for name in ("weights", "gradients", "optimizer")] == [
        expected[name] for name in ("weights", "gradients", "optimizer")
    ]
    assert found["attention"] > 0.2 * found["activations"]
    assert found["attention"] + found["activations"] == pytest.approx(expected["activations"], rel=0.15)
