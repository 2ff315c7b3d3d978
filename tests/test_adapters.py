"""Our models in other people's instruments: TransformerLens sees and changes what we see and change, bertviz shows it."""

import json
import logging
import re
import sys
from html.parser import HTMLParser

import pytest
import torch
from models import VARIANTS, K, tiny_language_model
from processes import run_python
from test_capture import build
from tokenizer import SPECIALS, WORDS, word_tokenizer
from torch.testing import assert_close

from glassformer.analysis import AttentionVisualizer, Capture, mask_heads, record_attention
from glassformer.analysis.bertviz import view_arguments, write_view


IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 17], [11, 12, 13, 14, 15, 16, 18]])  # not as long as a head is wide
TARGET = torch.tensor([[1, 7, 8], [1, 4, 5]])
# Attention in our words and in TransformerLens'
NAMES = {
    "decoder": {"decoder": "blocks.{}.attn"},
    "encoder": {"encoder": "blocks.{}.attn"},
    "encoder-decoder": {
        "encoder": "encoder_blocks.{}.attn",
        "decoder": "decoder_blocks.{}.self_attn",
        "cross": "decoder_blocks.{}.cross_attn",
    },
}
QUICK = [("decoder", name) for name in ("paper", "default", "modern", "learned")] + [
    ("encoder", "paper"),
    ("encoder-decoder", "modern"),
]
OTHERS = [(shape, name) for shape in NAMES for name in VARIANTS if (shape, name) not in QUICK]


# TransformerLens


@pytest.fixture(scope="module")
def lens():
    """The class that loads models; its import silences transformers, which is undone."""
    level = logging.getLogger("transformers").level
    bridge = pytest.importorskip(
        "transformer_lens.model_bridge", reason="transformer_lens is not installed: pip install 'glassformer[lens]'"
    )
    logging.getLogger("transformers").setLevel(level)
    return bridge.TransformerBridge


@pytest.fixture
def load(lens, tmp_path):
    """A model of ours, and the same from its folder by TransformerLens."""

    def load(shape: str, **choices):
        model = tiny_language_model(shape, **choices)
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases that do something
                torch.nn.init.normal_(parameter, float(parameter.detach().mean()), 0.3)
        model.save_pretrained(tmp_path)
        word_tokenizer().save_pretrained(tmp_path)
        return model, lens.boot_transformers(str(tmp_path), device="cpu")

    return load


def call_model(model, ids=IDS, **options):
    if model.config.is_encoder_decoder:
        options["decoder_input_ids"] = TARGET
    return model(ids, **options).logits


def options_for(shape: str) -> dict[str, torch.Tensor]:
    return {"decoder_input": TARGET} if shape == "encoder-decoder" else {}


@torch.no_grad()
@pytest.mark.parametrize("shape, variant", [*QUICK, *(pytest.param(*model, marks=pytest.mark.slow) for model in OTHERS)])
def test_transformer_lens_computes_what_the_model_computes(load, shape, variant):
    model, bridge = load(shape, **VARIANTS[variant])
    with record_attention(model) as attention:
        expected = call_model(model)
    logits, cache = bridge.run_with_cache(IDS, **options_for(shape))
    assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    for kind, name in NAMES[shape].items():
        for layer in attention.layers(kind):
            place = name.format(layer)
            assert_close(cache[f"{place}.hook_pattern"], attention.weights(kind, layer), atol=1e-5, rtol=1e-5)
            assert_close(cache[f"{place}.hook_attn_scores"].softmax(-1), cache[f"{place}.hook_pattern"])
    hidden = cache[f"{'decoder_' if shape == 'encoder-decoder' else ''}blocks.1.hook_resid_mid"]
    assert_close(hidden, residual_after_attention(model), atol=1e-5, rtol=1e-5)


def residual_after_attention(model) -> torch.Tensor:
    """What goes on between the sub-layers of layer 1, by torch's own hooks."""
    layer, seen = (model.model.decoder or model.model.encoder).layers[1], {}
    if model.config.norm_position == "post":
        handle = layer.self_attn_norm.register_forward_hook(lambda module, args, output: seen.update(x=output))
    else:
        following = layer.cross_attn_norm if model.config.is_encoder_decoder else layer.feed_forward_norm
        handle = following.register_forward_pre_hook(lambda module, args: seen.update(x=args[0]))
    call_model(model)
    handle.remove()
    return seen["x"]


@torch.no_grad()
@pytest.mark.parametrize("shape, variant", [("decoder", "modern"), ("encoder-decoder", "paper")])
def test_a_head_that_a_hook_sets_to_zero_is_a_head_that_is_masked(load, shape, variant):
    model, bridge = load(shape, **VARIANTS[variant])
    plain = call_model(model)

    def without_head_2(values, hook):
        axis = 2 if values.shape[-1] == K else 1  # z is [B, T, H, K], a pattern [B, H, T, S]
        return values.index_fill(axis, torch.tensor([2]), 0.0)

    for kind, name in NAMES[shape].items():
        with mask_heads(model, {(kind, 1): [2]}):
            expected = call_model(model)
        assert not torch.allclose(expected, plain, atol=1e-3)
        for hook in ("hook_z", "hook_pattern"):
            hooks = [(f"{name.format(1)}.{hook}", without_head_2)]
            assert_close(bridge.run_with_hooks(IDS, fwd_hooks=hooks, **options_for(shape)), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_residual_stream_is_the_sum_of_what_was_written_to_it(load):
    _, bridge = load("decoder")
    _, cache = bridge.run_with_cache(IDS)
    assert_close(cache.decompose_resid(mode="all").sum(0), cache["ln_final.hook_in"])
    assert_close(cache["hook_pos_embed"], bridge.W_pos[: IDS.shape[1]].expand(2, -1, -1))


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:GlassformerAdapter does not support")
@pytest.mark.parametrize(
    "shape, variant", [*(("decoder", name) for name in ("paper", "modern", "learned")), ("encoder", "mixed")]
)
def test_folded_weights_compute_the_same(load, shape, variant):
    model, bridge = load(shape, **VARIANTS[variant])
    expected = call_model(model).log_softmax(-1)
    norm = "blocks.1.ln1.weight"
    before = bridge.state_dict()[norm].clone()
    bridge.enable_compatibility_mode(disable_warnings=True)
    assert torch.equal(bridge.state_dict()[norm], before) == (
        variant in ("paper", "mixed")
    )  # norms that come last, or not always first, stay
    assert_close(bridge(IDS).log_softmax(-1), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_padding_on_the_left_moves_positions_as_in_generation(load):
    model, bridge = load("decoder")
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])
    expected = call_model(model, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
    assert_close(bridge(IDS, attention_mask=mask)[mask.bool()], expected[mask.bool()], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
def test_transformer_lens_writes_what_the_model_writes(load, shape):
    model, bridge = load(shape)
    options = {"max_new_tokens": 5, "do_sample": False}
    written = bridge.generate(IDS, stop_at_eos=False, return_type="tokens", verbose=False, **options)
    assert torch.equal(written, model.generate(IDS, eos_token_id=None, **options))


def test_losses_and_gradients_are_those_of_the_model(load):
    model, bridge = load("decoder", **VARIANTS["modern"])
    loss, expected = bridge(IDS, return_type="loss"), model(IDS, labels=IDS).loss
    assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    loss.backward(), expected.backward()
    ours = model.model.decoder.layers[1].self_attn.k_proj.weight.grad
    assert_close(bridge.blocks[1].attn.k.weight.grad, ours, atol=1e-5, rtol=1e-4)


def test_pruned_heads_are_left_out(load):
    model, bridge = load("decoder", pruned_heads={"decoder.1": [0, 2]})
    logits, cache = bridge.run_with_cache(IDS)
    assert_close(logits, call_model(model), atol=1e-5, rtol=1e-5)
    assert cache["blocks.1.attn.hook_z"].shape[2] == 2 and cache["blocks.0.attn.hook_z"].shape[2] == 4


@pytest.mark.slow
@pytest.mark.parametrize("first, second", [("glassformer", "transformer_lens"), ("transformer_lens", "glassformer")])
def test_transformer_lens_knows_our_models_in_any_order_of_imports(lens, tmp_path, first, second):
    tiny_language_model("encoder").save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    code = f"""
import warnings; warnings.simplefilter("error", UserWarning)
import {first}, {second}
from transformer_lens.model_bridge import TransformerBridge
bridge = TransformerBridge.boot_transformers("model", device="cpu")
print(type(bridge.original_model).__name__, type(bridge.adapter).__name__)
"""
    assert run_python(code, tmp_path).split()[-2:] == ["GlassformerForMaskedLM", "GlassformerAdapter"]


# bertviz


@pytest.fixture
def page(tmp_path):
    """Writes a page, and reads what it shows: for each view its data, as the browser's JavaScript would."""
    pytest.importorskip("bertviz", reason="bertviz is not installed: pip install 'glassformer[lens]'")

    def page(capture: Capture, **options):
        html = write_view(capture, tmp_path / "new" / "page.html", **options).read_text()
        return html, [json.loads(data) for data in re.findall(r"(?m)^ *const params = (.*);$", html)]

    return page


def capture_of(shape: str = "encoder-decoder", layers=None, tokenizer=None, **choices) -> Capture:
    visualizer = AttentionVisualizer(tiny_language_model(shape, **choices), tokenizer or word_tokenizer())
    return visualizer.capture("the lamp shines through", "the glass" if shape == "encoder-decoder" else None, layers)


def assert_shows(shown: dict, capture: Capture, kind: str, words: bool = False) -> None:
    expected = torch.stack([capture.weights(kind, layer, words) for layer in capture.layers(kind)])
    assert_close(torch.tensor(shown["attn"]), expected)  # [layers, H, T, S]
    assert (shown["left_text"], shown["right_text"]) == capture.labels(kind, words)


@pytest.mark.parametrize("view", ["head", "model"])
def test_bertviz_shows_the_captured_weights(page, view):
    for shape in ("encoder", "decoder"):
        capture = capture_of(shape)
        _, [shown] = page(capture, view=view)
        assert_shows(shown["attention"][0], capture, shape)
        assert shown["include_layers"] == capture.layers(shape)


@pytest.mark.parametrize("view", ["head", "model"])
def test_bertviz_shows_both_stacks_and_what_is_between_them(page, view):
    capture = capture_of(num_decoder_layers=2)
    html, [shown] = page(capture, view=view)
    assert [part["name"].lower() for part in shown["attention"]] == ["encoder", "decoder", "cross"]
    for part in shown["attention"]:
        assert_shows(part, capture, part["name"].lower())
    assert "encoder and decoder and cross attention" in html


def test_stacks_of_different_depth_get_a_view_each_and_no_layer_is_lost(page):
    for depths in ((2, 3), (3, 2)):
        capture = capture_of(**dict(zip(("num_encoder_layers", "num_decoder_layers"), depths)))
        _, views = page(capture)
        assert [len(view["include_layers"]) for view in views] == list(depths)
        assert [[part["name"] for part in view["attention"]] for view in views] == [["Encoder"], ["Decoder", "Cross"]]
        for part in (part for view in views for part in view["attention"]):
            assert_shows(part, capture, part["name"].lower())
    with pytest.raises(ValueError, match=r"choose the kinds \['encoder'\], say"):
        view_arguments(capture)


def test_chosen_layers_keep_their_numbers(page):
    capture = capture_of("decoder", layers=[0, 2])
    for view in ("head", "model"):
        _, [shown] = page(capture, view=view)
        assert shown["include_layers"] == [0, 2]
        assert_shows(shown["attention"][0], capture, "decoder")


def test_models_of_transformers_and_joined_words_are_shown_too(page):
    capture = AttentionVisualizer(build("llama"), word_tokenizer()).capture("the lamp shines through")
    _, [shown] = page(capture, words=True)
    assert_shows(shown["attention"][0], capture, "decoder", words=True)


def test_a_token_that_looks_like_a_tag_stays_a_token(page):
    tokenizer = word_tokenizer()
    tokenizer.add_tokens(["</script><b>"])
    visualizer = AttentionVisualizer(tiny_language_model("decoder", vocab_size=len(SPECIALS) + len(WORDS) + 1), tokenizer)
    html, [shown] = page(visualizer.capture("the </script><b> lamp"))
    assert "</script><b>" in shown["attention"][0]["left_text"]
    seen = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: seen.append(tag)
    parser.feed(html)
    assert seen.count("script") == 2 and "b" not in seen


def test_what_bertviz_cannot_show_is_told(page, tmp_path):
    capture = capture_of("decoder", pruned_heads={"decoder.1": [0]})
    with pytest.raises(ValueError, match=r"The layers have \[3, 4\] heads"):
        write_view(capture, tmp_path / "page.html")
    with pytest.raises(ValueError, match="There is no view 'neuron': choose from head, model"):
        write_view(capture, tmp_path / "page.html", view="neuron")
    with pytest.raises(ValueError, match="There is no cross to show"):
        view_arguments(capture, ["cross"])
    assert not (tmp_path / "page.html").exists()


def test_without_bertviz_the_cure_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "bertviz", None)
    with pytest.raises(ImportError, match=r'need the package bertviz: pip install "glassformer\[lens\]"'):
        write_view(capture_of("decoder"), tmp_path / "page.html")
