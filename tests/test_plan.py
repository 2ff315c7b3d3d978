"""The dry run: what it says is held against the model, the batches and the arithmetic of a case small enough to do by hand."""

import sys

import pytest
import torch
import yaml
from datasets import Dataset, DatasetDict
from recipes import tiny_recipe

from glassformer import GlassformerForConditionalGeneration
from glassformer.training import plan
from glassformer.training.devices import chosen_device
from glassformer.training.estimate import estimate_memory, readable_bytes, readable_time, training_flops
from glassformer.training.plan import check_run, describe_plan
from glassformer.training.recipe import RecipeError, parse_recipe
from glassformer.training.task import build_model, prepare


RATE = 1e6  # FLOP/s, so slow that a tiny run takes minutes
EXAMPLES, SOURCE, TARGET = 8, 5, 4  # of a batch; lengths with the end mark
SHAPES = {
    "causal_lm": {"objective.name": "causal_lm", "model.num_encoder_layers": 0, "batching.packing": True},
    "masked_lm": {"objective.name": "masked_lm", "model.num_decoder_layers": 0},
    "seq2seq": {"model.tie_word_embeddings": False},
    "classification": {"objective.name": "sequence_classification", "model.num_decoder_layers": 0},
}


@pytest.fixture
def small_recipe(tmp_path, monkeypatch):
    """A recipe whose rows all have four and three words; `words` are those of the second half of them."""
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(plan, "matmul_rate", lambda device: RATE)

    def make(overrides=None, words: int = 4, splits=("train", "validation")):
        texts = ["a b c d"] * 10 + [" ".join("abcd"[:words])] * 10
        rows = {"source": texts, "target": ["d c b"] * 20, "text": texts, "label": ["odd", "even"] * 10}
        DatasetDict({split: Dataset.from_dict(rows) for split in splits}).save_to_disk(tmp_path / "rows")
        small = {
            "data": {"source": str(tmp_path / "rows")},
            "tokenizer": {"kind": "word", "vocab_size": 9, "min_frequency": 1},
            "batching": {"examples": EXAMPLES},
            "evaluation": {},
        }
        return tiny_recipe(tmp_path / "run", {**small, **(overrides or {})})

    return make


def lines_of(recipe) -> dict[str, str]:
    """What follows the recipe, by the word in front."""
    text = describe_plan(recipe)
    assert text.startswith(recipe.to_yaml())
    return {line[:18].strip(): line[18:] for line in text.removeprefix(recipe.to_yaml()).strip().splitlines()}


def test_everything_is_told_of_a_run_that_can_be_done_by_hand(small_recipe):
    recipe = small_recipe()
    task, lines = prepare(recipe), lines_of(recipe)
    shape = (task.config, GlassformerForConditionalGeneration, EXAMPLES, SOURCE, TARGET)
    assert lines["rows"] == "train 20, validation 20"
    assert lines["vocabulary"] == "9 tokens"
    assert lines["updates"] == "6"
    assert lines["tokens an update"] == "60 for each process, 0.0% padding"  # 20 rows x 9 tokens in 3 batches
    assert lines["memory"].startswith(f"about {readable_bytes(estimate_memory(*shape)['total'])} for each process (weights ")
    smaller = (*shape[:2], 20 - 2 * EXAMPLES, SOURCE, TARGET)
    epoch = 2 * training_flops(*shape) + training_flops(*smaller)
    assert lines["time"].startswith(f"about {readable_time(2 * epoch / (RATE / 2))} of updates in one process, at 50% of the ")
    assert not recipe.folder.exists()


@pytest.mark.parametrize("shape", SHAPES)
def test_parameters_are_those_of_the_model(small_recipe, shape):
    recipe = small_recipe(SHAPES[shape])
    assert lines_of(recipe)["parameters"] == f"{build_model(prepare(recipe)).num_parameters():,}"


def test_the_recipe_in_the_text_is_the_recipe(small_recipe):
    recipe = small_recipe()
    written = describe_plan(recipe).partition("\nrows  ")[0]
    assert parse_recipe(yaml.safe_load(written)) == recipe


def test_padding_is_counted(small_recipe):
    lines = lines_of(small_recipe({"batching": {"examples": 20}}, words=1))
    assert lines["tokens an update"] == "150 for each process, 16.7% padding"  # 10 x (5 + 4) + 10 x (2 + 4) of 20 x (5 + 4)


def test_several_batches_make_one_update(small_recipe):
    limits = {"training": {"epochs": 3}, "batching": {"examples": 5, "accumulation": 2}}
    lines = lines_of(small_recipe(limits))
    assert lines["updates"] == "6"  # of 4 batches an epoch
    assert lines["tokens an update"] == "90 for each process, 0.0% padding"


def test_the_first_limit_ends_the_run(small_recipe):
    assert lines_of(small_recipe({"training": {"epochs": 1, "steps": 50}}))["updates"] == "3"
    assert lines_of(small_recipe({"training": {"epochs": 50, "steps": 5}}))["updates"] == "5"


def test_a_run_by_the_clock_has_no_known_number_of_updates(small_recipe):
    lines = lines_of(small_recipe({"training": {"minutes": 1}, "schedule.name": "noam"}))
    assert lines["updates"] == "until the time is up"
    assert "memory" in lines
    assert "time" not in lines


@pytest.mark.parametrize("splits", [("train", "validation"), ("train",)], ids=["with-validation", "alone"])
def test_rows_of_a_stream_are_not_counted(small_recipe, splits):
    lines = lines_of(small_recipe({"data.streaming": True}, splits=splits))
    assert lines["rows"] == ", ".join(["train a stream", "validation 20"][: len(splits)])
    assert lines["updates"] == "6"
    assert lines["tokens an update"] == "60 for each process, 0.0% padding"
    assert "time" in lines


@pytest.mark.parametrize("name", ["adamw", "adafactor", "muon", "lamb", "sophia"])
def test_every_optimizer_can_be_planned_for(small_recipe, name):
    assert "optimizer" in lines_of(small_recipe({"optimizer.name": name}))["memory"]


REFUSALS = {
    "schedule.name=cosine must know where the run ends": {"training": {"minutes": 1}},
    "schedule.warmup_steps=6 leaves nothing of a run of 6 updates": {"schedule.warmup_steps": 6},
    "The metric mse cannot judge this objective": {"evaluation.metrics": ["mse"]},
}


@pytest.mark.parametrize("message", REFUSALS)
def test_what_a_run_would_refuse_the_plan_refuses_too(small_recipe, message):
    with pytest.raises(RecipeError, match=message):
        describe_plan(small_recipe(REFUSALS[message]))


def test_a_missing_package_is_told_before_the_run(small_recipe, monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(RecipeError, match="comes from the package pytorch-optimizer"):
        describe_plan(small_recipe({"optimizer.name": "lamb"}))


def test_training_rows_that_are_none_are_refused(small_recipe):
    with pytest.raises(RecipeError, match="The training data has no rows"):
        check_run(prepare(small_recipe()), [], 6)


@pytest.mark.parametrize("is_there, use_cpu, device", [(True, "", "cuda"), (False, "", "cpu"), (True, "true", "cpu")])
def test_a_gpu_is_chosen_if_it_is_there_and_the_environment_does_not_say_otherwise(is_there, use_cpu, device, monkeypatch):
    def built_for_cuda(check_available=False):  # named on machines without one too, unless asked whether it is there
        return torch.device("cuda") if is_there or not check_available else None

    monkeypatch.setattr(torch.accelerator, "current_accelerator", built_for_cuda)
    monkeypatch.setenv("ACCELERATE_USE_CPU", use_cpu or "false")
    assert chosen_device() == torch.device(device)
