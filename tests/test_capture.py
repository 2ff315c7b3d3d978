"""Attention that can be looked at: what is recorded under a fast kernel is what the eager model says, ours and others."""

import pytest
import torch
from models import tiny_config, tiny_language_model
from tokenizer import word_tokenizer
from torch.testing import assert_close
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)

from glassformer import GlassformerForSequenceClassification
from glassformer.analysis import AttentionVisualizer, record_attention


SMALL = {"vocab_size": 50, "max_position_embeddings": 64}
TWO_STACKS = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
ONE_STACK = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
FAMILIES = {
    "bert": lambda: BertForSequenceClassification(BertConfig(**SMALL, **ONE_STACK)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=64, n_embd=16, n_layer=2, n_head=2, eos_token_id=2)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, **ONE_STACK, num_key_value_heads=2)),
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0)
    ),
    "bart": lambda: BartForConditionalGeneration(BartConfig(**SMALL, **TWO_STACKS)),
    "marian": lambda: MarianMTModel(MarianConfig(**SMALL, **TWO_STACKS)),
    "ours, encoder": lambda: GlassformerForSequenceClassification(tiny_config("encoder")),
    "ours, windows and rope": lambda: tiny_language_model(
        "decoder", attention_window=3, position_encoding="rope", num_kv_heads=1
    ),
    "ours, alibi": lambda: tiny_language_model("decoder", position_encoding="alibi"),
    "ours, encoder-decoder": lambda: tiny_language_model(),
    "ours, relative": lambda: tiny_language_model(position_encoding="relative"),
}  # fmt: skip
OUTPUTS = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}


def build(family: str):
    torch.manual_seed(0)
    return FAMILIES[family]().eval()


def inputs_for(model, length: int = 9) -> dict[str, torch.Tensor]:
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, -2:] = 0
    options = {"input_ids": torch.randint(5, 30, (2, length)), "attention_mask": mask}
    return {**options, "decoder_input_ids": torch.randint(5, 30, (2, 6))} if model.config.is_encoder_decoder else options


def eager_attention(model, **inputs) -> dict[str, tuple[torch.Tensor, ...]]:
    """What the model itself says when it runs on the plain formula."""
    model.set_attn_implementation("eager")
    outputs = model(**inputs, output_attentions=True)
    if model.config.is_encoder_decoder:
        return {kind: outputs[name] for kind, name in OUTPUTS.items()}
    return {"decoder" if model.can_generate() else "encoder": outputs.attentions}


@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_weights_are_those_of_the_eager_model(family):
    model = build(family)
    inputs = inputs_for(model)
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        before = model(**inputs).logits
        with record_attention(model) as attention:
            within = model(**inputs).logits
        assert_close(within, before, atol=1e-5, rtol=1e-5)
        assert torch.equal(model(**inputs).logits, before)  # as it was
        expected = eager_attention(model, **inputs)
    assert {kind for kind in OUTPUTS if attention.layers(kind)} == set(expected)
    for kind, layers in expected.items():
        assert attention.layers(kind) == list(range(len(layers)))
        for layer, weights in enumerate(layers):
            assert_close(attention.weights(kind, layer), weights, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama", "bart", "ours, encoder-decoder", "ours, windows and rope"])
def test_weights_of_generated_tokens_are_those_of_the_whole_text(family):
    """Token by token, with a cache: the rows that a pass over the finished text gives."""
    model = build(family)
    inputs = {name: tensor[:1] for name, tensor in inputs_for(model).items() if name != "decoder_input_ids"}
    with torch.no_grad(), record_attention(model) as steps:
        written = model.generate(**inputs, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    options = (
        {**inputs, "decoder_input_ids": written[:, :-1]} if model.config.is_encoder_decoder else {"input_ids": written[:, :-1]}
    )
    with torch.no_grad(), record_attention(model) as whole:
        model(**options)
    kinds = ["decoder", "cross"] if model.config.is_encoder_decoder else ["decoder"]
    for kind in kinds:
        if "windows" in family and kind == "decoder":  # a sliding cache has forgotten what lies outside the window
            continue
        assert_close(steps.weights(kind, 1), whole.weights(kind, 1), atol=1e-5, rtol=1e-5)
    assert len(steps.calls(kinds[0], 0)) == 5


def test_whatever_kernel_a_model_is_set_to_the_weights_are_the_same():
    model = build("ours, encoder-decoder")
    inputs, found = inputs_for(model), []
    for implementation in ("eager", "sdpa", "flex_attention"):
        model.set_attn_implementation(implementation)
        with torch.no_grad(), record_attention(model) as attention:
            model(**inputs)
        assert model.config._attn_implementation == implementation
        found.append(attention.weights("cross", 1))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_layers_that_nobody_asked_for_are_not_kept():
    model = build("ours, encoder-decoder")
    with torch.no_grad(), record_attention(model, layers=[1]) as attention:
        model(**inputs_for(model))
    assert [attention.layers(kind) for kind in OUTPUTS] == [[1], [1], [1]]
    with pytest.raises(ValueError, match=r"No cross attention of layer 0 was recorded, but encoder \[1\]"):
        attention.weights("cross", 0)


def test_an_error_within_leaves_the_model_as_it_was():
    model = build("ours, encoder-decoder")
    before = model.config._attn_implementation
    with pytest.raises(KeyError), record_attention(model):
        raise KeyError
    assert model.config._attn_implementation == before


# With texts


@pytest.fixture(scope="module")
def visualizer():
    tokenizer = word_tokenizer()
    torch.manual_seed(0)
    model = tiny_language_model(vocab_size=len(tokenizer))
    return AttentionVisualizer(model, tokenizer)


TEXT, TARGET = "the lamp shines", "a light"


def test_a_capture_has_a_row_for_each_token_that_sums_to_one(visualizer):
    found = visualizer.capture(TEXT, TARGET)
    assert found.kinds == ["encoder", "decoder", "cross"]
    for kind in found.kinds:
        for words in (False, True):
            queries, keys = found.labels(kind, words)
            weights = found.weights(kind, 0, words)
            assert weights.shape[1:] == (len(queries), len(keys))
            assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_without_a_target_the_models_own_answer_is_looked_at(visualizer):
    found = visualizer.capture(TEXT, max_new_tokens=4, min_new_tokens=4)
    ids = visualizer.tokenizer(TEXT, return_tensors="pt").input_ids
    written = visualizer.model.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False)[0].tolist()
    assert found.target == written[:-1]


def test_what_cannot_be_looked_at_is_refused(visualizer, tmp_path):
    decoder = AttentionVisualizer(tiny_language_model("decoder"), visualizer.tokenizer)
    for words, act in {
        "The text is empty": lambda: visualizer.capture(" "),
        "has one stack and reads no target": lambda: decoder.capture(TEXT, TARGET),
        "cross-attention is between two": lambda: decoder.plot_cross_attention(TEXT, tmp_path / "x.png"),
        r"end its name with \.png or \.svg": lambda: visualizer.plot_cross_attention(TEXT, tmp_path / "x.jpeg", TARGET),
        "choose the encoder or the decoder": lambda: visualizer.plot_rollout(TEXT, tmp_path / "x.png", TARGET, "cross"),
        "There is no cross attention in layer 9": lambda: visualizer.plot_attention_heads(TEXT, 9, tmp_path / "x.png", "cross"),
    }.items():
        with pytest.raises(ValueError, match=words):
            act()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pictures_are_written(visualizer, tmp_path, suffix):
    heads = visualizer.plot_attention_heads(TEXT, 0, tmp_path / f"heads{suffix}", target=TARGET)
    alignment = visualizer.plot_cross_attention(TEXT, tmp_path / "deep" / f"alignment{suffix}", TARGET)
    rolled = visualizer.plot_rollout(TEXT, tmp_path / f"rollout{suffix}", TARGET)
    summary = visualizer.plot_head_summary([{"source": TEXT, "target": TARGET}] * 3, tmp_path / f"summary{suffix}")
    for path in (heads, alignment, rolled, summary):
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") if suffix == ".png" else b"<?xml" in start
