"""Hooks as a part of a run: what they write is what the run itself knows, and the run does not notice."""

import dataclasses
import json

import pytest
from recipes import keep_caches_in, task_recipe
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from glassformer.analysis.doctor import look_at_updates
from glassformer.analysis.inside import layer_of
from glassformer.training.logs import read_log
from glassformer.training.loop import train


pytestmark = pytest.mark.filterwarnings("ignore:The texts support")


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    keep_caches_in(tmp_path / "caches", monkeypatch)


def test_what_is_written_during_a_run(tmp_path):
    """The norms of the layers make up the norm that the run has clipped; losses are those of a run that nobody watched."""
    options = {"training.steps": 4, "logging.every": 1, "schedule.warmup_steps": 0, "logging.tensorboard": True}
    recipe = task_recipe(tmp_path / "watched", "seq2seq", {**options, "logging.inside": 2})
    folder = train(recipe)
    records = read_log(folder / "log.jsonl")
    inside = {record["step"]: record["inside"] for record in records if "inside" in record}
    norms = {record["step"]: record["gradient_norm"] for record in records if "gradient_norm" in record}
    assert list(inside) == [2, 4]
    for step, found in inside.items():
        assert {"encoder.layers.0", "decoder.layers.0", "embeddings and output"} <= found["gradient"].keys()
        assert sum(norm**2 for norm in found["gradient"].values()) ** 0.5 == pytest.approx(norms[step], rel=1e-4)
        assert all(0 < ratio < 1 for ratio in found["update"].values())
        assert found["activation"].keys() == {"encoder.layers.0", "decoder.layers.0"}
        heads = range(json.loads((folder / "config.json").read_text())["num_heads"])
        assert found["entropy"].keys() == {f"{kind}.0.{head}" for kind in ("encoder", "decoder", "cross") for head in heads}
        assert all(0 <= share <= 1.0001 for share in found["entropy"].values())
    [events] = folder.rglob("events.out.tfevents.*")
    accumulator = EventAccumulator(str(events.parent))
    accumulator.Reload()
    scalars = accumulator.Scalars("inside/gradient/encoder.layers.0")
    assert [scalar.value for scalar in scalars] == pytest.approx(
        [inside[step]["gradient"]["encoder.layers.0"] for step in (2, 4)]
    )
    unwatched = train(task_recipe(tmp_path / "unwatched", "seq2seq", options))
    losses = [[r["loss"] for r in read_log(run / "log.jsonl") if "loss" in r] for run in (folder, unwatched)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)  # kernels round by where tensors lie in memory


def test_packed_rows_have_no_entropies_of_heads(tmp_path):
    options = {"training.steps": 2, "logging.inside": 1, "batching.packing": True, "evaluation.metrics": ["loss"]}
    folder = train(task_recipe(tmp_path, "causal_lm", {**options, "schedule.warmup_steps": 0}))
    found = [record["inside"] for record in read_log(folder / "log.jsonl") if "inside" in record]
    assert len(found) == 2 and all(record["entropy"] == {} and record["gradient"] for record in found)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.encoder.layers.0.self_attn.q_proj.weight", "encoder.layers.0"),
        ("transformer.h.11.attn.c_attn.bias", "h.11"),
        ("bert.encoder.layer.3.output.dense.weight", "encoder.layer.3"),
        ("decoder.block.1.layer.0.SelfAttention.q.weight", "decoder.block.1"),
        ("lm_head.weight", None),
    ],
)
def test_layers_by_the_names_of_families(name, layer):
    assert layer_of(name) == layer


def test_updates_that_are_too_large_or_too_small():
    usual = {"encoder.layers.0": 1e-3}
    assert not list(look_at_updates([])) and not list(look_at_updates([{"encoder.layers.0": 0.5}, usual]))
    found = list(look_at_updates([usual, {"encoder.layers.0": 0.5, "encoder.layers.1": 1e-9}]))
    assert [finding.name for finding in found] == ["large updates", "small updates"]
    assert all(dataclasses.asdict(finding)["cure"] for finding in found)
