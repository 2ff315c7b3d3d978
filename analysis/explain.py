# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""`glassformer explain`: one page for the browser about one text, with all of its data inside.

It holds what every head looks at, what the model predicts, and what it predicts without each of its heads: everything is computed
here, and `page.html` only shows it. Attention weights are rounded to eight bits.
"""

import base64
import json
import os
import zlib
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoModel, AutoTokenizer

import glassformer

from .checks import Failed, Subject
from .head_mask import mask_heads
from .heads import HeadStatistics, cross_patterns, entropy_of, self_patterns
from .patterns import delimiter_ids
from .predictions import Question, ask
from .rollout import rollout
from .visualizer import AttentionVisualizer, Capture


# H heads, T queries, S keys, N steps, R rows: the whole model, then without each head

LONGEST = 128  # tokens of a side, and steps, that are shown
TOP = 5  # choices of a step that are shown
SUFFIXES = (".html", ".htm")
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model", "source.spm",
)  # fmt: skip
Packed = dict[str, Any]  # an array as the page reads it: type, shape, and its bytes


@dataclass
class Layer:
    number: int
    weights: Packed  # [H, T, S]: 255 times the square root, which keeps small weights apart
    entropy: Packed  # [H, T]: in 255ths of the highest possible
    heads: list[dict[str, Any]]  # pattern, entropy and distance of each


@dataclass
class Stack:
    """Attention of one kind: of the encoder, of the decoder, or from the decoder to the encoder."""

    kind: str
    queries: list[str]
    keys: list[str]
    layers: list[Layer]
    rollout: Packed | None  # [T, T], as weights


@dataclass
class Step:
    """`place` is the token of `queries` at which the step is answered, None if it is not one or is not shown."""

    chosen: str
    place: int | None


@dataclass
class Predictions:
    """Row 0 is the whole model, the others lack one head each, in the order of stacks, layers and heads."""

    names: list[str]  # of choices
    top: Packed  # [R, N, TOP] numbers of names, the most probable first
    probabilities: Packed  # [R, N, TOP]
    chosen: Packed  # [R, N] the probability of what the whole model chose
    texts: list[str | None]  # [R] what is written then; None where it is the same, or where nothing is


@dataclass
class Page:
    title: str
    model: str
    parameters: int
    version: str
    text: str
    task: str
    is_given: bool  # whether the target was
    notes: list[str]
    stacks: list[Stack]
    steps: list[Step] = field(default_factory=list)
    predictions: Predictions | None = None


def explain(
    visualizer: AttentionVisualizer,
    text: str,
    path: Path,
    target: str | None = None,
    max_new_tokens: int | None = None,
    pair: str | None = None,
) -> Path:
    """Write the page of one text."""
    check_path(path)
    page = describe(visualizer, text, target, max_new_tokens, pair)
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(render(page), encoding="utf-8")
    os.replace(unfinished, path)
    return path


def check_path(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} is no page that a browser would open: end its name with {SUFFIXES[0]}.")
    if not path.parent.is_dir():
        raise ValueError(f"There is no folder {path.parent} to write {path.name} to: make it first, or choose another.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file.")


def load(folder: str | Path) -> AttentionVisualizer:
    """A saved model with its tokenizer: a folder, or a name on the Hub."""
    folder = Path(folder)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise ValueError(f"{folder} holds no config.json: give the folder of a saved model.")
    if (folder / "preprocessor_config.json").exists():
        raise ValueError(f"{folder} holds a model that reads pictures, and this is for text: give another.")
    if folder.is_dir() and not any((folder / name).exists() for name in TOKENIZER_FILES):
        raise ValueError(f"{folder} holds no tokenizer: save the model's own beside it, with tokenizer.save_pretrained.")
    try:
        config = AutoConfig.from_pretrained(folder)
        model_class = Subject(folder).model_class if config.architectures else AutoModel
        model, tokenizer = model_class.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    except (Failed, OSError, ValueError) as error:
        if not folder.is_dir():
            raise ValueError(f"There is no folder {folder}, and no model of this name can be had from the Hub.") from error
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{folder} cannot be loaded, save its model and tokenizer again: {reason}") from error
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    target = folder / "target_tokenizer"
    return AttentionVisualizer(model, tokenizer, AutoTokenizer.from_pretrained(target) if target.is_dir() else None)


# Gathering


def describe(
    visualizer: AttentionVisualizer,
    text: str,
    target: str | None = None,
    max_new_tokens: int | None = None,
    pair: str | None = None,
) -> Page:
    """All that the page shows."""
    model = visualizer.model
    question = ask(visualizer, text, target, max_new_tokens, pair)
    capture = visualizer.capture_inputs(question.inputs)
    sides = {"text": capture.source, "target": capture.target or []}
    shown = {side: shown_part(side, len(ids), question) for side, ids in sides.items()}
    read = delimiter_ids(visualizer.tokenizer)
    is_shared = visualizer.target_tokenizer is visualizer.tokenizer
    delimiters = {"encoder": read, "cross": read, "decoder": read if is_shared else delimiter_ids(visualizer.target_tokenizer)}
    page = Page(
        title=Path(str(model.config.name_or_path or type(model).__name__)).name,
        model=type(model).__name__,
        parameters=model.num_parameters(),
        version=glassformer.__version__,
        text=text if pair is None else f"{text}\n{pair}",
        task=question.task,
        is_given=target is not None,
        notes=[note(side, shown[side], len(ids)) for side, ids in sides.items() if len(shown[side]) < len(ids)],
        stacks=[describe_stack(capture, kind, shown, delimiters[kind]) for kind in capture.kinds],
    )
    if question.task != "none":
        answering = shown["text" if capture.target is None else "target"]
        page.steps, page.predictions = describe_predictions(visualizer, question, capture, answering)
    return page


def shown_part(side: str, length: int, question: Question) -> range:
    """Places of the tokens that are shown: the first ones or, where a text is continued, the last ones."""
    is_continued = side == "text" and question.prompt is not None and "decoder_input_ids" not in question.inputs
    return range(max(0, length - LONGEST), length) if is_continued else range(min(length, LONGEST))


def note(side: str, part: range, length: int) -> str:
    return f"The {'last' if part.start else 'first'} {len(part)} of {length} tokens of the {side} are shown."


def describe_stack(capture: Capture, kind: str, shown: dict[str, range], delimiters: set[int]) -> Stack:
    queries, keys = capture.labels(kind)
    if capture.target is None or kind == "encoder":
        rows = columns = shown["text"]
    else:
        rows, columns = shown["target"], shown["text" if kind == "cross" else "target"]
    layers = [capture.weights(kind, number) for number in capture.layers(kind)]  # [H, T, S] each
    if not all(weights.isfinite().all() for weights in layers):
        raise ValueError("Attention of this model is not a number: its weights are broken, see what `glassformer check` says.")
    patterns = patterns_of(capture, kind, delimiters)
    return Stack(
        kind=kind,
        queries=[queries[place] for place in rows],
        keys=[keys[place] for place in columns],
        layers=[
            describe_layer(number, weights, patterns, kind == "decoder", rows, columns)
            for number, weights in zip(capture.layers(kind), layers)
        ],
        rollout=None if kind == "cross" else pack_weights(rollout(layers)[rows.start : rows.stop, columns.start : columns.stop]),
    )


def patterns_of(capture: Capture, kind: str, delimiters: set[int]) -> dict[str, Tensor]:
    queries, keys = capture.sides(kind)
    return cross_patterns(len(queries), keys, delimiters) if kind == "cross" else self_patterns(queries, delimiters)


def describe_layer(
    number: int, weights: Tensor, patterns: dict[str, Tensor], is_causal: bool, rows: range, columns: range
) -> Layer:
    statistics = HeadStatistics(len(weights))
    statistics.add(weights, patterns, is_causal)
    queries, keys = weights.shape[1:]
    seen = torch.arange(1, queries + 1) if is_causal else torch.full((queries,), keys)
    entropy = (entropy_of(weights) / seen.clamp(min=2).log()).clamp(0, 1)[:, rows.start : rows.stop]
    facts = ("pattern", "entropy", "distance")
    return Layer(
        number,
        pack_weights(weights[:, rows.start : rows.stop, columns.start : columns.stop]),
        pack((entropy * 255).round().to(torch.uint8)),
        [{fact: rounded(row[fact]) for fact in facts} for row in statistics.describe()],
    )


def rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def describe_predictions(
    visualizer: AttentionVisualizer, question: Question, capture: Capture, shown: range
) -> tuple[list[Step], Predictions]:
    """The answers of the whole model, and of the model without each head."""
    model = visualizer.model
    whole = question.answer(model)  # [N, C]
    chosen = torch.tensor(question.chosen) if question.chosen else whole.argmax(-1)  # [N]
    heads = [
        (kind, layer, head)
        for kind in capture.kinds
        for layer in capture.layers(kind)
        for head in range(len(capture.weights(kind, layer)))
    ]
    answers, texts = [kept(whole, chosen)], [written(visualizer, question, chosen.tolist())]
    for kind, layer, head in tqdm(heads, desc="heads switched off", disable=None):
        with mask_heads(model, {(kind, layer): [head]}):
            answer = question.answer(model)
            changed = question.prompt is not None and not torch.equal(answer.argmax(-1), chosen)
            texts.append(written(visualizer, question) if changed else None)
        answers.append(kept(answer, chosen))
    probabilities, top, of_chosen = (torch.stack(tensors) for tensors in zip(*answers))
    numbers, places = top.unique(return_inverse=True)
    steps = [
        Step(question.name(int(choice)), shown_place(question, number, shown)) for number, choice in enumerate(chosen[:LONGEST])
    ]
    names = [question.name(number) for number in numbers.tolist()]
    return steps, Predictions(names, pack(places.to(torch.int32)), pack(probabilities), pack(of_chosen), texts)


def kept(answer: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of probabilities [N, C]: the highest and their choices [N, TOP], and those of what was chosen [N]"""
    best = answer[:LONGEST].topk(min(TOP, answer.shape[-1]))
    return best.values, best.indices, answer[:LONGEST].gather(-1, chosen[:LONGEST, None])[:, 0]


def written(visualizer: AttentionVisualizer, question: Question, chosen: list[int] | None = None) -> str | None:
    """The text of these tokens; without any, of what the model writes now."""
    if question.task != "text":
        return None
    if chosen is None and question.prompt is not None:
        skipped = 1 if visualizer.model.config.is_encoder_decoder else question.prompt["input_ids"].shape[1]
        chosen = visualizer.write(question.prompt, **question.generation)[0, skipped:].tolist()
    return visualizer.target_tokenizer.decode(chosen, skip_special_tokens=True)


def shown_place(question: Question, step: int, shown: range) -> int | None:
    if not question.places or question.places[step] not in shown:
        return None
    return question.places[step] - shown.start


# Writing


def pack_weights(weights: Tensor) -> Packed:
    return pack((weights.clamp(0, 1).sqrt() * 255).round().to(torch.uint8))


def pack(tensor: Tensor) -> Packed:
    """Compressed, for the browser to unpack: {"type": "uint8", "shape": [2, 3], "data": "..."}"""
    array = tensor.contiguous().numpy()
    data = base64.b64encode(zlib.compress(array.tobytes(), 9)).decode("ascii")
    return {"type": str(array.dtype), "shape": list(array.shape), "data": data}


def render(page: Page) -> str:
    """The page with its data, in which nothing can end the script that holds it."""
    _, _, template = files(__package__).joinpath("page.html").read_text(encoding="utf-8").partition("-->\n")
    data = json.dumps(asdict(page), ensure_ascii=False, separators=(",", ":"))
    return template.replace("__DATA__", data.replace("<", "\\u003c"))
