"""The convolution before an encoder's layers: against torch's own, and what must not change it."""

import pytest
import torch
from models import B, D, S, V, tiny_config, tiny_language_model
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


def test_saved_and_loaded_again(tmp_path):
    model, tokens = GlassformerForSequenceClassification(tiny_config("encoder", conv_size=3)).eval(), ids()
    model.save_pretrained(tmp_path)
    assert torch.equal(AutoModelForSequenceClassification.from_pretrained(tmp_path)(tokens).logits, model(tokens).logits)


def test_no_native_architecture_has_one():
    bert = {"position_encoding": "learned", "norm_position": "post", "embedding_norm": True, "scale_embedding": False}
    bert |= {"output_transform": "dense", "output_bias": True, "activation": "gelu"}
    with pytest.raises(ValueError, match="does not fit bert: conv_size=3, needs 1"):
        glassformer.to_hf(tiny_language_model("encoder", **bert, conv_size=3), to="bert")
