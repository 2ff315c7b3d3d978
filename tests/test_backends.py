"""One model, many ways to compute it: attention kernels, half precision, compiled, exported, checkpointed. All say the same."""

import copy

import pytest
import torch
from models import SHAPES, VARIANTS, B, H, S, T, V, tiny_config, tiny_language_model
from torch.export import Dim, export
from torch.nn import functional as F
from transformers import EncoderDecoderCache, StaticCache
from transformers.exporters.exporter_dynamo import DynamoConfig, DynamoExporter
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import is_flash_attn_2_available, is_kernels_available

import glassformer
from glassformer import causal_mask, combine_masks, window_mask


LAYERS = {"encoder-decoder": 2 + 3 + 3, "encoder": 2, "decoder": 3}  # attention layers: encoder, self and cross

each_shape = pytest.mark.parametrize("shape", SHAPES)
each_variant = pytest.mark.parametrize("variant", VARIANTS)
each_padding = pytest.mark.parametrize("padding", ["none", "right", "left"])
# With a cache, what a decoder does alone is a part of what it does after an encoder.
each_decoding_shape = pytest.mark.parametrize("shape", ["encoder-decoder", pytest.param("decoder", marks=pytest.mark.slow)])


def variants_with_slow(*fast):
    """Every variant, but all except the named ones only in the slow run: tracing takes seconds."""
    cases = [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in VARIANTS]
    return pytest.mark.parametrize("variant", cases)


def words(*shape):
    return torch.randint(5, V, shape)


def make_mask(lengths, longest, padding):
    """True for tokens: [B, longest]."""
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return {"none": torch.ones_like(mask), "right": mask, "left": mask.flip(1)}[padding]


def make_inputs(shape, padding="right", lengths=((S, 4), (T, 2))):
    """A batch of two, the second row padded."""
    source, target = lengths
    inputs = {"input_ids": words(B, S), "attention_mask": make_mask(source, S, padding)}
    if shape == "encoder-decoder":
        inputs |= {"decoder_input_ids": words(B, T), "decoder_attention_mask": make_mask(target, T, padding)}
    return inputs


def real(inputs):
    """Which places of the logits are not padding."""
    return inputs.get("decoder_attention_mask", inputs["attention_mask"])


def real_logits(model, inputs):
    return model(**inputs).logits[real(inputs)]


def loss_and_gradients(model, inputs):
    torch.manual_seed(0)
    model.zero_grad()
    logits = model(**inputs).logits
    loss = F.cross_entropy(logits[real(inputs)], words(int(real(inputs).sum())))
    loss.backward()
    return {"loss": loss.detach()} | {name: weight.grad.clone() for name, weight in model.named_parameters()}


def shallow(shape):
    """One layer is as good as many for a compiler, and faster."""
    return {name: min(count, 1) for name, count in SHAPES[shape].items()}


# Attention kernels


@each_shape
@each_variant
@each_padding
@pytest.mark.parametrize("kernel", ["sdpa", "flex_attention"])
@torch.no_grad()
def test_every_kernel_computes_what_the_textbook_formula_does(shape, variant, padding, kernel):
    model, inputs = tiny_language_model(shape, **VARIANTS[variant], attn_implementation="eager"), make_inputs(shape, padding)
    expected = real_logits(model, inputs)
    model.set_attn_implementation(kernel)
    with torch.compiler.set_stance("force_eager"):  # flex attention as plain tensor operations: its masks and scores are ours
        torch.testing.assert_close(real_logits(model, inputs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@each_shape
@pytest.mark.parametrize("variant", ["modern", "relative", "window"])
@each_padding
@torch.no_grad()
def test_compiled_flex_attention_computes_what_the_textbook_formula_does(shape, variant, padding):
    model, inputs = tiny_language_model(shape, **VARIANTS[variant], attn_implementation="eager"), make_inputs(shape, padding)
    expected = real_logits(model, inputs)
    model.set_attn_implementation("flex_attention")
    torch._dynamo.reset()  # after too many compilations torch would quietly stop compiling
    # Each length by itself: for lengths that change, with a bias, torch 2.13 writes C++ that no compiler accepts.
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        torch.testing.assert_close(real_logits(model, inputs), expected, rtol=1e-4, atol=1e-5)


@each_shape
@each_variant
@each_padding
def test_kernels_have_the_same_gradients(shape, variant, padding):
    model, inputs = tiny_language_model(shape, **VARIANTS[variant], attn_implementation="eager"), make_inputs(shape, padding)
    expected = loss_and_gradients(model, inputs)
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(loss_and_gradients(model, inputs), expected, rtol=1e-4, atol=1e-5)


@each_shape
@torch.no_grad()
def test_the_kernel_can_be_switched_while_the_model_is_in_use(shape):
    model, inputs = tiny_language_model(shape), make_inputs(shape)
    maps = "encoder_attentions" if shape == "encoder-decoder" else "attentions"
    outputs = {}
    for kernel in ("sdpa", "eager", "sdpa"):
        model.set_attn_implementation(kernel)
        assert model.config._attn_implementation == kernel
        outputs[kernel] = model(**inputs, output_attentions=True)
        assert bool(outputs[kernel][maps]) == (kernel == "eager")  # only the textbook formula forms the weights
    torch.testing.assert_close(outputs["sdpa"].logits[real(inputs)], outputs["eager"].logits[real(inputs)])


@each_shape
@torch.no_grad()
def test_every_attention_layer_calls_the_function_that_was_registered(shape, monkeypatch):
    called = []

    def spy(module, query, key, value, attention_mask, **kwargs):
        called.append(module)
        return query.transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "spy", spy)
    model = tiny_language_model(shape)
    model.set_attn_implementation("spy")
    model(**make_inputs(shape))
    assert len(called) == len(set(called)) == LAYERS[shape]


@pytest.mark.skipif(is_flash_attn_2_available() or is_kernels_available(), reason="flash attention is there")
@each_shape
def test_flash_attention_is_refused_where_it_is_not_installed(shape):
    model = tiny_language_model(shape, **VARIANTS["modern"])
    with pytest.raises(ImportError, match="FlashAttention2 doesn't seem to be installed"):
        model.set_attn_implementation("flash_attention_2")
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(ImportError, match="FlashAttention2 doesn't seem to be installed"):
        tiny_language_model(shape, **VARIANTS["modern"], attn_implementation="flash_attention_2")


@each_shape
@pytest.mark.parametrize("variant", ["alibi", "relative", "window-alibi"])
def test_flash_attention_is_refused_where_scores_have_a_bias(shape, variant):
    model = tiny_language_model(shape, **VARIANTS[variant])
    with pytest.raises(ValueError, match="does not support Flash Attention 2"):
        model.set_attn_implementation("flash_attention_2")
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(ValueError, match="does not support Flash Attention 2"):
        tiny_language_model(shape, **VARIANTS[variant], attn_implementation="flash_attention_2")


# Attention maps


@each_shape
@each_variant
@each_padding
@torch.no_grad()
def test_attention_maps_are_distributions_over_the_keys_that_may_be_seen(shape, variant, padding):
    model, inputs = tiny_language_model(shape, **VARIANTS[variant], attn_implementation="eager"), make_inputs(shape, padding)
    outputs = model(**inputs, output_attentions=True)
    window, source = model.config.attention_window, inputs["attention_mask"]

    def self_mask(tokens, is_causal, window=window):
        length = tokens.shape[1]
        windowed = None if window is None else window_mask(length, window=window)
        mask = combine_masks(causal_mask(length) if is_causal else None, windowed, padding=tokens)
        return mask.expand(B, length, length)

    expected = {"attentions": [self_mask(source, is_causal=shape == "decoder")] * LAYERS[shape]}
    if variant == "mixed":
        expected["attentions"][1] = self_mask(source, is_causal=False, window=None)
    if shape == "encoder-decoder":
        target = inputs["decoder_attention_mask"]
        expected = {
            "encoder_attentions": [self_mask(source, is_causal=False)] * 2,
            "decoder_attentions": [self_mask(target, is_causal=True)] * 3,
            "cross_attentions": [source[:, None].expand(B, T, S)] * 3,
        }
    for name, masks in expected.items():
        for weights, mask in zip(outputs[name], masks, strict=True):
            mask_of_heads = mask[:, None].expand(B, H, *mask.shape[1:])
            assert torch.equal(weights > 0, mask_of_heads)
            # Padding on the left of a decoder's row sees nothing.
            torch.testing.assert_close(weights.sum(-1), mask_of_heads.any(-1).float())


# Rows that are padding from end to end


@each_shape
@each_variant
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_a_row_of_nothing_but_padding_is_harmless(shape, variant, kernel):
    model = tiny_language_model(shape, **VARIANTS[variant], attn_implementation=kernel)
    inputs = make_inputs(shape, lengths=((S, 0), (T, 0)))
    outputs = model(**inputs)
    assert outputs.logits.isfinite().all()
    outputs.logits.square().sum().backward()  # padding included
    assert all(weight.grad.isfinite().all() and weight.grad.any() for weight in model.parameters())

    alone = {name: rows[:1] for name, rows in inputs.items()}
    torch.testing.assert_close(model(**alone).logits, outputs.logits[:1], rtol=1e-4, atol=1e-5)


@each_shape
@torch.no_grad()
def test_a_row_of_nothing_but_padding_attends_to_nothing(shape):
    model = tiny_language_model(shape, attn_implementation="eager")
    outputs = model(**make_inputs(shape, lengths=((S, 0), (T, 0))), output_attentions=True)
    maps = [weights for name in outputs if name.endswith("attentions") for weights in outputs[name]]
    assert len(maps) == LAYERS[shape]
    assert all(not weights[1].any() and weights[0].any() for weights in maps)


# Half precision


@each_shape
@each_variant
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@torch.no_grad()
def test_half_precision_stays_close_to_full_precision(shape, variant, kernel, dtype):
    model, inputs = tiny_language_model(shape, **VARIANTS[variant], attn_implementation=kernel), make_inputs(shape, "left")
    expected = real_logits(model, inputs)
    model.to(dtype)
    outputs = model(**inputs)
    assert outputs.logits.dtype == dtype
    assert outputs.logits.isfinite().all()
    error = (outputs.logits[real(inputs)].float() - expected).abs().max() / expected.abs().max()
    assert error < 8 * torch.finfo(dtype).eps


# Compiled


def assert_compiled_equals_eager(model, inputs, backend):
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(**inputs).logits, model(**inputs).logits, rtol=1e-4, atol=1e-5)


@each_shape
@variants_with_slow("relative", "mixed")
@torch.no_grad()
def test_the_forward_compiles_into_one_graph(shape, variant):
    model = tiny_language_model(shape, **VARIANTS[variant], **shallow(shape))
    assert_compiled_equals_eager(model, make_inputs(shape), "eager")


@pytest.mark.slow
@each_shape
@pytest.mark.parametrize("variant", ["modern", "relative", "window"])
@torch.no_grad()
def test_the_compiled_forward_gives_the_same_logits(shape, variant):
    assert_compiled_equals_eager(tiny_language_model(shape, **VARIANTS[variant]), make_inputs(shape), "inductor")


@each_decoding_shape
@variants_with_slow("window")
@torch.no_grad()
def test_a_step_with_a_static_cache_compiles_into_one_graph(shape, variant):
    model = tiny_language_model(shape, **VARIANTS[variant], **shallow(shape))
    step, tokens, source = model, words(B, T), {}
    if shape == "encoder-decoder":
        source = {"encoder_outputs": model.get_encoder()(words(B, S))}
    name = "decoder_input_ids" if source else "input_ids"
    logits = {}
    for kind in ("eager", "compiled"):
        if kind == "compiled":
            torch._dynamo.reset()
            step = torch.compile(model, fullgraph=True, backend="eager")
        cache = StaticCache(config=model.config, max_cache_len=S)
        if source:
            cache = EncoderDecoderCache(cache, StaticCache(config=tiny_config(**shallow(shape)), max_cache_len=S))
        model(**source, **{name: tokens[:, :-2]}, past_key_values=cache)
        steps = [step(**source, **{name: tokens[:, at : at + 1]}, past_key_values=cache).logits for at in (T - 2, T - 1)]
        logits[kind] = torch.cat(steps, dim=1)
    torch.testing.assert_close(logits["compiled"], logits["eager"])
    torch.testing.assert_close(logits["eager"], model(**source, **{name: tokens}).logits[:, -2:], rtol=1e-4, atol=1e-5)


# Exported


def assert_exported_equals_model(model, sample, others, dynamic_shapes=None):
    exported = export(model, (), sample, dynamic_shapes=dynamic_shapes).module()
    for inputs in (sample, others):
        torch.testing.assert_close(exported(**inputs).logits, model(**inputs).logits, rtol=1e-4, atol=1e-5)


def export_inputs(shape, batch, source, target, padding="right"):
    """Inputs of any size, and which of their sizes may change."""
    lengths = Dim("batch", min=2, max=9), Dim("source", min=2, max=32), Dim("target", min=2, max=32)
    mask = make_mask([source] + [source // 2] * (batch - 1), source, padding)
    inputs = {"input_ids": words(batch, source), "attention_mask": mask}
    sizes = {name: {0: lengths[0], 1: lengths[1]} for name in inputs}
    if shape == "encoder-decoder":
        inputs["decoder_input_ids"] = words(batch, target)
        sizes["decoder_input_ids"] = {0: lengths[0], 1: lengths[2]}
    if shape != "encoder":
        inputs["use_cache"] = False
        sizes["use_cache"] = None
    return inputs, sizes


@each_shape
@variants_with_slow("window")
@torch.no_grad()
def test_an_exported_model_gives_the_same_logits(shape, variant):
    model = tiny_language_model(shape, **VARIANTS[variant], **shallow(shape))
    sample, _ = export_inputs(shape, B, S, T)
    others, _ = export_inputs(shape, B, S, T, padding="left")
    assert_exported_equals_model(model, sample, others)


@each_shape
@variants_with_slow("relative")
@torch.no_grad()
def test_an_exported_model_takes_other_batches_and_lengths(shape, variant):
    model = tiny_language_model(shape, **VARIANTS[variant], **shallow(shape))
    sample, sizes = export_inputs(shape, B, S, T)
    others, _ = export_inputs(shape, 3, 11, 4, padding="left")
    assert_exported_equals_model(model, sample, others, sizes)


@pytest.mark.parametrize("pooling", ["first", "last"])
@torch.no_grad()
def test_an_exported_classifier_takes_other_batches_and_lengths(pooling):
    config = tiny_config("encoder", pooling=pooling, num_labels=3, **shallow("encoder"))
    model = glassformer.GlassformerForSequenceClassification(config).eval()
    sample, sizes = export_inputs("encoder", B, S, T)
    others, _ = export_inputs("encoder", 3, 11, T)
    assert_exported_equals_model(model, sample, others, sizes)


@each_decoding_shape
@variants_with_slow("relative", "window")
@torch.no_grad()
def test_an_exported_step_reads_its_cache(shape, variant):
    model = tiny_language_model(shape, **VARIANTS[variant], **shallow(shape))
    is_windowed = model.config.attention_window is not None  # then transformers fixes the length of the cache in the graph

    def after_prefill(batch, length):
        prefix, source = ("decoder_", {"input_ids": words(batch, S)}) if shape == "encoder-decoder" else ("", {})
        prefill = model(**source, **{f"{prefix}input_ids": words(batch, length)}, use_cache=True)
        mask = torch.ones(batch, length + 1, dtype=torch.long)
        step = {f"{prefix}input_ids": words(batch, 1), f"{prefix}attention_mask": mask}
        if source:
            step["encoder_outputs"] = (prefill.encoder_last_hidden_state,)
        return {**step, "past_key_values": prefill.past_key_values}

    sample, others = after_prefill(B, T), after_prefill(*(B, T) if is_windowed else (3, 9))
    exported = DynamoExporter().export(model, copy.deepcopy(sample), DynamoConfig(dynamic=not is_windowed)).module()
    for inputs in (sample, others):
        expected = model(**copy.deepcopy(inputs)).logits
        torch.testing.assert_close(exported(**inputs).logits, expected, rtol=1e-4, atol=1e-5)


# Gradient checkpointing


@each_shape
@each_variant
@pytest.mark.parametrize("use_reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_checkpointing_changes_neither_loss_nor_gradients(shape, variant, use_reentrant):
    model, inputs = tiny_language_model(shape, **VARIANTS[variant], layer_drop=0.2).train(), make_inputs(shape)
    expected = loss_and_gradients(model, inputs)
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    runs = []
    for layer in model.modules():
        if isinstance(layer, glassformer.MultiHeadAttention):
            layer.register_forward_hook(lambda *_: runs.append(1))
    torch.testing.assert_close(loss_and_gradients(model, inputs), expected, rtol=1e-4, atol=1e-6)
    assert len(runs) == 2 * LAYERS[shape]  # each layer once forwards and once more on the way back
    if variant == "relative":
        assert all(grad.any() for name, grad in expected.items() if "position_bias" in name)
