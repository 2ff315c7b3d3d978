"""The short way through the decoder says what the long way says, token by token; and eight-bit layers nearly the same."""

import copy

import numpy as np
import pytest
import torch
from models import VARIANTS, D, tiny_language_model
from peft import LoraConfig, get_peft_model
from test_generation import talkative_model, words
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers.modeling_outputs import BaseModelOutput

from glassformer import decoding, quantize_int8
from glassformer.beams import topk_of_many
from glassformer.packed_linear import FewRows, Int8Linear, join


NEW = 70  # more than are made room for, or computed ahead, at once
SEARCHES = {
    "greedy": {},
    "beams": {"num_beams": 4},
    "several": {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.3, "early_stopping": True},
    "sampling": {"do_sample": True, "num_return_sequences": 2, "top_k": 5},
    "processors": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
}
each_shape = pytest.mark.parametrize("shape", ["encoder-decoder", "decoder"])


@pytest.fixture
def count_steps(monkeypatch):
    """How many steps took the short way."""
    taken, step = [], decoding.DecoderSteps.__call__
    monkeypatch.setattr(decoding.DecoderSteps, "__call__", lambda self, tokens: taken.append(1) or step(self, tokens))
    return taken


def prompt(shape, length=6):
    """Rows of different length, padded where each shape pads."""
    tokens, mask = words(3, length), torch.ones(3, length, dtype=torch.long)
    mask[1, 4:] = 0
    if shape == "decoder":
        mask = mask.flip(1)
    return {"input_ids": tokens * mask, "attention_mask": mask}


def long_way(model, **kwargs):
    """`generate` as it is without our steps."""
    ordinary, decoding.can_step = decoding.can_step, lambda *_: False
    try:
        return model.generate(**kwargs)
    finally:
        decoding.can_step = ordinary


def both_ways(model, seed=0, **kwargs):
    torch.manual_seed(seed)
    expected = long_way(model, **kwargs)
    torch.manual_seed(seed)
    return model.generate(**kwargs), expected


@each_shape
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("variant", [name for name in VARIANTS if "window" not in name])
def test_tokens_are_those_of_the_ordinary_way(shape, search, variant, count_steps):
    length = 12 if search in ("beams", "several") else NEW
    model = talkative_model(shape, **VARIANTS[variant], max_position_embeddings=90)
    found, expected = both_ways(model, **prompt(shape), max_new_tokens=length, **SEARCHES[search])
    assert torch.equal(found, expected)
    prompt_is_a_step = shape == "encoder-decoder" and search in ("greedy", "beams", "several")
    assert len(count_steps) == length - (not prompt_is_a_step)


@each_shape
@pytest.mark.parametrize("rows_per_example", [1, 3])
@pytest.mark.parametrize("variant", [name for name in VARIANTS if "window" not in name])
def test_logits_are_those_of_one_forward_over_all_tokens(shape, rows_per_example, variant):
    model = talkative_model(shape, **VARIANTS[variant], max_position_embeddings=90)
    inputs = {name: tensor.repeat_interleave(rows_per_example, 0) for name, tensor in prompt(shape).items()}
    rows, prefix = 3 * rows_per_example, "decoder_" if shape == "encoder-decoder" else ""
    start, tokens = (words(rows, 4), words(rows, NEW)) if prefix else (inputs["input_ids"], words(rows, NEW))
    mask = F.pad(inputs["attention_mask"], (0, NEW), value=1)
    position_ids = (mask.cumsum(1) - 1).clamp(min=0)
    begin = {"decoder_input_ids": start} if prefix else {"position_ids": position_ids[:, : start.shape[1]]}
    whole = {f"{prefix}input_ids": torch.cat((start, tokens), dim=1)}
    whole |= {} if prefix else {"attention_mask": mask, "position_ids": position_ids}
    with torch.no_grad():
        expected = model(**{**inputs, **whole}).logits[:, start.shape[1] :]
        cache = model(**{**inputs, **begin}, use_cache=True).past_key_values
        cache.rows_per_example, cache.room = rows_per_example, 20  # less than is needed
        told = inputs | ({} if prefix else {"position_ids": position_ids[:, : start.shape[1] + 1]})
        steps = decoding.DecoderSteps(model, past_key_values=cache, **told)
        for place in range(NEW):
            assert_close(steps(tokens[:, place, None])[:, 0], expected[:, place], atol=1e-4, rtol=1e-4, msg=f"token {place}")


@each_shape
@pytest.mark.parametrize("search", ["greedy", "beams"])
def test_rows_end_where_they_end_in_the_ordinary_way(shape, search, count_steps):
    ends = set()
    for seed in range(6):
        torch.manual_seed(seed)
        model = talkative_model(shape)
        text = long_way(model, **prompt(shape), max_new_tokens=25)
        ends_at = {"eos_token_id": [int(text[0, -12]), int(text[2, -4])]}
        options = {**ends_at, "max_new_tokens": 25, **SEARCHES[search]}
        found, expected = both_ways(model, **prompt(shape), **options)
        assert torch.equal(found, expected)
        ends.add(found.shape[1])
    assert len(ends) > 1 and count_steps  # it stopped early, and not always at the same place


def test_a_prompt_for_the_decoder_of_an_encoder_decoder():
    model = talkative_model("encoder-decoder")
    options = {**prompt("encoder-decoder"), "decoder_input_ids": words(3, 4), "max_new_tokens": 9}
    found, expected = both_ways(model, **options)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("search", ["greedy", "beams"])
def test_positions_of_a_source_are_not_those_of_the_target(search, count_steps):
    model = talkative_model("encoder-decoder")
    options = {**prompt("encoder-decoder"), "position_ids": torch.arange(6).flip(0).expand(3, -1) + 3}
    found, expected = both_ways(model, **options, max_new_tokens=20, **SEARCHES[search])
    assert torch.equal(found, expected) and count_steps
    options["position_ids"] = options["position_ids"].flip(1)
    assert not torch.equal(model.generate(**options, max_new_tokens=20, **SEARCHES[search]), found)


@pytest.mark.parametrize("shape, length", [("encoder-decoder", 1), ("encoder-decoder", 4), ("decoder", 6)])
def test_a_prompt_is_read_once_for_all_beams_of_an_example(shape, length, monkeypatch):
    model, inputs, rows = talkative_model(shape), prompt(shape), []
    embedding = model.get_decoder().embed_tokens
    look_up = type(embedding).look_up
    if shape == "encoder-decoder" and length > 1:
        inputs["decoder_input_ids"] = words(3, length - 1)  # after the start token

    def count_rows(self, ids):
        if ids.shape[1] == length:  # of the target: sources are longer, or the only prompt
            rows.append(len(ids))
        return look_up(self, ids)

    monkeypatch.setattr(type(embedding), "look_up", count_rows)
    found = model.generate(**inputs, max_new_tokens=5, num_beams=4)
    assert rows[0] == 3 and rows[1:] == [12] * (4 if length == 1 else 0)
    assert torch.equal(found, long_way(model, **inputs, max_new_tokens=5, num_beams=4))


@pytest.mark.parametrize(
    "wrong, told",
    [
        ({"decoder_start_token_id": 1000}, "1000"),
        ({"encoder_outputs": BaseModelOutput(torch.randn(3, 6, D + 1))}, "encoder's output"),
        ({"encoder_outputs": BaseModelOutput(torch.randn(3, 7, D))}, "attention_mask"),
    ],
    ids=["start", "width", "length"],
)
def test_what_does_not_fit_is_told_in_steps_too(wrong, told):
    model = talkative_model("encoder-decoder")
    with pytest.raises(ValueError, match=told) as ours:
        model.generate(**prompt("encoder-decoder"), **wrong, max_new_tokens=3)
    with pytest.raises(ValueError) as ordinary:
        long_way(model, **prompt("encoder-decoder"), **wrong, max_new_tokens=3)
    assert str(ours.value) == str(ordinary.value)


@pytest.mark.parametrize(
    "rows, length, wanted", [(3, 70, 8), (2, 40_000, 8), (1, 2**15 + 5, 8), (70, 64 * 20, 5), (70, 64 * 20 + 9, 10)]
)
def test_the_best_of_many_are_the_best(rows, length, wanted):
    scores = torch.randperm(rows * length).view(rows, length).float()
    scores[0, -3:] += rows * length  # also where no whole group is left
    for found, expected in zip(topk_of_many(scores, wanted), scores.topk(wanted)):
        np.testing.assert_array_equal(found, expected.numpy())


def add_in_place(weight, change):
    with torch.no_grad():
        weight.add_(change)


def write_data(weight, change):
    weight.data.add_(change)


def replace_data(weight, change):
    weight.data = weight.data + change


@each_shape
@pytest.mark.parametrize("change", [add_in_place, write_data, replace_data])
def test_new_weights_are_used(shape, change):
    model, inputs = talkative_model(shape), prompt(shape)
    before = model.generate(**inputs, max_new_tokens=15)
    for weight in model.parameters():
        change(weight, torch.randn_like(weight) * 0.2)
    found, expected = both_ways(model, **inputs, max_new_tokens=15)
    assert torch.equal(found, expected) and not torch.equal(found, before)
    other = copy.deepcopy(model)
    assert torch.equal(other.generate(**inputs, max_new_tokens=15), expected)


@each_shape
def test_adapters_are_used(shape, count_steps):
    model = get_peft_model(talkative_model(shape), LoraConfig(target_modules=["q_proj", "v_proj", "up_proj"]))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.3)
    found, expected = both_ways(model.eval(), **prompt(shape), max_new_tokens=15)
    assert torch.equal(found, expected) and count_steps
    with model.disable_adapter():
        assert not torch.equal(model.generate(**prompt(shape), max_new_tokens=15), found)


@each_shape
def test_adapters_of_embeddings_are_used(shape, count_steps):
    model = get_peft_model(talkative_model(shape), LoraConfig(target_modules=["embed_tokens"]))
    for name, weight in model.named_parameters():
        if "lora_embedding" in name:
            nn.init.normal_(weight, std=0.5)
    found, expected = both_ways(model.eval(), **prompt(shape), max_new_tokens=15)
    assert torch.equal(found, expected) and count_steps
    with model.disable_adapter():
        assert not torch.equal(model.generate(**prompt(shape), max_new_tokens=15), found)


@pytest.mark.parametrize(
    "watch",
    [
        lambda model, options: model.get_decoder().layers[0].register_forward_hook(lambda *_: None),
        lambda model, options: options.update(return_dict_in_generate=True, output_attentions=True),
        lambda model, options: options.update(cache_implementation="static"),
        lambda model, options: options.update(use_cache=False),
        lambda model, options: options.update(decoder_attention_mask=torch.ones(3, 1, dtype=torch.long)),
        lambda model, options: model.train(),
    ],
    ids=["hook", "attentions", "static", "no-cache", "decoder-mask", "training"],
)
def test_whoever_watches_or_asks_for_more_gets_the_ordinary_way(watch, count_steps):
    model, options = talkative_model("encoder-decoder", dropout=0.0), {"max_new_tokens": 5}
    watch(model, options)
    model.generate(**prompt("encoder-decoder"), **options)
    assert not count_steps


def test_only_rows_that_change_are_moved():
    steps = decoding.DecoderSteps.__new__(decoding.DecoderSteps)
    steps.past, steps.length = torch.randn(2, 2, 4, 3, 6, 5), 4
    before, rows = steps.past.clone(), torch.tensor([1, 1, 0, 3])
    steps.reorder(rows)
    assert torch.equal(steps.past[..., :4, :], before[:, :, rows][..., :4, :])
    assert torch.equal(steps.past[..., 4:, :], before[..., 4:, :])


@pytest.mark.parametrize("rows", [1, 2, 3, 40])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(512, 300), (301, 512), (1024, 512), (8, 12)], ids=str)
def test_joined_products_are_the_products(rows, bias, sizes):
    outputs, inputs = sizes
    linears = [nn.Linear(inputs, outputs, bias=bias), nn.Linear(inputs, 20, bias=bias)]
    x = torch.randn(rows, inputs)
    with torch.no_grad():
        assert_close(join(*linears)(x), torch.cat([linear(x) for linear in linears], dim=-1), atol=1e-5, rtol=1e-5)
        assert_close(FewRows(linears[0].weight, linears[0].bias)(x), linears[0](x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 4, 9])
@pytest.mark.parametrize("outputs", [24, 8192])
def test_products_go_along_with_autocast(rows, outputs):
    """Where what a layer has computed in bfloat16 meets weights in float32."""
    linear, x = torch.nn.Linear(16, outputs), torch.randn(rows, 16)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        expected = linear(x.bfloat16())
        assert_close(FewRows(linear.weight, linear.bias)(x.bfloat16()), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("bias", [True, False])
def test_eight_bits_are_right_to_a_hundredth(bias):
    linears = [nn.Linear(200, size, bias=bias) for size in (64, 7)]
    rounded = [Int8Linear(linear.weight.detach(), linear.bias) for linear in linears]
    x = torch.randn(9, 200)
    with torch.no_grad():
        for linear, small in zip(linears, rounded):
            assert (small(x) - linear(x)).abs().max() < 0.02 * linear(x).std() * 3
        assert_close(join(*rounded)(x), torch.cat([small(x) for small in rounded], dim=-1))


@each_shape
def test_a_model_of_eight_bits_generates_nearly_the_same(shape, count_steps):
    model = tiny_language_model(shape, d_model=64, tie_word_embeddings=False)
    inputs = prompt(shape)
    extra = {"decoder_input_ids": words(3, 5)} if shape == "encoder-decoder" else {}
    with torch.no_grad():
        expected = model(**inputs, **extra).logits
        small = quantize_int8(copy.deepcopy(model))
        found = small(**inputs, **extra).logits
    assert not any(type(module) is nn.Linear for module in small.modules())
    assert 0 < (found - expected).std() < 0.05 * expected.std()
    found, expected = both_ways(small, **inputs, max_new_tokens=10)
    assert torch.equal(found, expected) and len(count_steps) == (10 if shape == "encoder-decoder" else 9)


def test_what_eight_bits_cannot_do_is_told_in_a_sentence(tmp_path):
    model = quantize_int8(tiny_language_model("decoder"))
    with pytest.raises(ValueError, match="save it before quantize_int8"):
        model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="float32"):
        quantize_int8(tiny_language_model("decoder").double())
