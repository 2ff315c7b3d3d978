# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""From a recipe to what the loop needs: rows, tokenizer, objective, encoded rows, config and model."""

import dataclasses
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute
import torch
from datasets import ClassLabel, Dataset, IterableDataset, List, Value
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

import glassformer
from glassformer import GlassformerConfig

from . import recipe as recipes
from .batching import StreamSource, TableSource
from .checkpoints import write_whole
from .data import DataError, Rows, default_cache, encode_rows, fingerprint, is_complete, load_rows
from .objectives import OBJECTIVES, CausalLM, Labelled, Objective, cut
from .phrases import get_to_know
from .recipe import Recipe, RecipeError, expand_path
from .subwords import BPEDropout, CutAnew
from .tokenization import special_ids, train_tokenizer


logger = logging.getLogger("glassformer")

TOKENIZER_ROWS = 100_000  # of a stream, to train a tokenizer on
LONGEST_CONTINUATION = 100  # new tokens of a language model that is asked for no particular number
ENDLESS = 2**40  # a length that no text has


@dataclass
class Task:
    """All that a recipe stands for, but the training itself."""

    recipe: Recipe
    objective: Objective
    config: GlassformerConfig
    tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase | None  # where source and target have vocabularies of their own
    rows: dict[str, Rows]  # raw, by split
    encoded: dict[str, Dataset]  # the same as tokens; without the training rows of a stream
    fingerprints: dict[str, str | None] = field(default_factory=dict)

    @property
    def block_size(self) -> int | None:
        """Tokens of a packed row."""
        return max_length(self.recipe, self.config) if self.recipe.batching.packing else None

    def source(self) -> TableSource | StreamSource:
        """Where training batches come from."""
        recipe = self.recipe
        if not recipe.data.streaming:
            vary = self._cut_anew() if recipe.tokenizer.dropout else None
            return TableSource(self.encoded["train"], recipe.batching, recipe.seed, self.block_size, vary=vary)
        return StreamSource(
            self.rows["train"], self._encode_window, recipe.batching, recipe.seed, recipe.data.window, self.block_size
        )

    def _cut_anew(self) -> Callable[[np.random.Generator], dict[str, list[list[int]]]]:
        """The texts of the training rows with their words in other pieces each time (BPE-dropout)."""
        rows, options = self.encoded["train"], self.recipe.tokenizer
        tokenizers = {"input_ids": self.tokenizer, "labels": self.target_tokenizer or self.tokenizer}
        texts = {
            name: CutAnew(rows[name], BPEDropout(tokenizer, options.dropout, self.recipe.seed))
            for name, tokenizer in tokenizers.items()
            if name in rows.column_names
        }
        limit = self.objective.max_length
        return lambda rng: {name: [cut(ids.tolist(), limit) for ids in several(rng)] for name, several in texts.items()}

    def _encode_window(self, rows: list[dict[str, Any]], first: int) -> Dataset:
        data = data_of(self.recipe)
        needed = [role for role, is_needed in self.objective.roles.items() if is_needed]
        whole = [row for row in rows if is_complete(row, needed)]
        if len(whole) < len(rows) and data.incomplete == "refuse":
            bad = next(number for number, row in enumerate(rows) if not is_complete(row, needed))
            raise DataError(f"Row {first + bad + 1} of the stream is incomplete: fill it in, or set data.incomplete=drop.")
        if not whole:
            return Dataset.from_dict({"input_ids": [], "length": []})
        encoded = Dataset.from_dict(self.objective.encode({role: [row[role] for row in whole] for role in rows[0]}))
        return fitting(encoded, "train", data.too_long, self.objective.max_length, data.incomplete)


def prepare(recipe: Recipe, folder: Path | None = None) -> Task:
    """`folder` is where a trained tokenizer is kept, and found again by a run that goes on."""
    kind, data = OBJECTIVES[recipe.objective.name], data_of(recipe)
    rows = load_rows(data, kind.roles, recipe.seed, recipe.scale)
    labels = find_labels(rows["train"], recipe)
    tokenizer, target_tokenizer = make_tokenizers(recipe, kind, rows["train"], folder)
    config = make_config(recipe, kind, tokenizer, target_tokenizer)
    limit = ENDLESS if recipe.batching.packing else max_length(recipe, config)
    objective = kind(
        recipe.objective, tokenizer, limit,
        target_tokenizer=target_tokenizer, labels=labels, stride=min(recipe.data.stride, limit // 2),
    )  # fmt: skip
    set_numbering(objective, rows["train"])
    config = GlassformerConfig.from_dict(config.to_dict() | objective.config_fields)
    task = Task(recipe, objective, config, tokenizer, target_tokenizer, rows, {})
    task.fingerprints = {split: fingerprint(several) for split, several in rows.items()}
    keys = {split: cache_key(task, split) for split in rows}  # all of them now: a tokenizer that was used may look different
    for split, several in rows.items():
        if isinstance(several, Dataset):
            too_long = data.too_long if split == "train" else "truncate"  # a metric is about every row
            encoded = encode_rows(several, objective.encode, keys[split], default_cache())
            task.encoded[split] = fitting(encoded, split, too_long, objective.max_length, data.incomplete)
            if not len(task.encoded[split]):
                raise DataError(f"No {split} row is left: all are too long or have no tokens.")
    return task


def data_of(recipe: Recipe) -> recipes.Data:
    """Where nothing is compared with a row, as in language modelling, a blank one is no mistake: it is left out."""
    compared = OBJECTIVES[recipe.objective.name].predictions_are_compared
    return recipe.data if compared else dataclasses.replace(recipe.data, incomplete="drop")


def max_length(recipe: Recipe, config: GlassformerConfig) -> int:
    limit = recipe.data.max_length or config.max_position_embeddings
    if config.position_encoding == "learned" and limit > config.max_position_embeddings:
        raise RecipeError(
            f"data.max_length={limit} is more than model.max_position_embeddings={config.max_position_embeddings}, for which "
            f"positions are learnt: raise the latter."
        )
    return limit


def cache_key(task: Task, split: str) -> str:
    """Whatever decides how rows are encoded."""
    tokenizers = [one.backend_tokenizer.to_str() for one in (task.tokenizer, task.target_tokenizer) if one is not None]
    options = dataclasses.asdict(task.recipe.objective)
    objective = task.objective
    parts = [glassformer.__version__, task.fingerprints[split], options, objective.max_length, objective.stride, objective.labels]
    return json.dumps([*parts, *tokenizers])


def fitting(encoded: Dataset, split: str, too_long: str, limit: int, incomplete: str) -> Dataset:
    """Rows that have tokens and not too many; what the recipe says is done with the others, and told."""
    count = len(encoded)
    longer = [number for number, was_cut in enumerate(encoded["cut"]) if was_cut]
    empty = [number for number, length in enumerate(encoded["length"]) if length == 0]
    if empty:
        what = f"{len(empty)} of {count} {split} rows have no tokens"
        if incomplete == "refuse":
            raise DataError(f"{what} (the first is row {empty[0] + 1}): fill them in, or set data.incomplete=drop.")
        logger.warning(f"{what} and were left out.")
    if longer:
        what = f"{len(longer)} of {count} {split} rows are longer than {limit} tokens"
        if too_long == "refuse":
            raise DataError(
                f"{what} (the first is row {longer[0] + 1}): set data.too_long=truncate or drop, or raise data.max_length."
            )
        logger.warning(f"{what} and were {'cut' if too_long == 'truncate' else 'left out'}.")
    left_out = {*empty, *(longer if too_long == "drop" else ())}
    encoded = encoded.remove_columns("cut")
    return encoded.select([i for i in range(count) if i not in left_out]) if left_out else encoded


# Labels


def find_labels(rows: Rows, recipe: Recipe) -> list[str] | None:
    """The names of the classes: the recipe's, the dataset's own, or all that occur in the training rows, sorted."""
    kind = recipe.objective
    role = {"sequence_classification": "label", "token_classification": "tags"}.get(kind.name)
    if role is None or kind.problem_type == "regression":
        return None
    names = recipe.data.labels or known_labels(rows, role)
    if len(set(names)) < len(names):
        raise DataError(f"data.labels={names} names a label twice: name each one once.")
    if len(names) < 2 and role == "label" and kind.problem_type == "single_label_classification":
        raise DataError(f"All training rows have the label {names[0]!r}: there is nothing to tell apart.")
    return names


def label_feature(rows: Rows, role: str) -> Any:
    """What the column says about its labels, one by one."""
    feature = None if rows.features is None else rows.features.get(role)
    return feature.feature if isinstance(feature, List) else feature


def set_numbering(objective: Objective, rows: Rows) -> None:
    """Numbers in a column of ClassLabel are places in the list of names, even where the names are digits too."""
    if isinstance(objective, Labelled):
        objective.numbered = any(isinstance(label_feature(rows, role), ClassLabel) for role in ("label", "tags"))


def known_labels(rows: Rows, role: str) -> list[str]:
    inner = label_feature(rows, role)
    if isinstance(inner, ClassLabel):
        return list(inner.names)
    if isinstance(rows, IterableDataset):
        raise DataError("The classes of a stream are not known before it is read: name them in data.labels.")
    values = {one for value in rows[role] for one in (value if isinstance(value, list) else [value])}
    whole = isinstance(inner, Value) and inner.dtype.startswith(("int", "uint"))
    return [str(value) for value in (sorted(values) if whole else sorted(values, key=str))]


# Tokenizers


def make_tokenizers(
    recipe: Recipe, kind: type[Objective], rows: Rows, folder: Path | None
) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase | None]:
    """One for source and target, or one each. Trained ones are kept in the folder of the run."""
    options = recipe.tokenizer
    path = options.path or recipe.model.get("path")
    if path:
        return load_tokenizer(expand_path(path)), None
    kept = None if folder is None else folder / "tokenizer"
    if kept is not None and kept.exists():
        return load_tokenizer(str(kept)), load_tokenizer(str(kept / "target")) if (kept / "target").exists() else None
    separate = not options.joint and "target" in kind.roles
    first = next(iter(kind.roles))
    tokenizer = _train(recipe, kind, texts_of(rows, [first] if separate else list(kind.roles)))
    target_tokenizer = _train(recipe, kind, texts_of(rows, ["target"])) if separate else None

    def save(path: Path) -> None:
        tokenizer.save_pretrained(path)
        if target_tokenizer is not None:
            target_tokenizer.save_pretrained(path / "target")

    if kept is not None:
        write_whole(kept, save)
    return tokenizer, target_tokenizer


def train_tokenizers(recipe: Recipe, folder: Path) -> dict[Path, PreTrainedTokenizerBase]:
    """The tokenizers of a recipe alone, by the folders that they were saved in."""
    if folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise RecipeError(f"{folder} is not an empty folder: name another one.")
    kind = OBJECTIVES[recipe.objective.name]
    rows = load_rows(data_of(recipe), kind.roles, recipe.seed, recipe.scale)["train"]
    tokenizer, target_tokenizer = make_tokenizers(recipe, kind, rows, None)
    tokenizer.save_pretrained(folder)
    if target_tokenizer is None:
        return {folder: tokenizer}
    target_tokenizer.save_pretrained(folder / "target")
    return {folder: tokenizer, folder / "target": target_tokenizer}


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise RecipeError(f"No tokenizer can be loaded from {path}: {' '.join(str(error).split())[:200]}") from None
    if not tokenizer.is_fast:
        raise RecipeError(f"The tokenizer in {path} has no tokenizer.json: convert it to a fast one first.")
    return tokenizer


def _train(recipe: Recipe, kind: type[Objective], texts: Iterator[str]) -> PreTrainedTokenizerBase:
    options = recipe.tokenizer
    return train_tokenizer(
        texts, options.kind, options.vocab_size,
        lowercase=options.lowercase, min_frequency=options.min_frequency, adds=kind.adds,
        num_sentinels=options.sentinels if recipe.objective.name == "span_corruption" else 0,
    )  # fmt: skip


def texts_of(rows: Rows, roles: list[str]) -> Iterator[str]:
    """Every text in these columns; repeated contexts, as in question answering, once."""
    seen = set()
    for row in rows if isinstance(rows, Dataset) else rows.take(TOKENIZER_ROWS):
        for role in roles:
            value = row.get(role)
            if role == "tokens":
                yield " ".join(value)
            elif isinstance(value, str) and role != "label":
                if role == "context" and hash(value) in seen:
                    continue
                seen.add(hash(value) if role == "context" else None)
                yield value


# Config and model


def make_config(
    recipe: Recipe,
    kind: type[Objective],
    tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase | None,
) -> GlassformerConfig:
    """The recipe's fields on top of a preset, with sizes and special ids that the tokenizer decides."""
    fields = {name: value for name, value in recipe.model.items() if name not in ("preset", "path")}
    known = [special_ids(one) for one in (tokenizer, target_tokenizer) if one is not None]
    size = max(one["vocab_size"] or 0 for one in known)
    fields = {**known[0], "vocab_size": size, **fields}
    if fields["vocab_size"] < size:
        raise RecipeError(f"model.vocab_size={fields['vocab_size']} is too small for the tokenizer's {size} tokens: drop it.")
    if target_tokenizer is not None:  # two vocabularies share no table
        fields.setdefault("embedding_tying", "target-output")
    try:
        if path := recipe.model.get("path"):
            return AutoConfig.from_pretrained(expand_path(path), **fields)
        if preset := recipe.model.get("preset"):
            return _in_shape(GlassformerConfig.from_preset(preset, **fields), kind, fields)
        return _in_shape(GlassformerConfig(**fields), kind, fields)
    except (OSError, ValueError, TypeError) as error:
        raise RecipeError(f"model: {' '.join(str(error).split())}") from error


def _in_shape(config: GlassformerConfig, kind: type[Objective], given: dict[str, Any]) -> GlassformerConfig:
    """A preset with two stacks serves objectives that need one: the other is left out unless the recipe asks for it."""
    if config.shape in kind.shapes or config.shape != "encoder-decoder":
        return config
    other = "num_decoder_layers" if kind.shapes[0] == "encoder" else "num_encoder_layers"
    if other in given or f"{other.split('_')[1]}_layers" in given:
        return config
    return GlassformerConfig.from_dict(config.to_dict() | {other: 0, "pooling": None})


def head_of(task: Task) -> Any:
    """The class of the model: ours, unless the recipe asks for a baseline."""
    if task.recipe.baseline is not None:
        from glassformer.benchmarks.baselines import BASELINES

        return BASELINES[task.recipe.baseline]
    return getattr(glassformer, task.objective.head)


def build_model(task: Task, checkpoint: Path | None = None) -> PreTrainedModel:
    """From a checkpoint of this run, from the weights that the recipe starts from, or from scratch."""
    head = head_of(task)
    config = task.config if task.recipe.baseline is None else head.config_like(task.config)
    torch.manual_seed(task.recipe.seed)
    if checkpoint is not None:
        model = head.from_pretrained(checkpoint, config=config, dtype=torch.float32)
    elif path := task.recipe.model.get("path"):
        model = start_from(expand_path(path), head, config)
    else:
        model = head(config)
    if getattr(model, "phrases", None) is not None and not task.recipe.model.get("path"):
        introduce_phrases(task, model, with_votes=checkpoint is None)
    if model.can_generate():
        model.generation_config = generation_config(task)
    return model


def introduce_phrases(task: Task, model: PreTrainedModel, with_votes: bool) -> None:
    """Checkpoints hold what phrases say, but not which they are: that is a matter of the training rows."""
    if "train" not in task.encoded:
        raise RecipeError("model.phrase_size counts phrases before training, which a stream does not allow: leave one out.")
    is_number = task.config.problem_type == "regression"
    get_to_know(model.phrases, task.encoded["train"], task.config.num_labels, with_votes and not is_number)


def start_from(path: str, head: Any, config: GlassformerConfig) -> PreTrainedModel:
    """The weights that are there; a classifier of other classes gets an output layer of its own."""
    model, found = head.from_pretrained(
        path, config=config, dtype=torch.float32, ignore_mismatched_sizes=True, output_loading_info=True
    )
    if others := [name for name, *_ in found["mismatched_keys"] if not name.startswith("classifier.")]:
        raise RecipeError(f"{path} has {others[0]} in another size: leave out the fields of model that change it.")
    return model


def generation_config(task: Task) -> GenerationConfig:
    """How long a text may become if nobody says: a little more than the longest target of the training rows."""
    config = GenerationConfig.from_model_config(task.config)
    encoded = task.encoded.get("train")
    if isinstance(task.objective, CausalLM):
        config.max_new_tokens = LONGEST_CONTINUATION
        if task.config.position_encoding == "learned" or task.recipe.baseline is not None:  # beyond its table it cannot write
            config.max_new_tokens = min(LONGEST_CONTINUATION, task.config.max_position_embeddings // 2)
    elif encoded is not None and "labels" in encoded.column_names:
        longest = pyarrow.compute.max(pyarrow.compute.list_value_length(encoded.data.column("labels"))).as_py()
        config.max_new_tokens = int(longest * 1.2) + 2
    else:
        config.max_new_tokens = max_length(task.recipe, task.config)
    for name, value in task.recipe.evaluation.generation.items():
        if not hasattr(config, name):
            raise RecipeError(f"evaluation.generation has no {name!r}{recipes.nearest(name, GenerationConfig().to_dict())}")
        setattr(config, name, value)
    return config
