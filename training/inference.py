# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""A trained model at work: load its folder, answer texts, measure it on other data."""

import copy
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

import glassformer

from .data import DataError, encode_rows, load_split
from .evaluation import evaluate_model, predict_rows
from .objectives import OBJECTIVES, Objective, SequenceClassification
from .recipe import Recipe, RecipeError, apply_override, parse_recipe
from .task import ENDLESS, data_of, fitting, load_tokenizer, max_length, set_numbering


# The objective of a folder without a recipe, by its head
NO_DATA = "unknown"
USUAL = {kind.head: name for name, kind in reversed(OBJECTIVES.items())}


@dataclass
class Trained:
    model: PreTrainedModel
    objective: Objective
    recipe: Recipe

    def predict(self, rows: list[dict[str, Any]], **generation: Any) -> list[Any]:
        """An answer to each row, as a person wants to see it."""
        options = {name: value for name, value in generation.items() if value is not None}
        predictions = predict_rows(self.model, self.objective, rows, options, self.recipe.evaluation.tokens)
        return [self.objective.readable(prediction) for prediction in predictions]

    def probabilities(self, rows: list[dict[str, Any]]) -> list[dict[str, float]]:
        """Of a classifier: how likely each class is, or each label by itself where a text may have several."""
        objective = self.objective
        if not isinstance(objective, SequenceClassification) or not objective.labels:
            raise ValueError("This model does not choose between classes, so there are no probabilities of them: use predict.")
        logits = objective.logits(self.model, objective.prompts(rows))  # [B, C]
        likely = logits.sigmoid() if objective.kind == "multi_label_classification" else logits.softmax(-1)
        return [dict(zip(objective.labels, row)) for row in likely.tolist()]

    def evaluate(self, source: str | None = None, split: str = "test") -> dict[str, Any]:
        """The recipe's metrics on a split of the recipe's data, or on another source."""
        if source is None and self.recipe.data.source == NO_DATA:
            raise DataError("This model came without a recipe, so its data is not known: pass some with --data.")
        data, block, objective = data_of(self.recipe), None, copy.copy(self.objective)
        if self.recipe.batching.packing:  # documents are laid end to end, however long
            block, objective.max_length = objective.max_length, ENDLESS
        rows = load_split(data, objective.roles, source, split, self.recipe.seed)
        set_numbering(objective, rows)
        encoded = encode_rows(rows, objective.encode, key=split, cache=None)
        encoded = fitting(encoded, split, "truncate", objective.max_length, data.incomplete)
        results, _ = evaluate_model(self.model, objective, rows, encoded, self.recipe.evaluation, block)
        return results

    def rows(self, inputs: Iterable[str | dict[str, Any]], context: str | None = None) -> list[dict[str, Any]]:
        """Texts, or objects (as such or as JSON) with a key for each role, as rows."""
        first, *others = [role for role in self.objective.roles if role not in ("target", "label", "tags", "answers")]
        if context is not None and "context" not in others:
            raise DataError("This model reads no context beside its inputs: leave it out.")
        rows = []
        for number, given in enumerate(inputs):
            row = self._as_row(number, given, first)
            if "context" in others:
                row.setdefault("context", context)
            for role in (first, *others):
                self._check_input(number, role, row.get(role))
            rows.append(row)
        if "text_pair" in others and len({"text_pair" in row for row in rows}) == 2:
            raise DataError("Some inputs have a text_pair and others have none: predict these apart.")
        return rows

    def _as_row(self, number: int, given: Any, first: str) -> dict[str, Any]:
        if not isinstance(given, (str, dict)):
            raise DataError(f"Input {number + 1} is of type {type(given).__name__}: give a text, or an object with its columns.")
        if isinstance(given, str):
            given = json.loads(given) if given.lstrip().startswith("{") and is_json(given) else {first: given}
        return {role: value for role, value in given.items() if value is not None}

    def _check_input(self, number: int, role: str, value: Any) -> None:
        if self.objective.roles[role] and not value:
            place = "pass one, or " if role == "context" else ""
            raise DataError(f'Input {number + 1} has no {role}: {place}write it as {{"{role}": "..."}}.')
        words = value if role == "tokens" and isinstance(value, list) else [] if value is None else [value]
        for word in words:
            if not isinstance(word, str):
                raise DataError(f"Input {number + 1} has a {role} of type {type(word).__name__}: write it in quotes.")
            if not is_unicode(word):
                raise DataError(f"Input {number + 1} has half a character (a lone surrogate) in its {role}: take it out.")


def is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):  # of brackets without end
        return False


def load_trained(folder: str | Path, overrides: Iterable[str] = (), int8: bool = False) -> Trained:
    """What training has left in a folder, in eight bits if asked; of another model's folder, what its config tells."""
    folder = Path(folder)
    if not (folder / "config.json").exists():
        unfinished = (folder / "checkpoints").exists()
        cure = "its training has not ended: start it again to go on" if unfinished else "give a folder that training has made"
        raise RecipeError(f"{folder} holds no model: {cure}.")
    config = AutoConfig.from_pretrained(folder)
    head = (config.architectures or ["checkpoint"])[0]
    if getattr(config, "image_size", None) is not None:
        raise RecipeError(f"{folder} holds a model that reads pictures, and this is for text: use a pipeline of transformers.")
    if head not in USUAL:
        raise RecipeError(f"{folder} holds a {head}, which is none of {', '.join(sorted(USUAL))}: give a finished model.")
    recipe = load_run_recipe(folder, config, overrides)
    device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    model = getattr(glassformer, head).from_pretrained(folder).to("cpu" if int8 else device).eval()
    model = glassformer.quantize_int8(model) if int8 else model
    target = folder / "target_tokenizer"
    objective = OBJECTIVES[recipe.objective.name](
        recipe.objective,
        load_tokenizer(str(folder)),
        max_length(recipe, config),
        target_tokenizer=load_tokenizer(str(target)) if target.exists() else None,
        labels=None if config.problem_type == "regression" else [config.id2label[i] for i in range(config.num_labels)],
        stride=min(recipe.data.stride, max_length(recipe, config) // 2),
    )
    return Trained(model, objective, recipe)


def load_run_recipe(folder: Path, config: PreTrainedConfig, overrides: Iterable[str]) -> Recipe:
    written = folder / "recipe.yaml"
    objective = {"name": USUAL[config.architectures[0]]}
    if config.problem_type:
        objective["problem_type"] = config.problem_type
    usual = {"output": str(folder), "data": {"source": NO_DATA}, "objective": objective}
    content = yaml.safe_load(written.read_text(encoding="utf-8")) if written.exists() else usual
    content.setdefault("batching", {"tokens": 8192})
    content.setdefault("training", {"steps": 1})
    for override in overrides:
        apply_override(content, override)
    return parse_recipe(content)
