# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What the folder of a run says about its model: all that a card may tell. A folder without a run has a config and weights."""

import json
import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from glassformer.training.recipe import BUILT_IN

from .files import TARGET, FolderError, is_inside, read_config


TASKS = {  # the pipeline of a head
    "GlassformerModel": "feature-extraction",
    "GlassformerForConditionalGeneration": "text2text-generation",
    "GlassformerForCausalLM": "text-generation",
    "GlassformerForMaskedLM": "fill-mask",
    "GlassformerForSequenceClassification": "text-classification",
    "GlassformerForTokenClassification": "token-classification",
    "GlassformerForQuestionAnswering": "question-answering",
    "GlassformerForImageClassification": "image-classification",
}


@dataclass
class Facts:
    """Numbers and names as the run has left them; `run` is empty for a model that no run of ours has made."""

    folder: Path
    config: dict[str, Any]
    run: dict[str, Any] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # by split
    samples: list[dict[str, Any]] = field(default_factory=list)  # rows with predictions

    # The model

    @property
    def head(self) -> str:
        return self.config["architectures"][0]

    @property
    def auto_class(self) -> str:
        return next(auto for auto, target in self.config["auto_map"].items() if target.endswith(f".{self.head}"))

    @property
    def task(self) -> str:
        """What the Hub calls a pipeline."""
        task = TASKS[self.head]
        return self.card.get("task") or (f"image-{task}" if self.reads_pictures and task == "feature-extraction" else task)

    @property
    def reads_pictures(self) -> bool:
        return self.config.get("image_size") is not None

    @property
    def shape(self) -> str:
        layers = {side: self.config[f"num_{side}_layers"] for side in ("encoder", "decoder")}
        return "-".join(side for side, count in layers.items() if count)

    @cached_property
    def parameters(self) -> dict[str, int]:
        """Trained values of each part, counted in the files of the weights."""
        counts = dict.fromkeys(("embeddings", "encoder", "decoder", "head"), 0)
        if not (files := sorted(self.folder.glob("model*.safetensors"))):
            raise FolderError(f"{self.folder} has no weights that a card could tell of: give the folder of a saved model.")
        for file in files:
            try:
                with safe_open(file, "np") as tensors:
                    for name in tensors.keys():  # noqa: SIM118  (it is no dict)
                        counts[part_of(name)] += math.prod(tensors.get_slice(name).get_shape())
            except SafetensorError as error:
                raise FolderError(f"{file} is damaged or cut off ({error}): save the model again.") from None
        return {part: count for part, count in counts.items() if count}

    @property
    def mask_token(self) -> str:
        return read_json(self.folder, "tokenizer_config.json").get("mask_token", "")

    @property
    def writes_another_vocabulary(self) -> bool:
        return (self.folder / TARGET).is_dir()

    # The run

    @property
    def recipe(self) -> dict[str, Any]:
        return self.run.get("recipe", {})

    @property
    def card(self) -> dict[str, Any]:
        return self.recipe.get("card", {})

    @property
    def name(self) -> str:
        return self.recipe.get("name") or self.folder.resolve().name

    @property
    def source(self) -> str:
        return self.recipe.get("data", {}).get("source") or ""

    @property
    def is_generated(self) -> bool:
        """The data is made by glassformer: its rows are nobody's secret."""
        return self.source.startswith(BUILT_IN)

    @property
    def generation(self) -> dict[str, Any]:
        """How texts were written that were then judged."""
        writes = self.head == "GlassformerForConditionalGeneration"
        return self.recipe.get("evaluation", {}).get("generation", {}) if writes else {}

    @property
    def datasets(self) -> list[str]:
        """Ids on the Hub."""
        loaded = self.run.get("hub_dataset")
        return self.card.get("datasets") or ([loaded] if loaded else [])

    @property
    def languages(self) -> list[str]:
        """As the recipe says, or as its columns do where both sides have names like `en` and `translation.de`."""
        columns = self.recipe.get("data", {}).get("columns", {})
        names = [str(columns.get(side, "")).rpartition(".")[2] for side in ("source", "target")]
        return self.card.get("language") or (names if all(re.fullmatch("[a-z]{2}", name) for name in names) else [])


def part_of(name: str) -> str:
    if "embed_" in name or "position" in name:
        return "embeddings"
    return next((side for side in ("encoder", "decoder") if f"{side}." in name), "head")


def read_facts(folder: Path) -> Facts:
    config = read_config(folder)
    run = read_json(folder, "run.json")
    results = read_json(folder, "metrics.json") or run.get("metrics", {})
    return Facts(folder, config, run, results, read_lines(folder, "predictions.jsonl"))


def read_json(folder: Path, name: str) -> dict[str, Any]:
    return next(iter(read_lines(folder, name, apart=False)), {})


def read_lines(folder: Path, name: str, apart: bool = True) -> list[dict[str, Any]]:
    """JSON objects, one a line or one in all. What is not there, or elsewhere, says nothing."""
    file = folder / name
    if not file.is_file() or not is_inside(file, folder):
        return []
    try:
        text = file.read_text(encoding="utf-8")
        return [json.loads(part) for part in (text.split("\n") if apart else [text]) if part]
    except ValueError as error:
        raise FolderError(f"{file} is no JSON ({error}): put back what the run has written.") from None
