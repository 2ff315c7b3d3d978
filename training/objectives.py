# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What a model is asked to learn: which columns it reads, how rows become tokens, tokens a batch, and outputs predictions.

An objective has two sides. `encode` and `collate` make training batches; `prompts` and `predict` answer raw rows, the same way
whether a metric or a user asks. Noise comes from a seed that each feature carries, so it does not depend on the company.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from glassformer.checks import IGNORED

from . import noise, recipe
from .data import DataError


Features = list[dict[str, Any]]


class Objective:
    """Base class. `roles` are columns, True for those that training cannot do without."""

    head: str  # the model class
    shapes: tuple[str, ...]  # of model, the usual one first
    roles: dict[str, bool] = {"text": True}
    adds = "both"  # special tokens that a tokenizer trained for this objective puts around a text
    metrics: tuple[str, ...]  # reported if the recipe names none
    best: str = "loss"  # the result that chooses the best checkpoint if the recipe names none
    writes_text = False  # predictions come from `generate`
    predictions_are_compared = True  # with references, row by row
    loss_options: dict[str, Any] = {}  # how the head is asked for the loss and no more

    def __init__(
        self,
        options: recipe.Objective,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        *,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        labels: Sequence[str] | None = None,
        stride: int = 64,
    ):
        self.options, self.tokenizer, self.max_length = options, tokenizer, max_length
        self.target_tokenizer = target_tokenizer or tokenizer
        self.labels, self.stride = labels, stride

    # Training

    def encode(self, rows: dict[str, list]) -> dict[str, list]:
        """Columns of rows -> columns of features: ids, their `length`, and whether they were `cut` to fit."""
        return self._fitted({"input_ids": self.ids(rows["text"])})

    def ids(self, texts: list[str], pairs: list[str] | None = None) -> list[list[int]]:
        return self.tokenizer(texts, pairs, return_attention_mask=False, verbose=False).input_ids

    def _fitted(self, columns: dict[str, list]) -> dict[str, list]:
        """Lists of tokens cut to the length that the model allows; the last token, an end mark as a rule, is kept."""
        names = [name for name in ("input_ids", "labels", "words") if isinstance(next(iter(columns.get(name, [])), None), list)]
        longest = [max(map(len, values)) for values in zip(*(columns[name] for name in names))]
        for name in names:
            columns[name] = [cut(tokens, self.max_length) for tokens in columns[name]]
        return {**columns, "length": [min(n, self.max_length) for n in longest], "cut": [n > self.max_length for n in longest]}

    def collate(self, features: Features) -> dict[str, Tensor]:
        raise NotImplementedError

    def num_items(self, tensors: dict[str, Tensor]) -> int:
        """How many labels the loss of this batch is a sum over."""
        return int((tensors["labels"] != IGNORED).sum())

    def count_tokens(self, tensors: dict[str, Tensor]) -> tuple[int, int]:
        """Tokens of a batch, without padding and with it."""
        ids = tensors["input_ids"]
        return int((ids != self.pad_id).sum()), ids.numel()

    @property
    def config_fields(self) -> dict[str, Any]:
        """What the config of a model for this objective must say."""
        return {}

    # Prediction

    def prompts(self, rows: list[dict[str, Any]]) -> Features:
        """Raw rows -> features that `predict` takes, each with the number of its row."""
        ids = self.ids([row[next(iter(self.roles))] for row in rows])
        return [{"input_ids": cut(tokens, self.max_length), "row": number} for number, tokens in enumerate(ids)]

    def predict(self, model: PreTrainedModel, features: Features, generation: dict[str, Any]) -> list[Any]:
        """One prediction for each feature."""
        raise NotImplementedError

    def combine(self, predictions: list[Any]) -> Any:
        """The answer to a row, from the predictions for its features."""
        return predictions[0]

    def reference(self, row: dict[str, Any]) -> Any:
        """What a prediction for this row is compared with."""
        raise NotImplementedError

    def sample_prompts(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rows to show what the model can do, where rows as they are would not."""
        return rows

    def readable(self, prediction: Any) -> Any:
        """A prediction as a person wants to see it."""
        return prediction

    # Padding

    @cached_property
    def pad_id(self) -> int:
        """What fills rows up: where a tokenizer has no token for it any will do, for the mask hides it."""
        return 0 if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id

    def pad(self, ids: list[Any], left: bool = False) -> dict[str, Tensor]:
        """Token ids of unequal length -> input_ids and attention_mask, both [B, longest]."""
        places = filled(ids, left)
        return {"input_ids": stack(ids, self.pad_id, places), "attention_mask": torch.from_numpy(places)}

    def inputs(self, model: PreTrainedModel, features: Features, left: bool = False) -> dict[str, Tensor]:
        """What a model is asked to read, where it is."""
        tensors = self.pad([feature["input_ids"] for feature in features], left)
        return {name: tensor.to(model.device) for name, tensor in tensors.items()}

    def rng(self, feature: dict[str, Any]) -> np.random.Generator:
        """The feature's own randomness; features that come without a seed draw one from torch."""
        seed = feature.get("seed")
        return np.random.default_rng(int(torch.randint(2**62, ())) if seed is None else seed)


def cut(tokens: list, length: int) -> list:
    """No longer than `length`, with the last token kept."""
    return tokens if len(tokens) <= length else [*tokens[: length - 1], tokens[-1]]


def stack(rows: list[Any], filler: Any, places: np.ndarray | None = None) -> Tensor:
    """Rows of unequal length -> [B, longest]. `places` are where they go, by default `filled(rows)`."""
    places = filled(rows) if places is None else places
    table = np.full(places.shape, filler, dtype=np.asarray(filler).dtype)
    table[places] = np.concatenate(rows)
    return torch.from_numpy(table)


def filled(rows: list[Any], left: bool = False) -> np.ndarray:
    """Where there is something, once rows of unequal length stand in a table: [B, longest]"""
    lengths = np.array([len(row) for row in rows])[:, None]
    places = np.arange(lengths.max())
    return places >= lengths.max() - lengths if left else places < lengths


# Text to text


class Seq2Seq(Objective):
    """Read a source, write a target. The decoder is taught with the true target, shifted right by the model."""

    head = "GlassformerForConditionalGeneration"
    loss_options = {"return_logits": False}
    shapes = ("encoder-decoder",)
    roles = {"source": True, "target": True}
    adds = "eos"
    metrics = ("exact_match", "token_accuracy")
    best = "exact_match"
    writes_text = True

    def encode(self, rows: dict[str, list]) -> dict[str, list]:
        targets = self.target_tokenizer(text_target=rows["target"], return_attention_mask=False).input_ids
        targets = [with_end(ids, self.target_tokenizer) for ids in targets]
        return self._fitted({"input_ids": self.ids(rows["source"]), "labels": targets})

    def collate(self, features: Features) -> dict[str, Tensor]:
        labels = stack([feature["labels"] for feature in features], IGNORED)
        return {**self.pad([feature["input_ids"] for feature in features]), "labels": labels}

    def count_tokens(self, tensors: dict[str, Tensor]) -> tuple[int, int]:
        real, padded = super().count_tokens(tensors)
        return real + self.num_items(tensors), padded + tensors["labels"].numel()

    def predict(self, model: PreTrainedModel, features: Features, generation: dict[str, Any]) -> list[str]:
        tensors = self.inputs(model, features)
        written = model.generate(**tensors, **generation)
        return self.target_tokenizer.batch_decode(written, skip_special_tokens=True)

    def reference(self, row: dict[str, Any]) -> str:
        return row["target"]

    def target_ids(self, text: str) -> list[int]:
        return self.target_tokenizer(text_target=text, add_special_tokens=False).input_ids


def with_end(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ends with the token that tells generation to stop."""
    end = tokenizer.eos_token_id
    return ids if end is None or ids[-1:] == [end] else [*ids, end]


def without_end(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids


class Denoising(Seq2Seq):
    """Restore a text that was damaged: a sequence-to-sequence task whose sources are made while training."""

    roles = {"text": True}
    metrics = ("loss", "perplexity")
    best = "loss"
    predictions_are_compared = False

    def encode(self, rows: dict[str, list]) -> dict[str, list]:
        return Objective.encode(self, rows)

    def collate(self, features: Features) -> dict[str, Tensor]:
        pairs = [self.damage(np.asarray(feature["input_ids"]), self.rng(feature)) for feature in features]
        return super().collate([{"input_ids": source, "labels": target} for source, target in pairs])

    def damage(self, ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """A text -> what the encoder reads, what the decoder is asked for."""
        raise NotImplementedError


class SpanCorruption(Denoising):
    """T5: spans are hidden behind sentinels, and the decoder writes them out."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.sentinels = sentinel_ids(self.tokenizer)

    def damage(self, ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        end = self.tokenizer.eos_token_id
        text = ids[:-1] if ids[-1] == end else ids
        if len(text) < 2:  # nothing can be hidden of a single token and something be left
            return ids, ids
        rate = self.options.rate or 0.15
        return noise.corrupt_spans(text, self.sentinels, end, rng, rate=rate, mean_length=self.options.mean_length)


def sentinel_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """`<extra_id_0>`, `<extra_id_1>`, ... in order."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    ids: list[int] = []
    while (token := f"<extra_id_{len(ids)}>") in vocabulary:
        ids.append(vocabulary[token])
    if not ids:
        raise DataError("span_corruption needs a tokenizer with the sentinels <extra_id_0>, <extra_id_1>, ...: train one.")
    return ids


class TextInfilling(Denoising):
    """BART: each hidden span becomes one mask, and the decoder writes the whole text."""

    adds = "both"

    def damage(self, ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        inner = ~np.isin(ids, [self.tokenizer.bos_token_id, self.tokenizer.eos_token_id])
        first, last = int(inner.argmax()), len(ids) - int(inner[::-1].argmax())
        text = ids[first:last]
        if self.options.permute_sentences:
            text = noise.permute_sentences(text, np.isin(text, self._sentence_ends), rng)
        rate, mask = self.options.rate or 0.3, mask_id(self.tokenizer)
        hidden = noise.infill(text, mask, rng, rate=rate, mean_length=self.options.mean_length)
        return np.concatenate((ids[:first], hidden, ids[last:])), ids

    @cached_property
    def _sentence_ends(self) -> list[int]:
        return [number for token, number in self.tokenizer.get_vocab().items() if token.endswith((".", "!", "?"))]


def lowest_ids(specials: Sequence[int]) -> int:
    """The first id after the special ones, where these are the lowest; else 0."""
    return len(specials) if sorted(specials) == list(range(len(specials))) else 0


def mask_id(tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.mask_token_id is None:
        raise DataError("This objective hides tokens, but the tokenizer has no mask token: add one, or train a tokenizer.")
    return tokenizer.mask_token_id


# Language models


class CausalLM(Objective):
    """Continue a text."""

    head = "GlassformerForCausalLM"
    loss_options = {"return_logits": False}
    shapes = ("decoder",)
    adds = "bos"
    metrics = ("loss", "perplexity")
    writes_text = True
    predictions_are_compared = False

    def encode(self, rows: dict[str, list]) -> dict[str, list]:
        return self._fitted({"input_ids": [with_end(ids, self.tokenizer) for ids in self.ids(rows["text"])]})

    def collate(self, features: Features) -> dict[str, Tensor]:
        if "documents" in features[0]:
            tensors = pack([feature["documents"] for feature in features], self.pad, labelled=True)
            for labels, feature in zip(tensors["labels"], features):
                labels[: feature.get("context", 0)] = IGNORED
            return tensors
        tensors = self.pad([feature["input_ids"] for feature in features])
        return {**tensors, "labels": tensors["input_ids"].masked_fill(~tensors["attention_mask"], IGNORED)}

    def num_items(self, tensors: dict[str, Tensor]) -> int:
        return int((tensors["labels"][:, 1:] != IGNORED).sum())  # the model shifts: nothing predicts the first token

    def prompts(self, rows: list[dict[str, Any]]) -> Features:
        """Without an end mark, after which nothing follows. A long text goes on from its end, so the beginning is cut off."""
        ids = [without_end(tokens, self.tokenizer) for tokens in self.ids([row["text"] for row in rows])]
        return [{"input_ids": tokens[-self.max_length :], "row": number} for number, tokens in enumerate(ids)]

    def predict(self, model: PreTrainedModel, features: Features, generation: dict[str, Any]) -> list[str]:
        tensors = self.inputs(model, features, left=True)
        return self.texts(model.generate(**tensors, **generation), tensors["attention_mask"])

    def texts(self, written: Tensor, mask: Tensor) -> list[str]:
        """Prompts and what follows, without what fills them up: not every tokenizer knows that token as a special one."""
        starts = (~mask).sum(1).tolist()
        rows = [row[start:] for row, start in zip(written.tolist(), starts)]
        return self.tokenizer.batch_decode(rows, skip_special_tokens=True)

    def sample_prompts(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Beginnings, to be continued."""
        few = min(16, self.max_length // 2)  # so that there is room to go on
        beginnings = [ids[:few] for ids in self.ids([row["text"] for row in rows])]
        return [{"text": text} for text in self.tokenizer.batch_decode(beginnings, skip_special_tokens=True)]


def pack(rows: list[list[np.ndarray]], pad, labelled: bool = False) -> dict[str, Tensor]:
    """Rows made of several documents: positions start anew with each, and no document sees another.

    A row of one document each needs no mask of that kind, so that the attention kernel stays the plain one.
    """
    tensors = pad([np.concatenate(parts) for parts in rows])
    lengths = [np.array([len(part) for part in parts]) for parts in rows]
    positions = [np.concatenate([np.arange(length) for length in several]) for several in lengths]
    tensors["position_ids"] = stack(positions, 0)
    if labelled:  # nothing before a document predicts its first token
        tensors["labels"] = tensors["input_ids"].masked_fill(~tensors["attention_mask"], IGNORED)
        tensors["labels"] = tensors["labels"].masked_fill(tensors["position_ids"] == 0, IGNORED)
    if any(len(parts) > 1 for parts in rows):
        documents = stack([np.repeat(np.arange(1, len(several) + 1), several) for several in lengths], 0)
        tensors["attention_mask"] = documents[:, :, None] == documents[:, None, :]  # [B, T, T]
    elif tensors["attention_mask"].all():
        del tensors["attention_mask"], tensors["position_ids"]
    return tensors


class PrefixLM(CausalLM):
    """Continue a text whose first part is seen whole, in both directions (T5's prefix language model)."""

    def collate(self, features: Features) -> dict[str, Tensor]:
        tensors = super().collate(features)
        lengths = [len(feature["input_ids"]) for feature in features]
        splits = [noise.split_prefix(n, self.rng(f)) if n > 1 else 0 for n, f in zip(lengths, features)]
        prefixes = torch.tensor(splits)[:, None]
        places = torch.arange(max(lengths))
        tensors["labels"] = tensors["labels"].masked_fill(places < prefixes, IGNORED)
        return {**tensors, "attention_mask": prefix_mask(tensors["attention_mask"], places < prefixes)}

    def predict(self, model: PreTrainedModel, features: Features, generation: dict[str, Any]) -> list[str]:
        """The prompt is read in both directions, all of it at once; then its cache is what `generate` goes on from."""
        if max(len(feature["input_ids"]) for feature in features) == 1:  # which has but one direction
            return super().predict(model, features, generation)
        ids, tokens = self.inputs(model, features, left=True).values()
        positions = (tokens.long().cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            cache = model(ids, prefix_mask(tokens, tokens), positions, use_cache=True).past_key_values
        cache.crop(-1)  # `generate` wants to read the last token itself, and reads the same
        cache.batch_repeat_interleave(generation.get("num_beams") or model.generation_config.num_beams or 1)
        return self.texts(model.generate(ids, attention_mask=tokens, past_key_values=cache, **generation), tokens)


def prefix_mask(tokens: Tensor, prefix: Tensor) -> Tensor:
    """Who sees whom, [B, 1, T, T]: the prefix is seen by all, the rest by what comes after."""
    length = tokens.shape[1]
    past = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
    seen = (past | prefix.to(tokens.device)[:, None, :]) & tokens[:, None, :]
    return (seen | torch.eye(length, dtype=torch.bool, device=tokens.device))[:, None]  # padding sees itself: no empty row


class MaskedLM(Objective):
    """Restore hidden tokens, seeing both sides."""

    head = "GlassformerForMaskedLM"
    loss_options = {"return_logits": False}
    shapes = ("encoder",)
    metrics = ("loss", "perplexity")
    predictions_are_compared = False

    def encode(self, rows: dict[str, list]) -> dict[str, list]:
        encoded = self.tokenizer(rows["text"], return_attention_mask=False)
        columns = {"input_ids": encoded.input_ids}
        if self.options.whole_words:
            words = [encoded.word_ids(row) for row in range(len(rows["text"]))]
            columns["words"] = [[-1 if word is None else word for word in several] for several in words]
        return self._fitted(columns)

    def collate(self, features: Features) -> dict[str, Tensor]:
        packed = "documents" in features[0]
        if self.options.whole_words and "words" not in features[0]:
            raise DataError("whole_words needs the column 'words': keep it (Trainer: remove_unused_columns=False).")
        if packed:
            tensors = pack([feature["documents"] for feature in features], self.pad)
        else:
            tensors = self.pad([feature["input_ids"] for feature in features])
        rows = [np.concatenate(f["documents"]) if packed else np.asarray(f["input_ids"]) for f in features]
        noisy = [self.hide(row, feature.get("words"), self.rng(feature)) for row, feature in zip(rows, features)]
        inputs, labels = zip(*noisy)
        return {**tensors, "input_ids": stack(list(inputs), self.pad_id), "labels": stack(list(labels), IGNORED)}

    def hide(self, ids: np.ndarray, words: list[int] | None, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        specials = self.tokenizer.all_special_ids
        return noise.mask_tokens(
            ids, ~np.isin(ids, specials), mask_id(self.tokenizer), len(self.tokenizer), rng,
            rate=self.options.rate or 0.15, words=words, replaceable_from=lowest_ids(specials),
        )  # fmt: skip

    def predict(self, model: PreTrainedModel, features: Features, generation: dict[str, Any]) -> list[str]:
        """Texts with every mask filled in."""
        tensors = self.inputs(model, features)
        with torch.no_grad():
            best = model(**tensors).logits.argmax(-1)
        ids = torch.where(tensors["input_ids"] == mask_id(self.tokenizer), best, tensors["input_ids"])
        return self.tokenizer.batch_decode(ids, skip_special_tokens=True)

    def sample_prompts(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Texts with some tokens masked."""
        texts = self.ids([row["text"] for row in rows])
        features = [{"input_ids": cut(ids, 48), "seed": number} for number, ids in enumerate(texts)]
        hidden = [self.hide(np.asarray(f["input_ids"]), None, self.rng(f)) for f in features]
        masked = [np.where(labels == IGNORED, ids, mask_id(self.tokenizer)) for ids, labels in hidden]
        inner = [[int(i) for i in ids if i not in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)] for ids in masked]
        return [{"text": self.tokenizer.decode(ids)} for ids in inner]


# Judging text


class Labelled(Objective):
    """Objectives with named classes."""

    shapes = ("encoder", "decoder")
    numbered = False  # the rows have the numbers of classes, as a column of ClassLabel does

    def class_number(self, value: Any) -> int:
        if self.numbered and isinstance(value, int) and 0 <= value < len(self.labels or ()):
            return value
        return class_number(value, self.labels)

    @property
    def config_fields(self) -> dict[str, Any]:
        names = list(self.labels or ["value"])
        return {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}

    def collate(self, features: Features) -> dict[str, Tensor]:
        tensors = self.pad([feature["input_ids"] for feature in features])
        return {**tensors, "labels": torch.tensor([feature["label"] for feature in features])}

    def logits(self, model: PreTrainedModel, features: Features) -> Tensor:
        tensors = self.inputs(model, features)
        with torch.no_grad():
            return model(**tensors).logits.float()


class SequenceClassification(Labelled):
    """One label for a text, or several, or a number."""

    head = "GlassformerForSequenceClassification"
    roles = {"text": True, "text_pair": False, "label": True}

    @property
    def kind(self) -> str:
        return self.options.problem_type

    @property
    def metrics(self) -> tuple[str, ...]:  # type: ignore[override]
        by_kind = {"regression": ("mse", "pearson"), "multi_label_classification": ("f1",)}
        return by_kind.get(self.kind, ("accuracy", "f1"))

    @property
    def best(self) -> str:  # type: ignore[override]
        return self.metrics[0]

    @property
    def config_fields(self) -> dict[str, Any]:
        return {**super().config_fields, "problem_type": self.kind}

    def encode(self, rows: dict[str, list]) -> dict[str, list]:
        ids = self.ids(rows["text"], rows.get("text_pair"))
        return self._fitted({"input_ids": ids, "label": [self.label(label) for label in rows["label"]]})

    def label(self, value: Any) -> Any:
        """As the loss wants it: the number of a class, a 0 or 1 for each label, or a float."""
        if self.kind == "regression":
            try:
                return float(value)
            except (TypeError, ValueError):
                raise DataError(f"The label {value!r} is no number, which regression needs.") from None
        if self.kind == "multi_label_classification":
            chosen = {self.class_number(one) for one in value}
            return [float(number in chosen) for number in range(len(self.labels or ()))]
        return self.class_number(value)

    def num_items(self, tensors: dict[str, Tensor]) -> int:
        return tensors["labels"].numel()

    def prompts(self, rows: list[dict[str, Any]]) -> Features:
        pairs = [row["text_pair"] for row in rows] if rows and "text_pair" in rows[0] else None
        ids = self.ids([row["text"] for row in rows], pairs)
        return [{"input_ids": cut(tokens, self.max_length), "row": number} for number, tokens in enumerate(ids)]

    def predict(self, model: PreTrainedModel, features: Features, generation: dict[str, Any]) -> list[Any]:
        logits = self.logits(model, features)
        if self.kind == "regression":
            return logits.squeeze(-1).tolist()
        if self.kind == "multi_label_classification":
            return (logits > 0).int().tolist()
        return logits.argmax(-1).tolist()

    def readable(self, prediction: Any) -> Any:
        """Names instead of numbers."""
        names = list(self.labels or ())
        if isinstance(prediction, list):
            return [name for name, chosen in zip(names, prediction) if chosen]
        return names[prediction] if names else prediction

    def reference(self, row: dict[str, Any]) -> Any:
        label = self.label(row["label"])
        return [int(one) for one in label] if isinstance(label, list) else label


def class_number(value: Any, labels: Sequence[str] | None) -> int:
    """The place of a label in the list: by its name, or as it is where labels are numbers already."""
    names = list(labels or ())
    if isinstance(value, str) or str(value) in names:
        if str(value) in names:
            return names.index(str(value))
    elif isinstance(value, (int, np.integer)) and 0 <= value < len(names):
        return int(value)
    raise DataError(f"The label {value!r} is not among {', '.join(names)}: correct the row, or name all labels in data.labels.")


class TokenClassification(Labelled):
    """A label for each word. The first piece of a word carries it, the others are not asked."""

    head = "GlassformerForTokenClassification"
    roles = {"tokens": True, "tags": True}
    metrics = ("seqeval",)
    best = "f1"

    def encode(self, rows: dict[str, list]) -> dict[str, list]:
        ids, labels = [], []
        for words, tags in zip(rows["tokens"], rows["tags"]):
            if len(words) != len(tags):
                raise DataError(f"A row has {len(words)} tokens but {len(tags)} tags: they must come in pairs ({words[:5]}...).")
            encoded = self.tokenizer(words, is_split_into_words=True)
            ids.append(encoded.input_ids)
            first = first_pieces(encoded.word_ids())
            labels.append([self.class_number(tags[word]) if word is not None else IGNORED for word in first])
        return self._fitted({"input_ids": ids, "labels": labels})

    def collate(self, features: Features) -> dict[str, Tensor]:
        labels = stack([feature["labels"] for feature in features], IGNORED)
        return {**self.pad([feature["input_ids"] for feature in features]), "labels": labels}

    def prompts(self, rows: list[dict[str, Any]]) -> Features:
        features = []
        for number, row in enumerate(rows):
            words = row["tokens"].split() if isinstance(row["tokens"], str) else row["tokens"]
            encoded = self.tokenizer(words, is_split_into_words=True, truncation=True, max_length=self.max_length)
            features.append(
                {"input_ids": encoded.input_ids, "row": number, "first": first_pieces(encoded.word_ids()), "count": len(words)}
            )
        return features

    def predict(self, model: PreTrainedModel, features: Features, generation: dict[str, Any]) -> list[list[str]]:
        best, names, predictions = self.logits(model, features).argmax(-1).tolist(), list(self.labels or ()), []
        outside = "O" if "O" in names else names[0]  # for words that lay beyond the model's reach
        for feature, labels in zip(features, best):
            tags = [outside] * feature["count"]
            for word, label in zip(feature["first"], labels):
                if word is not None:
                    tags[word] = names[label]
            predictions.append(tags)
        return predictions

    def reference(self, row: dict[str, Any]) -> list[str]:
        names = list(self.labels or ())
        return [names[self.class_number(tag)] for tag in row["tags"]]


def first_pieces(words: list[int | None]) -> list[int | None]:
    """The word that each token begins, None for tokens that begin none."""
    return [word if word is not None and word != before else None for before, word in zip([None, *words], words)]


class QuestionAnswering(Objective):
    """Where in a context the answer to a question stands. A long context is read in windows that overlap."""

    head = "GlassformerForQuestionAnswering"
    shapes = ("encoder", "decoder")
    roles = {"question": True, "context": True, "answers": True}
    metrics = ("squad",)
    best = "f1"
    longest_answer = 30  # tokens

    def encode(self, rows: dict[str, list]) -> dict[str, list]:
        features = []
        for question, context, answers in zip(rows["question"], rows["context"], rows["answers"]):
            begin, end = self.find_answer(question, context, answers)
            features += [{**window, **answer_place(window, begin, end)} for window in self.windows(question, context)]
        names = ("input_ids", "start_positions", "end_positions")
        columns: dict[str, list] = {name: [feature[name] for feature in features] for name in names}
        return {**columns, "length": [len(ids) for ids in columns["input_ids"]], "cut": [False] * len(features)}

    def find_answer(self, question: str, context: str, answers: dict[str, list]) -> tuple[int, int]:
        """First character of the answer and the one after its last, without white space around it."""
        if not isinstance(answers, dict) or not {"text", "answer_start"} <= answers.keys():
            raise DataError(f"The answers to {question!r} must have text and answer_start, a list each, as in SQuAD.")
        if not answers["text"] or not answers["text"][0].strip():
            raise DataError(f"The question {question!r} has no answer: leave it out, for one is always predicted.")
        text, begin = answers["text"][0], answers["answer_start"][0]
        if context[begin : begin + len(text)] != text:
            raise DataError(f"The answer {text!r} does not stand at character {begin} of its context.")
        begin += len(text) - len(text.lstrip())
        return begin, begin + len(text.strip())

    def windows(self, question: str, context: str) -> Features:
        """Question and a part of the context, as often as it takes. `offsets` are characters, None outside the context."""
        length = len(self.tokenizer(question, add_special_tokens=False).input_ids)
        room = self.max_length - length - self.tokenizer.num_special_tokens_to_add(pair=True)
        if room < 1:
            raise DataError(
                f"A question of {length} tokens leaves no room for its context within {self.max_length} ({question[:40]!r}...): "
                f"raise data.max_length, or leave it out."
            )
        encoded = self.tokenizer(
            question, context, truncation="only_second", max_length=self.max_length, stride=min(self.stride, room // 2),
            return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip
        windows = []
        for i, (ids, offsets) in enumerate(zip(encoded["input_ids"], encoded["offset_mapping"])):
            inside = encoded.sequence_ids(i)
            places = [tuple(place) if part == 1 else None for place, part in zip(offsets, inside)]
            windows.append({"input_ids": ids, "offsets": places})
        return windows

    def collate(self, features: Features) -> dict[str, Tensor]:
        places = {name: torch.tensor([f[name] for f in features]) for name in ("start_positions", "end_positions")}
        return {**self.pad([feature["input_ids"] for feature in features]), **places}

    def num_items(self, tensors: dict[str, Tensor]) -> int:
        return len(tensors["start_positions"])

    def prompts(self, rows: list[dict[str, Any]]) -> Features:
        return [
            {**window, "row": number, "context": row["context"]}
            for number, row in enumerate(rows)
            for window in self.windows(row["question"], row["context"])
        ]

    def predict(self, model: PreTrainedModel, features: Features, generation: dict[str, Any]) -> list[tuple[float, str]]:
        """The best answer of each window, with its score."""
        tensors = self.inputs(model, features)
        with torch.no_grad():
            outputs = model(**tensors)
        starts, ends = outputs.start_logits.float().cpu(), outputs.end_logits.float().cpu()
        return [self.best_span(start, end, feature) for start, end, feature in zip(starts, ends, features)]

    def best_span(self, start: Tensor, end: Tensor, feature: dict[str, Any]) -> tuple[float, str]:
        offsets = feature["offsets"]
        outside = torch.tensor([place is None for place in offsets])
        scores = start[: len(offsets), None] + end[None, : len(offsets)]  # [start, end]
        allowed = torch.ones_like(scores, dtype=torch.bool).triu().tril(self.longest_answer - 1)
        scores = scores.masked_fill(~allowed | outside[:, None] | outside[None, :], -torch.inf)
        first, last = divmod(int(scores.argmax()), len(offsets))
        if offsets[first] is None or offsets[last] is None:
            return float("-inf"), ""
        return float(scores[first, last]), feature["context"][offsets[first][0] : offsets[last][1]].strip()

    def combine(self, predictions: list[tuple[float, str]]) -> str:
        return max(predictions)[1]

    def reference(self, row: dict[str, Any]) -> list[str]:
        return row["answers"]["text"]


def answer_place(window: dict[str, Any], begin: int, end: int) -> dict[str, int]:
    """First and last token of the answer; the first token of all where the window does not hold it whole."""
    inside = [i for i, place in enumerate(window["offsets"]) if place is not None and place[0] < end and place[1] > begin]
    whole = inside and window["offsets"][inside[0]][0] <= begin and window["offsets"][inside[-1]][1] >= end
    return {"start_positions": inside[0] if whole else 0, "end_positions": inside[-1] if whole else 0}


OBJECTIVES: dict[str, type[Objective]] = {
    "seq2seq": Seq2Seq,
    "causal_lm": CausalLM,
    "prefix_lm": PrefixLM,
    "masked_lm": MaskedLM,
    "span_corruption": SpanCorruption,
    "text_infilling": TextInfilling,
    "sequence_classification": SequenceClassification,
    "token_classification": TokenClassification,
    "question_answering": QuestionAnswering,
}
