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
from .capture import KINDS, Attention, evaluating, record_attention
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
    target_tokenizer: PreTrainedTokenizerBase | None = None  # of models whose two languages have one each

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
        queries, keys = (word_groups(*side) for side in zip(self._tokenizers(kind), self.sides(kind)))
        return join_words(weights, queries, keys)

    def labels(self, kind: str, words: bool = False) -> tuple[list[str], list[str]]:
        """Of queries and of keys."""
        queries, keys = (labels_of(*side, words) for side in zip(self._tokenizers(kind), self.sides(kind)))
        return queries, keys

    def sides(self, kind: str) -> tuple[list[int], list[int]]:
        """The tokens that look, and those that are looked at."""
        if self.target is None or kind == "encoder":
            return self.source, self.source
        return self.target, self.source if kind == "cross" else self.target

    def _tokenizers(self, kind: str) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
        source, target = self.tokenizer, self.target_tokenizer or self.tokenizer
        return source if kind == "encoder" else target, target if kind == "decoder" else source


def labels_of(tokenizer: PreTrainedTokenizerBase, ids: list[int], words: bool) -> list[str]:
    labels = token_labels(tokenizer, ids)
    return ["".join(labels[place] for place in group) for group in word_groups(tokenizer, ids)] if words else labels


class AttentionVisualizer:
    """Attention of a model, ours or one of transformers', whatever kernel it runs on."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
    ):
        """`target_tokenizer` is for models that write another vocabulary than they read."""
        self.model, self.tokenizer, self.target_tokenizer = model, tokenizer, target_tokenizer or tokenizer

    def capture(
        self,
        text: str,
        target: str | None = None,
        layers: Collection[int] | None = None,
        pair: str | None = None,
        **generation,
    ) -> Capture:
        """Read a text, and with two stacks write or read a target.

        Args:
            target: what an encoder-decoder is shown as its answer; it writes its own if this is None, as `generation` says.
            layers: numbers of the layers to keep, all if None.
            pair: a second text of models that read two, such as the context of a question.
        """
        inputs = self.read(text, target, pair)
        if self.model.config.is_encoder_decoder and "decoder_input_ids" not in inputs:
            inputs["decoder_input_ids"] = self.write(inputs, **generation)[:, :-1]  # the last token is not read any more
        return self.capture_inputs(inputs, layers)

    def read(self, text: str, target: str | None = None, pair: str | None = None) -> dict[str, Tensor]:
        """What the model is given: the ids of one or two texts and, with two stacks, of a target, unless it writes its own."""
        if not text.strip():
            raise ValueError("The text is empty: there is nothing to look at.")
        two_stacks = self.model.config.is_encoder_decoder
        if target is not None and not two_stacks:
            raise ValueError("This model has one stack and reads no target: leave it out, or add it to the text.")
        encoded = self.tokenizer(text, pair, return_tensors="pt", verbose=False).to(self.model.device)
        told = ("input_ids", "attention_mask", *(["token_type_ids"] if pair is not None and "token_type_ids" in encoded else []))
        inputs = {name: encoded[name] for name in told}
        if target is not None:
            ids = self.target_tokenizer(text_target=target, add_special_tokens=False, return_tensors="pt").input_ids
            inputs["decoder_input_ids"] = self._after_start(ids.long().to(self.model.device))
        elif two_stacks and not self.model.can_generate():  # the decoder of a classifier reads the text once more
            inputs["decoder_input_ids"] = self._after_start(inputs["input_ids"][:, :-1])
        return inputs

    def write(self, inputs: dict[str, Tensor], **generation) -> Tensor:
        """What the model writes, greedily unless told otherwise, start token or prompt included: [1, T]"""
        with evaluating(self.model):
            return self.model.generate(**inputs, **{"do_sample": False, **generation})

    def capture_inputs(self, inputs: dict[str, Tensor], layers: Collection[int] | None = None) -> Capture:
        with evaluating(self.model), record_attention(self.model, layers) as attention:
            self.model(**inputs, use_cache=False) if self.model.can_generate() else self.model(**inputs)
        source, target = inputs["input_ids"][0].tolist(), inputs.get("decoder_input_ids")
        return Capture(attention, self.tokenizer, source, None if target is None else target[0].tolist(), self.target_tokenizer)

    def _after_start(self, ids: Tensor) -> Tensor:
        start = self.model.config.decoder_start_token_id
        if start is None:
            raise ValueError("The config has no decoder_start_token_id, with which a target begins: set it to the model's own.")
        return torch.cat((ids.new_tensor([[start]]), ids), dim=1)

    def explain(
        self,
        text: str,
        save_path: str | Path,
        target: str | None = None,
        max_new_tokens: int | None = None,
        pair: str | None = None,
    ) -> Path:
        """A page for the browser that shows all of this at once, and what the model predicts without each of its heads."""
        from .explain import explain

        return explain(self, text, Path(save_path), target, max_new_tokens, pair)

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
        inputs = self.read(text)
        if target is not None:
            inputs["labels"] = self.target_tokenizer(text_target=target, return_tensors="pt").input_ids.to(self.model.device)
        elif self.model.get_output_embeddings() is not None:
            inputs["labels"] = inputs["input_ids"]
        else:
            with evaluating(self.model):
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
