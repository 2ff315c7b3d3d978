"""Noise: exact counts where the papers' code promises them, the right distribution where they leave it to chance.

Frequencies are held against their expectation by a chi-squared test, or to five standard deviations.
"""

import math
import subprocess
import sys
from collections import Counter
from itertools import groupby, pairwise, permutations, product

import numpy as np
import pytest
import torch

from glassformer.checks import IGNORED
from glassformer.training import noise
from glassformer.training.noise import corrupt_spans, infill, mask_tokens, permute_sentences, split_prefix


MASK, EOS, VOCAB = 4, 2, 1000
SENTINELS = list(range(5, 305))
FIRST = 305  # of the ordinary tokens


@pytest.fixture
def rng():
    return np.random.default_rng(20)


def text(length: int) -> np.ndarray:
    """Tokens that are all different, so that each tells where it came from."""
    return np.arange(FIRST, FIRST + length)


def assert_frequencies(counts, expected) -> None:
    """Pearson's test: the chance of counts as far off as these, were the expectation true, is not below one in a thousand."""
    counts, expected = np.asarray(counts, dtype=float), np.asarray(expected, dtype=float)
    expected = expected * counts.sum() / expected.sum()
    assert expected.min() >= 5, "too few draws for the test"
    statistic = ((counts - expected) ** 2 / expected).sum()
    chance = torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2), torch.tensor(statistic / 2, dtype=torch.float32))
    assert chance > 1e-3, f"{counts.tolist()} instead of {expected.round(1).tolist()}"


def assert_share(count: int, draws: int, probability: float) -> None:
    assert abs(count - draws * probability) < 5 * math.sqrt(draws * probability * (1 - probability))


def mask_all(ids, rng, **options):
    return mask_tokens(ids, np.ones(len(ids), dtype=bool), MASK, VOCAB, rng, replaceable_from=FIRST, **options)


def chosen_by(labels) -> tuple[int, ...]:
    return tuple(np.flatnonzero(labels != IGNORED).tolist())


# Masked tokens


@pytest.mark.parametrize("length", [1, 2, 3, 10, 37, 512])
@pytest.mark.parametrize("rate", [0.0, 0.15, 0.4, 1.0])
def test_as_many_tokens_are_chosen_as_bert_does(length, rate, rng):
    _, labels = mask_all(text(length), rng, rate=rate)
    assert len(chosen_by(labels)) == max(1, round(rate * length))


def test_labels_are_the_original_tokens_and_the_others_stay_as_they_are(rng):
    ids = text(300)
    inputs, labels = mask_all(ids, rng, rate=0.5)
    asked = labels != IGNORED
    assert (labels[asked] == ids[asked]).all()
    assert (inputs[~asked] == ids[~asked]).all()
    assert (inputs[asked] != ids[asked]).any()


def test_eight_in_ten_are_masked_one_is_replaced_and_one_stays(rng):
    drawn, _ = mask_all(np.full(200_000, FIRST), rng, rate=1.0)
    replaced = drawn[(drawn != MASK) & (drawn != FIRST)]
    other = 0.1 / (VOCAB - FIRST)  # a random token may happen to be the original
    assert_frequencies([(drawn == MASK).sum(), len(replaced), (drawn == FIRST).sum()], [0.8, 0.1 - other, 0.1 + other])
    counts = np.bincount(replaced)[FIRST + 1 :]
    assert counts.sum() == len(replaced) and len(counts) == VOCAB - FIRST - 1
    assert_frequencies(counts, np.ones(len(counts)))


def test_special_tokens_are_neither_chosen_nor_drawn(rng):
    ids = np.concatenate(([1], text(500), [2], text(500), [2, 0, 0, 0]))
    maskable = ids >= FIRST
    for _ in range(100):
        inputs, labels = mask_tokens(ids, maskable, MASK, VOCAB, rng, replaceable_from=FIRST, rate=0.9)
        assert (labels[~maskable] == IGNORED).all() and (inputs[~maskable] == ids[~maskable]).all()
        assert ((inputs[maskable] >= FIRST) | (inputs[maskable] == MASK)).all()


def test_every_maskable_position_is_equally_likely(rng):
    maskable = np.array([0, 1, 1, 1, 0, 1, 1, 1, 1, 0], dtype=bool)
    pairs = Counter(chosen_by(mask_tokens(text(10), maskable, MASK, VOCAB, rng, rate=0.3)[1]) for _ in range(4000))
    assert set(pairs) == {(a, b) for a in np.flatnonzero(maskable) for b in np.flatnonzero(maskable) if a < b}
    assert_frequencies(list(pairs.values()), np.ones(len(pairs)))


@pytest.mark.parametrize("length", [0, 3])
def test_a_text_of_special_tokens_alone_stays_as_it_is(length, rng):
    ids = np.arange(length)
    inputs, labels = mask_tokens(ids, np.zeros(length, dtype=bool), MASK, VOCAB, rng)
    assert (inputs == ids).all() and (labels == IGNORED).all()


def test_words_are_chosen_whole_while_they_fit(rng):
    for _ in range(200):
        lengths = rng.integers(1, 6, size=30)
        words = np.repeat(np.arange(30), lengths)
        _, labels = mask_all(text(len(words)), rng, words=words, rate=0.25)
        asked = np.bincount(words, labels != IGNORED)
        assert np.isin(asked, [0, *lengths]).all() and ((asked == 0) | (asked == lengths)).all()
        left = max(1, round(0.25 * len(words))) - asked.sum()
        assert left >= 0 and (lengths[asked == 0] > left).all()  # nothing that was passed over would still fit


def test_whole_words_are_chosen_as_often_as_by_every_order_of_words(rng):
    lengths, budget = [1, 2, 3, 1, 2], 4
    words = np.repeat(np.arange(5), lengths)
    expected = Counter()
    for order in permutations(range(5)):
        taken: set[int] = set()
        for word in order:
            if sum(lengths[other] for other in taken) + lengths[word] <= budget:
                taken.add(word)
        expected[frozenset(taken)] += 1
    found = Counter()
    for _ in range(4000):
        _, labels = mask_all(text(9), rng, words=words, rate=budget / 9)
        found[frozenset(words[labels != IGNORED].tolist())] += 1
    assert set(found) == set(expected)
    assert_frequencies([found[words] for words in expected], list(expected.values()))


def test_the_tokens_of_a_word_are_masked_each_by_its_own_draw(rng):
    words = np.repeat(np.arange(20_000), 2)
    inputs, labels = mask_all(text(40_000), rng, words=words, rate=1.0)
    assert (labels != IGNORED).all()
    assert_frequencies(np.bincount((inputs == MASK).reshape(-1, 2).sum(-1)), [0.04, 0.32, 0.64])


def test_a_word_is_a_run_of_one_number_and_a_token_without_a_word_stands_alone(rng):
    words = [0, 0, -1, 0, 0, -1, -1]  # two texts, whose words are both numbered from 0
    seen = {chosen_by(mask_all(text(7), rng, words=words, rate=2 / 7)[1]) for _ in range(300)}
    assert seen == {(0, 1), (3, 4), (2, 5), (2, 6), (5, 6)}


def test_a_word_that_is_too_long_for_the_rate_is_not_chosen(rng):
    _, labels = mask_all(text(6), rng, words=[0] * 6)
    assert (labels == IGNORED).all()


# Span corruption


def fill_in(inputs, targets) -> list[int]:
    """The text: each sentinel of the inputs replaced by what follows it in the targets."""
    spans: dict[int, list[int]] = {}
    for token in targets[:-1].tolist():
        if token in SENTINELS:
            span = spans.setdefault(token, [])
        else:
            span.append(token)
    return [token for place in inputs[:-1].tolist() for token in spans.get(place, [place])]


@pytest.mark.parametrize("length", [2, 3, 7, 20, 100, 513])
@pytest.mark.parametrize("rate, mean_length", [(0.15, 3.0), (0.5, 3.0), (0.5, 1.0), (0.15, 32.0), (0.0, 3.0), (1.0, 3.0)])
def test_counts_are_t5s_and_the_targets_fill_in_the_inputs(length, rate, mean_length, rng):
    noisy = min(max(round(length * rate), 1), length - 1)
    spans = min(max(round(noisy / mean_length), 1), length - noisy)
    inputs, targets = corrupt_spans(text(length), SENTINELS, EOS, rng, rate=rate, mean_length=mean_length)
    assert len(inputs) == length - noisy + spans + 1 and len(targets) == noisy + spans + 1
    assert inputs[-1] == targets[-1] == EOS
    assert np.isin(SENTINELS, inputs).sum() == spans
    assert fill_in(inputs, targets) == text(length).tolist()


def test_the_text_begins_kept_and_ends_hidden_so_that_no_sentinel_comes_last(rng):
    for length in range(2, 60):
        inputs, targets = corrupt_spans(text(length), SENTINELS, EOS, rng)
        assert inputs[0] == FIRST and inputs[-2] in SENTINELS
        assert targets[0] == SENTINELS[0] and targets[-2] == FIRST + length - 1
        used = [token for token in inputs if token in SENTINELS]
        assert used == [token for token in targets if token in SENTINELS] == SENTINELS[: len(used)]


def test_all_ways_to_cut_a_text_into_spans_are_equally_likely(rng):
    # 10 tokens at 50 % in spans of 2.5: 5 hidden in 2 spans, 5 kept in 2 spans
    found = Counter()
    for _ in range(4000):
        inputs, _ = corrupt_spans(text(10), SENTINELS, EOS, rng, rate=0.5, mean_length=2.5)
        found[tuple(inputs.tolist())] += 1
    expected = set()
    for mask in product([False, True], repeat=10):
        runs = [(hidden, len(list(run))) for hidden, run in groupby(mask)]
        if sum(mask) == 5 and len(runs) == 4 and not mask[0]:
            kept, hidden = runs[0][1], runs[1][1]
            expected.add((*range(FIRST, FIRST + kept), 5, *range(FIRST + kept + hidden, FIRST + hidden + 5), 6, EOS))
    assert set(found) == expected and len(expected) == 16
    assert_frequencies(list(found.values()), np.ones(16))


def test_spans_have_their_mean_length_wherever_they_are(rng):
    targets = np.array([corrupt_spans(text(200), SENTINELS, EOS, rng)[1] for _ in range(2000)])
    borders = np.nonzero(targets < FIRST)[1].reshape(2000, 11)  # 10 sentinels and the end
    lengths = np.diff(borders) - 1
    assert (lengths.sum(-1) == 30).all() and lengths.min() == 1
    error = lengths.std() / math.sqrt(2000)
    assert (abs(lengths.mean(0) - 3) < 5 * error).all()


def test_sentinels_stand_as_in_the_figure_of_the_paper():
    # Thank you <for inviting> me to your party <last> week
    ids, (x, y, z) = np.arange(10), (91, 92, 93)
    hidden = np.isin(ids, [2, 3, 8])
    assert noise._replace_spans(ids, hidden, [x, y, z]).tolist() == [0, 1, x, 4, 5, 6, 7, y, 9]
    assert noise._replace_spans(ids, ~hidden, [x, y, z]).tolist() == [x, 2, 3, y, 8, z]


def test_missing_sentinels_are_counted(rng):
    with pytest.raises(ValueError, match="100 tokens needs 5 sentinels, but there are 4"):
        corrupt_spans(text(100), SENTINELS[:4], EOS, rng)
    corrupt_spans(text(100), SENTINELS[:5], EOS, rng)


@pytest.mark.parametrize("length", [0, 1])
def test_a_text_too_short_to_corrupt_or_split_is_refused(length, rng):
    with pytest.raises(ValueError, match=f"A text of {length} tokens .* fewer than 2"):
        corrupt_spans(text(length), SENTINELS, EOS, rng)
    with pytest.raises(ValueError, match=f"A text of {length} tokens .* fewer than 2"):
        split_prefix(length, rng)


# Text infilling


def hidden_lengths(inputs, length: int) -> list[int]:
    """How many tokens each mask stands for, told by the kept tokens around it."""
    around = [FIRST - 1, *inputs.tolist(), FIRST + length]
    return [around[i + 1] - around[i - 1] - 1 for i in range(1, len(around) - 1) if around[i] == MASK]


@pytest.mark.parametrize("length", [0, 1, 2, 5, 40, 511])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("mean_length", [0.5, 3.0])
def test_exactly_the_budget_is_hidden_and_masks_never_touch(length, rate, mean_length, rng):
    for _ in range(10):
        inputs = infill(text(length), MASK, rng, rate=rate, mean_length=mean_length)
        kept = inputs[inputs != MASK]
        assert (np.diff(kept) > 0).all() and np.isin(kept, text(length)).all()
        assert len(kept) == length - math.ceil(rate * length)
        assert not any(a == b == MASK for a, b in pairwise(inputs))
        assert sum(hidden_lengths(inputs, length)) == math.ceil(rate * length)


def test_span_lengths_are_poisson(rng):
    length = 100_000
    lengths = np.array(hidden_lengths(infill(text(length), MASK, rng), length))
    assert abs(lengths.mean() - 3) < 5 * math.sqrt(3 / len(lengths))
    assert_share((lengths == 0).sum(), len(lengths), math.exp(-3))
    poisson = [math.exp(-3) * 3**k / math.factorial(k) for k in range(9)]
    assert_frequencies(np.bincount(lengths.clip(max=9)), [*poisson, 1 - sum(poisson)])


def test_all_places_of_spans_are_equally_likely(rng):
    # one token of 5 hidden, and masks inserted in other places: 5 for the first, 4 for the next, 3 for the one like it
    found = Counter(tuple(infill(text(5), MASK, rng, rate=0.2, mean_length=0.7).tolist()) for _ in range(6000))
    for masks, arrangements in ((1, 5), (2, 5 * 4), (3, 5 * 4 * 3 // 2)):
        counts = [count for inputs, count in found.items() if inputs.count(MASK) == masks]
        assert len(counts) == arrangements
        assert_frequencies(counts, np.ones(arrangements))


def test_a_cut_span_comes_as_often_first_as_last(rng):
    lengths = [hidden_lengths(infill(text(40), MASK, rng, mean_length=5.0), 40) for _ in range(3000)]
    differences = np.array([found[-1] - found[0] for found in lengths])
    assert abs(differences.mean()) < 5 * differences.std() / math.sqrt(len(differences))
    assert 0 in {found[-1] for found in lengths}


def test_infilling_hides_whole_words(rng):
    for _ in range(100):
        lengths = rng.integers(1, 5, size=40)
        word_of = np.repeat(np.arange(40), lengths)
        starts = np.diff(word_of, prepend=-1) != 0
        starts[0] = rng.random() < 0.5  # a text may begin in the middle of a word
        inputs = infill(text(len(word_of)), MASK, rng, starts=starts)
        kept = np.bincount(word_of[inputs[inputs != MASK] - FIRST], minlength=40)
        assert ((kept == 0) | (kept == lengths)).all()
        assert (kept == 0).sum() == 12
        around = [(a - FIRST, b - FIRST) for a, mask, b in zip(inputs, inputs[1:], inputs[2:]) if mask == MASK]
        assert all(word_of[a] < word_of[b] for a, b in around)  # no mask is inserted into a word
    assert infill(text(3), MASK, rng, starts=[False] * 3).tolist() == [MASK]


# Sentences and prefixes


def test_sentences_stay_whole_and_every_order_is_equally_likely(rng):
    ends = [0, 0, 1, 1, 0, 1, 0, 0]  # the last sentence has no end
    sentences = [(305, 306, 307), (308,), (309, 310), (311, 312)]
    found = Counter(tuple(permute_sentences(text(8), ends, rng).tolist()) for _ in range(2400))
    assert set(found) == {sum(order, ()) for order in permutations(sentences)}
    assert_frequencies(list(found.values()), np.ones(24))


@pytest.mark.parametrize("ends", [[], [1], [0], [0, 0, 0], [0, 0, 1]])
def test_a_single_sentence_has_one_order(ends, rng):
    assert permute_sentences(text(len(ends)), ends, rng).tolist() == text(len(ends)).tolist()


def test_prefixes_of_every_length_are_equally_likely(rng):
    found = Counter(split_prefix(9, rng) for _ in range(4000))
    assert set(found) == set(range(1, 9))
    assert_frequencies(list(found.values()), np.ones(8))
    assert split_prefix(2, rng) == 1


# All of them


NOISES = {
    "mask_tokens": lambda ids, rng: mask_tokens(ids, ids != 0, MASK, VOCAB, rng),
    "corrupt_spans": lambda ids, rng: corrupt_spans(ids, SENTINELS, EOS, rng),
    "infill": lambda ids, rng: [infill(ids, MASK, rng)],
    "permute_sentences": lambda ids, rng: [permute_sentences(ids, ids % 5 == 0, rng)],
}


@pytest.mark.parametrize("make", NOISES.values(), ids=NOISES.keys())
def test_noise_depends_on_the_generator_alone_and_leaves_the_text_untouched(make):
    ids = text(60).astype(np.uint16)
    ids.flags.writeable = False  # as from a file that is mapped into memory
    first, same, other = (make(ids, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert all(array.dtype == np.int64 for array in first)
    assert all((a == b).all() for a, b in zip(first, same))
    assert any(a.tolist() != b.tolist() for a, b in zip(first, other))


@pytest.mark.parametrize("rate", [-0.1, 15, math.nan])
def test_a_rate_is_a_share(rate, rng):
    with pytest.raises(ValueError, match=f"rate is {rate}: .* from 0 to 1"):
        mask_all(text(5), rng, rate=rate)
    with pytest.raises(ValueError, match="rate"):
        corrupt_spans(text(5), SENTINELS, EOS, rng, rate=rate)
    with pytest.raises(ValueError, match="rate"):
        infill(text(5), MASK, rng, rate=rate)


def test_a_mean_length_is_above_zero(rng):
    with pytest.raises(ValueError, match=r"mean_length is 0: .* above 0"):
        infill(text(5), MASK, rng, mean_length=0)
    with pytest.raises(ValueError, match=r"mean_length is -1: .* above 0"):
        corrupt_spans(text(5), SENTINELS, EOS, rng, mean_length=-1)


def test_one_value_a_token_is_asked_for(rng):
    with pytest.raises(ValueError, match=r"maskable has the shape \[4\] for ids of \[5\]: pass one value a token"):
        mask_tokens(text(5), [True] * 4, MASK, VOCAB, rng)
    with pytest.raises(ValueError, match="words"):
        mask_all(text(5), rng, words=[0] * 6)
    with pytest.raises(ValueError, match="starts"):
        infill(text(5), MASK, rng, starts=[True])
    with pytest.raises(ValueError, match="ends"):
        permute_sentences(text(5), [True], rng)


def test_random_tokens_need_a_range(rng):
    with pytest.raises(ValueError, match=r"replaceable_from is 1000, but must be in \[0, 1000\)"):
        mask_tokens(text(5), [True] * 5, MASK, VOCAB, rng, replaceable_from=VOCAB)


def test_noise_loads_without_torch():
    assert noise.IGNORED == IGNORED
    code = "import glassformer.training.noise, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
