# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The metadata of a card, as `huggingface_hub` reads it: what the Hub shows, filters and plots.

The results of our runs are made anew each time. Everything else is written where it is missing, and stays as it is where a
person has set it; so do results that come from elsewhere.
"""

import math
import re
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

from .facts import Facts
from .sections import LONGEST, question


RESULTS = "model-index"
MEASURED_BY = "measured_by"
WIDGETS = 3


def metadata(facts: Facts, show_rows: bool, example: str | None = None) -> ModelCardData:
    """All of it, for a new card."""
    found = ModelCardData(
        license=facts.card.get("license") or ("apache-2.0" if facts.is_generated else "unknown"),
        language=facts.languages or None,
        library_name="transformers",
        pipeline_tag=facts.task,
        datasets=facts.datasets or None,
        tags=["glassformer", *([facts.run["objective"]] if facts.run else [])],
        widget=widgets(facts, show_rows, example) or None,
        model_name=facts.name,
        eval_results=eval_results(facts) or None,
    )
    if not found.eval_results:
        found.pop("model_name")
    return found


def widgets(facts: Facts, show_rows: bool, example: str | None) -> list[dict[str, str]]:
    """Examples for the page of the model: the one that was given, unless it lacks a context, and the sample predictions."""
    given = [{"text": example}] if example and facts.task != "question-answering" else []
    short = [row for row in facts.samples if len(question(row)) <= LONGEST] if show_rows else []
    rows = [{"text": question(row), **({"context": row["context"]} if "context" in row else {})} for row in short]
    return [*given, *rows][:WIDGETS]


def eval_results(facts: Facts) -> list[EvalResult]:
    """Every figure of the run, with its split and protocol."""
    data, reference = facts.recipe.get("data", {}), facts.recipe.get("reference", {})
    version = facts.run.get("versions", {}).get("glassformer", "")
    found = []
    for split, values in facts.results.items():
        for name, value in values.items():
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                continue
            arguments = {
                MEASURED_BY: f"glassformer {version}".strip(),
                "seed": facts.run.get("seed"),
                "generation": facts.generation or None,
                "signature": values.get(f"{name}_signature"),
                "protocol": reference.get("protocol") if reference.get("result") == f"{split}.{name}" else None,
            }
            found.append(
                EvalResult(
                    task_type=facts.task,
                    dataset_type=facts.datasets[0] if facts.datasets else facts.name,
                    dataset_name=facts.recipe.get("description") or facts.name,
                    dataset_config=data.get("config"),
                    dataset_split=split,
                    metric_type=name,
                    metric_name=f"{name.replace('_', ' ')} ({split})",
                    metric_value=value,
                    metric_args={key: argument for key, argument in arguments.items() if argument is not None},
                )
            )
    return found


def refresh(text: str, facts: Facts, show_rows: bool, example: str | None = None) -> str:
    """The YAML of a card with missing keys added and our results replaced; not a line of anything else is touched."""
    before = yaml.safe_load(text) or {}
    if not isinstance(before, dict):
        raise ValueError("it is no list of `key: value`")
    wanted = metadata(facts, show_rows, example).to_dict()
    missing = {key: value for key, value in wanted.items() if key not in before and key != RESULTS}
    own, others = eval_results(facts), foreign_results(before.get(RESULTS))
    name = before[RESULTS][0]["name"] if before.get(RESULTS) else facts.name
    block = dump({RESULTS: eval_results_to_model_index(name, [*own, *others])}) if own or others else ""
    pattern = re.compile(rf"^{RESULTS}:.*\n(?:(?:[ \t-].*)?\n)*", re.MULTILINE)
    text = text if text.endswith("\n") or not text else f"{text}\n"
    added = dump(missing) if missing else ""
    return pattern.sub(lambda _: block, text) + added if RESULTS in before else text + added + block


def foreign_results(index: Any) -> list[EvalResult]:
    """Those that somebody else has measured."""
    results = model_index_to_eval_results(index)[1] if index else []
    return [one for one in results if not str((one.metric_args or {}).get(MEASURED_BY, "")).startswith("glassformer")]


def dump(content: dict[str, Any]) -> str:
    return yaml.safe_dump(without_none(content), sort_keys=False, allow_unicode=True, width=10**6)


def without_none(value: Any) -> Any:
    """As the Hub wants it: a key without a value is no key."""
    if isinstance(value, dict):
        return {key: without_none(inner) for key, inner in value.items() if inner is not None}
    return [without_none(inner) for inner in value] if isinstance(value, list) else value
