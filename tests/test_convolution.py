"""The convolution before an encoder's layers: against torch's own, and what must not change it."""

import pytest
import torch
from models import B, D, S, T, V, tiny_config, tiny_language_model
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import AutoModelForSequenceClassification

import glassformer
from glassformer import Convolution, GlassformerForSequenceClassification, GlassformerModel


def encoder(**options):
    return GlassformerModel(tiny_config("encoder", **{"conv_size": 3} | options)).eval()


def ids(batch: int = B, length: int = S):
    return torch.randint(5, V, (batch, length))


def states(model, *arguments, **inputs):
    return model(*arguments, **inputs).last_hidden_state


def by_torch(convolution: Convolution, text: torch.Tensor) -> torch.Tensor:
    """One text [T, D] by `conv1d`, which has the places last and pads with zeros."""
    weight = convolution.dense.weight.view(D, -1, D).transpose(1, 2)
    return F.conv1d(text.T[None], weight, convolution.dense.bias, padding="same")[0].T.relu()


@pytest.mark.parametrize("size", [3, 5, 7])
@pytest.mark.parametrize("lengths", [[9], [4, 5], [1, 2, 3, 3], [1] * 9], ids=str)
def test_each_text_of_a_row_is_convolved_by_itself(size, lengths):
    convolution, texts = Convolution(D, size, "relu"), [torch.randn(length, D) for length in lengths]
    follows = torch.cat([torch.arange(length) > 0 for length in lengths])[None]
    found = convolution(torch.cat(texts)[None], follows)[0]
    assert_close(found, torch.cat([by_torch(convolution, text) for text in texts]))


def test_what_stands_in_padding_is_not_read():
    convolution, x = Convolution(D, 3, "gelu"), torch.randn(1, 4, D)
    poisoned = torch.cat((x, torch.full((1, 2, D), torch.nan)), 1)
    follows = torch.tensor([[False, True, True, True, False, False]])
    assert_close(convolution(poisoned, follows)[:, :4], convolution(x, follows[:, :4]))


# In a model


def test_an_order_that_nothing_else_tells():
    one, other = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[5, 7, 6, 8]])
    plain, model = (encoder(position_encoding="none", conv_size=size) for size in (1, 3))
    assert_close(states(plain, one).mean(1), states(plain, other).mean(1))
    assert not torch.allclose(states(model, one).mean(1), states(model, other).mean(1), atol=1e-3)


@pytest.mark.parametrize("filling", [0, 9])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side, filling):
    model, tokens, sides = encoder(position_encoding="rope"), ids(), (4, 0) if side == "left" else (0, 4)
    padded, mask = F.pad(tokens, sides, value=filling), F.pad(torch.ones_like(tokens), sides)
    found = states(model, padded, attention_mask=mask)
    assert_close(found[mask.bool()].view(B, S, D), states(model, tokens), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("told", ["positions", "mask", "both"])
def test_packed_texts_do_not_touch(told):
    model = encoder(position_encoding="rope", conv_size=5)  # distances decide, so that positions may be left out
    first, second = ids(1, S), ids(1, T)
    documents = torch.tensor([[0] * S + [1] * T])
    inputs = {"attention_mask": documents[..., None] == documents[:, None]}
    if told != "mask":
        inputs["position_ids"] = torch.cat((torch.arange(S), torch.arange(T)))[None]
    packed = states(model, torch.cat((first, second), 1), **inputs)
    assert_close(packed[:, :S], states(model, first), atol=1e-5, rtol=1e-4)
    assert_close(packed[:, S:], states(model, second), atol=1e-5, rtol=1e-4)


def test_padding_that_is_left_out_while_training_changes_nothing():
    model = encoder(dropout=0.0, max_position_embeddings=200)
    tokens, mask = ids(3, 160), torch.arange(160) < torch.tensor([[160], [90], [70]])
    expected = states(model, tokens, attention_mask=mask)
    assert_close(states(model.train(), tokens, attention_mask=mask)[mask], expected[mask], atol=1e-5, rtol=1e-4)


def test_embeddings_may_take_the_place_of_ids():
    model, tokens = encoder(), ids()
    assert torch.equal(states(model, inputs_embeds=model.encoder.embed_tokens(tokens)), states(model, tokens))


def test_only_the_encoder_of_two_stacks_has_one():
    model = tiny_language_model("encoder-decoder", conv_size=3)
    names = [name for name, _ in model.named_parameters() if "convolution" in name]
    assert names == ["model.encoder.convolution.dense.weight", "model.encoder.convolution.dense.bias"]
    source = ids()
    cached, plain = (model.generate(source, max_new_tokens=6, num_beams=2, use_cache=use_cache) for use_cache in (True, False))
    assert torch.equal(cached, plain)


def test_phrases_are_learnt_where_words_alone_say_nothing():
    """Which of two words comes first, by a model that knows no positions: its layers see two equal bags."""
    config = tiny_config("encoder", conv_size=3, position_encoding="none", dropout=0.0, num_labels=2)
    model = GlassformerForSequenceClassification(config)
    tokens, labels = torch.tensor([[5, 6, 7, 8], [5, 7, 6, 8]]), torch.tensor([0, 1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(30):
        loss = model(tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.01


def test_saved_and_loaded_again(tmp_path):
    model, tokens = GlassformerForSequenceClassification(tiny_config("encoder", conv_size=3)).eval(), ids()
    model.save_pretrained(tmp_path)
    assert torch.equal(AutoModelForSequenceClassification.from_pretrained(tmp_path)(tokens).logits, model(tokens).logits)


def test_no_native_architecture_has_one():
    bert = {"position_encoding": "learned", "norm_position": "post", "embedding_norm": True, "scale_embedding": False}
    bert |= {"output_transform": "dense", "output_bias": True, "activation": "gelu"}
    with pytest.raises(ValueError, match="does not fit bert: conv_size=3, needs 1"):
        glassformer.to_hf(tiny_language_model("encoder", **bert, conv_size=3), to="bert")
