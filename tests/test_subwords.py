"""BPE-dropout: the same text cut in other ways, as often and as finely as the tokenizers library does it, and repeatable."""

import random
import warnings

import numpy as np
import pytest
from recipes import keep_caches_in, task_recipe

from glassformer.training.batching import Loader, Position
from glassformer.training.evaluation import ALONE, evaluation_batches
from glassformer.training.recipe import RecipeError
from glassformer.training.subwords import VARIANTS, BPEDropout, CutAnew
from glassformer.training.task import prepare
from glassformer.training.tokenization import train_tokenizer


def make_texts() -> list[str]:
    rng = random.Random(0)
    words = ["".join(rng.choices(["glas", "ton", "für", "ba", "lo", "mi"], k=rng.randint(1, 4))) for _ in range(80)]
    return [" ".join(rng.choices(words, k=8)) + "." for _ in range(300)]


def cut_anew(tokenizer, texts: list[str], rate: float, seed: int = 0, epoch: int = 0) -> list[list[int]]:
    plain = [tokenizer(text).input_ids for text in texts]
    return [ids.tolist() for ids in CutAnew(plain, BPEDropout(tokenizer, rate, seed))(np.random.default_rng(epoch))]


@pytest.fixture(scope="module")
def tokenizer():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train_tokenizer(make_texts(), "bpe", 200, adds="eos")


def test_without_dropout_words_are_cut_as_the_tokenizer_cuts_them(tokenizer):
    texts = [*make_texts()[:50], "unknown § signs, 日本 in glaston.", ""]
    assert cut_anew(tokenizer, texts, 0.0) == [tokenizer(text).input_ids for text in texts]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.99])
def test_the_text_stays_the_same(tokenizer, rate):
    texts = make_texts()[:50]
    for text, ids in zip(texts, cut_anew(tokenizer, texts, rate)):
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert ids[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_words_fall_into_as_many_pieces_as_with_the_tokenizers_library(tokenizer, rate):
    texts = make_texts()
    ours = np.mean([len(ids) for seed in range(8) for ids in cut_anew(tokenizer, texts, rate, seed)])
    backend = tokenizer.backend_tokenizer
    backend.model.dropout = rate
    try:
        theirs = np.mean([len(backend.encode(text).ids) for _ in range(8) for text in texts])
    finally:
        backend.model.dropout = None
    assert ours == pytest.approx(theirs, rel=0.04)  # of 80 words, each cut in 16 ways
    assert ours > 1.05 * np.mean([len(tokenizer(text).input_ids) for text in texts])


def test_a_word_is_cut_in_many_ways_but_the_same_ones_in_every_run(tokenizer):
    texts = make_texts()[:5]
    assert cut_anew(tokenizer, texts, 0.5, seed=3, epoch=2) == cut_anew(tokenizer, texts, 0.5, seed=3, epoch=2)
    assert len({str(cut_anew(tokenizer, texts, 0.5, seed=3, epoch=n)) for n in range(20)}) == 20
    words = BPEDropout(tokenizer, 0.5).words(tokenizer(texts[0]).input_ids)
    three, four = ([BPEDropout(tokenizer, 0.5, seed).variants(word) for word in words] for seed in (3, 4))
    assert three != four and {len(variants) for variants in three} == {VARIANTS}


def test_other_tokenizers_are_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        others = [train_tokenizer(make_texts(), kind, 300) for kind in ("char", "unigram", "byte_bpe")]
    for other in others:
        with pytest.raises(RecipeError, match=r"tokenizer\.dropout is for tokenizer\.kind=bpe"):
            BPEDropout(other, 0.1)


def test_a_run_reads_other_pieces_in_every_epoch_and_the_tokenizers_own_when_it_is_judged(tmp_path, monkeypatch):
    keep_caches_in(tmp_path / "caches", monkeypatch)
    recipe = task_recipe(tmp_path / "run", "seq2seq", {"tokenizer": {"kind": "bpe", "vocab_size": 60, "dropout": 0.5}})
    task = prepare(recipe)
    batching = recipe.batching
    epochs = [
        [
            batch.tensors["input_ids"].tolist()
            for batches, _ in Loader(task.source(), task.objective.collate, batching).updates(Position(epoch))
            for batch in batches
        ]
        for epoch in (0, 0, 1)
    ]
    assert epochs[0] == epochs[1] != epochs[2]
    for batches in epochs:
        texts = task.tokenizer.batch_decode([ids for batch in batches for ids in batch], skip_special_tokens=True)
        assert sorted(texts) == sorted(task.rows["train"]["source"])
    [judged] = evaluation_batches(task.objective, task.encoded["train"], recipe.evaluation, None, ALONE)
    assert sorted(map(len, task.encoded["train"]["input_ids"])) == sorted(judged["attention_mask"].sum(1).tolist())
    with pytest.raises(RecipeError, match=r"set training\.steps"):
        task_recipe(tmp_path / "other", "seq2seq", {"tokenizer": {"dropout": 0.1}, "training": {"epochs": 1}})
