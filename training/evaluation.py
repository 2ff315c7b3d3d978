# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""How good a model is: its loss on encoded rows, and metrics on what it predicts for raw ones."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel

from glassformer.checks import IGNORED

from . import metrics
from .batching import Loader, Position, TableSource, plan_batches
from .objectives import CausalLM, Objective, Seq2Seq
from .recipe import Batching, Evaluation, RecipeError


FROM_LOSS = ("loss", "perplexity", "word_perplexity", "token_accuracy")  # known without predicting anything

# What heads predict and what it is compared with, in the terms of `metrics.Measure.inputs`
ANSWERS: dict[str, tuple[Any, Any]] = {
    "GlassformerForConditionalGeneration": ("string", "string"),
    "GlassformerForTokenClassification": (["string"], ["string"]),
    "GlassformerForQuestionAnswering": ("string", ["string"]),
    "single_label_classification": ("int64", "int64"),
    "multi_label_classification": (["int64"], ["int64"]),
    "regression": ("float64", "float64"),
}


@dataclass
class Group:
    """The processes that share an evaluation: each takes its part, `gather` joins the lists of all."""

    rank: int = 0
    world: int = 1
    gather: Callable[[list], list] = list


ALONE = Group()


def evaluation_group(accelerator: Accelerator) -> Group:
    return Group(accelerator.process_index, accelerator.num_processes, gather_object)


def check_metrics(objective: Objective, names: Sequence[str]) -> None:
    """Known names, and such that the objective has something to show for them."""
    suitable = suitable_metrics(objective)
    for name in names:
        if name not in FROM_LOSS and name not in metrics.METRICS:
            raise RecipeError(f"There is no metric {name!r}: {metrics.suggest(name, {*metrics.METRICS, *FROM_LOSS})}")
        if name not in suitable:
            raise RecipeError(f"The metric {name} cannot judge this objective: choose from {', '.join(suitable)}.")
        if name not in FROM_LOSS:
            metrics.load(name)  # says at once which package is missing


def suitable_metrics(objective: Objective) -> list[str]:
    if not objective.predictions_are_compared:
        return [name for name in FROM_LOSS if name != "word_perplexity" or isinstance(objective, CausalLM)]
    forms = ANSWERS[getattr(objective, "kind", objective.head)]
    return ["loss", "perplexity", *(name for name, measure in metrics.METRICS.items() if forms in measure.inputs)]


def evaluate_model(
    model: PreTrainedModel,
    objective: Objective,
    rows: Sequence[dict[str, Any]],
    encoded: Dataset,
    options: Evaluation,
    block_size: int | None = None,
    group: Group = ALONE,
) -> tuple[dict[str, Any], list[Any]]:
    """Results by key, and the predictions if a metric asked for them. Label smoothing and dropout are off."""
    names = options.metrics or list(objective.metrics)
    check_metrics(objective, names)
    was_training = model.training
    model.eval()
    try:
        results, total = evaluate_loss(model, objective, encoded, options, names, block_size, group)
        if "word_perplexity" in names:
            results["word_perplexity"] = perplexity_of(total, sum(count_words(row["text"]) for row in rows))
        predictions: list[Any] = []
        if objective.predictions_are_compared and set(names) - {"loss", "perplexity"}:
            predictions = predict_rows(model, objective, rows, options.generation, options.tokens, group)
            references = [objective.reference(row) for row in rows]
            results |= score(objective, names, predictions, references, options.metric_options)
    finally:
        model.train(was_training)
    return results, predictions


def evaluate_loss(
    model: PreTrainedModel,
    objective: Objective,
    encoded: Dataset,
    options: Evaluation,
    names: Sequence[str],
    block_size: int | None,
    group: Group,
) -> tuple[dict[str, float], float]:
    """The mean over all labels of all rows, whatever the batches; and the sum."""
    from_logits = "token_accuracy" in names and not objective.predictions_are_compared
    loss_options = {} if from_logits else objective.loss_options
    sums = np.zeros(3)  # loss, labels, right guesses
    for tensors in evaluation_batches(objective, encoded, options, block_size, group):
        tensors = {name: tensor.to(model.device) for name, tensor in tensors.items()}
        with torch.no_grad():
            outputs = model(**tensors, num_items_in_batch=1, use_cache=False, **loss_options)
        right = right_guesses(objective, outputs.logits, tensors["labels"]) if from_logits else 0
        sums += [outputs.loss.item(), objective.num_items(tensors), right]
    total, count, right = np.sum(group.gather([sums]), axis=0).tolist()
    if not count:
        raise ValueError("The rows to evaluate on ask for no token at all: give longer texts.")
    results = {"loss": total / count}
    if "perplexity" in names:
        results["perplexity"] = perplexity_of(total, int(count))
    if from_logits:
        results["token_accuracy"] = right / count
    return results, total


def perplexity_of(total: float, count: int) -> float:
    return metrics.load("perplexity").compute(predictions=[total], references=[count])["perplexity"]


def count_words(text: str) -> int:
    """What lies between white space, and the end of each line, the last one included: how word-level corpora are counted."""
    return len(text.split()) + text.count("\n") + (not text.endswith("\n"))


def evaluation_batches(
    objective: Objective, encoded: Dataset, options: Evaluation, block_size: int | None, group: Group
) -> Iterator[dict[str, Tensor]]:
    """This process' share, longest first; noise is the same every time."""
    longest = block_size or max(encoded["length"], default=1)
    batching = Batching(tokens=max(options.tokens, longest))
    overlap = min(options.overlap, longest - 1) if isinstance(objective, CausalLM) else 0
    source = TableSource(encoded, batching, seed=0, block_size=block_size, shuffle=False, overlap=overlap)
    for batches, _ in Loader(source, objective.collate, batching, group.rank, group.world).updates(Position()):
        yield from (batch.tensors for batch in batches if batch.counts)


def right_guesses(objective: Objective, logits: Tensor, labels: Tensor) -> int:
    if isinstance(objective, CausalLM):
        logits, labels = logits[:, :-1], labels[:, 1:]
    return int(((logits.argmax(-1) == labels) & (labels != IGNORED)).sum())


def predict_rows(
    model: PreTrainedModel,
    objective: Objective,
    rows: Sequence[dict[str, Any]],
    generation: dict[str, Any],
    tokens: int = 8192,
    group: Group = ALONE,
) -> list[Any]:
    """What the model answers to each row. Rows of like length share a batch, longest first; answers come in the rows' order."""
    features = objective.prompts(list(rows)) if len(rows) else []
    lengths = np.array([len(feature["input_ids"]) for feature in features])
    if not lengths.all():
        row = features[int(lengths.argmin())]["row"]
        raise ValueError(f"Row {row + 1} has no tokens: give it a text.")
    batching = Batching(tokens=max(tokens, int(lengths.max(initial=1))))
    found = []
    for numbers in plan_batches(lengths, batching)[group.rank :: group.world]:
        answers = objective.predict(model, [features[number] for number in numbers], generation)
        found += list(zip(numbers.tolist(), answers))
    by_row: dict[int, list[Any]] = defaultdict(list)
    for number, answer in sorted(group.gather(found), key=lambda pair: pair[0]):
        by_row[features[number]["row"]].append(answer)
    return [objective.combine(by_row[row]) for row in range(len(rows))]


def score(
    objective: Objective,
    names: Sequence[str],
    predictions: list[Any],
    references: list[Any],
    options: dict[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name in names:
        if name in ("loss", "perplexity"):
            continue
        found, asked = predictions, references
        if name == "token_accuracy" and isinstance(objective, Seq2Seq):
            found, asked = ([objective.target_ids(text) for text in texts] for texts in (predictions, references))
        results |= metrics.load(name).compute(predictions=found, references=asked, **(options or {}).get(name, {}))
    return results


def describe(results: dict[str, Any]) -> str:
    """`loss 1.234, bleu 30.1` on one line."""
    numbers = {name: value for name, value in results.items() if isinstance(value, (int, float))}
    return ", ".join(f"{name} {value:.4g}" if math.isfinite(value) else f"{name} {value}" for name, value in numbers.items())
