"""Heads switched off: as if their part of the output matrix were zero, in every family and under every kernel."""

import pytest
import torch
from test_capture import build, inputs_for
from torch.testing import assert_close

from glassformer.analysis import head_importance, mask_heads


# The matrix that joins the heads of layer 1, their kind, and how many there are
OUTPUTS = {
    "bert": ("bert.encoder.layer.1.attention.output.dense", "encoder", 4),
    "gpt2": ("transformer.h.1.attn.c_proj", "decoder", 2),
    "llama": ("model.layers.1.self_attn.o_proj", "decoder", 4),
    "t5": ("decoder.block.1.layer.1.EncDecAttention.o", "cross", 2),
    "bart": ("model.encoder.layers.1.self_attn.out_proj", "encoder", 2),
    "marian": ("model.decoder.layers.1.encoder_attn.out_proj", "cross", 2),
    "ours, encoder-decoder": ("model.decoder.layers.1.cross_attn.out_proj", "cross", None),
    "ours, windows and rope": ("model.decoder.layers.1.self_attn.out_proj", "decoder", None),
}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", OUTPUTS)
def test_a_head_that_is_off_adds_nothing(family, implementation):
    model = build(family)
    model.set_attn_implementation(implementation)
    path, kind, heads = OUTPUTS[family]
    matrix, heads = model.get_submodule(path), heads or model.config.num_heads
    inputs = inputs_for(model)
    with torch.no_grad():
        before = model(**inputs).logits
        with mask_heads(model, {(kind, 1): [heads - 1]}):
            masked = model(**inputs).logits
        assert torch.equal(model(**inputs).logits, before)
        by_rows = family == "gpt2"  # [H * K, D], and [D, H * K] everywhere else
        matrix.weight.unflatten(0 if by_rows else 1, (heads, -1))[(-1,) if by_rows else (slice(None), -1)] = 0.0
        expected = model(**inputs).logits
    assert_close(masked, expected, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(masked, before, atol=1e-6)


def test_nothing_off_changes_nothing_and_wrong_heads_are_refused():
    model = build("ours, encoder-decoder")
    inputs = inputs_for(model)
    with torch.no_grad():
        before = model(**inputs).logits
        with mask_heads(model, {}):
            assert torch.equal(model(**inputs).logits, before)
        for heads, words in {
            ("cross", 9): "There is no attention",
            ("cross", 0): "There is no head 77",
        }.items():
            with pytest.raises(ValueError, match=words), mask_heads(model, {heads: [77]}):
                model(**inputs)
        with pytest.raises(ValueError, match="numbered from 0"), mask_heads(model, {("cross", 0): [-1]}):
            pass
    assert model.config._attn_implementation in ("sdpa", "eager")


def test_a_head_that_puts_out_nothing_does_not_matter():
    model = build("ours, encoder-decoder")
    inputs = inputs_for(model)
    attention = model.model.decoder.layers[0].cross_attn
    with torch.no_grad():
        attention.out_proj.weight.view(attention.d_model, attention.num_heads, -1)[:, 0] = 0.0
    labels = torch.randint(5, 30, (2, 6), generator=torch.Generator().manual_seed(1))
    importance = head_importance(model, lambda: model(input_ids=inputs["input_ids"], labels=labels).loss)
    assert importance["cross", 0, 0] == 0.0
    layers = {"encoder": model.config.num_encoder_layers, "decoder": model.config.num_decoder_layers}
    layers["cross"] = layers["decoder"]
    assert {(kind, layer) for kind, layer, _ in importance} == {(kind, n) for kind, count in layers.items() for n in range(count)}
    assert sum(value != 0.0 for value in importance.values()) == len(importance) - 1
