"""A small recipe for the tests: a complete run takes a second or two."""

import copy
from pathlib import Path
from typing import Any

from glassformer.training.recipe import Recipe, parse_recipe


TINY = {
    "name": "tiny",
    "data": {"source": "builtin:copy", "size": 120},
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
