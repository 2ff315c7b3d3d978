"""Real training processes that are killed at any moment end like one that was left in peace."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from recipes import tiny_recipe
from test_training import EVERYTHING, assert_same_run


OPTIONS = {**EVERYTHING, "training.steps": 96, "evaluation.every": 32, "checkpoints.every": 4, "checkpoints.final": "average",
           "checkpoints.average": 3}  # fmt: skip


def write_recipe(folder: Path, **overrides) -> str:
    folder.mkdir()
    path = folder / "recipe.yaml"
    path.write_text(tiny_recipe(folder / "run", {**OPTIONS, **overrides}).to_yaml())
    return str(path)


def run_jobs(folder: Path, jobs: list[dict]) -> list[dict]:
    (folder / "jobs.json").write_text(json.dumps(jobs))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLASSFORMER_CACHE": str(folder / "cache")}
    command = [sys.executable, str(Path(__file__).with_name("nursery.py")), str(folder / "jobs.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def random_kills(count: int) -> list[list]:
    moments = random.Random(count)
    return [["SIGKILL", moments.choice([f"after {moments.randint(1, 2)}", moments.uniform(0.1, 0.5)])] for _ in range(count)]


def compare_with_peace(folder: Path, wars: dict[str, list[list]], **overrides) -> dict[str, dict]:
    """Runs that get these signals, beside one that gets none -> what became of them."""
    signals = {"peace": [], **wars}
    jobs = [{"recipe": write_recipe(folder / name, **overrides), "signals": several} for name, several in signals.items()]
    results = dict(zip(["peace", *wars], run_jobs(folder, jobs)))
    for name, result in results.items():
        assert result["codes"][-1] == 0, result["output"]
        assert_same_run(folder / "peace" / "run", folder / name / "run")
    return results


@pytest.fixture(scope="module")
def wars(tmp_path_factory):
    signals = {"SIGKILL": random_kills(3), "SIGTERM": [["SIGTERM", "after 1"]], "SIGINT": [["SIGINT", "after 1"]]}
    return compare_with_peace(tmp_path_factory.mktemp("wars"), signals)


def test_a_process_that_is_killed_at_random_moments_ends_the_same(wars):
    assert wars["SIGKILL"]["codes"][:-1] == [-signal.SIGKILL] * 3


@pytest.mark.slow
def test_so_does_one_that_is_killed_twenty_times(tmp_path):
    result = compare_with_peace(tmp_path, {"killed": random_kills(20)}, **{"training.steps": 800, "evaluation.every": 200})[
        "killed"
    ]
    assert result["codes"][:-1] == [-signal.SIGKILL] * 20


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_process_that_is_told_to_stop_saves_and_says_how_to_go_on(name, wars):
    assert wars[name]["codes"] == [128 + getattr(signal, name), 0]
    assert f"Stopped by {name} after update" in wars[name]["output"]
    assert "everything is saved in" in wars[name]["output"] and "Start the same command again to go on" in wars[name]["output"]
