"""transformers' models in the place of ours: the same size, their own loss where they have one, the same batches."""

import json
import re

import pytest
import torch
from recipes import keep_caches_in, rows_of, task_recipe, tiny_recipe

from glassformer.benchmarks.baselines import BASELINES
from glassformer.training.loop import Training, train
from glassformer.training.recipe import RecipeError
from glassformer.training.task import build_model, prepare


pytestmark = pytest.mark.filterwarnings("ignore:The texts support")
TASK_OF = {"marian": "seq2seq", "gpt2": "causal_lm", "bert": "sequence_classification"}


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    keep_caches_in(tmp_path / "caches", monkeypatch)


METRIC_OF = {"marian": "exact_match", "gpt2": "loss", "bert": "accuracy"}


def recipe_for(folder, kind, baseline):
    return task_recipe(
        folder, TASK_OF[kind], {"baseline": baseline, "evaluation.metrics": [METRIC_OF[kind]], "data.validation_fraction": 0.25}
    )


@pytest.mark.parametrize("baseline", BASELINES)
def test_the_loss_is_the_librarys_own_where_nothing_is_smoothed(tmp_path, baseline):
    task = prepare(recipe_for(tmp_path / "run", baseline, baseline))
    model = build_model(task).eval()
    batch = task.objective.collate(list(task.encoded["train"]))
    batch = {name: tensor.long() for name, tensor in batch.items()}
    own = type(model).__mro__[2].forward  # of transformers' class
    with torch.no_grad():
        assert float(model(**batch, num_items_in_batch=None).loss) == pytest.approx(float(own(model, **batch).loss), rel=1e-5)


@pytest.mark.parametrize("baseline", BASELINES)
def test_the_layers_of_a_baseline_are_as_large_as_ours(tmp_path, baseline):
    sizes = []
    for number, name in enumerate((baseline, None)):
        model = build_model(prepare(recipe_for(tmp_path / str(number), baseline, name)))
        sizes.append(sum(p.numel() for path, p in model.named_parameters() if re.search(r"\.\d+\.", path)))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("baseline", BASELINES)
def test_a_baseline_learns_from_the_same_batches(tmp_path, baseline, monkeypatch):
    seen = {}
    original = Training.backward

    def backward(self, batch, *args, **kwargs):
        seen.setdefault(self.recipe.baseline, []).append({name: tensor.tolist() for name, tensor in batch.tensors.items()})
        return original(self, batch, *args, **kwargs)

    monkeypatch.setattr(Training, "backward", backward)
    for name in (baseline, None):
        folder = train(recipe_for(tmp_path / str(name), baseline, name))
        made = json.loads((folder / "run.json").read_text())
        assert made["updates"] == 6 and made["metrics"]["validation"]["loss"] > 0
    assert seen[baseline] == seen[None]


def test_a_baseline_for_another_objective_is_refused(tmp_path):
    assert rows_of("seq2seq")
    with pytest.raises(RecipeError, match="baseline=bert is a model for sequence_classification, not seq2seq"):
        tiny_recipe(tmp_path, {"baseline": "bert"})
    with pytest.raises(RecipeError, match=r"trained from scratch: drop model\.path"):
        tiny_recipe(tmp_path, {"baseline": "marian", "model": {"path": "runs/other"}})
