"""Heads taken out: the model computes what it would with these heads masked, in fewer numbers, and stays so when it is saved."""

import pytest
import torch
from models import SHAPES, VARIANTS, B, S, T, V, tiny_language_model
from torch.testing import assert_close

from glassformer.analysis import mask_heads, prune_heads
from glassformer.packed_linear import quantize_int8


HEADS = {
    "encoder-decoder": {("encoder", 0): [1], ("decoder", 1): [0, 2], ("decoder", 2): [0, 1], ("cross", 0): [3, 0, 2]},
    "encoder": {("encoder", 0): [0, 1], ("encoder", 1): [2]},
    "decoder": {("decoder", 0): [2, 3], ("decoder", 2): [0]},
}


def inputs_for(shape: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = {"input_ids": torch.randint(5, V, (B, S), generator=generator), "attention_mask": torch.ones(B, S, dtype=torch.long)}
    inputs["attention_mask"][1, -2:] = 0
    if shape == "encoder-decoder":
        inputs["decoder_input_ids"] = torch.randint(5, V, (B, T), generator=generator)
    return inputs


def grown(model):
    """Weights as large as after training, so that every head matters; biases and norms as well."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_pruned_equals_masked_before_and_after_saving(shape, variant, tmp_path):
    model = grown(tiny_language_model(shape, **VARIANTS[variant]))
    inputs, count = inputs_for(shape), model.num_parameters()
    with torch.no_grad():
        whole = model(**inputs).logits
        with mask_heads(model, HEADS[shape]):
            masked = model(**inputs).logits
        prune_heads(model, HEADS[shape])
        for implementation in ("sdpa", "eager"):
            model.set_attn_implementation(implementation)
            assert_close(model(**inputs).logits, masked, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(whole, masked, atol=1e-3)
        model.save_pretrained(tmp_path)
        again = type(model).from_pretrained(tmp_path)
        assert_close(again(**inputs).logits, masked, atol=1e-5, rtol=1e-5)
    assert again.num_parameters() == model.num_parameters() < count


@pytest.mark.parametrize("shape", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_pruned_model_writes_what_a_masked_one_writes(shape, beams):
    """Keys and values go through a cache, whatever heads are left."""
    model = grown(tiny_language_model(shape, **VARIANTS["modern"]))
    inputs = inputs_for(shape)
    options = {"num_beams": beams, "max_new_tokens": 8, "do_sample": False}
    inputs.pop("decoder_input_ids", None)
    inputs["attention_mask"][:] = 1
    with mask_heads(model, HEADS[shape]):
        expected = model.generate(**inputs, **options)
    prune_heads(model, HEADS[shape])
    assert torch.equal(model.generate(**inputs, **options), expected)


def test_matrices_shrink_by_the_heads_and_key_value_heads_that_nobody_needs():
    model = tiny_language_model("decoder", **VARIANTS["modern"])  # 4 heads of 6, 2 key/value heads
    prune_heads(model, {("decoder", 0): [0, 1], ("decoder", 1): [1]})
    shapes = [
        [tuple(layer.self_attn.get_submodule(name).weight.shape) for name in ("q_proj", "k_proj", "out_proj")]
        for layer in model.model.decoder.layers
    ]
    assert shapes == [[(12, 24), (6, 24), (24, 12)], [(18, 24), (12, 24), (24, 18)], [(24, 24), (12, 24), (24, 24)]]


def test_heads_are_numbered_as_they_are_now():
    """Twice one head, and both at once."""
    models = [tiny_language_model("encoder", **VARIANTS["alibi"]) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    prune_heads(models[0], {("encoder", 0): [1]})
    prune_heads(models[0], {("encoder", 0): [1]})  # the second of those that are left, which was the third
    prune_heads(models[1], {("encoder", 0): [1, 2]})
    assert models[0].config.pruned_heads == models[1].config.pruned_heads == {"encoder.0": [1, 2]}
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_is_left_can_be_trained():
    model = tiny_language_model("decoder", num_kv_heads=2).train()
    prune_heads(model, HEADS["decoder"])
    ids = torch.randint(5, V, (B, S))
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def test_what_cannot_be_pruned_is_refused_and_nothing_is_changed():
    model = tiny_language_model("encoder")
    shapes = [parameter.shape for parameter in model.parameters()]
    for heads, words in {
        ("encoder", 7): "There is no encoder attention in layer 7",
        ("cross", 0): "There is no cross attention",
        ("head", 0): "There is no head attention",
    }.items():
        with pytest.raises(ValueError, match=words):
            prune_heads(model, {("encoder", 0): [0], heads: [0]})
    with pytest.raises(ValueError, match="There is no head 4 in encoder layer 0, which has 0 to 3"):
        prune_heads(model, {("encoder", 1): [0], ("encoder", 0): [4]})
    with pytest.raises(ValueError, match="leave at least one"):
        prune_heads(model, {("encoder", 0): [0, 1, 2, 3]})
    assert [parameter.shape for parameter in model.parameters()] == shapes and model.config.pruned_heads is None
    with pytest.raises(ValueError, match="not of Int8Linear: prune before"):
        prune_heads(quantize_int8(tiny_language_model("encoder", d_model=256)), {("encoder", 0): [0]})
