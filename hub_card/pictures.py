# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The picture of a card that has to be drawn: where the model looks. The learning curves are there since training."""

from pathlib import Path

from .facts import Facts
from .files import FolderError
from .sections import question


SHORT = 60  # characters of a text whose tokens can be read in a picture


def draw_attention(facts: Facts, show_rows: bool, example: str | None) -> None:
    """`attention.png`, if it is missing or older than the weights, or if a text is given."""
    picture = facts.folder / "attention.png"
    texts = [question(row) for row in facts.samples] if show_rows else []
    text = example or next((text for text in texts if text.strip() and len(text) <= SHORT), None)
    if text is None or (example is None and is_newer(picture, facts.folder)):
        return
    from glassformer.analysis.explain import load  # here, for most cards are only refreshed

    visualizer = load(facts.folder)
    partial = picture.with_name(".attention.partial.png")
    try:
        if facts.shape == "encoder-decoder":
            visualizer.plot_cross_attention(text, partial)
        else:
            last = facts.config["num_encoder_layers"] + facts.config["num_decoder_layers"] - 1
            visualizer.plot_attention_heads(text, last, partial)
        partial.replace(picture)
    except OSError as error:
        raise FolderError(f"{picture} cannot be written ({error.strerror}): make room, or change permissions.") from None


def is_newer(picture: Path, folder: Path) -> bool:
    weights = max((file.stat().st_mtime for file in folder.glob("model*.safetensors")), default=0.0)
    return picture.exists() and picture.stat().st_mtime >= weights
