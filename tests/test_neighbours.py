"""What n-grams and the convolution have in common: they join neighbours, and no further than a text goes."""

import pytest
import torch
from models import B, D, S, T, V, tiny_config, with_ngrams
from torch.nn import functional as F
from torch.testing import assert_close

from glassformer import GlassformerModel


KINDS = {"ngrams": {"ngram_size": 3, "ngram_buckets": 50}, "convolution": {"conv_size": 5}}
pytestmark = pytest.mark.parametrize("kind", KINDS)


def encoder(kind: str, **options):
    return with_ngrams(GlassformerModel(tiny_config("encoder", **KINDS[kind] | options))).eval()


def ids(batch: int = B, length: int = S):
    return torch.randint(5, V, (batch, length))


def states(model, *arguments, **inputs):
    return model(*arguments, **inputs).last_hidden_state


@pytest.mark.parametrize("filling", [0, 9])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(kind, side, filling):
    model, tokens, sides = encoder(kind, position_encoding="rope"), ids(), (4, 0) if side == "left" else (0, 4)
    padded, mask = F.pad(tokens, sides, value=filling), F.pad(torch.ones_like(tokens), sides)
    found = states(model, padded, attention_mask=mask)
    assert_close(found[mask.bool()].view(B, S, D), states(model, tokens), atol=1e-5, rtol=1e-4)
    if filling == 0:  # pad tokens, which tell their own mask
        assert_close(states(model, padded)[mask.bool()], found[mask.bool()])


@pytest.mark.parametrize("told", ["positions", "mask", "both"])
def test_packed_texts_do_not_touch(kind, told):
    # Distances decide, so that positions may be left out.
    model = encoder(kind, position_encoding="rope")
    first, second = ids(1, S), ids(1, T)
    documents = torch.tensor([[0] * S + [1] * T])
    inputs = {"attention_mask": documents[..., None] == documents[:, None]}
    if told != "mask":
        inputs["position_ids"] = torch.cat((torch.arange(S), torch.arange(T)))[None]
    packed = states(model, torch.cat((first, second), 1), **inputs)
    assert_close(packed[:, :S], states(model, first), atol=1e-5, rtol=1e-4)
    assert_close(packed[:, S:], states(model, second), atol=1e-5, rtol=1e-4)


def test_padding_that_is_left_out_while_training_changes_nothing(kind):
    model = encoder(kind, dropout=0.0, max_position_embeddings=200)
    tokens, mask = ids(3, 160), torch.arange(160) < torch.tensor([[160], [90], [70]])
    expected = states(model, tokens, attention_mask=mask)
    assert_close(states(model.train(), tokens, attention_mask=mask)[mask], expected[mask], atol=1e-5, rtol=1e-4)


def test_an_order_that_nothing_else_tells(kind):
    one, other = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[5, 7, 6, 8]])
    plain, model = (encoder(kind, position_encoding="none", **off) for off in ({"ngram_size": 1, "conv_size": 1}, {}))
    assert_close(states(plain, one).mean(1), states(plain, other).mean(1))
    assert not torch.allclose(states(model, one).mean(1), states(model, other).mean(1), atol=1e-3)


def test_it_is_learnt_where_words_alone_say_nothing(kind):
    """Which of two words comes first, by a model that knows no positions: its layers see two equal bags."""
    model = encoder(kind, position_encoding="none", dropout=0.0).train()
    classifier = torch.nn.Linear(D, 2)
    tokens, labels = torch.tensor([[5, 6, 7, 8], [5, 7, 6, 8]]), torch.tensor([0, 1])
    optimizer = torch.optim.Adam([*model.parameters(), *classifier.parameters()], lr=0.01)
    for _ in range(30):
        loss = F.cross_entropy(classifier(states(model, tokens).mean(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.01
