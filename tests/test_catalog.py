"""What comes with the package is listed with sizes that were counted and results that were measured."""

import json
import runpy
from pathlib import Path

import pytest
from processes import run_python

import glassformer
from glassformer import GlassformerConfig
from glassformer.training import catalog
from glassformer.training.recipe import get_key, load_recipe, recipe_names


ROOT = Path(__file__).parents[1]
script = runpy.run_path(str(ROOT / "scripts" / "catalog.py"))


def cells(table: str) -> dict[str, list[str]]:
    """Rows by their first cell."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0].strip("`"): row[1:] for row in rows[2:]}


def test_the_catalog_is_up_to_date():
    assert catalog.read_catalog() == script["make_catalog"](), "run python scripts/catalog.py"


def test_every_preset_is_listed_smallest_first():
    rows = cells(catalog.describe_presets())
    assert sorted(rows) == sorted(path.stem for path in (ROOT / "configuration" / "presets").glob("*.json"))
    counts = [float(row[-1].removesuffix("M")) for row in rows.values()]
    assert counts == sorted(counts)
    config = GlassformerConfig.from_preset("tiny")
    model = glassformer.GlassformerForConditionalGeneration(config)
    assert rows["tiny"] == ["encoder-decoder", "2+2", "64", "sinusoidal", f"{model.num_parameters() / 1e6:.1f}M"]


def test_the_paper_says_65_and_213_million():
    """Table 3, whose rounding and joint vocabulary of 37000 tokens leave a few per cent."""
    presets = catalog.read_catalog()["presets"]
    assert presets["paper-base"]["parameters"] == pytest.approx(65e6, rel=0.05)
    assert presets["paper-big"]["parameters"] == pytest.approx(213e6, rel=0.05)


def test_every_recipe_is_listed_with_its_goal():
    rows = cells(catalog.describe_recipes())
    assert list(rows) == recipe_names()
    for name, (trains, parameters, result, _, goal) in rows.items():
        reference = load_recipe(name).reference
        assert trains == load_recipe(name).description and float(parameters.removesuffix("M")) > 0
        assert result == (reference.result or "") and goal == ("" if reference.goal is None else f"{reference.goal:g}")


@pytest.mark.parametrize("name", recipe_names())
def test_what_a_recipe_has_reached_is_what_its_runs_say(name):
    file, reached = ROOT / "docs" / "results" / f"{name}.json", cells(catalog.describe_recipes())[name][3]
    if not file.exists():
        assert reached == ""
        return
    runs = json.loads(file.read_text())["runs"]["glassformer"]
    values = [get_key(run["metrics"], load_recipe(name).reference.result) for run in runs]
    mean = sum(values) / len(values)
    assert float(reached.split(",")[0]) == pytest.approx(mean, abs=0.005 if abs(mean) >= 10 else 0.00005)


def test_listing_loads_neither_torch_nor_transformers(tmp_path):
    code = (
        "import sys; from glassformer.training.catalog import describe_presets, describe_recipes\n"
        "describe_presets(); describe_recipes(); print({'torch', 'transformers'} & set(sys.modules) or 'neither')"
    )
    assert run_python(code, tmp_path).strip() == "neither"
