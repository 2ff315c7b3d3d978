# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""How to make a model again: the command that trains it and, for a recipe that does not come with the package, the recipe.

Paths of the machine that it was trained on are shortened to the names of files.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import yaml

from glassformer.training.recipe import SCALED, Recipe, load_recipe, recipe_names


LEAVES_NO_TRACE = ("name", "description", "output", "resume", "logging", "card", "reference")  # in what is learnt


def training_command(recipe: dict[str, Any]) -> str:
    """`glassformer train NAME key=value ...` with what differs from the recipe of that name, or the name of a file."""
    if not comes_along(recipe):
        return f"glassformer train {recipe['name']}.yaml"
    changes = flat(differences(public(as_asked(recipe)), public(load_recipe(recipe["name"]).to_dict())))
    overrides = [shlex.quote(f"{key}={as_yaml(value)}") for key, value in changes.items()]
    return " ".join(["glassformer train", recipe["name"], *overrides])


def recipe_text(recipe: dict[str, Any]) -> str:
    """The recipe as YAML, without what is usual; empty for those that come with the package."""
    if comes_along(recipe):
        return ""
    changes = differences(public(as_asked(recipe)), public(Recipe().to_dict()))
    return yaml.safe_dump(changes, sort_keys=False, allow_unicode=True)


def comes_along(recipe: dict[str, Any]) -> bool:
    """It is a recipe of the package, with values changed and added but none taken away, which no override can do."""
    return recipe["name"] in recipe_names() and covers(public(recipe), public(load_recipe(recipe["name"]).to_dict()))


def covers(now: Any, usual: Any) -> bool:
    if not isinstance(now, dict) or not isinstance(usual, dict):
        return True
    return all(key in now and covers(now[key], value) for key, value in usual.items())


def as_asked(recipe: dict[str, Any]) -> dict[str, Any]:
    """What leads to the recipe that a run has noted: numbers before `scale`, and no path to what its pretraining has made."""
    asked = {section: dict(values) if isinstance(values, dict) else values for section, values in recipe.items()}
    for key in SCALED:
        section, name = key.split(".")
        if value := asked[section][name]:
            asked[section][name] = round(value / recipe["scale"])
    if recipe["pretraining"]:
        asked["model"].pop("path", None)
    return asked


def public(recipe: dict[str, Any]) -> dict[str, Any]:
    """What decides the result, without paths."""
    kept = {key: value for key, value in recipe.items() if key not in LEAVES_NO_TRACE}
    kept["pretraining"] = kept["pretraining"] and file_name(kept["pretraining"])
    data = dict(kept["data"])
    data["source"] = file_name(data["source"])
    if data["files"]:
        data["files"] = {split: names_of(several) for split, several in data["files"].items()}
    model = {key: file_name(value) if key == "path" else value for key, value in kept["model"].items()}
    path = kept["tokenizer"]["path"]
    return {**kept, "data": data, "model": model, "tokenizer": {**kept["tokenizer"], "path": path and file_name(path)}}


def names_of(files: str | list[str]) -> str | list[str]:
    return file_name(files) if isinstance(files, str) else [file_name(one) for one in files]


def file_name(path: str) -> str:
    """A path that begins at a variable, or is an id of the Hub, tells nothing about the machine."""
    return Path(path).name if Path(path).is_absolute() or path.startswith(("~", ".")) else path


def differences(now: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in now.items():
        if isinstance(value, dict) and isinstance(usual.get(key), dict):
            value = differences(value, usual[key])
            if value:
                found[key] = value
        elif value != usual.get(key):
            found[key] = value
    return found


def flat(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        pairs |= flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return pairs


def as_yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
