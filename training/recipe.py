# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What a training run is made of: a YAML file, read into typed sections, with `key=value` overrides on top.

Every field that a recipe may set is here, with its default and its meaning. Unknown names and wrong types are refused at once.
"""

import copy
import dataclasses
import difflib
import math
import os
import re
import types
import typing
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from glassformer.configuration.configuration_glassformer import SPECIAL_IDS, GlassformerConfig


RECIPES = Path(__file__).parents[1] / "configuration" / "recipes"
BUILT_IN = "builtin:"  # before the name of a corpus that is generated, whose rows are nobody's secret


class RecipeError(ValueError):
    """A recipe that cannot be run; the message says why and what to do."""


@dataclass
class Data:
    source: str = ""  # builtin:NAME, a Hub id, the folder of a saved dataset, or a local csv, json, jsonl, parquet or text file
    config: str | None = None  # which configuration of a Hub dataset
    files: dict[str, str | list[str]] | None = None  # local files by split, instead of `source`
    splits: dict[str, str | None] = field(default_factory=dict)  # our split: its name there, or a slice: train[:90%]; null: none
    validation_fraction: float = 0.0  # cut from the training rows when there is no validation split
    columns: dict[str, str | list[str]] = field(default_factory=dict)
    # role: column, where the two differ; translation.de reaches inside one; of several names, the first that a split has
    labels: list[str] | None = None  # names of classes, in order; found in the training rows if not given
    size: int | None = None  # training rows to generate for a builtin corpus, or to take from another one
    streaming: bool = False  # read rows while training instead of before
    window: int = 10_000  # rows of a stream that are shuffled and sorted into batches together
    encoding: str = "utf-8"  # of local text files
    sample_by: Literal["line", "paragraph", "document"] = "line"  # what a row of a plain text file is
    max_length: int | None = None  # tokens of one example; the model's max_position_embeddings if not given
    too_long: Literal["truncate", "drop", "refuse"] = "truncate"
    incomplete: Literal["refuse", "drop"] = "refuse"  # rows that lack a text, a target or a label
    stride: int = 64  # tokens that neighbouring windows of a long context share (question answering)


@dataclass
class Tokenizer:
    path: str | None = None  # a folder or Hub id to load; without it one is trained on the training rows
    kind: Literal["bpe", "bpe_lines", "wordpiece", "unigram", "byte_bpe", "char", "word"] = "bpe"
    vocab_size: int = 8000
    joint: bool = True  # one vocabulary for source and target; False trains one for each
    lowercase: bool = False
    min_frequency: int = 2
    dropout: float = 0.0  # BPE-dropout: share of merges left out while training, so that a word is not always cut the same way
    sentinels: int = 100  # for span corruption alone


@dataclass
class Objective:
    name: Literal[
        "seq2seq", "causal_lm", "prefix_lm", "masked_lm", "span_corruption", "text_infilling",
        "sequence_classification", "token_classification", "question_answering",
    ] = "seq2seq"  # fmt: skip
    rate: float | None = None  # share of tokens hidden by a denoising objective; its paper's if not given
    mean_length: float = 3.0  # of hidden spans
    whole_words: bool = False  # masked_lm: hide all pieces of a word together
    permute_sentences: bool = False  # text_infilling: BART's second kind of noise
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] = (
        "single_label_classification"
    )


@dataclass
class Batching:
    tokens: int | None = None  # longest example x examples, padding included, stays within this budget
    examples: int | None = None  # or: so many examples in every batch
    bucketing: bool = True  # examples of like length share a batch
    packing: bool = False  # language models: fill every row with documents, which do not see each other
    accumulation: int = 1  # batches of each process that make one update
    workers: int = 0  # processes that prepare batches ahead


@dataclass
class Optimizer:
    name: Literal["adamw", "adafactor", "muon", "lamb", "sophia"] = "adamw"
    lr: float | None = None  # peak learning rate; 1e-3 if not given (sophia wants about 1), the factor 1 for the noam schedule
    betas: list[float] = field(default_factory=lambda: [0.9, 0.98])  # of adamw, lamb and sophia
    eps: float = 1e-9  # of adamw
    weight_decay: float = 0.01  # not on biases, norms and embeddings
    clip_norm: float | None = 1.0  # of all gradients together


@dataclass
class Schedule:
    name: Literal[
        "noam", "inverse_sqrt", "cosine", "linear", "polynomial", "one_cycle", "warmup_stable_decay", "constant"
    ] = "noam"  # fmt: skip
    warmup_steps: int = 400
    decay_steps: int | None = None  # warmup_stable_decay: the last so many updates; a tenth of all if not given
    power: float = 2.0  # of the polynomial
    final_ratio: float = 0.0  # last learning rate / peak, for schedules that end


@dataclass
class Training:
    steps: int | None = None  # updates; whichever limit comes first ends the run
    epochs: float | None = None
    minutes: float | None = None
    precision: Literal["float32", "bf16", "fp16", "auto"] | None = None
    # auto: bf16 where the device computes in it by itself, float32 elsewhere; what `accelerate` is configured for if not given
    gradient_checkpointing: bool = False
    compile: bool = False
    ema: float | None = None  # decay of an average of the weights, which is then what is evaluated and kept
    patience: int | None = None  # stop after so many evaluations without a better `evaluation.best`


@dataclass
class Evaluation:
    every: int | None = None  # updates; once an epoch if not given
    metrics: list[str] | None = None  # the objective's own if not given
    metric_options: dict[str, dict[str, Any]] = field(default_factory=dict)  # metric: what it is to be told, such as a language
    best: str | None = None  # the metric that chooses the best checkpoint; the objective's first if not given
    limit: int | None = None  # rows to evaluate on while training; the end of the run takes all
    tokens: int = 8192  # budget of a batch
    overlap: int = 1  # tokens that a packed row of a language model shows again, as context; with 1, each token is predicted once
    generation: dict[str, Any] = field(default_factory=dict)  # what `generate` is given: num_beams, max_new_tokens, ...
    samples: int = 10  # predictions to write down


@dataclass
class Checkpoints:
    every: int | None = None  # updates; with every evaluation if not given
    keep: int = 3  # newest ones to keep, beside the best
    final: Literal["last", "best", "average"] = "best"  # the weights that the run leaves behind
    average: int = 5  # final=average: the mean of the last so many checkpoints, as in the paper


@dataclass
class Logging:
    every: int = 20  # updates
    inside: int | None = None  # updates after which gradients, activations and attention are looked at, layer by layer
    tensorboard: bool = True
    wandb: bool = False


@dataclass
class Reference:
    """What is known about the result, for those who repeat it; nothing of it changes the run."""

    result: str | None = None  # which one counts, such as test.accuracy
    goal: float | None = None  # what it is to reach
    seeds: int = 1  # runs that the published figure is a mean of
    baseline: Literal["marian", "gpt2", "bert"] | None = None  # which model of transformers it is compared with
    protocol: str = ""  # how it is measured
    published: list[str] = field(default_factory=list)  # figures of others, each with its source
    did_not_help: list[str] = field(default_factory=list)


@dataclass
class Card:
    """What the card of the model says and the run cannot know; nothing of it changes the run."""

    license: str | None = None  # of the model, by its name on the Hub, such as apache-2.0
    language: list[str] = field(default_factory=list)  # of the texts: en, de, ...
    datasets: list[str] = field(default_factory=list)  # their ids on the Hub, where the data is a copy of them
    task: str | None = None  # the Hub's name of it, such as translation; the usual one of the objective if not given


@dataclass
class Recipe:
    name: str = ""  # the file's name if not given
    description: str = ""
    seed: int = 0
    scale: float = 1.0  # below 1: so small a part of rows, updates and intervals, to try a recipe out
    baseline: Literal["marian", "gpt2", "bert"] | None = None  # transformers' model of the same size in the place of ours
    pretraining: str | None = None  # a recipe to run first, in OUTPUT-pretraining, whose model this one starts from
    output: str | None = None  # runs/NAME if not given
    resume: Literal["auto", "never"] = "auto"
    data: Data = field(default_factory=Data)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    model: dict[str, Any] = field(default_factory=dict)  # a preset, a path to start from, and fields of GlassformerConfig
    objective: Objective = field(default_factory=Objective)
    batching: Batching = field(default_factory=Batching)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    logging: Logging = field(default_factory=Logging)
    reference: Reference = field(default_factory=Reference)
    card: Card = field(default_factory=Card)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    @property
    def folder(self) -> Path:
        return Path(expand_path(self.output or f"runs/{self.name}"))


# Reading


class YamlLoader(yaml.SafeLoader):
    """Takes 1e-3 for a number, which YAML 1.1 does not, and a key that stands twice for a mistake."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} stands twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


YamlLoader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+$"), list("+-0123456789"))


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def load_recipe(recipe: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Recipe:
    """A path, or the name of a recipe that comes with the package; `overrides` are `dotted.key=value`."""
    path = find_recipe(recipe)
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), YamlLoader)
    except OSError as error:
        raise RecipeError(f"{path} cannot be read ({error.strerror}): change its permissions.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split()).replace('in "<unicode string>", ', "at ")
        raise RecipeError(f"{path} cannot be read as YAML: {problem}.") from None
    if not isinstance(content, dict):
        raise RecipeError(f"{path} has no sections: a recipe is made of data:, model:, training: and the like.")
    for override in overrides:
        apply_override(content, override)
    content.setdefault("name", path.stem)
    return parse_recipe(content)


def find_recipe(recipe: str | Path) -> Path:
    path = Path(recipe)
    if path.is_file():
        return path
    if str(recipe) in recipe_names():  # also where a folder has its name, such as that of its run
        return RECIPES / f"{recipe}.yaml"
    if path.is_dir():
        raise RecipeError(f"{recipe} is a folder: give the YAML file of a recipe.")
    raise RecipeError(f"There is no recipe {str(recipe)!r}, neither as a file nor by name{nearest(str(recipe), recipe_names())}")


def apply_override(content: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise RecipeError(f"The override {override!r} is not of the form section.key=value.")
    try:
        value = yaml.load(text, YamlLoader)
    except yaml.YAMLError:
        raise RecipeError(f"The value of {override!r} is not YAML: put quotes around it.") from None
    *sections, last = key.split(".")
    for section in sections:
        if content.get(section) is None:
            content[section] = {}
        content = content[section]
        if not isinstance(content, dict):
            raise RecipeError(f"The override {override!r} goes into {section!r}, which holds no further keys.")
    content[last] = value


def parse_recipe(content: dict[str, Any]) -> Recipe:
    recipe = _parse(Recipe, content, "")
    _check(recipe)
    return recipe


SCALED = (
    "data.size", "schedule.warmup_steps", "schedule.decay_steps", "training.steps", "evaluation.every", "checkpoints.every",
    "logging.every",
)  # fmt: skip


def scaled(recipe: Recipe) -> Recipe:
    """`recipe.scale` carried out on everything but the rows, of which their loader takes a part."""
    small = copy.deepcopy(recipe)
    for key in SCALED:
        section, name = key.split(".")
        if value := getattr(getattr(small, section), name):
            setattr(getattr(small, section), name, max(1, round(value * recipe.scale)))
    return small


def pretraining_of(recipe: Recipe) -> Recipe:
    """The recipe that comes before this one."""
    assert recipe.pretraining is not None
    first = load_recipe(recipe.pretraining, [f"seed={recipe.seed}", f"scale={recipe.scale}"])
    return dataclasses.replace(first, output=f"{recipe.folder}-pretraining", resume=recipe.resume)


def without_pretraining(recipe: Recipe) -> Recipe:
    """The same model and tokenizer, from scratch: for a baseline, which cannot start from what ours has learnt."""
    first = pretraining_of(recipe)
    return dataclasses.replace(recipe, pretraining=None, model={**first.model, **recipe.model}, tokenizer=first.tokenizer)


def starting_from(folder: Path, recipe: Recipe) -> Recipe:
    return dataclasses.replace(recipe, model={**recipe.model, "path": str(folder)})


def nearest(name: str, valid: typing.Iterable[str]) -> str:
    """The end of a sentence about a wrong name."""
    valid = list(valid)
    close = difflib.get_close_matches(name, valid, n=1)
    return f": did you mean {close[0]!r}?" if close else f": choose one of {', '.join(valid)}." if valid else "."


def _parse(kind: Any, value: Any, key: str) -> Any:
    """A value of YAML as the type that the field asks for."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _parse_section(kind, value, key)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return _parse_first([option for option in arguments if option is not type(None)], value, key)
    if origin is Literal:
        if value in arguments:
            return value
        raise RecipeError(f"{key}={value!r} is unknown{nearest(str(value), arguments)}")
    if origin is list and isinstance(value, list):
        return [_parse(arguments[0], item, f"{key}[{index}]") for index, item in enumerate(value)]
    if origin is dict and (value is None or isinstance(value, dict)):
        return {str(name): _parse(arguments[1], item, f"{key}.{name}") for name, item in (value or {}).items()}
    if kind is Any:
        return value
    if kind is float and type(value) in (int, float):
        if math.isfinite(value):
            return float(value)
        raise RecipeError(f"{key}={value} is not finite: give a number.")
    if kind is int and type(value) is float and value.is_integer():  # 1e5
        return int(value)
    if kind in (int, str, bool) and type(value) is kind:
        return value
    name = "str, in quotes" if kind is str else getattr(origin or kind, "__name__", str(kind))
    raise RecipeError(f"{key}={value!r} is of type {type(value).__name__}: give a value of type {name}.")


def _parse_first(options: list[Any], value: Any, key: str) -> Any:
    for option in options[:-1]:
        try:
            return _parse(option, value, key)
        except RecipeError:
            pass
    return _parse(options[-1], value, key)


def _parse_section(kind: Any, value: Any, key: str) -> Any:
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise RecipeError(f"{key}={value!r} is a section: write its keys below it, or {key}.KEY=VALUE.")
    hints = typing.get_type_hints(kind)
    for name in value:
        if name not in hints:
            where = f"section {key!r}" if key else "recipe"
            raise RecipeError(f"There is no key {name!r} in the {where}{nearest(str(name), hints)}")
    return kind(**{name: _parse(hints[name], item, f"{key}.{name}" if key else name) for name, item in value.items()})


# Checks that span fields

BASELINES = {"marian": "seq2seq", "gpt2": "causal_lm", "bert": "sequence_classification"}


POSITIVE = (
    "data.size", "data.window", "data.max_length", "tokenizer.vocab_size", "tokenizer.min_frequency", "objective.rate",
    "objective.mean_length", "batching.tokens", "batching.examples", "batching.accumulation", "optimizer.lr", "optimizer.eps",
    "optimizer.clip_norm", "schedule.decay_steps", "schedule.power", "training.steps", "training.epochs", "training.minutes",
    "training.patience", "evaluation.every", "evaluation.limit", "evaluation.tokens", "checkpoints.every", "checkpoints.keep",
    "checkpoints.average", "logging.every", "logging.inside", "evaluation.overlap", "reference.seeds", "reference.goal",
)  # fmt: skip
FRACTIONS = ("data.validation_fraction", "tokenizer.dropout", "objective.rate", "training.ema", "schedule.final_ratio")
NOT_NEGATIVE = (
    "seed", "data.stride", "tokenizer.sentinels", "batching.workers", "optimizer.weight_decay", "schedule.warmup_steps",
    "evaluation.samples",
)  # fmt: skip
CUT_ANEW = ("seq2seq", "causal_lm", "sequence_classification")  # where nothing but the text hangs on how words are cut
LARGEST_LR = 10.0  # nothing is learnt far below this already


def get_key(recipe: Any, key: str) -> Any:
    for name in key.split("."):
        recipe = recipe[name] if isinstance(recipe, dict) else getattr(recipe, name)
    return recipe


def _check(recipe: Recipe) -> None:
    for keys, fits, meaning in (
        (POSITIVE, lambda value: value > 0, "must be positive"),
        (NOT_NEGATIVE, lambda value: value >= 0, "must not be negative"),
        (FRACTIONS, lambda value: 0 <= value < 1, "is not a share: choose a value in [0, 1)"),
    ):
        for key in keys:
            if (value := get_key(recipe, key)) is not None and not fits(value):
                raise RecipeError(f"{key}={value} {meaning}.")
    _check_name(recipe)
    _check_model(recipe.model)
    _check_data(recipe.data)
    _check_run(recipe)
    if not 0 < recipe.scale <= 1:
        raise RecipeError(f"scale={recipe.scale:g} is not in (0, 1]: 0.01 takes a hundredth of rows and updates.")


def _check_name(recipe: Recipe) -> None:
    if recipe.output is None and not re.fullmatch(r"\w[\w.-]*", recipe.name):
        raise RecipeError(f"name={recipe.name!r} does not make a folder below runs/: use letters, digits, dots and dashes.")


def _check_model(model: dict[str, Any]) -> None:
    valid = {"preset", "path", *GlassformerConfig._field_names()}
    for name in model:
        if name not in valid:
            raise RecipeError(f"There is no key {name!r} in the section 'model'{nearest(name, sorted(valid))}")
    if "path" not in model:
        _check_config(**model)


def _check_config(preset: str | None = None, **fields: Any) -> None:
    """Now, although a tokenizer, which knows the special ids, has yet to be trained."""
    fields = {**dict.fromkeys(SPECIAL_IDS), **fields}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come again when the model is made
            GlassformerConfig(**fields) if preset is None else GlassformerConfig.from_preset(str(preset), **fields)
    except ValueError as error:
        raise RecipeError(f"model: {' '.join(str(error).split())}") from None


def _check_data(data: Data) -> None:
    if bool(data.source) == bool(data.files):
        raise RecipeError("A recipe names its data once: set data.source, or data.files with one file or list of files a split.")
    if data.source.startswith(BUILT_IN) and data.streaming:
        raise RecipeError("data.streaming=true has no use for a builtin corpus, which is made in memory: drop it.")


def _check_run(recipe: Recipe) -> None:
    batching, training, optimizer = recipe.batching, recipe.training, recipe.optimizer
    if (batching.tokens is None) == (batching.examples is None):
        raise RecipeError("The size of a batch is given once: set batching.tokens or batching.examples.")
    if batching.packing and recipe.objective.name not in ("causal_lm", "masked_lm"):
        raise RecipeError(f"batching.packing fills rows for causal_lm and masked_lm, not for {recipe.objective.name}: drop it.")
    if recipe.baseline and BASELINES[recipe.baseline] != recipe.objective.name:
        raise RecipeError(f"baseline={recipe.baseline} is a model for {BASELINES[recipe.baseline]}, not {recipe.objective.name}.")
    if recipe.baseline and recipe.model.get("path"):
        raise RecipeError("A baseline is trained from scratch: drop model.path.")
    if recipe.tokenizer.dropout and (batching.packing or recipe.objective.name not in CUT_ANEW):
        raise RecipeError(f"tokenizer.dropout is for {', '.join(CUT_ANEW)} without packing: drop it.")
    if recipe.tokenizer.dropout and (recipe.data.streaming or training.steps is None):
        raise RecipeError("tokenizer.dropout makes other batches of a table in every epoch: set training.steps, no streaming.")
    if recipe.objective.name == "prefix_lm" and recipe.model.get("attention_window"):
        raise RecipeError("prefix_lm sees its prefix whole: drop model.attention_window.")
    if training.steps is None and training.epochs is None and training.minutes is None:
        raise RecipeError("The run has no end: set training.steps, training.epochs or training.minutes.")
    if recipe.data.streaming and training.steps is None:
        raise RecipeError("A stream has no known length: set training.steps.")
    if recipe.data.streaming and recipe.data.validation_fraction:
        raise RecipeError("No validation rows can be cut from a stream: name a validation split or file.")
    if optimizer.lr is not None and optimizer.lr > LARGEST_LR:
        raise RecipeError(f"optimizer.lr={optimizer.lr:g} would throw the weights away in one update: try 1e-3 (noam: 1).")
    if len(optimizer.betas) != 2 or not all(0 <= beta < 1 for beta in optimizer.betas):
        raise RecipeError(f"optimizer.betas={optimizer.betas} must be two numbers in [0, 1).")
    if recipe.checkpoints.final == "average" and recipe.checkpoints.keep < recipe.checkpoints.average:
        raise RecipeError(
            f"checkpoints.average={recipe.checkpoints.average} checkpoints are to be averaged, but checkpoints.keep="
            f"{recipe.checkpoints.keep}: keep at least as many."
        )


def expand_path(path: str) -> str:
    """With ~ and environment variables replaced; a variable that is not set is named."""
    expanded = os.path.expanduser(os.path.expandvars(path))
    if missing := re.search(r"\$\{?(\w+)\}?", expanded):
        raise RecipeError(f"{path} needs the environment variable {missing[1]}, which is not set.")
    return expanded
