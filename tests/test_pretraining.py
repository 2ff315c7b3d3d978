"""Recipes that come one after the other, and recipes on a small scale."""

import dataclasses
import json

import pytest
import yaml
from recipes import TEXTS, keep_caches_in, task_recipe, tiny_recipe
from safetensors.torch import load_file

from glassformer.training.data import load_rows
from glassformer.training.loop import train
from glassformer.training.plan import describe_plan
from glassformer.training.recipe import Data, RecipeError, scaled


pytestmark = pytest.mark.filterwarnings("ignore:The texts support")


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    keep_caches_in(tmp_path / "caches", monkeypatch)


@pytest.fixture
def classifier(tmp_path):
    """A classifier whose recipe asks for a masked language model first."""
    first = task_recipe(tmp_path / "unused", "masked_lm", {"training.steps": 3, "evaluation.metrics": ["loss"]}).to_dict() | {
        "output": None
    }
    file = tmp_path / "first.yaml"
    file.write_text(yaml.safe_dump(first))
    changes = {"pretraining": str(file), "model": {}, "evaluation.metrics": ["accuracy"], "schedule.warmup_steps": 0}
    return task_recipe(tmp_path / "run", "sequence_classification", {**changes, "training.steps": 1})


def test_a_run_starts_from_the_model_of_its_pretraining(classifier, tmp_path):
    folder = train(classifier)
    first = tmp_path / "run" / "run-pretraining"
    assert json.loads((first / "run.json").read_text())["objective"] == "masked_lm"
    before, after = load_file(first / "model.safetensors"), load_file(folder / "model.safetensors")
    shared = [name for name in before if name in after and "layers" in name]
    assert len(shared) > 5
    distance = max(float((before[name] - after[name]).abs().max()) for name in shared)
    assert 0 < distance < 0.02  # one update away
    assert (first / "tokenizer.json").read_text() == (folder / "tokenizer.json").read_text()
    made = (first / "run.json").stat().st_mtime_ns
    assert train(classifier) == folder  # finished: neither is made again
    assert (first / "run.json").stat().st_mtime_ns == made


def test_a_baseline_is_as_large_but_starts_from_scratch(classifier, tmp_path):
    folder = train(dataclasses.replace(classifier, baseline="bert"))
    assert not (tmp_path / "run" / "run-pretraining").exists()
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["hidden_size"], config["num_hidden_layers"]) == ("bert", 16, 1)


def test_a_dry_run_tells_of_both(classifier):
    text = describe_plan(classifier)
    assert "name: masked_lm" in text and "starting from that model" in text and "name: sequence_classification" in text
    assert text.count("\nparameters ") == 2


def test_a_scale_shrinks_updates_intervals_and_rows(tmp_path):
    recipe = tiny_recipe(tmp_path / "run", {"scale": 0.1, "training.steps": 60, "schedule.warmup_steps": 30})
    small = scaled(recipe)
    assert (small.training.steps, small.schedule.warmup_steps, small.data.size) == (6, 3, 12)
    assert small.evaluation.every == small.checkpoints.every == 1  # never less
    assert recipe.training.steps == 60
    made = json.loads((train(recipe) / "run.json").read_text())
    assert made["updates"] == 6
    for scale in (0, 1.5):
        with pytest.raises(RecipeError, match="is not in"):
            tiny_recipe(tmp_path, {"scale": scale})


def test_a_share_of_the_rows_is_their_beginning(tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(f"{text} {n}" for n in range(20) for text in TEXTS))
    whole, part = (load_rows(Data(source=str(lines)), {"text": True}, share=share)["train"]["text"][:] for share in (1.0, 0.1))
    assert len(whole) == 160 and part == whole[:16]
    assert load_rows(Data(source=str(lines)), {"text": True}, share=0.001)["train"]["text"][:] == whole[:8]


def test_a_text_in_one_row_is_cut_by_characters(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("abcdefghij" * 10)
    data = Data(source=str(file), sample_by="document", splits={"train": "train[:77]", "validation": "train[77:]"})
    rows = load_rows(data, {"text": True})
    assert rows["train"]["text"][:] == [("abcdefghij" * 10)[:77]] and rows["validation"]["text"][:] == [("abcdefghij" * 10)[77:]]
    assert load_rows(data, {"text": True}, share=0.1)["train"]["text"][:] == ["abcdefgh"]


def test_a_role_may_have_another_column_in_each_split(tmp_path):
    for name, column in (("train", "sentence"), ("test", "text")):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({column: text, "n": 1}) + "\n" for text in TEXTS))
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "test")}
    rows = load_rows(Data(files=files, columns={"text": ["text", "sentence"]}), {"text": True})
    assert rows["train"]["text"][:] == rows["test"]["text"][:] == TEXTS


def test_parquet_files_of_one_split_may_differ_in_columns_that_nobody_needs(tmp_path):
    from datasets import Dataset

    Dataset.from_dict({"text": TEXTS, "label": [1] * len(TEXTS)}).to_parquet(tmp_path / "a.parquet")
    Dataset.from_dict({"text": TEXTS}).to_parquet(tmp_path / "b.parquet")
    files = {"train": [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]}
    assert load_rows(Data(files=files), {"text": True})["train"]["text"][:] == TEXTS * 2


def test_a_classifier_may_start_from_one_of_other_classes(tmp_path):
    """All but the output layer is taken over; a size that differs elsewhere is a mistake."""
    first = train(
        task_recipe(tmp_path / "first", "sequence_classification", {"training.steps": 3, "evaluation.metrics": ["accuracy"]})
    )
    changes = {
        "model": {"path": str(first)}, "data.labels": ["in", "ut", "new"], "training.steps": 1, "schedule.warmup_steps": 0,
        "evaluation.metrics": ["accuracy"],
    }  # fmt: skip
    folder = train(task_recipe(tmp_path / "second", "sequence_classification", changes))
    before, after = load_file(first / "model.safetensors"), load_file(folder / "model.safetensors")
    assert len(before["classifier.weight"]) == 2 and len(after["classifier.weight"]) == 3
    assert max(float((before[name] - after[name]).abs().max()) for name in before if "layers" in name) < 0.02
    changes["model"]["d_ff"] = 8
    with pytest.raises(RecipeError, match="in another size: leave out"):
        train(task_recipe(tmp_path / "third", "sequence_classification", changes))
