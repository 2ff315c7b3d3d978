# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The noise of denoising objectives: what is hidden from the model, drawn anew from the `rng` of each call.

Masked tokens are BERT's (https://arxiv.org/abs/1810.04805), span corruption and prefixes T5's (https://arxiv.org/abs/1910.10683),
text infilling and sentence permutation BART's (https://arxiv.org/abs/1910.13461). Where our noise differs from the code that was
published with a paper, the docstring says so. Token ids are one-dimensional integer arrays; results are new int64 arrays.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray


IGNORED = -100  # the same as in `glassformer.checks`, which would load torch


def mask_tokens(
    ids: ArrayLike,
    maskable: ArrayLike,
    mask_id: int,
    vocab_size: int,
    rng: Generator,
    *,
    rate: float = 0.15,
    words: ArrayLike | None = None,
    replaceable_from: int = 0,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """BERT: (inputs, labels), where some tokens are hidden or replaced, and the labels ask for these and for nothing else.

    As in BERT's code, the number of chosen tokens is fixed, max(1, round(rate * n)), rather than left to a coin for each: no text
    goes without a label, and batches cost the same. Here n counts the tokens that are `maskable`; BERT's counts [CLS] and [SEP]
    too, and stops at 20. Of the chosen tokens 80 % become `mask_id`, 10 % a random token and 10 % stay, each by its own draw.
    Random tokens come from `replaceable_from` upwards, so that special tokens, which have the lowest ids, are never drawn.

    `words` numbers the word of each token, -1 for none; then words are chosen whole. As in BERT's code, a word that is longer
    than what is left to choose is passed over, so that fewer tokens may be chosen, in a text of long words even none.
    """
    inputs = np.array(ids, dtype=np.int64)
    _check_rate(rate)
    if not 0 <= replaceable_from < vocab_size:
        raise ValueError(f"No token can be drawn: replaceable_from is {replaceable_from}, but must be in [0, {vocab_size}).")
    maskable = _one_per_token("maskable", maskable, inputs, bool)
    words = np.full(len(inputs), -1) if words is None else _one_per_token("words", words, inputs, np.int64)
    chosen = _choose_words(maskable, words, rate, rng)
    labels = np.full_like(inputs, IGNORED)
    labels[chosen] = inputs[chosen]
    draw = rng.random(len(chosen))
    inputs[chosen[draw < 0.8]] = mask_id
    replaced = chosen[draw >= 0.9]
    inputs[replaced] = rng.integers(replaceable_from, vocab_size, len(replaced))
    return inputs, labels


def corrupt_spans(
    ids: ArrayLike,
    sentinel_ids: Sequence[int],
    eos_id: int,
    rng: Generator,
    *,
    rate: float = 0.15,
    mean_length: float = 3.0,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """T5: (inputs, targets), where the inputs lack some spans and the targets are these spans. `ids` come without `</s>`.

        A B C D E F G  ->  A B <0> E <1> </s>  and  <0> C D <1> F G </s>

    How many tokens and how many spans are hidden depends on the length alone, so that equally long texts stay equally long.
    """
    tokens = np.asarray(ids, dtype=np.int64)
    _check_rate(rate, mean_length)
    if len(tokens) < 2:
        raise ValueError(f"A text of {len(tokens)} tokens has nothing to keep and to hide: leave out texts of fewer than 2.")
    noise = _random_spans(len(tokens), rate, mean_length, rng)
    # T5 replaces noise in the inputs and the rest in the targets, by one and the same rule. Only a text that ends in kept tokens
    # has a last sentinel in its targets, as in the figure of the paper; T5's masks, and ours, always end in noise.
    inputs, targets = (_replace_spans(tokens, spans, sentinel_ids) for spans in (noise, ~noise))
    return np.append(inputs, eos_id), np.append(targets, eos_id)


def infill(
    ids: ArrayLike,
    mask_id: int,
    rng: Generator,
    *,
    rate: float = 0.3,
    mean_length: float = 3.0,
    starts: ArrayLike | None = None,
) -> NDArray[np.int64]:
    """BART: spans with Poisson lengths become one mask each; a span of no tokens inserts a mask. `ids` come without specials.

        A B C D E F G  ->  A <mask> D E <mask> F G   (B C, and nothing before F)

    As in fairseq, lengths are drawn until they add up to ceil(rate * n), the last one cut to fit, and with `starts`, True at the
    first token of each word, n and lengths count words. Fairseq then puts spans anywhere, also inside one another, and hides less
    than was asked; ours hide it exactly, as the paper says, with at least one kept word between two masks, and for the lengths
    drawn all such places are equally likely. Spans join where too few words are kept between them: at rate 1 one mask is left.
    """
    tokens = np.asarray(ids, dtype=np.int64)
    _check_rate(rate, mean_length)
    starts = np.ones(len(tokens), dtype=bool) if starts is None else _one_per_token("starts", starts, tokens, bool)
    bounds = np.union1d(np.flatnonzero(starts), [0, len(tokens)])  # a text may begin in the middle of a word
    words = len(bounds) - 1
    budget = math.ceil(rate * words)
    lengths = np.array(_poisson_lengths(budget, mean_length, rng), dtype=np.int64)
    places = words - budget + 1  # before each kept word, and after the last
    # spans beyond the number of places join the others
    lengths = np.array([lengths[place::places].sum() for place in range(min(places, len(lengths)))], dtype=np.int64)
    lengths = rng.permutation(lengths)  # the one that was cut to fit may come anywhere
    begins = np.sort(rng.choice(places, len(lengths), replace=False)) + np.cumsum(lengths) - lengths  # in words
    pieces, kept_from = [], 0
    for begin, end in zip(bounds[begins], bounds[begins + lengths]):
        pieces += [tokens[kept_from:begin], [mask_id]]
        kept_from = end
    return np.concatenate([*pieces, tokens[kept_from:]]).astype(np.int64)


def permute_sentences(ids: ArrayLike, ends: ArrayLike, rng: Generator) -> NDArray[np.int64]:
    """BART: the sentences in random order. `ends` is True at the last token of each; what comes after the last end is one too."""
    tokens = np.asarray(ids, dtype=np.int64)
    ends = _one_per_token("ends", ends, tokens, bool)
    sentences = np.split(tokens, np.flatnonzero(ends) + 1)
    return np.concatenate([sentences[i] for i in rng.permutation(len(sentences))])


def split_prefix(length: int, rng: Generator) -> int:
    """Prefix language model: the number of tokens in the prefix, from 1 to length - 1, all equally likely."""
    if length < 2:
        raise ValueError(f"A text of {length} tokens has no prefix and rest: leave out texts of fewer than 2.")
    return int(rng.integers(1, length))


def _choose_words(maskable: NDArray, words: NDArray, rate: float, rng: Generator) -> NDArray[np.int64]:
    """Positions of words in random order, while they fit into the budget. A word is a run of one number, a token of -1 alone."""
    positions = np.flatnonzero(maskable)
    left = max(1, round(rate * len(positions)))
    begins = (np.diff(words, prepend=-1) != 0) | (words == -1)  # numbers start again in the second text of a pair
    word_of = np.cumsum(begins)[positions]
    lengths = np.bincount(word_of).tolist()
    taken = np.zeros(len(lengths), dtype=bool)
    for word in rng.permutation(np.unique(word_of)).tolist():
        if lengths[word] <= left:
            taken[word] = True
            left -= lengths[word]
        if left == 0:
            break
    return positions[taken[word_of]]


def _random_spans(length: int, rate: float, mean_length: float, rng: Generator) -> NDArray[np.bool_]:
    """Where noise is: kept and noisy spans take turns, kept ones first, and all such masks are equally likely."""
    noisy = min(max(round(length * rate), 1), length - 1)
    kept = length - noisy
    spans = min(max(round(noisy / mean_length), 1), noisy, kept)  # no span is empty; T5's code fails where it would be
    lengths = np.stack((_random_segments(kept, spans, rng), _random_segments(noisy, spans, rng)), axis=1)
    return np.repeat(np.tile([False, True], spans), lengths.ravel())


def _random_segments(items: int, segments: int, rng: Generator) -> NDArray[np.int64]:
    """Lengths of non-empty segments that add up to `items`, all ways to cut equally likely."""
    cuts = np.sort(rng.choice(items - 1, segments - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=items)


def _replace_spans(ids: NDArray[np.int64], spans: NDArray[np.bool_], sentinel_ids: Sequence[int]) -> NDArray[np.int64]:
    """Each run of True becomes one sentinel, in the order of `sentinel_ids`."""
    first = spans & ~np.concatenate(([False], spans[:-1]))
    count = int(first.sum())
    if count > len(sentinel_ids):
        raise ValueError(
            f"A text of {len(ids)} tokens needs {count} sentinels, but there are {len(sentinel_ids)}: "
            "train the tokenizer with more, or cut texts shorter."
        )
    replaced = ids.copy()
    replaced[first] = sentinel_ids[:count]
    return replaced[first | ~spans]


def _poisson_lengths(budget: int, mean_length: float, rng: Generator) -> list[int]:
    lengths = []
    while budget > 0:
        lengths.append(min(int(rng.poisson(mean_length)), budget))
        budget -= lengths[-1]
    return lengths


def _check_rate(rate: float, mean_length: float = 1.0) -> None:
    if not 0 <= rate <= 1:
        raise ValueError(f"rate is {rate}: give the share of tokens to hide, from 0 to 1.")
    if not mean_length > 0:
        raise ValueError(f"mean_length is {mean_length}: spans need a mean length above 0.")


def _one_per_token(name: str, values: ArrayLike, ids: NDArray[np.int64], dtype: type) -> NDArray:
    array: NDArray = np.asarray(values, dtype=dtype)
    if array.shape != ids.shape:
        raise ValueError(f"{name} has the shape {list(array.shape)} for ids of {list(ids.shape)}: pass one value a token.")
    return array
