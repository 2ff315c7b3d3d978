# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Tokenizers, trained on texts with the `tokenizers` library and handed out as transformers' fast tokenizers.

The kinds differ in how they cut a text, in what they learn and in what they give back:

    bpe, unigram     pieces of words, where ▁ stands for the space before a word; exact up to the amount of white space
    bpe_lines        the same, but the end of a line is a token, and punctuation is part of the word that it is written with:
                     for language models of documents whose words have been set apart already
    byte_bpe         pieces of words in bytes; exact for any text there is, seen in training or not
    wordpiece, word  pieces of words, or words, with punctuation apart; given back with a space between words
    char             characters, spaces among them; exact

The same texts give the same tokenizer, for which the trainers of two kinds need help: see `learn_wordpiece` and `learn_unigram`.
"""

import json
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from .recipe import nearest


SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
UNKNOWN = SPECIAL_TOKENS["unk_token"]
WITHIN = "##"  # marks pieces within a word, for wordpiece
ADDS = {  # what encoding makes of a text, and of a pair of texts
    "both": ("<s> $A </s>", "<s> $A </s> $B:1 </s>:1"),
    "eos": ("$A </s>", "$A </s> $B:1 </s>:1"),
    "bos": ("<s> $A", "<s> $A $B:1"),
    "none": ("$A", "$A $B:1"),
}


def train_tokenizer(
    texts: Iterable[str],
    kind: str,
    vocab_size: int,
    *,
    lowercase: bool = False,
    min_frequency: int = 2,
    adds: str = "both",
    num_sentinels: int = 0,
    max_length: int | None = None,
) -> PreTrainedTokenizerFast:
    """A tokenizer whose ids begin with <pad> <s> </s> <unk> <mask>, then as many sentinels <extra_id_0>, <extra_id_1>, ...

    Args:
        kind: one of `KINDS`.
        vocab_size: special tokens included; a vocabulary is smaller, with a warning, where the texts do not support it.
        min_frequency: how often two pieces must meet, or a word occur, to become a token. Characters always are one, and
            unigram has a rule of its own.
        adds: the special tokens around an encoded text, one of `ADDS`.
        num_sentinels: for objectives that hide spans of text.
        max_length: where encoding with `truncation=True` cuts.
    """
    check_name("kind", kind, KINDS)
    check_name("adds", adds, ADDS)
    special_tokens = [*SPECIAL_TOKENS.values(), *(f"<extra_id_{i}>" for i in range(num_sentinels))]
    normalizer = normalizers.Lowercase() if lowercase else None
    lesson = Lesson(check_texts(texts), kind, normalizer, special_tokens, vocab_size, min_frequency)
    check_size(lesson)
    backend = Tokenizer(KINDS[kind].learn(lesson))
    backend.normalizer, backend.pre_tokenizer, backend.decoder = normalizer, KINDS[kind].pre_tokenizer, KINDS[kind].decoder
    backend.post_processor = make_post_processor(kind, adds)
    backend.add_special_tokens(declare_special_tokens(lesson))
    compare_size(backend.get_vocab_size(), lesson)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **SPECIAL_TOKENS,
        extra_special_tokens=special_tokens[len(SPECIAL_TOKENS) :],
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int | None]:
    """The fields of a config that follow from a tokenizer, ours or any other; None for a token that it does not have."""
    ids = {f"{name}_id": getattr(tokenizer, f"{name}_id", None) for name in SPECIAL_TOKENS}
    # Some tokenizers leave ids out, so that the highest lies beyond their length.
    return {"vocab_size": max(len(tokenizer), max(tokenizer.get_vocab().values()) + 1), **ids}


@dataclass(frozen=True)
class Lesson:
    """What there is to learn, and from what."""

    texts: list[str]
    kind: str
    normalizer: normalizers.Normalizer | None
    special_tokens: list[str]
    vocab_size: int
    min_frequency: int

    def fit(self, model: models.Model, trainer: trainers.Trainer) -> Tokenizer:
        """A model trained on the texts, in a tokenizer that is good for nothing else."""
        backend = Tokenizer(model)
        backend.normalizer, backend.pre_tokenizer = self.normalizer, KINDS[self.kind].pre_tokenizer
        backend.train_from_iterator(self.texts, trainer)
        return backend

    @cached_property
    def alphabet(self) -> list[str]:
        """What every text can be cut into: characters, bytes, or for wordpiece characters at the start and within words."""
        trainer = trainers.BpeTrainer(
            vocab_size=0,  # nothing is merged
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if self.kind == "byte_bpe" else [],
            continuing_subword_prefix=WITHIN if self.kind == "wordpiece" else "",
            show_progress=False,
        )
        return sorted(self.fit(models.BPE(), trainer).get_vocab())


# Checks


def check_name(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise ValueError(f"{what}={name!r} is unknown{nearest(name, known)}")


def check_texts(texts: Iterable[str]) -> list[str]:
    """As a list, for they are read twice."""
    if isinstance(texts, str):
        raise ValueError("texts is one string: pass a list of strings.")
    texts = list(texts)
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"One of the texts is of type {type(text).__name__}: pass strings.")
    if not any(text.strip() for text in texts):
        raise ValueError("There is nothing to train a tokenizer on: pass at least one text that is not blank.")
    return texts


def check_size(lesson: Lesson) -> None:
    special = len(lesson.special_tokens)
    needed = 1 if lesson.kind == "word" else len(lesson.alphabet)
    if lesson.vocab_size < special + needed:
        what = {"word": "a word", "byte_bpe": "256 bytes"}.get(lesson.kind, f"the {needed} characters of the texts")
        raise ValueError(
            f"vocab_size={lesson.vocab_size} leaves no room for {special} special tokens and {what}: "
            f"pass at least {special + needed}."
        )


def compare_size(found: int, lesson: Lesson) -> None:
    if found == len(lesson.special_tokens):
        raise ValueError(f"No word occurs {lesson.min_frequency} times: pass more texts, or a lower min_frequency.")
    if found < lesson.vocab_size:
        message = f"The texts support {found} tokens, not vocab_size={lesson.vocab_size}: the smaller vocabulary is used."
        warnings.warn(message, stacklevel=3)


# Models


def learn_bpe(lesson: Lesson) -> models.BPE:
    """https://aclanthology.org/P16-1162: merge the two pieces that meet most often, again and again."""
    trainer = trainers.BpeTrainer(
        vocab_size=lesson.vocab_size,
        min_frequency=lesson.min_frequency,
        special_tokens=lesson.special_tokens,
        initial_alphabet=lesson.alphabet,
        show_progress=False,
    )
    return lesson.fit(models.BPE(unk_token=UNKNOWN), trainer).model


def learn_wordpiece(lesson: Lesson) -> models.WordPiece:
    """Merges as in BPE; a word is then cut into the longest tokens that fit, from the left.

    The trainer numbers characters within words as it meets them, in random order, and settles ties by number. They are fixed
    by declaring them special, which the model made of the vocabulary knows nothing about.
    """
    trainer = trainers.WordPieceTrainer(
        vocab_size=lesson.vocab_size,
        min_frequency=lesson.min_frequency,
        special_tokens=lesson.special_tokens + lesson.alphabet,
        continuing_subword_prefix=WITHIN,
        show_progress=False,
    )
    vocabulary = lesson.fit(models.WordPiece(), trainer).get_vocab()
    return models.WordPiece(vocabulary, unk_token=UNKNOWN, continuing_subword_prefix=WITHIN)


def learn_unigram(lesson: Lesson) -> models.Unigram:
    """https://aclanthology.org/P18-1007: drop the pieces that are missed least; a text is cut so that its pieces are most likely.

    The trainer adds up in random order, so that the last digits of log p vary: they are rounded away. To characters that it
    has dropped it gives the lowest log p and steps of 0.0001 above, in random order: they all get the lowest.
    """
    trainer = trainers.UnigramTrainer(
        vocab_size=lesson.vocab_size, special_tokens=lesson.special_tokens, unk_token=UNKNOWN, show_progress=False
    )
    learned = json.loads(lesson.fit(models.Unigram(), trainer).to_str())["model"]["vocab"]
    scores = {piece: score for piece, score in learned if piece not in lesson.special_tokens}
    alphabet, lowest = set(lesson.alphabet), min(scores.values())
    for character in alphabet:
        if scores[character] < lowest + 0.0001 * len(alphabet):
            scores[character] = lowest
    longer = [piece for piece in scores if piece not in alphabet]
    room = lesson.vocab_size - len(lesson.special_tokens) - len(alphabet)  # the trainer overlooks that there may be none
    pieces = [(piece, round(scores[piece], 3)) for piece in lesson.alphabet + longer[:room]]
    pieces.sort(key=lambda item: (-item[1], item[0]))
    special = [(token, 0.0) for token in lesson.special_tokens]
    return models.Unigram(special + pieces, unk_id=lesson.special_tokens.index(UNKNOWN))


def learn_characters(lesson: Lesson) -> models.WordLevel:
    vocabulary = {token: number for number, token in enumerate(lesson.special_tokens + lesson.alphabet)}
    return models.WordLevel(vocabulary, unk_token=UNKNOWN)


def learn_words(lesson: Lesson) -> models.WordLevel:
    """The most frequent words."""
    trainer = trainers.WordLevelTrainer(
        vocab_size=lesson.vocab_size,
        min_frequency=lesson.min_frequency,
        special_tokens=lesson.special_tokens,
        show_progress=False,
    )
    return lesson.fit(models.WordLevel(unk_token=UNKNOWN), trainer).model


def declare_special_tokens(lesson: Lesson) -> list[AddedToken]:
    """Never cut. Among bytes, a token for hidden text hides the space before it too, which belongs to the word."""
    hiding = lesson.special_tokens[lesson.special_tokens.index("<mask>") :] if lesson.kind == "byte_bpe" else []
    return [AddedToken(token, special=True, lstrip=token in hiding) for token in lesson.special_tokens]


def make_post_processor(kind: str, adds: str) -> processors.PostProcessor:
    ids = [(token, number) for number, token in enumerate(SPECIAL_TOKENS.values())]
    single, pair = ADDS[adds]
    template = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    if kind != "byte_bpe":
        return template
    # The space before a word is part of its bytes, but not of the place where the word stands.
    return processors.Sequence([processors.ByteLevel(trim_offsets=True), template])


@dataclass(frozen=True)
class Kind:
    pre_tokenizer: pre_tokenizers.PreTokenizer
    decoder: decoders.Decoder | None  # None: a space between tokens
    learn: Callable[[Lesson], models.Model]


WORDS = r"▁?\p{P}|▁?[^\p{P}▁]+|▁"  # a mark of punctuation is a word, so that no piece of a word ends with one
SPACED = pre_tokenizers.Sequence(
    [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(), pre_tokenizers.Split(Regex(WORDS), "isolated")]
)
LINES = pre_tokenizers.Sequence(
    [pre_tokenizers.Split(Regex(r"[^\S\n]+"), "removed"), pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.Metaspace()]
)
KINDS = {
    "bpe": Kind(SPACED, decoders.Metaspace(), learn_bpe),
    "bpe_lines": Kind(
        LINES,
        decoders.Sequence([decoders.Metaspace(), decoders.Fuse(), decoders.Replace(Regex(" ?\n ?"), "\n")]),
        learn_bpe,
    ),
    "unigram": Kind(SPACED, decoders.Metaspace(), learn_unigram),
    "byte_bpe": Kind(pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel(), learn_bpe),
    "wordpiece": Kind(pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(WITHIN, cleanup=False), learn_wordpiece),
    "word": Kind(pre_tokenizers.BertPreTokenizer(), None, learn_words),
    "char": Kind(pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"), decoders.Fuse(), learn_characters),
}
