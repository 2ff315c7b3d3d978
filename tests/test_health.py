"""Warnings of a run that will come to nothing: neither too early, nor twice, nor lost by a restart."""

import dataclasses
import json

import pytest

from glassformer.training.health import HIGH, LONG, LOW, PATIENCE, Health


def observe(losses: list[float], norms: list[float], health: Health | None = None, first: int = 1) -> dict[int, list[str]]:
    """The warnings of a run, by update."""
    health = health or Health()
    found = {step: health.observe(step, *pair) for step, pair in enumerate(zip(losses, norms), first)}
    return {step: warnings for step, warnings in found.items() if warnings}


def falling(count: int) -> list[float]:
    return [5 - step / 1000 for step in range(count)]


def test_a_run_that_learns_is_left_in_peace():
    assert observe(falling(500), [1.0] * 500) == {}


@pytest.mark.parametrize("losses", [[3.0333505837815355] * 300, [3 + step / 100 for step in range(300)]], ids=["flat", "rising"])
def test_a_loss_that_does_not_fall_is_told_once(losses):
    # Twenty times the flat one and a twentieth of that is less than itself, if summed carelessly.
    found = observe(losses, [1.0] * 300)
    assert list(found) == [PATIENCE]
    assert found[PATIENCE][0].startswith(f"The loss has not fallen in {PATIENCE} updates (3")
    assert "check that source and target belong together, or change optimizer.lr." in found[PATIENCE][0]


def test_single_updates_do_not_decide_whether_the_loss_has_fallen():
    losses = falling(PATIENCE)
    losses[0], losses[-1] = losses[-1], losses[0]
    assert observe(losses, [1.0] * PATIENCE) == {}
    assert observe([0.1] + [3.0] * PATIENCE, [1.0] * PATIENCE).keys() == {PATIENCE}


@pytest.mark.parametrize(
    ("norm", "message"),
    [(2 * HIGH, "above 10 for 20 updates: lower optimizer.lr or warm up for longer."), (LOW / 2, "below 1e-06 for 20 updates")],
    ids=["high", "low"],
)
def test_gradients_are_judged_by_many_in_a_row(norm, message):
    nearly = [norm] * (LONG - 1) + [1.0]
    assert observe(falling(400), nearly * 20) == {}
    found = observe(falling(400), nearly + [norm] * LONG + nearly + [norm] * LONG)
    assert list(found) == [2 * LONG]  # the second time is not news
    assert message in found[2 * LONG][0]


@pytest.mark.parametrize("norm", [HIGH, LOW], ids=["high", "low"])
def test_limits_themselves_are_healthy(norm):
    assert observe(falling(100), [norm] * 100) == {}


@pytest.mark.parametrize("stop", [1, 25, PATIENCE - 1, PATIENCE])
def test_a_restart_changes_nothing(stop):
    losses, norms = [3.0] * 150, [1.0] * 10 + [50.0] * 40 + [0.0] * 100
    health = Health()
    found = observe(losses[:stop], norms[:stop], health)
    saved = json.loads(json.dumps(dataclasses.asdict(health)))  # as a checkpoint does
    found |= observe(losses[stop:], norms[stop:], Health(**saved), first=stop + 1)
    assert found == observe(losses, norms)
    assert list(found) == [30, 70, PATIENCE]


def test_little_is_remembered_of_a_long_run():
    health = Health()
    observe(falling(1000), [1.0] * 1000, health)
    assert len(health.first_losses) + len(health.last_losses) <= 2 * LONG
