# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The entry: a model and its tokenizer -> what every head looks at in a text, as tensors and as pictures."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from . import pictures
from .capture import KINDS, Attention, record_attention
from .flow import draw_flow, measure_flow
from .labels import join_words, token_labels, word_groups
from .patterns import HeadReport, Row, analyze_heads
from .position_maps import position_map


# H heads, T queries, S keys


@dataclass
class Capture:
    """All that the heads did with one text. `source` and `target` are token ids; a model of one stack has a source alone."""

    attention: Attention
    tokenizer: PreTrainedTokenizerBase
    source: list[int]
    target: list[int] | None

    @property
    def kinds(self) -> list[str]:
        return [kind for kind in KINDS if self.attention.layers(kind)]

    def layers(self, kind: str) -> list[int]:
        return self.attention.layers(kind)

    def weights(self, kind: str, layer: int, words: bool = False) -> Tensor:
        """[H, T, S]: each row is where a token looks, and sums to 1. With `words`, pieces are joined to words."""
        weights = self.attention.weights(kind, layer)[0]
        if not words:
            return weights
        queries, keys = (word_groups(self.tokenizer, ids) for ids in self.sides(kind))
        return join_words(weights, queries, keys)

    def labels(self, kind: str, words: bool = False) -> tuple[list[str], list[str]]:
        """Of queries and of keys."""
        queries, keys = (self._labels(ids, words) for ids in self.sides(kind))
        return queries, keys

    def sides(self, kind: str) -> tuple[list[int], list[int]]:
        """The tokens that look, and those that are looked at."""
        if self.target is None or kind == "encoder":
            return self.source, self.source
        return self.target, self.source if kind == "cross" else self.target

    def _labels(self, ids: list[int], words: bool) -> list[str]:
        labels = token_labels(self.tokenizer, ids)
        return ["".join(labels[place] for place in group) for group in word_groups(self.tokenizer, ids)] if words else labels


class AttentionVisualizer:
    """Attention of a model, ours or one of transformers', whatever kernel it runs on."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        self.model, self.tokenizer = model, tokenizer

    def capture(self, text: str, target: str | None = None, layers: Collection[int] | None = None, **generation) -> Capture:
        """Read a text, and with two stacks write or read a target.

        Args:
            target: what an encoder-decoder is shown as its answer; it writes its own if this is None, as `generation` says.
            layers: numbers of the layers to keep, all if None.
        """
        if not text.strip():
            raise ValueError("The text is empty: there is nothing to look at.")
        if target is not None and not self.model.config.is_encoder_decoder:
            raise ValueError("This model has one stack and reads no target: leave it out, or add it to the text.")
        inputs = self.tokenizer(text, return_tensors="pt").to(self.model.device)
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                return self._read(inputs, target, layers, generation)
        finally:
            self.model.train(was_training)

    def _read(self, inputs, target: str | None, layers: Collection[int] | None, generation) -> Capture:
        options = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
        shown = None
        if self.model.config.is_encoder_decoder:
            shown = self._written(options, generation) if target is None else self._given(target)
            options["decoder_input_ids"] = shown
        with record_attention(self.model, layers) as attention:
            self.model(**options, use_cache=False) if self.model.can_generate() else self.model(**options)
        return Capture(attention, self.tokenizer, inputs["input_ids"][0].tolist(), None if shown is None else shown[0].tolist())

    def _written(self, options, generation) -> Tensor:
        """What the model answers, as the decoder reads it: from the start token to the last but one."""
        return self.model.generate(**options, **{"do_sample": False, **generation})[:, :-1]

    def _given(self, target: str) -> Tensor:
        ids = self.tokenizer(text_target=target, add_special_tokens=False, return_tensors="pt").input_ids
        start = torch.tensor([[self.model.config.decoder_start_token_id]])
        return torch.cat((start, ids), dim=1).to(self.model.device)

    def analyze_head_patterns(self, dataset: Iterable[Row], save_path: str | Path | None = None) -> HeadReport:
        """What each head does over all texts of a dataset: texts, or rows with source and target.

        With a path, the table is saved as CSV and JSON beside a figure of it.
        """
        report = analyze_heads(self.model, self.tokenizer, dataset)
        if save_path is not None:
            report.save(Path(save_path))
        return report

    # Pictures

    def plot_attention_heads(self, text: str, layer: int, save_path: str | Path, kind: str | None = None, **options) -> Path:
        """All heads of a layer, of the encoder's or decoder's self-attention or, with kind="cross", of what the decoder reads."""
        found = self.capture(text, options.pop("target", None), [layer])
        kind = kind or found.kinds[0]
        if kind not in found.kinds:
            raise ValueError(
                f"There is no {kind} attention in layer {layer}: choose from {', '.join(found.kinds) or 'another layer'}."
            )
        return pictures.draw_heads(found, kind, layer, Path(save_path), **options)

    def plot_rollout(self, text: str, save_path: str | Path, target: str | None = None, kind: str | None = None) -> Path:
        """How much of each input token reaches each output of a stack, by rollout and, for short texts, by flow."""
        found = self.capture(text, target)
        return pictures.draw_rollout(found, kind or found.kinds[0], Path(save_path))

    def plot_head_summary(self, dataset: Iterable[Row], save_path: str | Path) -> Path:
        """All layers and heads in one figure: how widely they look, and what they do."""
        report = analyze_heads(self.model, self.tokenizer, dataset)
        return pictures.draw_summary(report.rows, Path(save_path))

    def plot_norm_and_gradient_flow(self, text: str, save_path: str | Path, target: str | None = None) -> Path:
        """How large the residual stream is after each layer, and the gradient of the loss of this text in each layer.

        A language model is asked for the text itself, an encoder-decoder for the target, a classifier for what it answers.
        """
        if not text.strip() or (target is None and self.model.config.is_encoder_decoder):
            raise ValueError("There is no loss without a text and, of a model of two stacks, a target: pass them.")
        inputs = self.tokenizer(text, return_tensors="pt").to(self.model.device)
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        if target is not None:
            inputs["labels"] = self.tokenizer(text_target=target, return_tensors="pt").input_ids.to(self.model.device)
        elif self.model.get_output_embeddings() is not None:
            inputs["labels"] = inputs["input_ids"]
        else:
            with torch.no_grad():
                inputs["labels"] = self.model(**inputs).logits.argmax(-1)
        return draw_flow(measure_flow(self.model, inputs), Path(save_path))

    def plot_positions(self, save_path: str | Path, length: int = 64) -> Path:
        """The position encoding as a heat map, and how alike positions are to the model."""
        return pictures.draw_positions(position_map(self.model, length), Path(save_path))

    def plot_cross_attention(self, text: str, save_path: str | Path, target: str | None = None, layer: int | None = None) -> Path:
        """Which source tokens each target token looks at: the mean of the heads of a layer, or of the sharpest one."""
        if not self.model.config.is_encoder_decoder:
            raise ValueError("This model has one stack: cross-attention is between two.")
        found = self.capture(text, target, None if layer is None else [layer])
        return pictures.draw_alignment(found, layer, Path(save_path))
