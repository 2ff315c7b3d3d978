"""Embeddings of n-grams: against the hash and the sum in plain Python, and what must not change them."""

import math

import pytest
import torch
from models import B, D, S, T, V, tiny_config, tiny_language_model, with_ngrams
from torch.testing import assert_close
from transformers import AutoModel, AutoModelForSequenceClassification

import glassformer
from glassformer import GlassformerForMaskedLM, GlassformerForSequenceClassification, GlassformerModel, NgramEmbedding
from glassformer.masking import follows_previous


NGRAMS = {"ngram_size": 3, "ngram_buckets": 50}


def row_of(ids: list[int], buckets: int) -> int:
    """Of an n-gram, read from its last id to its first."""
    key = ids[-1]
    for n in range(2, len(ids) + 1):
        key = ((key * 1_540_483_477 + ids[-n] + n) % (2**31 - 1)) ** 2 % (2**31 - 1)
    return 1 + key % buckets


def encoder(**options):
    return with_ngrams(GlassformerModel(tiny_config("encoder", **NGRAMS | options))).eval()


def ids(batch: int = B, length: int = S):
    return torch.randint(5, V, (batch, length))


def states(model, *arguments, **inputs):
    return model(*arguments, **inputs).last_hidden_state


# The lookup


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_each_token_gets_the_sum_of_the_ngrams_that_end_with_it(size, scale):
    embed = NgramEmbedding(50, D, size, scale)
    torch.nn.init.normal_(embed.weight[1:])
    tokens, follows = torch.randint(0, 2**31 - 2, (B, S)), torch.rand(B, S) > 0.2  # as large as ids can be
    follows[:, 0] = False
    expected = torch.zeros(B, S, D)
    for row, last in torch.cartesian_prod(torch.arange(B), torch.arange(S)).tolist():
        for n in range(2, size + 1):
            first = last - n + 1
            if first >= 0 and follows[row, first + 1 : last + 1].all():
                expected[row, last] += embed.weight[row_of(tokens[row, first : last + 1].tolist(), 50)].detach()
    assert_close(embed(tokens, follows), expected * (math.sqrt(D) if scale else 1))
    assert_close(embed(tokens.int(), follows), embed(tokens, follows))


@pytest.mark.parametrize("buckets", [1000, 4096, 2**17])
def test_ngrams_spread_over_the_table_as_if_thrown_there(buckets):
    grams = torch.cartesian_prod(*[torch.arange(25)] * 3)
    pairs, triples = NgramEmbedding(buckets, 1, 3).rows(grams, torch.tensor([[False, True, True]]))
    for rows, count in ((pairs[:, -1], 25**2), (triples[:, -1], 25**3)):
        assert rows.min() >= 1 and rows.max() <= buckets
        assert len(rows.unique()) == pytest.approx(buckets * (1 - (1 - 1 / buckets) ** count), rel=0.03)


@pytest.mark.parametrize("length", [1, 2])
def test_a_text_shorter_than_an_ngram_has_none(length):
    embed = NgramEmbedding(50, D, 4)
    torch.nn.init.normal_(embed.weight[1:])
    found = embed(ids(length=length))
    assert (found[:, 0] == 0).all() and (found[:, 1:] != 0).all()


def test_what_follows_the_token_before_it():
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    assert follows_previous(positions, None, 1).tolist() == [[False, True, True, False, True, True]]
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1]])
    expected = [[0, 1, 1, 0, 1, 0], [0, 0, 1, 0, 1, 1]]
    for dtype in (torch.bool, torch.long, torch.float):
        assert follows_previous(positions, mask.to(dtype), 2).int().tolist() == expected
    for given in (mask[:, None], mask[:, None, None], (1.0 - mask[:, None, None]) * -1e9):  # where padding sees, too
        assert follows_previous(positions, given, 2)[:, :5].int().tolist() == [row[:5] for row in expected]
    documents = torch.tensor([[1, 1, 2, 2, 2, 3]])
    pairs = documents[..., None] == documents[:, None]
    assert follows_previous(torch.arange(6)[None], pairs, 1).int().tolist() == [[0, 1, 0, 1, 1, 0]]


# In a model


def test_a_table_of_zeros_makes_no_difference():
    model = GlassformerForMaskedLM(tiny_config("encoder", **NGRAMS, initializer_range=0.5)).eval()
    table = model.model.encoder.embed_ngrams.weight
    assert table.shape == (51, D) and (table == 0).all()
    plain = tiny_language_model("encoder")
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing and unexpected == ["model.encoder.embed_ngrams.weight"]
    tokens = ids()
    assert torch.equal(model(tokens).logits, plain(tokens).logits)
    torch.nn.init.normal_(table)
    assert not torch.allclose(model(tokens).logits, plain(tokens).logits, atol=1e-2)


def test_gradients_reach_the_rows_that_were_looked_up():
    model, tokens = tiny_language_model("encoder", **NGRAMS), torch.tensor([[5, 6, 7]])
    model(tokens, labels=tokens).loss.backward()
    moved = model.model.encoder.embed_ngrams.weight.grad.abs().sum(1).nonzero().flatten().tolist()
    assert moved == sorted({row_of(gram, 50) for gram in ([5, 6], [6, 7], [5, 6, 7])})


def test_only_the_encoder_of_two_stacks_has_them():
    model = tiny_language_model("encoder-decoder", **NGRAMS)
    assert [name for name, _ in model.named_parameters() if "ngrams" in name] == ["model.encoder.embed_ngrams.weight"]
    source, target = ids(), ids(length=T)
    before = model(source, decoder_input_ids=target).logits
    cached, plain = (model.generate(source, max_new_tokens=6, num_beams=2, use_cache=use_cache) for use_cache in (True, False))
    assert torch.equal(cached, plain)
    torch.nn.init.zeros_(model.model.encoder.embed_ngrams.weight)
    assert not torch.allclose(before, model(source, decoder_input_ids=target).logits, atol=1e-3)


# Saving and loading


def test_saved_and_loaded_again(tmp_path):
    model = with_ngrams(GlassformerForSequenceClassification(tiny_config("encoder", **NGRAMS))).eval()
    model.save_pretrained(tmp_path)
    tokens = ids()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert torch.equal(states(AutoModel.from_pretrained(tmp_path), tokens), states(model.model, tokens))


def test_a_checkpoint_without_the_table_starts_as_it_was(tmp_path):
    plain, tokens = tiny_language_model("encoder"), ids()
    plain.save_pretrained(tmp_path)
    model = GlassformerForMaskedLM.from_pretrained(tmp_path, **NGRAMS)
    assert (model.model.encoder.embed_ngrams.weight == 0).all()
    assert torch.equal(model(tokens).logits, plain(tokens).logits)


# What cannot be


def test_embeddings_in_place_of_ids_are_refused():
    with pytest.raises(ValueError, match="ngram_size=3 looks up the ids of neighbours, which inputs_embeds do not tell"):
        encoder()(inputs_embeds=torch.randn(B, S, D))


def test_no_native_architecture_has_them():
    bert = {"position_encoding": "learned", "norm_position": "post", "embedding_norm": True, "scale_embedding": False}
    bert |= {"output_transform": "dense", "output_bias": True, "activation": "gelu"}
    glassformer.to_hf(tiny_language_model("encoder", **bert), to="bert")
    with pytest.raises(ValueError, match="does not fit bert: ngram_size=3, needs 1"):
        glassformer.to_hf(tiny_language_model("encoder", **bert, **NGRAMS), to="bert")
