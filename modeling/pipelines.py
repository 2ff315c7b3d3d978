# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The pipelines that transformers 5 dropped: translation, summarization, text2text-generation, question-answering.

They work for any sequence-to-sequence or question-answering model of transformers (Marian, T5, BART, BERT, ...) and for ours:

>>> import glassformer
>>> transformers.pipeline("translation", model="folder")("Guten Morgen")
[{'translation_text': ...}]
"""

from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM, GenerationConfig
from transformers.pipelines.base import ChunkPipeline, Pipeline


class Text2TextGenerationPipeline(Pipeline):
    """Text in, text out. Parameters of `generate` can be given to the pipeline or to each call."""

    _pipeline_calls_generate = True
    _load_tokenizer = True
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = False
    _default_generation_config = GenerationConfig(max_new_tokens=256)
    output_name = "generated_text"

    def __call__(self, *args, **kwargs):
        """One text -> a list with a dict for each returned sequence; a list of texts -> a list of these, flat if it can be."""
        results = super().__call__(*args, **kwargs)
        is_list = args and isinstance(args[0], list)
        if is_list and all(isinstance(result, list) and len(result) == 1 for result in results):
            return [result[0] for result in results]
        return results

    def _sanitize_parameters(self, truncation=None, prefix=None, clean_up_tokenization_spaces=None, **generate_kwargs):
        preprocess = {"truncation": truncation, "prefix": prefix}
        postprocess = {"clean_up_tokenization_spaces": clean_up_tokenization_spaces}
        return _given(preprocess), generate_kwargs, _given(postprocess)

    def preprocess(self, inputs: str, truncation: bool = False, prefix: str | None = None) -> dict[str, Any]:
        if not isinstance(inputs, str):
            raise ValueError(
                f"The {self.task} pipeline reads text, not {type(inputs).__name__}: pass a string or a list of them."
            )
        prefix = (getattr(self, "prefix", None) or "") if prefix is None else prefix
        encoded = self.tokenizer(prefix + inputs, truncation=truncation, return_tensors="pt")
        if encoded["input_ids"].shape[1] == 0:
            raise ValueError(f"{inputs!r} has no tokens: pass a text that is not empty.")
        return {name: encoded[name] for name in ("input_ids", "attention_mask") if name in encoded}

    def _forward(self, model_inputs: dict[str, Any], **generate_kwargs) -> dict[str, Any]:
        batch = len(model_inputs["input_ids"])
        sequences = self.model.generate(**model_inputs, **self._prepare_generate_kwargs(generate_kwargs))
        return {"output_ids": sequences.view(batch, len(sequences) // batch, -1)}  # [batch, returned, length]

    def postprocess(self, model_outputs: dict[str, Any], clean_up_tokenization_spaces: bool = False) -> list[dict[str, str]]:
        texts = self.tokenizer.batch_decode(
            model_outputs["output_ids"][0],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=clean_up_tokenization_spaces,
        )
        return [{self.output_name: text.strip()} for text in texts]


class TranslationPipeline(Text2TextGenerationPipeline):
    output_name = "translation_text"


class SummarizationPipeline(Text2TextGenerationPipeline):
    output_name = "summary_text"


class QuestionAnsweringPipeline(ChunkPipeline):
    """Finds the answer to a question in a text, which may be longer than the model reads at once.

    >>> answer(question="Who writes?", context="The decoder writes.")
    {'score': ..., 'start': 0, 'end': 11, 'answer': 'The decoder'}
    """

    default_input_names = "question,context"
    _load_tokenizer = True
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = False

    def __call__(self, *args, question=None, context=None, **kwargs):
        """A question and a context, a dict of these, or a list of such dicts."""
        if question is not None or context is not None:
            args = ({"question": question, "context": context}, *args)
        return super().__call__(*args, **kwargs)

    def _sanitize_parameters(
        self, top_k=None, max_answer_len=None, max_seq_len=None, doc_stride=None, handle_impossible_answer=None
    ):
        preprocess = {"max_seq_len": max_seq_len, "doc_stride": doc_stride}
        postprocess = {
            "top_k": top_k, "max_answer_len": max_answer_len, "handle_impossible_answer": handle_impossible_answer,
        }  # fmt: skip
        return _given(preprocess), {}, _given(postprocess)

    def preprocess(
        self, inputs: dict[str, str], max_seq_len: int | None = None, doc_stride: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Windows over the context, each with the question in front, overlapping so that no answer is cut everywhere."""
        question, context = (inputs or {}).get("question"), (inputs or {}).get("context")
        for name, text in (("question", question), ("context", context)):
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"The {name} is {text!r}: pass a text that is not empty.")
        if not self.tokenizer.is_fast:
            raise ValueError("Answers are cut out by character, which a slow tokenizer does not count: load a fast one.")
        if max_seq_len is None:
            longest = getattr(self.model.config, "max_position_embeddings", 384)
            max_seq_len = min(self.tokenizer.model_max_length, longest, 384)
        specials = self.tokenizer.num_special_tokens_to_add(pair=True)
        room = max_seq_len - specials - len(self.tokenizer(question, add_special_tokens=False)["input_ids"])
        if room < 1:
            raise ValueError(f"The question fills all {max_seq_len} tokens of a window: shorten it, or raise max_seq_len.")
        encoded = self.tokenizer(
            question,
            context,
            truncation="only_second",
            max_length=max_seq_len,
            stride=min(128 if doc_stride is None else doc_stride, room // 2),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        names = [name for name in self.tokenizer.model_input_names if name in encoded]
        for index in range(len(encoded["input_ids"])):
            yield {
                "is_last": index == len(encoded["input_ids"]) - 1,
                "context": context,
                "offsets": encoded["offset_mapping"][index],
                "in_context": [which == 1 for which in encoded.sequence_ids(index)],
                **{name: torch.tensor([encoded[name][index]]) for name in names},
            }

    def _forward(self, model_inputs: dict[str, Any]) -> dict[str, Any]:
        kept = {name: model_inputs.pop(name) for name in ("context", "offsets", "in_context", "is_last")}
        outputs = self.model(**model_inputs)
        return {"start": outputs["start_logits"], "end": outputs["end_logits"], **kept}

    def postprocess(
        self,
        model_outputs: list[dict[str, Any]],
        top_k: int = 1,
        max_answer_len: int = 15,
        handle_impossible_answer: bool = False,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        answers: dict[tuple[int, int], dict[str, Any]] = {}
        no_answer = 1.0
        for window in model_outputs:
            inside = torch.tensor(window["in_context"])
            # The first token stands for "no answer here"; no other token outside the context can win.
            allowed = inside.clone()
            allowed[0] = True
            start, end = (
                window[name].flatten()[: len(allowed)].float().masked_fill(~allowed, -torch.inf).softmax(-1)
                for name in ("start", "end")
            )
            no_answer = min(no_answer, float(start[0] * end[0]))
            start, end = start * inside, end * inside
            spans = torch.triu(start[:, None] * end).tril(max_answer_len - 1)  # end not before start, nor too far behind
            scores, places = spans.flatten().topk(min(top_k, spans.numel()))
            for score, place in zip(scores.tolist(), places.tolist()):
                first, last = divmod(place, len(allowed))
                at = _trim(window["context"], window["offsets"][first][0], window["offsets"][last][1])
                if score > 0 and at[0] < at[1]:
                    answer = {"score": score, "start": at[0], "end": at[1], "answer": window["context"][slice(*at)]}
                    answers[at] = max(answer, answers.get(at, answer), key=lambda found: found["score"])
        if handle_impossible_answer:
            answers[0, 0] = {"score": no_answer, "start": 0, "end": 0, "answer": ""}
        best = sorted(answers.values(), key=lambda found: found["score"], reverse=True)[:top_k]
        return best[0] if top_k == 1 and best else best


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without the blanks at its ends, which some tokenizers count to their tokens."""
    span = text[start:end]
    return start + len(span) - len(span.lstrip()), end - len(span) + len(span.rstrip())


def _given(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


# task -> pipeline, Auto class that loads its model
TASKS = {
    "text2text-generation": (Text2TextGenerationPipeline, AutoModelForSeq2SeqLM),
    "translation": (TranslationPipeline, AutoModelForSeq2SeqLM),
    "summarization": (SummarizationPipeline, AutoModelForSeq2SeqLM),
    "question-answering": (QuestionAnsweringPipeline, AutoModelForQuestionAnswering),
}
