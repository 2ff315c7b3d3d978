# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What a model predicts for one text, step by step, as probabilities of choices that have names.

A step is a token that is written, a token that is tagged or was masked, the class of the whole text, or an end of an answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .capture import evaluating
from .labels import PART, SPACE, token_labels


if TYPE_CHECKING:
    from .visualizer import AttentionVisualizer

# N steps, C choices

WORD_BEGINS = "▁"  # in pieces of SentencePiece, which decodes the first word without its space
WRITTEN = 16  # tokens by which a language model continues a text if nothing else is said
ANSWERED = 64  # tokens that an encoder-decoder writes at most if neither the user nor the model says
GREEDY: dict[str, Any] = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0}


@dataclass
class Question:
    """What a model is asked about one text.

    Args:
        task: text, masks, tags, classes, labels (each true or false by itself), value, span, or none for a model without a head.
        inputs: of the model.
        name: of a choice, by its number.
        places: the token at which each step is answered, where that is one token.
        chosen: the choice of each step that is looked at; what the model finds most probable where it is empty.
        prompt: what the model goes on from if it writes by itself.
    """

    task: str
    inputs: dict[str, Tensor]
    name: Callable[[int], str]
    places: list[int] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    prompt: dict[str, Tensor] | None = None
    generation: dict[str, Any] = field(default_factory=dict)

    def answer(self, model: PreTrainedModel) -> Tensor:
        """Probabilities [N, C], or values where these are asked for."""
        with evaluating(model):
            outputs = model(**self.inputs)
        if self.task == "span":
            scores = torch.stack((outputs.start_logits[0], outputs.end_logits[0]))
        else:
            scores = outputs.logits[0, self.places] if self.places else outputs.logits  # [1, C] of a whole text
        scores = scores.float().cpu()
        if self.task == "value":
            return scores
        return scores.sigmoid() if self.task == "labels" else scores.softmax(-1)


def task_of(model: PreTrainedModel) -> str:
    name, config = type(model).__name__, model.config
    if model.can_generate():
        return "text"
    if name.endswith("ForSequenceClassification"):
        kinds = {"regression": "value", "multi_label_classification": "labels"}
        return kinds.get(config.problem_type or "", "value" if config.num_labels == 1 else "classes")
    ends = {"ForMaskedLM": "masks", "ForTokenClassification": "tags", "ForQuestionAnswering": "span"}
    return next((task for end, task in ends.items() if name.endswith(end)), "none")


def ask(
    visualizer: "AttentionVisualizer", text: str, target: str | None, max_new_tokens: int | None, pair: str | None = None
) -> Question:
    """The question that fits the model: what follows, which class, which word."""
    model, tokenizer = visualizer.model, visualizer.tokenizer
    inputs, task = visualizer.read(text, target, pair), task_of(model)
    check_length(model, inputs)
    if task == "text" and model.config.is_encoder_decoder:
        return ask_for_target(visualizer, inputs, max_new_tokens)
    if task == "text":
        return ask_for_more(visualizer, inputs, max_new_tokens)
    ids = inputs["input_ids"][0].tolist()
    if task == "span":
        labels = token_labels(tokenizer, ids)
        return Question(task, inputs, lambda place: f"{labels[place]} (token {place})")  # a word may occur twice
    if task == "masks":
        return Question(task, inputs, namer(tokenizer), asked_places(ids, tokenizer))
    places = [place for place, token in enumerate(ids) if token not in tokenizer.all_special_ids] if task == "tags" else []
    return Question(task, inputs, lambda number: str(model.config.id2label[number]), places)


def ask_for_target(visualizer: "AttentionVisualizer", inputs: dict[str, Tensor], max_new_tokens: int | None) -> Question:
    """Each token of a target that was given, and then its end; or of what the model writes."""
    name, source = namer(visualizer.target_tokenizer), {key: inputs[key] for key in ("input_ids", "attention_mask")}
    if (given := inputs.get("decoder_input_ids")) is not None:
        chosen = given[0, 1:].tolist()
        end = visualizer.target_tokenizer.eos_token_id
        places = list(range(len(chosen) + (end is not None)))
        return Question("text", inputs, name, places, chosen if end is None else [*chosen, end])
    usual = visualizer.model.generation_config
    has_limit = usual.max_new_tokens is not None or usual.max_length is not None
    generation = GREEDY | ({} if max_new_tokens is None and has_limit else {"max_new_tokens": max_new_tokens or ANSWERED})
    written = visualizer.write(source, **generation)
    inputs = source | {"decoder_input_ids": written[:, :-1]}
    chosen = written[0, 1:].tolist()
    return Question("text", inputs, name, list(range(len(chosen))), chosen, source, generation)


def ask_for_more(visualizer: "AttentionVisualizer", inputs: dict[str, Tensor], max_new_tokens: int | None) -> Question:
    """Each token by which a language model continues the text, whose end mark is left out."""
    ids, end = inputs["input_ids"], visualizer.tokenizer.eos_token_id
    ids = ids[:, :-1] if ids.shape[1] > 1 and int(ids[0, -1]) == end else ids
    room = longest(visualizer.model) - ids.shape[1] + 1  # the last token is not read any more
    prompt = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    generation = GREEDY | {"max_new_tokens": min(max_new_tokens or WRITTEN, room)}
    written = visualizer.write(prompt, **generation)
    inputs = {"input_ids": written[:, :-1], "attention_mask": torch.ones_like(written[:, :-1])}
    places = list(range(ids.shape[1] - 1, written.shape[1] - 1))
    return Question("text", inputs, namer(visualizer.tokenizer), places, written[0, ids.shape[1] :].tolist(), prompt, generation)


def asked_places(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The masks or, in a text without any, all tokens that are nothing special."""
    masks = [place for place, token in enumerate(ids) if token == tokenizer.mask_token_id]
    return masks or [place for place, token in enumerate(ids) if token not in tokenizer.all_special_ids]


def longest(model: PreTrainedModel) -> int:
    return getattr(model.config, "max_position_embeddings", None) or 10**9


def check_length(model: PreTrainedModel, inputs: dict[str, Tensor]) -> None:
    for name, ids in (("text", inputs["input_ids"]), ("target", inputs.get("decoder_input_ids"))):
        if ids is not None and ids.shape[1] > longest(model):
            raise ValueError(f"The {name} has {ids.shape[1]} tokens, the model is made for {longest(model)}: shorten it.")


def namer(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], str]:
    """Tokens as choices: a space in front is told, for with and without it they are two."""
    special = set(tokenizer.all_special_ids)

    def name(token: int) -> str:
        if token >= len(tokenizer):  # embeddings are sometimes padded to a round number
            return f"[{token}]"
        piece, text = str(tokenizer.convert_ids_to_tokens(token)), tokenizer.decode([token])
        if token in special or PART in text or not text:
            return piece
        return SPACE * (text[:1].isspace() or piece.startswith(WORD_BEGINS)) + text.strip()

    return name
