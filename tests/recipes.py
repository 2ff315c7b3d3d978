"""A small recipe for the tests: a complete run takes a second or two."""

import contextlib
import copy
import functools
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

from glassformer.training.loop import train
from glassformer.training.objectives import OBJECTIVES
from glassformer.training.recipe import Recipe, parse_recipe


TINY = {
    "name": "tiny",
    "data": {"source": "builtin:copy", "size": 120, "splits": {"validation": "validation[:30]", "test": "test[:20]"}},
    "tokenizer": {"kind": "char", "vocab_size": 40},
    "model": {
        "d_model": 16, "num_heads": 2, "d_ff": 24, "num_encoder_layers": 1, "num_decoder_layers": 1, "dropout": 0.1,
        "max_position_embeddings": 64,
    },
    "objective": {"name": "seq2seq"},
    "batching": {"tokens": 300},
    "optimizer": {"lr": 1e-3},
    "schedule": {"name": "cosine", "warmup_steps": 2},
    "training": {"steps": 6},
    "evaluation": {"every": 3, "metrics": ["exact_match"], "best": "loss", "limit": 8, "generation": {"max_new_tokens": 6}},
    "checkpoints": {"every": 2, "keep": 3},
    "logging": {"every": 2, "tensorboard": False},
}  # fmt: skip


def tiny_recipe(folder: Path | str, overrides: dict[str, Any] | None = None) -> Recipe:
    """`overrides` have dotted keys; a dict as a value replaces a whole section."""
    content: dict[str, Any] = {**copy.deepcopy(TINY), "output": str(folder)}
    for key, value in copy.deepcopy(overrides or {}).items():
        *sections, last = key.split(".")
        inner = content
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return parse_recipe(content)


# Every objective on a few rows of its own

TEXTS = [
    f"the {colour} {thing} is {where}" for colour in ("red", "green") for thing in ("lamp", "pane") for where in ("in", "out")
]
LABELS = [[word for word in ("red", "lamp") if word in text] for text in TEXTS]
ROWS: dict[str, list[dict[str, Any]]] = {
    "seq2seq": [{"source": text, "target": text.upper()} for text in TEXTS],
    "sequence_classification": [{"text": text, "label": text[-2:].strip()} for text in TEXTS],
    "multi_label": [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS)],
    "regression": [{"text": text, "label": len(text) / 10} for text in TEXTS],
    "token_classification": [
        {"tokens": text.split(), "tags": ["B-X" if "r" in word else "O" for word in text.split()]} for text in TEXTS
    ],
    "question_answering": [
        {"question": "where", "context": text, "answers": {"text": ["is"], "answer_start": [text.index("is")]}} for text in TEXTS
    ],
}  # fmt: skip
TASKS: dict[str, dict[str, Any]] = {
    **{name: {"objective": {"name": name}} for name in OBJECTIVES},
    "multi_label": {"objective": {"name": "sequence_classification", "problem_type": "multi_label_classification"}},
    "regression": {"objective": {"name": "sequence_classification", "problem_type": "regression"}},
}
TASKS["span_corruption"] |= {"tokenizer.sentinels": 4}


def rows_of(task: str) -> list[dict[str, Any]]:
    return ROWS.get(task) or [{"text": text} for text in TEXTS]


def task_recipe(folder: Path, task: str, overrides: dict[str, Any] | None = None) -> Recipe:
    """A tiny recipe of one of `TASKS` on its rows, which are written beside the run."""
    stacks = {"encoder": {"model.num_decoder_layers": 0}, "decoder": {"model.num_encoder_layers": 0}}
    shape = OBJECTIVES[TASKS[task]["objective"]["name"]].shapes[0]
    data = {"data": {"source": str(write_rows(folder / f"{task}.jsonl", rows_of(task)))}}
    return tiny_recipe(folder / "run", {**data, **TASKS[task], **stacks.get(shape, {}), **(overrides or {})})


@contextlib.contextmanager
def trained_runs(folder: Path, overrides: dict[str, Any]) -> Iterator[Callable[[str], Path]]:
    """Folders of runs by task, each trained when it is first asked for; `copy` has data of our own making."""

    @functools.cache
    def run(task: str) -> Path:
        return train(tiny_recipe(folder / "copy") if task == "copy" else task_recipe(folder / task, task, overrides))

    with pytest.MonkeyPatch.context() as patch:
        keep_caches_in(folder, patch)
        yield run


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return path


def keep_caches_in(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Nothing that is read or tokenised leaves a trace elsewhere."""
    patch.setenv("GLASSFORMER_CACHE", str(folder / "cache"))
    for name in ("HF_DATASETS_CACHE", "DOWNLOADED_DATASETS_PATH", "EXTRACTED_DATASETS_PATH"):
        patch.setattr(datasets.config, name, folder / "datasets")
