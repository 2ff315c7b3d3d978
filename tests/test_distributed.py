"""Two processes learn what one learns: replicas (DDP), shares (FSDP2), and split matrices (tensor parallelism), on CPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from models import tiny_language_model
from recipes import tiny_recipe
from safetensors.torch import load_file
from test_training import assert_same_run, read_log
from workers import SHARED, SHARP

from glassformer.training.loop import train
from glassformer.training.recipe import RecipeError


LAUNCH_FILES = Path(__file__).parent.parent / "configuration" / "accelerate"
WORKERS = Path(__file__).with_name("workers.py")


def launch(folder: Path, *command: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLASSFORMER_CACHE": str(folder / "cache")}
    done = subprocess.run([sys.executable, "-m", *command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process that takes both processes' batches for every update."""
    folder = tmp_path_factory.mktemp("alone")
    os.environ["GLASSFORMER_CACHE"] = str(folder / "cache")
    for name, options in (("whole", SHARED), ("sharp", SHARP)):
        train(tiny_recipe(folder / name, {**options, "batching.accumulation": 2}))
    return folder


@pytest.fixture(scope="module", params=["cpu-two-processes", "fsdp2-cpu"])
def together(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    file = str(LAUNCH_FILES / f"{request.param}.yaml")
    rows = [{"source": "abcdefgh"[: 1 + i % 7], "target": "abcdefgh"[i % 5 :]} for i in range(41)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    launch(folder, "accelerate.commands.launch", "--config_file", file, str(WORKERS), str(folder))
    return folder


@pytest.mark.parametrize("run", ["whole", "sharp"])  # with label smoothing and without
def test_two_processes_learn_what_one_learns(alone, together, run):
    """Dropout is on, and the last update of an epoch leaves one process without a batch."""
    tolerance = 1e-5 if "fsdp" in together.name else 1e-6
    weights, others = load_file(alone / run / "model.safetensors"), load_file(together / run / "model.safetensors")
    for name, tensor in weights.items():
        torch.testing.assert_close(others[name], tensor, rtol=0, atol=tolerance, msg=name)
    for line, other in zip(read_log(alone / run), read_log(together / run), strict=True):
        assert line.get("tokens") == other.get("tokens")
        assert line.get("loss") == pytest.approx(other.get("loss"), abs=1e-5)
        assert line.get("validation", {}) == pytest.approx(other.get("validation", {}), abs=1e-5)


@pytest.mark.parametrize("run, stopped", [("whole", "stopped"), ("stream", "stopped-stream")])
def test_two_processes_go_on_exactly_where_they_were_stopped(together, run, stopped):
    assert_same_run(together / run, together / stopped)


def test_a_run_of_two_processes_is_not_gone_on_with_by_one(together):
    (together / "whole" / "run.json").unlink()
    with pytest.raises(RecipeError, match="was trained by 2 processes, now there are 1: launch as many"):
        train(tiny_recipe(together / "whole", SHARED))


def test_tensor_parallelism_gives_the_logits_of_one_process(tmp_path):
    model = tiny_language_model("encoder-decoder", vocab_size=32, tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "model")
    launch(tmp_path, "torch.distributed.run", "--nproc_per_node=2", str(WORKERS), "tensor-parallel", str(tmp_path))
    ids = torch.arange(5, 19).view(2, 7)
    with torch.no_grad():
        expected = model(input_ids=ids, labels=ids).logits
    result = json.loads((tmp_path / "logits.json").read_text())
    torch.testing.assert_close(torch.tensor(result["logits"]), expected, rtol=0, atol=1e-5)
    assert result["weight"] == "DTensor" or "Parameter" in result["weight"]
