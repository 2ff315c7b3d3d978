"""Optimisers, schedules and averages, held against their formulas."""

import math
import sys
import typing

import pytest
import torch
from models import VARIANTS, V, tiny_language_model
from torch import nn
from torch.testing import assert_close

from glassformer.training.optimization import (
    ENDLESS,
    Float32Muon,
    WeightAverage,
    average_states,
    decay_groups,
    make_optimizers,
    make_schedule,
    noam_factor,
    peak_lr,
    split_for_muon,
)
from glassformer.training.recipe import Optimizer, RecipeError, Schedule


SCHEDULES = typing.get_args(typing.get_type_hints(Schedule)["name"])
OPTIMIZERS = {"adamw": 1e-2, "adafactor": 1e-2, "muon": 1e-2, "lamb": 1e-2, "sophia": 1.0}  # with a rate that suits them
PEAK, WARMUP, TOTAL, DECAY = 0.02, 6, 40, 9
TYING = {
    "three-way": {},
    "target-output": {"embedding_tying": "target-output"},
    "source-target": {"embedding_tying": "source-target"},
    "untied": {"tie_word_embeddings": False},
}
# A model of one stack has one embedding: its output is tied to it or not.
TIED_SHAPES = [("encoder-decoder", tying) for tying in TYING] + [
    (shape, tying) for shape in ("encoder", "decoder") for tying in ("three-way", "untied")
]


# Schedules


def walk(schedule: Schedule, total: int | None = TOTAL, steps: int = TOTAL, d_model: int = 512) -> list[float]:
    """The learning rate of each update, and the one after the last."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler = make_schedule(optimizer, schedule, d_model, total)
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def cosine(share: float, begin: float, end: float) -> float:
    """From begin to end, flat at both."""
    return end + (begin - end) * (1 + math.cos(math.pi * share)) / 2


def expected_rate(name: str, done: int, final: float) -> float:
    """Of the peak, after so many updates."""
    left = (TOTAL - done) / (TOTAL - WARMUP)  # of the run after warming up
    if name == "noam":
        return 512**-0.5 * min((done + 1) ** -0.5, (done + 1) * WARMUP**-1.5)
    if done < WARMUP:
        return {
            "one_cycle": cosine(done / WARMUP, 1 / 25, 1.0),
            "warmup_stable_decay": final + (1 - final) * done / WARMUP,
        }.get(name, done / WARMUP)
    return {
        "inverse_sqrt": math.sqrt(WARMUP / done) if done else 1.0,
        "constant": 1.0,
        "cosine": cosine(1 - left, 1.0, final),
        "linear": final + (1 - final) * left,
        "polynomial": final + (1 - final) * left**3,
        "one_cycle": cosine(1 - left, 1.0, final),
        "warmup_stable_decay": cosine(max(0.0, (done - TOTAL + DECAY) / DECAY), 1.0, final),
    }[name]


@pytest.mark.parametrize("final", [0.0, 0.1])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_follows_its_formula(name, final):
    schedule = Schedule(name, warmup_steps=WARMUP, decay_steps=DECAY, power=3.0, final_ratio=final)
    rates = walk(schedule)
    assert rates == pytest.approx([PEAK * expected_rate(name, done, final) for done in range(TOTAL + 1)], abs=1e-12)
    if name != "noam":  # whose peak is a matter of the width
        assert max(rates) == pytest.approx(PEAK) == rates[WARMUP]
    if name not in ENDLESS:
        assert rates[-1] == pytest.approx(PEAK * final, abs=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 1])
def test_a_schedule_can_do_without_warming_up(name, warmup):
    rates = walk(Schedule(name, warmup_steps=warmup), total=7, steps=7)
    assert all(0 <= rate <= PEAK * (1 + 1e-9) for rate in rates)
    assert max(rates[:2]) > 0  # no more than one update is lost


def test_noam_is_equation_three_of_the_paper():
    for step in (1, 4000, 40_000):
        assert noam_factor(step, 512, 4000) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5))
    factors = [noam_factor(step, 512, 4000) for step in range(12_000)]
    assert max(factors) == factors[4000] == pytest.approx(6.99e-4, rel=1e-3)
    assert factors[0] == factors[1] > 0
    assert noam_factor(1, 512, 0) == noam_factor(1, 512, 1)


def test_noam_gives_the_learning_rate_itself_unless_the_recipe_scales_it():
    assert peak_lr(Optimizer(), Schedule("noam")) == 1.0
    assert peak_lr(Optimizer(lr=2.0), Schedule("noam")) == 2.0
    assert peak_lr(Optimizer(), Schedule("cosine")) == 1e-3


@pytest.mark.parametrize("name", SCHEDULES)
def test_only_schedules_with_an_end_must_know_it(name):
    if name in ENDLESS:
        assert walk(Schedule(name, warmup_steps=WARMUP), total=None) == walk(Schedule(name, warmup_steps=WARMUP))
        return
    with pytest.raises(RecipeError, match=f"schedule.name={name} must know where the run ends: set training.steps or .epochs"):
        walk(Schedule(name), total=None)
    with pytest.raises(RecipeError, match="warmup_steps=40 leaves nothing of a run of 40 updates: make it smaller"):
        walk(Schedule(name, warmup_steps=TOTAL))


def test_warming_up_and_decaying_must_fit_the_run():
    with pytest.raises(RecipeError, match="warmup_steps=35 and decay_steps=6 exceed the 40 updates"):
        walk(Schedule("warmup_stable_decay", warmup_steps=35, decay_steps=6))
    rates = walk(Schedule("warmup_stable_decay", warmup_steps=WARMUP))
    assert [rate == PEAK for rate in rates[WARMUP:]] == [True] * 31 + [False] * 4  # a tenth if not told


# Which parameters


def sizes(*groups: dict) -> int:
    return sum(p.numel() for group in groups for p in group["params"])


@pytest.mark.parametrize(("shape", "tying"), TIED_SHAPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_weight_decay_is_for_linear_layers_that_are_no_embedding(variant, shape, tying):
    model = tiny_language_model(shape, **VARIANTS[variant], **TYING[tying])
    linear = {module.weight for module in model.modules() if isinstance(module, nn.Linear)}
    embeddings = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    decayed, spared = decay_groups(dict(model.named_parameters()), model, 0.3)
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.3, 0.0)
    assert set(decayed["params"]) == linear - embeddings
    assert embeddings <= set(spared["params"])
    assert sizes(decayed, spared) == model.num_parameters()
    output_is_an_embedding = tying in ("three-way", "target-output")
    assert (model.lm_head.weight in set(spared["params"])) == output_is_an_embedding


def test_a_tied_matrix_is_spared_under_whichever_name_it_comes():
    model = nn.ModuleDict({"output": nn.Linear(3, 5, bias=False), "embedding": nn.Embedding(5, 3)})
    model["embedding"].weight = model["output"].weight
    assert list(dict(model.named_parameters())) == ["output.weight"]
    (group,) = decay_groups(dict(model.named_parameters()), model, 0.3)
    assert group["weight_decay"] == 0.0


@pytest.mark.parametrize("variant", ["modern", "relative"])
@pytest.mark.parametrize("tying", TYING)
def test_muon_turns_matrices_inside_layers_only(variant, tying):
    model = tiny_language_model(**VARIANTS[variant], **TYING[tying])
    inner, others = split_for_muon(model)
    stacks = (model.model.encoder, model.model.decoder)
    matrices = {m.weight for stack in stacks for m in stack.layers.modules() if isinstance(m, nn.Linear)}
    assert set(inner) == matrices
    assert set(inner).isdisjoint(others.values())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_parameter_is_in_one_group_of_one_optimizer(name):
    model = tiny_language_model(norm="rmsnorm")
    options = Optimizer(name, weight_decay=0.3, betas=[0.8, 0.7], eps=1e-5)
    groups = [group for optimizer in make_optimizers(model, options, Schedule("cosine")) for group in optimizer.param_groups]
    held = [p for group in groups for p in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, model.parameters()))
    assert {group["weight_decay"] for group in groups} == {0.3, 0.0}
    assert {group["lr"] for group in groups} == {1e-3}
    if name == "adamw":
        assert {(*group["betas"], group["eps"]) for group in groups} == {(0.8, 0.7, 1e-5)}


# Steps


def losses_of_training(name: str, steps: int = 12) -> list[float]:
    model = tiny_language_model(attn_implementation="eager").train()
    options = Optimizer(name, lr=OPTIMIZERS[name])
    optimizers = make_optimizers(model, options, Schedule("constant"))
    texts, losses = torch.randint(5, V, (4, 7)), []
    for _ in range(steps):
        loss = model(texts, labels=texts).loss
        loss.backward(create_graph=name == "sophia")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_learns(name):
    losses = losses_of_training(name)
    assert losses[-1] < 0.75 * losses[0]


def test_no_optimizer_of_the_recipe_is_left_out():
    assert set(OPTIMIZERS) == set(typing.get_args(typing.get_type_hints(Optimizer)["name"]))


@pytest.mark.parametrize("name", ["lamb", "sophia"])
def test_a_missing_package_is_named(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(RecipeError, match=rf'name={name} comes from .*: pip install "glassformer\[optimizers\]"'):
        make_optimizers(tiny_language_model(), Optimizer(name), Schedule())


# Averages


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@torch.no_grad()
def move(model: nn.Module) -> None:
    for p in model.parameters():
        p.add_(torch.randn_like(p))


def test_moving_average_is_a_sum_of_powers():
    model, decay, updates = tiny_language_model(), 0.9, 7
    average, seen = WeightAverage(model, decay), [weights_of(model)]
    for _ in range(updates):
        move(model)
        average.update(model)
        seen.append(weights_of(model))
    shares = [decay**updates, *((1 - decay) * decay ** (updates - n) for n in range(1, updates + 1))]
    assert sum(shares) == pytest.approx(1)
    for name, found in average.weights.items():
        assert_close(found, sum(share * weights[name] for share, weights in zip(shares, seen)))


def test_swapping_twice_changes_nothing_and_keeps_tied_weights_tied():
    model = tiny_language_model()
    average, old = WeightAverage(model, 0.5), weights_of(model)
    move(model)
    new, inputs = weights_of(model), torch.randint(5, V, (2, 5))
    logits = model(inputs, decoder_input_ids=inputs).logits
    average.swap(model)
    assert_close(weights_of(model), old, rtol=0, atol=0)
    assert_close(average.weights, new, rtol=0, atol=0)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    average.swap(model)
    assert_close(weights_of(model), new, rtol=0, atol=0)
    assert torch.equal(model(inputs, decoder_input_ids=inputs).logits, logits)


def test_a_saved_average_goes_on_where_it_stopped():
    model = tiny_language_model()
    average, other = WeightAverage(model, 0.7), WeightAverage(tiny_language_model(), 0.7)
    move(model)
    average.update(model)
    other.load(average.weights)
    move(model)
    for one in (average, other):
        one.update(model)
    assert_close(average.weights, other.weights, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_the_mean_of_checkpoints_is_exact_and_keeps_its_dtype(dtype):
    states = [{"w": torch.randn(5, 3).to(dtype), "large": torch.full((2,), 6e4, dtype=dtype)} for _ in range(3)]
    before = [state["w"].clone() for state in states]
    mean = average_states(state for state in states)  # read one at a time
    assert mean["w"].dtype == dtype
    assert_close(mean["w"], torch.stack(before).double().mean(0).to(dtype), rtol=1e-15, atol=0)
    assert torch.equal(mean["large"], states[0]["large"])  # the sum of three is beyond float16
    assert all(torch.equal(state["w"], kept) for state, kept in zip(states, before))


def test_muon_in_float32_goes_where_torchs_muon_goes():
    """torch iterates in bfloat16, whose rounding is all that may differ."""
    start, gradients = torch.randn(3, 12, 20), torch.randn(4, 3, 12, 20)
    ends = []
    for kind in (torch.optim.Muon, Float32Muon):
        parameters = [torch.nn.Parameter(start[0].clone()), torch.nn.Parameter(start[1].T.clone())]
        optimizer = kind(parameters, lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
        for gradient in gradients:
            parameters[0].grad, parameters[1].grad = gradient[0].clone(), gradient[1].T.clone()
            optimizer.step()
        assert set(optimizer.state[parameters[0]]) == {"momentum_buffer"}
        ends.append(parameters)
    for theirs, ours, begin in zip(*ends, (start[0], start[1].T)):
        assert (ours - theirs).norm() < 0.02 * (theirs - begin).norm()
