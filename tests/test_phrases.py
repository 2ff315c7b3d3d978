"""Phrases that vote on the class of a text: against plain Python, in a model, and what training rows make of them."""

import math
from collections import Counter

import pytest
import torch
from datasets import Dataset
from models import B, S, V, tiny_config
from recipes import task_recipe
from torch.testing import assert_close
from transformers import AutoModelForSequenceClassification

import glassformer
from glassformer import GlassformerForSequenceClassification, PhraseVotes
from glassformer.phrases import GAIN, NOBODY
from glassformer.training.loop import train
from glassformer.training.phrases import FEW_ROWS, TRUST, get_to_know
from glassformer.training.recipe import RecipeError
from glassformer.training.task import build_model, prepare


BUCKETS, CLASSES = 997, 3


def key_of(ids) -> int:
    """Of an n-gram, read from its last id to its first."""
    key = ids[-1]
    for n in range(2, len(ids) + 1):
        key = ((key * 1_540_483_477 + ids[-n] + n) % (2**31 - 1)) ** 2 % (2**31 - 1)
    return key


def grams_of(ids, size):
    return [tuple(ids[end - n : end]) for n in range(1, size + 1) for end in range(n, len(ids) + 1)]


def known(grams, size=3, buckets=BUCKETS, dropout=0.0):
    """A table in which these phrases have votes, and the votes by phrase."""
    phrases = PhraseVotes(buckets, CLASSES, size, dropout)
    for gram in grams:
        phrases.owners[1 + key_of(gram) % buckets] = key_of(gram)
    torch.nn.init.normal_(phrases.weight[1:])  # also of rows that nobody has
    return phrases.eval(), {gram: phrases.weight[1 + key_of(gram) % buckets].detach() for gram in grams}


def classifier(**options):
    config = tiny_config("encoder", phrase_size=3, phrase_buckets=BUCKETS, num_labels=CLASSES, **options)
    return GlassformerForSequenceClassification(config).eval()


def ids(batch: int = B, length: int = S):
    return torch.randint(5, V, (batch, length))


# The votes


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_known_phrases_of_a_text_are_added_up_and_divided_by_the_root_of_their_number(size, side):
    texts = [[11, 12, 13, 11, 12], [13, 13, 12]]
    phrases, votes = known([(11,), (13,), (11, 12), (13, 12), (12, 13, 11), (13, 13, 12)], size)
    pad = [0] * 2
    rows = torch.tensor([texts[0], texts[1] + pad if side == "right" else pad + texts[1]])
    expected = []
    for text in texts:
        found = [votes[gram] for gram in grams_of(text, size) if gram in votes]
        expected.append(GAIN * sum(found) / math.sqrt(len(found)))
    assert_close(phrases(rows, rows != 0), torch.stack(expected))


def test_a_phrase_that_meets_another_in_its_row_says_nothing():
    first = (5,)
    other = (5 + 7,)
    phrases, votes = known([first], size=1, buckets=7)
    assert phrases.row_of(torch.tensor(key_of(first))) == phrases.row_of(torch.tensor(key_of(other)))
    assert_close(phrases(torch.tensor([first, other])), torch.stack([GAIN * votes[first], torch.zeros(CLASSES)]))


def test_a_text_without_known_phrases_has_no_votes():
    phrases, _ = known([(5, 6)])
    assert (phrases(torch.tensor([[7, 8, 9], [5, 5, 5]])) == 0).all()


def test_phrases_are_left_out_at_random_only_while_training():
    phrases, _ = known([(5,)], dropout=0.5)
    text = torch.full((1, 400), 5)
    whole = phrases(text)
    assert_close(whole, phrases(text))
    phrases.train()
    torch.manual_seed(0)
    share = (phrases(text) / whole).square()  # sums of half as many, divided by a root of half as many
    assert_close(share, torch.full_like(share, 0.5), rtol=0.15, atol=0)


# In a model


def test_a_new_model_is_the_one_without_phrases():
    model = classifier()
    plain = GlassformerForSequenceClassification(tiny_config("encoder", num_labels=CLASSES)).eval()
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing and sorted(unexpected) == ["phrases.owners", "phrases.weight"]
    tokens = ids()
    assert torch.equal(model(tokens).logits, plain(tokens).logits)


def test_votes_are_added_to_the_logits_and_learn_from_them():
    model, tokens = classifier(), torch.tensor([[5, 6, 7]])
    before = model(tokens).logits
    model.phrases, votes = known([(5, 6), (8,)])
    outputs = model(tokens, labels=torch.tensor([1]))
    assert_close(outputs.logits, before + GAIN * votes[5, 6])
    outputs.loss.backward()
    moved = model.phrases.weight.grad.abs().sum(1).nonzero().flatten().tolist()
    assert moved == [1 + key_of((5, 6)) % BUCKETS]


def test_padding_does_not_change_the_votes():
    model = classifier()
    model.phrases, _ = known([(5, 6), (7,), (0,), (6, 0)])
    padded = torch.tensor([[5, 6, 7, 0, 0]])
    assert_close(model(padded).logits, model(padded[:, :3]).logits)
    assert_close(model(padded, attention_mask=(padded != 0).long()).logits, model(padded[:, :3]).logits)


def test_a_saved_model_knows_its_phrases(tmp_path):
    model, tokens = classifier(), ids()
    model.phrases, _ = known(grams_of(tokens[0].tolist(), 3))
    model.save_pretrained(tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert torch.equal(again.phrases.owners, model.phrases.owners)
    assert torch.equal(again(tokens).logits, model(tokens).logits)


def test_embeddings_in_the_place_of_ids_are_refused():
    with pytest.raises(ValueError, match=r"phrase_size=3 looks up the ids of phrases.*pass input_ids"):
        model = classifier()
        model(inputs_embeds=model.get_input_embeddings()(ids()))


def test_no_native_architecture_has_votes():
    bert = {"norm_position": "post", "position_encoding": "learned", "scale_embedding": False, "embedding_norm": True}
    with pytest.raises(ValueError, match="phrase_size=3, needs 0"):
        glassformer.to_hf(classifier(**bert), to="bert")


# Before training


def random_rows(count=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(5, 12, (9,), generator=generator).tolist() for _ in range(count)]
    return Dataset.from_dict({"input_ids": texts, "label": [text[0] % CLASSES for text in texts]})


def test_phrases_of_several_rows_are_known_and_begin_as_naive_bayes_has_them(monkeypatch):
    monkeypatch.setattr("glassformer.training.phrases.ROWS_AT_ONCE", 7)  # counts are added up
    rows, phrases = random_rows(), PhraseVotes(10**6 + 3, CLASSES, 3)
    get_to_know(phrases, rows, CLASSES, with_votes=True)
    by_class = [Counter() for _ in range(CLASSES)]
    for row in rows:
        by_class[row["label"]].update(set(grams_of(row["input_ids"], 3)))
    everything = sum(by_class, Counter())
    expected = [gram for gram, count in everything.items() if count >= FEW_ROWS]
    assert sorted(phrases.owners[phrases.owners != NOBODY].tolist()) == sorted(map(key_of, expected))
    for c in range(CLASSES):
        inside = {gram: by_class[c][gram] + 1 for gram in expected}
        outside = {gram: everything[gram] - by_class[c][gram] + 1 for gram in expected}
        for gram in expected:
            ratio = math.log(inside[gram] / sum(inside.values()) * sum(outside.values()) / outside[gram])
            vote = GAIN * phrases.weight[1 + key_of(gram) % phrases.num_buckets, c].item()
            assert vote == pytest.approx(TRUST * ratio, abs=1e-5)


def test_of_phrases_that_meet_in_a_row_the_more_frequent_has_it():
    texts = [[5]] * 4 + [[5 + 7]] * 6 + [[5 + 14]] * 5
    phrases = PhraseVotes(7, 2, 1)
    get_to_know(phrases, Dataset.from_dict({"input_ids": texts, "label": [0, 1, 1] * 5}), 2, with_votes=False)
    assert phrases.owners[phrases.owners != NOBODY].tolist() == [5 + 7]
    assert (phrases.weight == 0).all()


@pytest.mark.parametrize("task", ["sequence_classification", "multi_label", "regression"])
def test_a_recipe_with_phrases_trains_a_model_that_knows_them(task, tmp_path):
    judged = {"evaluation.metrics": None, "evaluation.best": "loss"}
    recipe = task_recipe(tmp_path, task, {"model.phrase_size": 2, "model.phrase_buckets": 5000, **judged})
    begin = build_model(prepare(recipe))
    assert (begin.phrases.weight != 0).any().item() is (task != "regression")
    folder = train(recipe)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert torch.equal(model.phrases.owners, begin.phrases.owners)
    assert (model.phrases.owners != NOBODY).any()
    assert not torch.equal(model.phrases.weight, begin.phrases.weight)
    resumed = build_model(prepare(recipe), next((folder / "checkpoints").iterdir()))
    assert torch.equal(resumed.phrases.owners, begin.phrases.owners)
    assert not torch.equal(resumed.phrases.weight, begin.phrases.weight)


def test_a_stream_cannot_be_counted_before_it_is_read(tmp_path):
    task = prepare(task_recipe(tmp_path, "sequence_classification"))
    task.encoded.pop("train")
    task.config.phrase_size = 2
    with pytest.raises(RecipeError, match="phrase_size counts phrases before training, which a stream does not allow"):
        build_model(task)
