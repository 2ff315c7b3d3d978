# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""`glassformer demo FOLDER --space OUT`: a folder that the Hub runs as a Space.

It holds the files of `space/`, the package itself, which then need not be had from anywhere, and the model, unless that is on the
Hub. Nothing else of a run goes along: no data, no logs, no paths.
"""

import importlib
import os
import shutil
from importlib.metadata import version
from pathlib import Path

import yaml
from huggingface_hub import SpaceCard

from glassformer.training.inference import NO_DATA, Trained, load_trained
from glassformer.training.recipe import BUILT_IN

from .demo import find_folder


PARTS = ("", ".analysis", ".configuration", ".hub_card", ".training")  # of the package, that the demo needs
NOT_COPIED = shutil.ignore_patterns("__pycache__", "benchmarks")
TEMPLATE = Path(__file__).parent / "space"


def write_space(model: str | Path, output: Path) -> Path:
    """The folder appears when it is complete."""
    if output.exists():
        raise ValueError(f"{output} is there already: remove it, or choose another name.")
    trained = load_trained(find_folder(model))  # which says what is wrong with a folder before anything is written
    unfinished = output.with_name(output.name + ".part")
    try:
        shutil.copytree(TEMPLATE, unfinished, ignore=NOT_COPIED, dirs_exist_ok=True)
        copy_package(unfinished)
        card = SpaceCard.load(unfinished / "README.md")
        card.data.title, card.data.sdk_version = Path(model).resolve().name, version("gradio")
        if Path(model).is_dir():
            copy_model(trained, unfinished / "model")
        else:
            card.data.models = [str(model)]
        card.save(unfinished / "README.md")
        os.replace(unfinished, output)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return output


def copy_package(folder: Path) -> None:
    for part in PARTS:
        [source] = importlib.import_module(f"glassformer{part}").__path__
        target = folder / "glassformer" / part.lstrip(".")
        shutil.copytree(source, target, ignore=NOT_COPIED, dirs_exist_ok=True)


def copy_model(trained: Trained, folder: Path) -> None:
    trained.model.save_pretrained(folder)
    objective = trained.objective
    objective.tokenizer.save_pretrained(folder)
    if objective.target_tokenizer is not objective.tokenizer:
        objective.target_tokenizer.save_pretrained(folder / "target_tokenizer")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(public_recipe(trained)), encoding="utf-8")


def public_recipe(trained: Trained) -> dict:
    """What answering depends on, without the places of data and runs."""
    recipe = trained.recipe.to_dict()
    is_ours = trained.recipe.data.source.startswith(BUILT_IN)
    names = ("max_length", "stride", *(("source", "columns") if is_ours else ()))
    data = {"source": NO_DATA, **{name: recipe["data"][name] for name in names if name in recipe["data"]}}
    return {"output": "model", "data": data, "objective": recipe["objective"]}
