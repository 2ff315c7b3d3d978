"""Count the parameters of presets and recipes, collect what the recipes have reached, and write configuration/catalog.json:

    python scripts/catalog.py

`glassformer presets` and `glassformer recipes` list it without loading torch, also where docs/results is not installed.
"""

import json
import statistics
from pathlib import Path
from typing import Any

import glassformer
from glassformer import GlassformerConfig
from glassformer.training.catalog import CATALOG, PRESETS
from glassformer.training.estimate import parameter_count
from glassformer.training.objectives import OBJECTIVES
from glassformer.training.recipe import Recipe, get_key, load_recipe, pretraining_of, recipe_names


FACTS = Path(__file__).parents[1] / "docs" / "results"
LANGUAGE_MODELS = {
    "encoder-decoder": "GlassformerForConditionalGeneration",
    "encoder": "GlassformerForMaskedLM",
    "decoder": "GlassformerForCausalLM",
}


def make_catalog() -> dict[str, Any]:
    presets = [describe_preset(path.stem) for path in PRESETS.glob("*.json")]
    return {
        "presets": {one.pop("name"): one for one in sorted(presets, key=lambda one: one["parameters"])},
        "recipes": {name: describe_recipe(load_recipe(name)) for name in recipe_names()},
    }


def describe_preset(name: str) -> dict[str, Any]:
    """With the parameters of the model that predicts tokens."""
    config = GlassformerConfig.from_preset(name)
    return {
        "name": name,
        "shape": config.shape,
        "layers": f"{config.num_encoder_layers}+{config.num_decoder_layers}",
        "width": config.d_model,
        "positions": config.position_encoding,
        "parameters": parameter_count(config, getattr(glassformer, LANGUAGE_MODELS[config.shape])),
    }


def describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """Size and, where it has been measured, the mean over the seeds of the result that counts."""
    file = FACTS / f"{recipe.name}.json"
    if not file.exists():
        return {"parameters": count_parameters(recipe)}
    runs = json.loads(file.read_text())["runs"]["glassformer"]
    values = [get_key(run["metrics"], str(recipe.reference.result)) for run in runs]
    return {
        "parameters": runs[0]["parameters"],
        "result": statistics.fmean(values),
        "seeds": len(values),
        "seconds": statistics.fmean(run["seconds"] for run in runs),
    }


def count_parameters(recipe: Recipe) -> int:
    """As large as the tokenizer may become; a corpus with fewer words makes the model a little smaller."""
    first = pretraining_of(recipe) if recipe.pretraining else recipe
    fields = {"vocab_size": first.tokenizer.vocab_size, **first.model, **recipe.model}
    preset, labels = fields.pop("preset", None), recipe.data.labels
    if labels:
        fields["num_labels"] = len(labels)
    config = GlassformerConfig.from_preset(preset, **fields) if preset else GlassformerConfig(**fields)
    return parameter_count(config, getattr(glassformer, OBJECTIVES[recipe.objective.name].head))


if __name__ == "__main__":
    CATALOG.write_text(json.dumps(make_catalog(), indent=2) + "\n", encoding="utf-8")
    print(f"Written: {CATALOG}")
