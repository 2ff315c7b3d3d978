"""Positions as a picture: the figures are those of the formulas, for every encoding that there is."""

import math

import pytest
import torch
from models import tiny_language_model
from torch.testing import assert_close
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

from glassformer.analysis import AttentionVisualizer
from glassformer.analysis.position_maps import position_map


def test_sines_and_cosines():
    found = position_map(tiny_language_model("decoder", position_encoding="sinusoidal"), 10)
    assert found.table[3, 0] == pytest.approx(math.sin(3)) and found.table[3, 1] == pytest.approx(math.cos(3))
    assert_close(found.likeness.diagonal(), torch.ones(10))
    assert float(found.likeness[5, 4]) > float(found.likeness[5, 9])


def test_rotations_are_as_alike_as_the_cosines_of_their_distance():
    model = tiny_language_model("decoder", position_encoding="rope")
    frequencies = model.model.decoder.rotary_emb.inv_freq
    found = position_map(model, 12)
    assert float(found.likeness[2, 7]) == pytest.approx(float((5 * frequencies).cos().mean()), abs=1e-5)
    assert_close(found.likeness.diagonal(), torch.ones(12))


@pytest.mark.parametrize("kind", ["alibi", "relative"])
def test_biases_have_a_column_a_head(kind):
    model = tiny_language_model("decoder", position_encoding=kind)
    found = position_map(model, 9)
    assert found.table.shape == (9, model.config.num_heads) and found.likeness.shape == (9, 9)
    if kind == "alibi":
        assert_close(found.table[:, 0], -model.model.decoder.position_bias.slopes[0] * torch.arange(8, -1, -1))


@pytest.mark.parametrize(
    "model",
    [
        BertModel(BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)),
        GPT2Model(GPT2Config(vocab_size=30, n_embd=16, n_layer=1, n_head=2)),
        tiny_language_model("decoder", position_encoding="learned"),
    ],
    ids=["bert", "gpt2", "ours"],
)
def test_learned_tables_are_found(model):
    [weight] = [p for name, p in model.named_parameters() if "position" in name or "wpe" in name]
    assert_close(position_map(model, 7).table, weight[:7].detach())


def test_pictures_of_positions(tmp_path):
    assert (
        AttentionVisualizer(tiny_language_model("decoder", position_encoding="rope"), None)
        .plot_positions(tmp_path / "positions.png")
        .exists()
    )
    with pytest.raises(ValueError, match="no position encoding that can be drawn"):
        position_map(tiny_language_model("decoder", position_encoding="none"), 5)
