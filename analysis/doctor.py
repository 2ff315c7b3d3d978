# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Why a model does not learn: a look at a recipe before it is trained, or at a run while or after it is.

Before: the shapes of one batch, the rows, the first loss, the gradients, the masks, and whether one batch can be learnt at all.
After: the curves, the gradients along the way, and the heads of the model that came out.
"""

import copy
import dataclasses
import logging
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor

from glassformer.checks import IGNORED
from glassformer.training.batching import Loader, Position
from glassformer.training.data import TEXTS
from glassformer.training.inference import load_trained
from glassformer.training.logs import read_log
from glassformer.training.objectives import CausalLM
from glassformer.training.optimization import make_optimizers
from glassformer.training.recipe import Recipe, scaled
from glassformer.training.task import Task, build_model, prepare

from .checks import Failed, NotApplicable, check_folder, tied_weights_are_tied
from .diagnosis import Finding, diagnose_curve
from .hooks import EXPLODING, VANISHING, AttentionHealth, GradientMonitor, format_table
from .tracing import MemoryEstimate, ShapeTracer


OVERFIT_STEPS = 60
LEARNT = 0.5  # of the first loss: what is left when one batch is being learnt
ROWS = 2000  # of a split, to look at
LARGE_UPDATE, SMALL_UPDATE = 0.1, 1e-7  # of the size of the weights


@dataclass
class Report:
    """What was looked at, as lines to print, and what was found to be wrong."""

    lines: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def say(self, title: str, text: str) -> None:
        self.lines.append(f"{title}\n{text}\n")

    def __str__(self) -> str:
        verdict = "\n".join(f"- {finding}" for finding in self.findings) or "Nothing is wrong that could be seen."
        return "\n".join([*self.lines, "Findings", verdict])


# Before training


def examine_recipe(recipe: Recipe) -> Report:
    """Nothing is written; a tokenizer is trained if need be."""
    recipe = scaled(recipe)
    with told() as messages:
        task, report = prepare(recipe), Report()
    batch = first_batch(task)
    model = build_model(task).train()
    with ShapeTracer(model) as shapes:
        loss_of(task, model, batch)
    report.say("Shapes of one batch", shapes.table())
    with MemoryEstimate(model, recipe.optimizer.name) as memory:
        loss_of(task, model, batch)
    report.say("Memory", memory.table())
    report.findings += [*look_at_rows(task, messages, report), *look_at_padding(task, batch)]
    report.findings += [*look_at_first_loss(task, model, batch), *look_at_labels(task, model, batch)]
    report.findings += look_at_gradients(task, model, batch, report)
    report.findings += [*look_at_ties(model), *look_at_masks(model), *overfit_one_batch(task, model, batch, report)]
    return report


def first_batch(task: Task) -> dict[str, Tensor]:
    batches, _ = next(Loader(task.source(), task.objective.collate, task.recipe.batching).updates(Position()))
    return batches[0].tensors


def loss_of(task: Task, model: Any, batch: dict[str, Tensor]) -> Tensor:
    return model(**batch, num_items_in_batch=max(task.objective.num_items(batch), 1), **task.objective.loss_options).loss


@contextmanager
def told() -> Iterator[list[str]]:
    """What our code says meanwhile, such as of rows that are empty and left out."""
    messages: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    listener, logger = Listener(logging.WARNING), logging.getLogger("glassformer")
    logger.addHandler(listener)
    try:
        yield messages
    finally:
        logger.removeHandler(listener)


def look_at_rows(task: Task, messages: list[str], report: Report) -> Iterator[Finding]:
    """Rows that splits share or that are cut, and tokens that the tokenizer does not know."""
    shares = {split: shares_of(task, split) for split, rows in task.rows.items() if isinstance(rows, Dataset)}
    lines = [[split, f"{len(task.rows[split]):,}", *(f"{share:.1%}" for share in row.values())] for split, row in shares.items()]
    report.say("Rows", "\n".join([format_table(["split", "rows", *next(iter(shares.values()), {})], lines), *messages]))
    for split, row in shares.items():
        for name, share in row.items():
            if share > 0.01 and (name != "cut" or share > 0.1):
                yield Finding(f"{name} rows" if name != "unknown" else "unknown tokens", *ROW_FAULTS[name](split, share))


def shares_of(task: Task, split: str) -> dict[str, float]:
    """Of the rows of a split, or of its tokens; of long splits, the first rows."""
    encoded, limit, unknown = task.encoded[split], task.objective.max_length, task.tokenizer.unk_token_id
    ids = encoded.select(range(min(ROWS, len(encoded))))["input_ids"]
    tokens = max(sum(map(len, ids)), 1)
    texts = texts_of(task, split, ROWS)
    return {
        "shared": 0.0 if split == "train" else len(texts & texts_of(task, "train")) / max(len(texts), 1),
        "cut": sum(length >= limit for length in encoded["length"]) / len(encoded),
        "unknown": 0.0 if unknown is None else sum(row.count(unknown) for row in ids) / tokens,
    }


def texts_of(task: Task, split: str, limit: int | None = None) -> set[str]:
    rows = task.rows.get(split)
    if not isinstance(rows, Dataset):
        return set()
    few = rows.select(range(min(limit or len(rows), len(rows))))
    return {"\n".join(map(str, values)) for values in zip(*(few[role] for role in few.column_names if role in TEXTS))}


ROW_FAULTS = {
    "shared": lambda split, share: (
        f"{share:.1%} of the {split} rows are training rows as well.", "the splits were drawn from rows that repeat.",
        "take these rows out of the training split.",
    ),
    "cut": lambda split, share: (
        f"{share:.1%} of the {split} rows are cut to fit.", "texts are longer than data.max_length.",
        "raise data.max_length, or split the texts.",
    ),
    "unknown": lambda split, share: (
        f"{share:.1%} of the {split} tokens are unknown to the tokenizer.",
        "the vocabulary is too small, or was made from other texts.", "raise tokenizer.vocab_size, or use byte_bpe.",
    ),
}  # fmt: skip


def look_at_padding(task: Task, batch: dict[str, Tensor]) -> Iterator[Finding]:
    real, padded = task.objective.count_tokens(batch)
    if real < 0.5 * padded:
        yield Finding(
            "padding", f"{1 - real / padded:.0%} of the first batch is padding.", "rows of unlike length share a batch.",
            "set batching.bucketing=true and a budget with batching.tokens.",
        )  # fmt: skip


def look_at_first_loss(task: Task, model: Any, batch: dict[str, Tensor]) -> Iterator[Finding]:
    """A model that knows nothing has the loss of a guess."""
    chance = chance_loss(task)
    if chance is None or task.recipe.model.get("path"):
        return
    with torch.no_grad():
        loss = float(loss_of(task, copy.deepcopy(model).eval(), batch))
    if not 0.7 * chance < loss < 1.4 * chance:  # small models start further off
        yield Finding(
            "first loss", f"An untrained model has the loss {loss:.3g} instead of {chance:.3g}, that of a guess.",
            "weights start too large or too small, or the loss is a mean over the wrong number of tokens.",
            "leave initialisation to the model, and ignore padding with the label -100.",
        )  # fmt: skip


def chance_loss(task: Task) -> float | None:
    """ln V for models of tokens, ln of the number of classes for classifiers, None where there is no such thing."""
    if task.objective.head in ("GlassformerForConditionalGeneration", "GlassformerForCausalLM", "GlassformerForMaskedLM"):
        return math.log(task.config.vocab_size)
    if task.config.problem_type == "single_label_classification":
        return math.log(task.config.num_labels)
    return None


def look_at_labels(task: Task, model: Any, batch: dict[str, Tensor]) -> Iterator[Finding]:
    """A token must be predicted without being seen, and padding must not be asked for."""
    model = copy.deepcopy(model).eval()
    if isinstance(task.objective, CausalLM) and batch["input_ids"].dim() == 2 and batch["input_ids"].shape[1] > 3:
        place = batch["input_ids"].shape[1] // 2
        asked = {"input_ids": batch["input_ids"][:1].clone(), "labels": torch.full_like(batch["labels"][:1], IGNORED)}
        asked["labels"][:, place] = batch["input_ids"][0, place]
        with torch.no_grad():
            before = float(model(**asked).loss)
            asked["input_ids"][:, place:] = asked["input_ids"][:, place:].roll(1, dims=1)
            after = float(model(**asked).loss)
        if abs(before - after) > 1e-4:
            yield Finding(
                "labels not shifted", "The loss of a token changes with that very token.",
                "the model is asked for a token that it has just read.", "shift the labels by one place, once.",
            )  # fmt: skip
    if "labels" in batch and batch["labels"].dim() == 2 and "attention_mask" in batch and batch["attention_mask"].dim() == 2:
        hidden = ~batch["attention_mask"].bool() if batch["labels"].shape == batch["attention_mask"].shape else None
        pads = batch["labels"] == task.objective.pad_id
        if (hidden is not None and (batch["labels"][hidden] != IGNORED).any()) or pads.any():
            yield Finding(
                "padding in the loss", "The labels ask for padding.", "padding was not replaced in the labels.",
                "set labels to -100 wherever there is no token.",
            )  # fmt: skip


def look_at_gradients(task: Task, model: Any, batch: dict[str, Tensor], report: Report) -> Iterator[Finding]:
    model = copy.deepcopy(model)
    optimizers = make_optimizers(model, task.recipe.optimizer, task.recipe.schedule)
    with GradientMonitor(model) as monitor:
        loss_of(task, model, batch).backward()
        for optimizer in optimizers:
            optimizer.step()
    report.say("Gradients of one batch", monitor.table())
    moot = [name for name in monitor.vanishing if not name.endswith("k_proj.bias")]  # which a softmax does not see
    if moot:
        yield Finding(
            "vanishing gradients", f"The gradient of {moot[0]} and {len(moot) - 1} others is below {VANISHING:g}.",
            "nothing flows there: heads or layers that are cut off, or activations that are all zero.",
            "look at the shapes and activations of that layer; pre-norm and a warmup help deep models.",
        )  # fmt: skip
    for name in monitor.exploding[:1]:
        yield Finding(
            "exploding gradients", f"The gradient of {name} has the norm {monitor.rows[name].norm:.3g}.",
            "weights start too large, or scores are not scaled.",
            f"leave initialisation to the model; norms below {EXPLODING:g} are usual, and optimizer.clip_norm=1 cuts the others.",
        )  # fmt: skip


def look_at_ties(model: Any) -> Iterator[Finding]:
    """In the model itself: one that is loaded is tied again."""
    try:
        tied_weights_are_tied(SimpleNamespace(model=model, config=model.config))
    except NotApplicable:
        return
    except Failed as failed:
        yield Finding(
            "untied weights", str(failed), "a layer was replaced after the model was made.",
            "call model.tie_weights() after that, or set tie_word_embeddings=false.",
        )  # fmt: skip


def look_at_masks(model: Any) -> Iterator[Finding]:
    """The checks of a saved model that are about masks."""
    with tempfile.TemporaryDirectory() as folder:
        copy.deepcopy(model).save_pretrained(folder)
        names = ["eager equals sdpa", "no leak from padding", "no leak from the future"]
        for verdict in check_folder(folder, names):
            if verdict.passed is False:
                yield Finding(
                    verdict.name, verdict.reason, "a mask or a scale is not what the config says.",
                    "compare the attention of one head with the formula: glassformer.analysis.record_attention.",
                )  # fmt: skip


def overfit_one_batch(task: Task, model: Any, batch: dict[str, Tensor], report: Report) -> Iterator[Finding]:
    """A model that cannot learn a few rows by heart learns nothing else."""
    model = copy.deepcopy(model)
    few = {name: tensor[:8] for name, tensor in batch.items()}
    [optimizer] = make_optimizers(model, dataclasses.replace(task.recipe.optimizer, name="adamw", lr=3e-3), task.recipe.schedule)
    losses = []
    for _ in range(OVERFIT_STEPS):
        loss = loss_of(task, model.eval(), few)  # without dropout
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    report.say("One batch, learnt by heart", f"loss {losses[0]:.3g} -> {losses[-1]:.3g} in {OVERFIT_STEPS} updates")
    if not losses[-1] < LEARNT * losses[0]:
        yield Finding(
            "one batch is not learnt",
            f"The loss on 8 rows goes from {losses[0]:.3g} to {losses[-1]:.3g} in {OVERFIT_STEPS} updates.",
            "inputs and labels do not belong together, or parts of the model are not trained.",
            "look at the batch, token by token.",
        )  # fmt: skip


# During and after training


def examine_run(folder: Path) -> Report:
    """The curves that a run has written so far, and the model if there is one already."""
    report, records = Report(), read_log(folder / "log.jsonl")
    training = [record["loss"] for record in records if "loss" in record]
    norms = [record["gradient_norm"] for record in records if "gradient_norm" in record]
    validation = [record["validation"]["loss"] for record in records if "loss" in record.get("validation", {})]
    if training:
        report.say("Curves", f"{len(training)} records, training loss {training[0]:.4g} -> {training[-1]:.4g}")
    finished = (folder / "config.json").exists()
    trained = load_trained(folder) if finished else None
    size = None if trained is None else getattr(trained.model.config, "vocab_size", None)
    writes = trained is not None and trained.model.get_output_embeddings() is not None
    report.findings += diagnose_curve(training, validation, math.log(size) if writes and size else None)
    report.findings += look_at_norms(norms)
    report.findings += look_at_updates([record["inside"]["update"] for record in records if "inside" in record])
    if trained is not None:
        report.findings += look_at_heads(trained.model)
    return report


def look_at_norms(norms: list[float]) -> Iterator[Finding]:
    finite = [norm for norm in norms if math.isfinite(norm)]
    if len(finite) < len(norms) or any(norm > EXPLODING for norm in finite[len(finite) // 10 :]):
        yield Finding(
            "exploding gradients", f"Gradient norms reach {max(finite, default=math.inf):.3g}.", "the learning rate is too high.",
            "lower optimizer.lr, raise schedule.warmup_steps.",
        )  # fmt: skip
    elif finite and max(finite) < VANISHING:
        yield Finding(
            "vanishing gradients", f"No gradient norm is above {max(finite):.2g}.", "the model is saturated or cut off.",
            "start anew with a lower learning rate.",
        )  # fmt: skip


def look_at_updates(ratios: list[dict[str, float]]) -> Iterator[Finding]:
    """How far a step moves the weights of a layer: about a thousandth of their size is usual."""
    for layer, ratio in (ratios[-1] if ratios else {}).items():
        if ratio > LARGE_UPDATE:
            yield Finding(
                "large updates", f"A step moves {layer} by {ratio:.0%} of its size.", "the learning rate is too high.",
                "lower optimizer.lr, raise schedule.warmup_steps.",
            )  # fmt: skip
        elif ratio < SMALL_UPDATE:
            yield Finding(
                "small updates", f"A step moves {layer} by {ratio:.1g} of its size.", "the learning rate is too low, or is over.",
                "raise optimizer.lr, or stop training.",
            )  # fmt: skip


@torch.no_grad()
def look_at_heads(model: Any) -> Iterator[Finding]:
    """On random tokens: a head that looks at one place, or everywhere alike, whatever it reads."""
    ids = torch.randint(5, model.config.vocab_size, (8, 24), generator=torch.Generator().manual_seed(0)).to(model.device)
    with AttentionHealth(model) as health:
        model(input_ids=ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}))
    even = [row for row in health.rows if row.verdict == "even"]
    if len(even) > len(health.rows) // 2:
        first = even[0]
        yield Finding(
            "dead heads",
            f"{len(even)} of {len(health.rows)} heads look everywhere alike, the first in layer {first.layer} ({first.kind}).",
            "they have not learnt anything yet, or their queries and keys are zero.",
            "train longer; if the loss is low already, the heads can go.",
        )  # fmt: skip
    collapsed = [row for row in health.rows if row.verdict == "collapsed"]
    if len(collapsed) > len(health.rows) // 2:
        yield Finding(
            "collapsed heads", f"{len(collapsed)} of {len(health.rows)} heads look at a single place.",
            "scores are too large: no scale, or a learning rate that is too high.", "lower optimizer.lr, or set model.qk_norm.",
        )  # fmt: skip
