"""The whole look at the heads of a trained model: a page whose numbers are those of the model."""

import json

import pytest
from recipes import keep_caches_in, task_recipe

from glassformer.analysis.study import loss_on, prune_step_by_step, study_heads
from glassformer.training.inference import load_trained
from glassformer.training.loop import train


pytestmark = pytest.mark.filterwarnings("ignore:The texts support")


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    keep_caches_in(tmp_path / "caches", monkeypatch)


@pytest.mark.parametrize(("task", "kinds"), [("seq2seq", {"encoder", "decoder", "cross"}), ("causal_lm", {"decoder"})])
def test_a_study_of_a_small_run(task, kinds, tmp_path):
    changes = {"training.steps": 3, "data.validation_fraction": 0.25, "evaluation.metrics": ["loss"]}
    folder = train(task_recipe(tmp_path / "run", task, changes))
    study = study_heads(folder, tmp_path / "out", rows=5, judged_on=2)
    assert study.report.texts == 5 and {row["kind"] for row in study.report.rows} == kinds
    trained = load_trained(folder)
    assert study.prunings[0].loss == pytest.approx(loss_on(trained, 2)(trained.model))
    assert study.prunings[0].parameters == trained.model.num_parameters() > study.prunings[-1].parameters
    page = (tmp_path / "out" / "heads.md").read_text()
    assert all(f"## {kind}" in page for kind in kinds) and f"{study.prunings[-1].loss:.3f}" in page
    saved = json.loads((tmp_path / "out" / "heads.json").read_text())
    assert all("importance" in row and "cluster" in row for row in saved["heads"])
    assert all((tmp_path / "out" / name).stat().st_size > 5000 for name in ("heads.png", "heads-likeness.png", "pruning.png"))


def test_every_layer_keeps_a_head_however_unimportant(tmp_path):
    model = load_trained(train(task_recipe(tmp_path / "run", "causal_lm", {"evaluation.metrics": ["loss"]}))).model
    heads, layers = model.config.num_heads, model.config.num_decoder_layers
    importance = {("decoder", layer, head): layer + 0.1 * head for layer in range(layers) for head in range(heads)}
    prunings = prune_step_by_step(model, importance, lambda smaller: float(smaller.num_parameters()))
    assert prunings[-1].heads == min(round(0.75 * heads * layers), (heads - 1) * layers)
    assert model.config.pruned_heads is None  # a copy was pruned


def test_rows_that_are_no_texts_are_refused(tmp_path):
    folder = train(task_recipe(tmp_path / "run", "question_answering", {"evaluation.metrics": ["squad"]}))
    with pytest.raises(ValueError, match="not on question and context"):
        study_heads(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
