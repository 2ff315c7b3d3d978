"""Leaving out padding changes the work, not the result."""

import pytest
import torch
from models import V, tiny_config
from torch.testing import assert_close

from glassformer import GlassformerForMaskedLM, GlassformerForSequenceClassification
from glassformer import encoder as encoder_module
from glassformer.packing import lengths_to_pack, pack, unpack


LENGTHS = [150, 70, 90]  # one of them longer than what counts as short in attention


def mask_of(lengths, width=160):
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def batch(width=160):
    mask = mask_of(LENGTHS, width)
    return {"input_ids": torch.randint(5, V, mask.shape) * mask, "attention_mask": mask.long()}


def gradients(model, inputs, labels, packs, monkeypatch):
    calls = []

    def lengths(tokens):
        calls.append(found := lengths_to_pack(tokens))
        return found if packs else None

    monkeypatch.setattr(encoder_module, "lengths_to_pack", lengths)
    model.zero_grad()
    loss = model(**inputs, labels=labels).loss
    loss.backward()
    assert calls == [LENGTHS]
    return loss.detach(), {name: weight.grad.clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned", "rope", "alibi", "relative", "none"])
def test_loss_and_gradients_are_those_of_the_padded_batch(position_encoding, monkeypatch):
    config = tiny_config("encoder", position_encoding=position_encoding, dropout=0.0, max_position_embeddings=160)
    model = GlassformerForSequenceClassification(config).double().train()
    inputs, labels = batch(), torch.tensor([0, 1, 0])
    packed, of_packed = gradients(model, inputs, labels, True, monkeypatch)
    padded, of_padded = gradients(model, inputs, labels, False, monkeypatch)
    assert_close(packed, padded)
    for name in of_padded:
        assert_close(of_packed[name], of_padded[name], atol=1e-9, rtol=1e-6, msg=name)


def test_types_of_layers_are_packed_with_their_own_rotations():
    types = {"layer_types": ["full_attention"] * 2, "rope_parameters": {"full_attention": {"rope_theta": 7.0}}}
    config = tiny_config("encoder", position_encoding="rope", dropout=0.0, **types)
    model, inputs = GlassformerForMaskedLM(config), batch()
    tokens = inputs["attention_mask"].bool()
    packed, padded = (model.train(mode).model(**inputs).last_hidden_state[tokens] for mode in (True, False))
    assert_close(packed, padded, atol=1e-5, rtol=1e-4)


def test_what_the_encoder_returns_has_the_shape_of_the_batch_and_zeros_for_padding():
    model = GlassformerForMaskedLM(tiny_config("encoder", dropout=0.0)).train()
    inputs = batch()
    trained = model.model(**inputs).last_hidden_state
    expected = model.eval().model(**inputs).last_hidden_state
    tokens = inputs["attention_mask"].bool()
    assert trained.shape == expected.shape
    assert_close(trained[tokens], expected[tokens], atol=1e-5, rtol=1e-4)
    assert (trained[~tokens] == 0).all()


def test_hidden_states_are_padded_when_they_are_asked_for():
    model = GlassformerForMaskedLM(tiny_config("encoder")).train()
    inputs = batch()
    states = model(**inputs, output_hidden_states=True).hidden_states
    assert {tuple(state.shape[:2]) for state in states} == {(3, 160)}


def test_gradient_checkpointing_computes_the_same(monkeypatch):
    model = GlassformerForSequenceClassification(tiny_config("encoder", dropout=0.0)).double().train()
    inputs, labels = batch(), torch.tensor([0, 1, 0])
    _, plain = gradients(model, inputs, labels, True, monkeypatch)
    model.gradient_checkpointing_enable()
    _, checkpointed = gradients(model, inputs, labels, True, monkeypatch)
    for name in plain:
        assert_close(checkpointed[name], plain[name], msg=name)


@pytest.mark.parametrize(
    "tokens",
    [
        None,
        mask_of([160, 160, 150]),  # hardly any padding
        mask_of([20, 30, 10], 40),  # short
        mask_of([150, 0, 100]),  # nothing in a row
        mask_of(LENGTHS).flip(1),  # padding on the left
        mask_of(LENGTHS)[:, None].expand(-1, 160, -1),  # who sees whom
    ],
    ids=["no-mask", "little", "short", "empty-row", "left", "pairs"],
)
def test_batches_that_are_left_as_they_are(tokens):
    assert lengths_to_pack(tokens) is None


def test_there_and_back_again():
    x, mask = torch.randn(3, 160, 5), mask_of(LENGTHS)
    packed = pack(x, LENGTHS)
    assert torch.equal(packed[0], x[mask])
    assert torch.equal(unpack(packed, LENGTHS, 160), x * mask[..., None])
