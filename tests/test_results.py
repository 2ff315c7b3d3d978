"""Results: what the page says is what the runs say, no text of a foreign corpus is shown, and every recipe can be run small."""

import json
import os
import runpy
from pathlib import Path

import pytest

from glassformer.training.recipe import get_key, load_recipe, recipe_names


ROOT = Path(__file__).parents[1]
results = runpy.run_path(str(ROOT / "scripts" / "results.py"))
FIRST = {load_recipe(name).pretraining for name in recipe_names()}
PUBLISHED = sorted(path.stem for path in (ROOT / "docs" / "results").glob("*.json"))


@pytest.mark.parametrize("name", sorted(set(recipe_names()) - FIRST - {"dates"}))
def test_a_recipe_says_what_counts_and_what_others_have_reached(name):
    reference = load_recipe(name).reference
    split, _, metric = (reference.result or "").partition(".")
    assert split in ("validation", "test") and metric
    assert reference.protocol.endswith(".") and reference.published


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_page_holds_the_figures_of_the_runs(name):
    facts, recipe = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text()), load_recipe(name)
    page = (ROOT / "docs" / "results.md").read_text()
    assert results["row"](recipe, facts) in page and results["section"](recipe, facts) in page
    values = [get_key(one["metrics"], recipe.reference.result) for one in facts["runs"]["glassformer"]]
    assert len(values) == recipe.reference.seeds
    assert (ROOT / "docs" / "results" / f"{name}.png").stat().st_size < 100_000


def test_the_readme_holds_them_too():
    readme = (ROOT / "README.md").read_text()
    assert results["with_table"](readme) == readme
    assert all(f"| `{name}` |" in readme for name in PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_answers_to_foreign_rows_come_without_their_text(name):
    facts, recipe = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text()), load_recipe(name)
    if not recipe.data.source.startswith("builtin:"):
        assert all(set(sample) <= {"row", "right", "prediction", "label"} for sample in facts["samples"])


def test_mean_and_spread_are_over_the_seeds():
    recipe = load_recipe("trec")
    runs = [{"metrics": {"test": {"accuracy": value}}} for value in (0.5, 0.6, 0.7)]
    assert results["spread"](recipe, runs) == "0.6000 ± 0.1000"
    assert results["spread"](recipe, runs[:1]) == "0.5000"


def test_samples_are_right_and_wrong_ones(tmp_path):
    recipe = load_recipe("trec")
    rows = [{"text": f"secret\u2028{n}", "label": n % 6, "prediction": "ABBR"} for n in range(30)]
    (tmp_path / "config.json").write_text(json.dumps({"id2label": dict(enumerate(recipe.data.labels))}))
    (tmp_path / "predictions.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    samples = results["samples"](recipe, tmp_path)
    assert [sample["right"] for sample in samples] == [True] * 3 + [False] * 2
    assert samples[0] == {"row": 1, "right": True, "prediction": "ABBR", "label": "ABBR"}
    assert samples[3]["row"] == 2 and "secret" not in str(samples)


def test_labels_are_compared_by_the_names_that_the_model_has_for_them(tmp_path):
    """Which the recipe need not name, where the corpus does."""
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "neg", "1": "pos"}}))
    rows = [{"text": "", "label": label, "prediction": "pos"} for label in (0, 1)]
    (tmp_path / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    samples = results["samples"](load_recipe("imdb"), tmp_path)
    assert [(sample["label"], sample["right"]) for sample in samples] == [("pos", True), ("neg", False)]


def test_neither_prompts_nor_parts_of_texts_are_shown(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for name, row in {
        "wikitext2": {"text": "secret beginning", "prediction": "secret beginning and more"},
        "squad": {"context": "secret", "answers": {"text": ["secret"]}, "prediction": "secret"},
        "multi30k-en-de": {"source": "x", "target": "secret", "prediction": "secret"},
    }.items():
        own = {**row, "prediction": "own words"} if name == "multi30k-en-de" else row
        (tmp_path / "predictions.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(own)}\n")
        assert "secret" not in str(results["samples"](load_recipe(name), tmp_path))


@pytest.mark.slow
def test_every_recipe_runs_at_a_hundredth_of_its_size(capsys):
    if not os.environ.get("GLASSFORMER_DATA"):
        pytest.skip("GLASSFORMER_DATA is not set: it names the folder of the corpora")
    results["try_all"]()
    told = capsys.readouterr().out
    assert all(f"{name}, glassformer:" in told for name in set(recipe_names()) - FIRST)
