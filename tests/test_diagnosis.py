"""Curves with one thing wrong each, and curves with nothing wrong."""

import math
import random

import pytest

from glassformer.analysis import diagnose_curve


def curve(start: float, end: float, count: int = 60, noise: float = 0.01, seed: int = 0) -> list[float]:
    """Falls as losses do."""
    rng = random.Random(seed)
    return [end + (start - end) * math.exp(-5 * i / count) + rng.gauss(0, noise) for i in range(count)]


def names(*args, **options) -> list[str]:
    return [finding.name for finding in diagnose_curve(*args, **options)]


@pytest.mark.parametrize("seed", range(20))
def test_an_ordinary_curve_is_left_alone(seed):
    assert names(curve(9, 2, noise=0.05, seed=seed), curve(8, 2.4, 10, 0.01, seed), chance=9.0) == []


def test_a_curve_that_does_not_fall():
    [finding] = diagnose_curve(curve(9.0, 8.99), chance=9.0)
    assert finding.name == "flat" and "what a guess gets (9)" in finding.what
    assert names(curve(5.0, 5.0), chance=9.0) == ["flat"]


def test_a_curve_that_ends_in_nothing():
    assert names([*curve(9, 3)[:30], float("nan")]) == ["diverged"]
    assert names([*curve(9, 3)[:30], float("inf"), 2.0]) == ["diverged"]


def test_a_curve_that_rises():
    assert "diverging" in names([*curve(9, 3)[:20], *(3 + 0.4 * i for i in range(40))], chance=9.0)
    assert "diverging" in names([2 + 0.1 * i for i in range(40)])


def test_a_curve_with_a_jump():
    losses = curve(9, 2)
    losses[40] = 7.0
    assert names(losses) == ["spike"]
    assert "jumps 1 time," in diagnose_curve(losses)[0].what


def test_a_curve_that_goes_up_and_down():
    losses = [loss + (1.0 if i % 2 else -1.0) for i, loss in enumerate(curve(5, 3))]
    assert names(losses) == ["oscillating"]


def test_a_curve_that_is_learnt_by_heart():
    validation = [5.0, 4.0, 3.5, 3.4, 3.6, 3.9, 4.4]
    [finding] = diagnose_curve(curve(5, 1), validation)
    assert finding.name == "overfit" and "best at evaluation 4 of 7 (3.4) and is 4.4 now" in finding.what
    assert names(curve(5, 1), [5.0, 4.0, 3.5, 3.4, 3.45]) == []


def test_a_curve_that_knows_the_answers():
    assert names([9.0, 4.0, 0.5, *[0.01] * 40]) == ["too good to be true"]
    assert names([9.0, 4.0, 0.5, *[0.01] * 40], [3.0, 2.9, 2.8]) == []


def test_every_finding_has_a_cause_and_a_cure():
    for finding in diagnose_curve([9.0, float("nan")]):
        assert finding.cause.endswith(".") and finding.cure.endswith(".") and "Cure:" in str(finding)
    assert diagnose_curve([9.0, 8.0]) == []  # too short to say anything
