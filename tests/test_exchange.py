"""Native models become ours and ours become native: equal answers, and every weight as it was after the round trip."""

import re
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from models import SHAPES, V, tiny_config, tiny_language_model
from native_models import NATIVES, batch_for, native_model, outputs_of, randomised
from torch.testing import assert_close

import glassformer
from glassformer import GlassformerConfig
from glassformer.exchange.families import FAMILIES
from glassformer.exchange.fit import fits, stands_in_the_way, that_matter


every_native = pytest.mark.parametrize("name", NATIVES)
writers = pytest.mark.parametrize("name", [name for name, native in NATIVES.items() if native.writes])

# Of a native config, what has no meaning for a trained model.
FORGOTTEN = {
    "architectures", "dtype", "_name_or_path", "transformers_version", "forced_eos_token_id", "normalize_before",
    "normalize_embedding", "add_final_layer_norm",
}  # fmt: skip
# Parameters that nothing is computed with, where they are not tied to one that is.
DEAD = {"cls.predictions.bias", "lm_head.bias", "model.shared.weight"}


def same_weights(one, other) -> None:
    one, other = one.state_dict(), other.state_dict()
    assert one.keys() == other.keys()
    assert {name for name in one if one[name].dtype != other[name].dtype or not torch.equal(one[name], other[name])} <= DEAD


def told(config) -> dict:
    return {name: value for name, value in config.to_dict().items() if name not in FORGOTTEN}


@every_native
def test_a_native_model_answers_the_same_as_ours_and_comes_back_unchanged(name):
    native = native_model(name)
    ours = glassformer.from_hf(native)
    assert type(ours).__name__.startswith("Glassformer") and not ours.training
    for side in ("right", "left"):
        # RoBERTa's positions leave out padding on the left, and BERT's classifier looks at it.
        if side == "left" and ("roberta" in name or name.endswith("bert-sequences")):
            continue
        batch = batch_for(native, side)
        for actual, expected in zip(outputs_of(ours, batch), outputs_of(native, batch), strict=True):
            assert expected.std() > 0.05  # or nothing would be compared
            assert_close(actual, expected, rtol=0, atol=1e-5)

    back = glassformer.to_hf(ours, to=native.config.model_type)
    assert type(back) is type(native)
    same_weights(native, back)
    assert told(back.config) == told(native.config)
    tied = [len({weight.data_ptr() for weight in model.state_dict().values()}) for model in (native, back)]
    assert tied[0] == tied[1]


@writers
def test_both_write_the_same_tokens(name):
    native = native_model(name)
    ours = glassformer.from_hf(native)
    batch = batch_for(native, "left")
    batch.pop("decoder_input_ids", None)
    # Random models like to repeat themselves: where they must not, every token is a choice.
    for search in ({}, {"num_beams": 3}, {"min_new_tokens": 6, "no_repeat_ngram_size": 1}):
        settings = {"do_sample": False, "max_new_tokens": 9, **search}
        expected = native.generate(**batch, **settings)
        assert torch.equal(ours.generate(**batch, **settings), expected)
    assert len(expected.unique()) > 6


# Long texts


def long_batch(model, length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, V, (2, length))
    mask = torch.ones_like(ids)
    mask[1, -length // 5 :] = 0
    batch = {"input_ids": ids * mask, "attention_mask": mask}
    return batch | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})


@pytest.mark.parametrize("name", ["marian", "pegasus"])
def test_far_positions_are_where_theirs_are(name):
    native = native_model(name, max_position_embeddings=1000)
    batch = long_batch(native, 1000)
    assert_close(outputs_of(glassformer.from_hf(native), batch), outputs_of(native, batch), rtol=0, atol=1e-5)


@pytest.mark.parametrize("local_attention", [40, 41])
def test_a_window_ends_where_theirs_does(local_attention):
    native = native_model("modernbert", num_hidden_layers=2, local_attention=local_attention)
    ours, batch = glassformer.from_hf(native), long_batch(native, 300)  # long enough for attention in blocks
    [expected] = outputs_of(native, batch)
    assert_close(outputs_of(ours, batch), [expected], rtol=0, atol=1e-5)
    ours.config.attention_window += 1
    assert not torch.allclose(outputs_of(ours, batch)[0], expected, atol=1e-2)


def test_gradients_are_theirs_too():
    native = native_model("modernbert")
    x, mask = torch.randn(2, 9, native.config.hidden_size), long_batch(native, 9)["attention_mask"]
    gradients = []
    for model in (native, glassformer.from_hf(native)):
        inputs = x.clone().requires_grad_()
        model(inputs_embeds=inputs, attention_mask=mask).logits[mask.bool()].square().mean().backward()
        gradients.append(inputs.grad)
    assert gradients[0].std() > 1e-3
    assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)


# Ours become native


LEARNED = {"position_encoding": "learned", "scale_embedding": False}
LLAMA_LIKE = {
    "norm": "rmsnorm", "position_encoding": "rope", "activation": "silu", "gated_feed_forward": True, "scale_embedding": False,
    "attention_bias": False, "feed_forward_bias": False,
}  # fmt: skip
BERT_LIKE = LEARNED | {
    "norm_position": "post", "embedding_norm": True, "norm_eps": 1e-12, "output_transform": "dense", "output_bias": True,
    "activation": "gelu",
}  # fmt: skip
VIT_LIKE = {
    "image_size": 12, "patch_size": 4, "num_channels": 2, "position_encoding": "learned", "attention_out_bias": True,
}  # fmt: skip
MODERNBERT_LIKE = {
    "first_norm": False, "embedding_norm": True, "position_encoding": "rope", "gated_feed_forward": True,
    "scale_embedding": False, "output_transform": "dense",
}  # fmt: skip
SEQ2SEQ = {"norm_eps": 1e-5}
T5_LIKE = {
    "norm": "rmsnorm", "position_encoding": "relative", "scale_embedding": False, "scale_attention": False,
    "attention_bias": False, "feed_forward_bias": False, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6,
}  # fmt: skip
# The least that makes a small model fit.
OURS = {
    "gpt2": ("decoder", LEARNED),
    "llama": ("decoder", LLAMA_LIKE),
    "mistral": ("decoder", LLAMA_LIKE),
    "qwen2": ("decoder", LLAMA_LIKE | {"attention_bias": True, "attention_out_bias": False}),
    "qwen3": ("decoder", LLAMA_LIKE | {"qk_norm": True}),
    "gemma": ("decoder", LLAMA_LIKE | {"norm": "rmsnorm1p", "scale_embedding": True}),
    "gpt_neox": ("decoder", {"position_encoding": "rope", "scale_embedding": False, "norm_position": "parallel"}),
    "bert": ("encoder", BERT_LIKE),
    "roberta": ("encoder", BERT_LIKE | {"position_offset": 1}),
    "distilbert": ("encoder", BERT_LIKE),
    "vit": ("encoder", VIT_LIKE),
    "modernbert": ("encoder", MODERNBERT_LIKE),
    "marian": ("encoder-decoder", SEQ2SEQ | {"norm_position": "post"}),
    "pegasus": ("encoder-decoder", SEQ2SEQ),
    "bart": ("encoder-decoder", SEQ2SEQ | LEARNED | {"norm_position": "post", "embedding_norm": True, "position_offset": 2}),
    "mbart": ("encoder-decoder", SEQ2SEQ | LEARNED | {"embedding_norm": True, "position_offset": 2}),
    # Deeper on the side of the source, for transformers cannot generate with a T5 that is the other way round.
    "t5": ("encoder-decoder", T5_LIKE | {"embedding_tying": "source-target", "num_encoder_layers": 4}),
}
# Another value for each choice that matters, where the small model has a valid one.
OTHERWISE = {
    "num_heads": 2, "num_kv_heads": 2, "head_width": 10, "d_ff": 20, "norm": "layernorm", "norm_position": "post",
    "norm_eps": 1e-3, "activation": "gelu_new", "gated_feed_forward": True, "attention_bias": False, "attention_out_bias": True,
    "scale_attention": False, "feed_forward_bias": False, "qk_norm": True, "attention_window": 3, "position_encoding": "alibi",
    "relative_attention_num_buckets": 4, "relative_attention_max_distance": 19, "position_offset": 3, "scale_embedding": False,
    "num_token_types": 2, "ngram_size": 2, "conv_size": 3, "embedding_norm": True, "norm_bias": False, "first_norm": False,
    "phrase_size": 2, "dense_bias": False, "tie_word_embeddings": False, "embedding_tying": "target-output",
    "output_transform": "scale", "output_bias": True, "logit_softcap": 2.0, "max_position_embeddings": 33, "pad_token_id": None,
}  # fmt: skip
OPPOSITE = {
    "norm": "rmsnorm", "norm_position": "pre", "scale_embedding": True, "attention_out_bias": False, "output_transform": "none",
}  # fmt: skip


def our_model(family: str, **options):
    shape, needed = OURS[family]
    if "image_size" in needed:
        return randomised(glassformer.GlassformerForImageClassification(tiny_config(shape, **needed | options))).eval()
    return randomised(tiny_language_model(shape, **needed | options))


GUIDE = Path(__file__).parents[1] / "docs" / "guides" / "export.md"


def test_the_layouts_of_the_guide_fit():
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for name, _ in rows} == {"pegasus", "marian", "llama", "bert", "modernbert", "gpt2", "t5"}
    for name, told in rows:
        choices = {key: yaml.safe_load(value) for key, value in re.findall(r"`(\w+): ([^`]+)`", told)}
        choices = {key: float(value) if key == "norm_eps" else value for key, value in choices.items()}
        config = GlassformerConfig.from_preset("llama-mini") if name == "llama" else tiny_config(OURS[name][0], **choices)
        assert stands_in_the_way(config, FAMILIES[name]) == []
        if name != "llama":
            ours = tiny_language_model(OURS[name][0], **choices)
            native, batch = glassformer.to_hf(ours, to=name), batch_for(ours)
            assert_close(outputs_of(native, batch), outputs_of(ours, batch), rtol=0, atol=1e-5)


def test_every_family_is_tested():
    classes = [getattr(transformers, native.model_class) for native in NATIVES.values()]
    assert OURS.keys() == FAMILIES.keys() == {each.config_class.model_type for each in classes}


@pytest.mark.parametrize("family", OURS)
def test_our_model_answers_the_same_as_a_native_one_and_comes_back_unchanged(family):
    ours = our_model(family)
    assert family in {fit.family.name for fit in fits(ours.config) if not fit.reasons}
    native = glassformer.to_hf(ours, to=family)
    assert type(native).__module__.startswith(f"transformers.models.{family}.")
    batch = batch_for(ours)
    assert_close(outputs_of(native, batch), outputs_of(ours, batch), rtol=0, atol=1e-5)
    if ours.can_generate():
        prompt = {name: value for name, value in batch_for(ours, "left").items() if name != "decoder_input_ids"}
        for search in ({}, {"num_beams": 3}):
            settings = {"do_sample": False, "max_new_tokens": 6, "min_new_tokens": 4, **search}
            assert torch.equal(native.generate(**prompt, **settings), ours.generate(**prompt, **settings))
    back = glassformer.from_hf(native)
    same_weights(ours, back)
    head = type(ours).__name__
    assert that_matter(back.config, head) == that_matter(ours.config, head)


@pytest.mark.filterwarnings("ignore:.*same id")
@pytest.mark.parametrize("family", OURS)
def test_whatever_else_is_chosen_is_refused_by_name_or_computes_the_same(family):
    depth = {name: 1 for name, layers in SHAPES[OURS[family][0]].items() if layers}
    plain = our_model(family, **depth).config
    carried = set()
    for name, value in OTHERWISE.items():
        if getattr(plain, name) == value:
            value = OPPOSITE.get(name, value) if value not in (True, False) else not value
        if name == "first_norm" and plain.norm_position == "post":
            continue  # it has none that could be left out
        if name in ("ngram_size", "conv_size") and (plain.shape == "decoder" or plain.image_size):
            continue  # no model of ours can have them
        if name == "phrase_size" and plain.image_size:
            continue  # nor this
        value = "parallel" if name == "norm_position" and not plain.first_norm else value
        ours = our_model(family, **depth, **{name: value})
        if reasons := stands_in_the_way(ours.config, FAMILIES[family]):
            assert any(name in reason for reason in reasons)
            with pytest.raises(ValueError, match=f"does not fit {family}: "):
                glassformer.to_hf(ours, to=family)
            continue
        carried.add(name)
        native, batch = glassformer.to_hf(ours, to=family), batch_for(ours)
        assert_close(outputs_of(native, batch), outputs_of(ours, batch), rtol=0, atol=1e-5)
    assert {"num_heads", "d_ff"} <= carried
    assert ("logit_softcap" in carried) == (family == "vit")  # whose logits are those of a classifier


ROPES = {
    "base": {"rope_theta": 70.0},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 3},
    "llama3": {
        "rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 3, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "longrope": {
        "rope_type": "longrope", "factor": 2.0, "original_max_position_embeddings": 3, "short_factor": [1.0, 1.1, 1.2],
        "long_factor": [2.0, 2.5, 3.0],
    },
}  # fmt: skip
ROTATING = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gpt_neox", "modernbert"]


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("family", ROTATING)
def test_every_kind_of_rotation_is_theirs_too(family, rope):
    short = {"max_position_embeddings": 5} if rope == "dynamic" else {}  # shorter than the texts: only then it matters
    ours = our_model(family, rope_parameters={"rope_theta": 50.0, **ROPES[rope]}, **short)
    native, batch = glassformer.to_hf(ours, to=family), batch_for(ours)
    expected = outputs_of(native, batch)
    for model in (ours, glassformer.from_hf(native)):
        assert_close(outputs_of(model, batch), expected, rtol=0, atol=1e-5)
    assert not torch.allclose(outputs_of(our_model(family), batch)[0], expected[0], atol=1e-3)  # or nothing would be compared


@pytest.mark.parametrize("family", ROTATING)
def test_a_rotation_of_a_part_of_each_head_goes_where_it_can(family):
    ours = our_model(family, rope_parameters={"partial_rotary_factor": 2 / 3})
    if family == "gpt_neox":
        native, batch = glassformer.to_hf(ours, to=family), batch_for(ours)
        assert_close(outputs_of(ours, batch), outputs_of(native, batch), rtol=0, atol=1e-5)
        return
    with pytest.raises(ValueError, match=rf"does not fit {family}: partial_rotary_factor=0\.66\d*, needs 1\.0"):
        glassformer.to_hf(ours, to=family)
    native = glassformer.to_hf(our_model(family), to=family)  # which would not rotate less for being told so
    rope = native.config.rope_parameters
    for parameters in rope.values() if family == "modernbert" else [rope]:
        parameters["partial_rotary_factor"] = 0.5
    with pytest.raises(ValueError, match=r"does not fit glassformer: partial_rotary_factor=0\.5, needs 1\.0"):
        glassformer.from_hf(native)


def test_an_encoder_with_one_window_or_two_kinds_of_layers_fits_modernbert():
    sizes = {"num_encoder_layers": 3, "attention_window": 3}
    types = ["sliding_attention", "sliding_attention", "full_attention"]
    by_type = {"full_attention": {"rope_theta": 90.0}, "sliding_attention": {"rope_theta": 9.0}}
    alike = {"layer_types": ["sliding_attention"] * 3}
    for layers in ({}, alike, {"layer_types": types}, {"layer_types": types, "rope_parameters": by_type}):
        ours = our_model("modernbert", **sizes, **layers)
        native, batch = glassformer.to_hf(ours, to="modernbert"), batch_for(ours)
        assert_close(outputs_of(native, batch), outputs_of(ours, batch), rtol=0, atol=1e-5)
        back = glassformer.from_hf(native)
        same_weights(ours, back)
        assert that_matter(back.config, type(ours).__name__) == that_matter(ours.config, type(ours).__name__)
        assert any("layer_types" in reason for reason in stands_in_the_way(ours.config, FAMILIES["bert"])) == (
            types in layers.values()
        )


def test_what_modernberts_heads_do_not_have_is_refused():
    family, head = FAMILIES["modernbert"], "GlassformerForSequenceClassification"
    plain = MODERNBERT_LIKE | {"classifier_activation": "gelu", "classifier_norm": True}
    for options, reason in (
        ({"pooling": "max"}, "pooling=max, needs mean or first"),
        ({"classifier_norm": False}, "classifier_norm=False, needs True"),
        ({"classifier_bias": False}, "classifier_bias=False, needs True"),
        ({"rope_parameters": {"partial_rotary_factor": 2 / 3}}, "partial_rotary_factor=0.6666666666666666, needs 1.0"),
    ):
        assert stands_in_the_way(tiny_config("encoder", **plain | options), family, head) == [reason]
    assert not stands_in_the_way(tiny_config("encoder", **plain | {"dense_bias": False}), family, head)
    assert not stands_in_the_way(tiny_config("encoder", **plain | {"pooling": "max"}), family, "GlassformerForMaskedLM")


@pytest.mark.parametrize("name", ["bert", "bert-sequences", "t5", "modernbert-sequences"])
def test_heads_of_others_can_be_rounded_to_eight_bits(name):
    ours, batch = glassformer.from_hf(native_model(name)), batch_for(native_model(name))
    [expected] = outputs_of(ours, batch)[:1]
    [rounded] = outputs_of(glassformer.quantize_int8(ours), batch)[:1]
    assert (rounded - expected).std() < 0.1 * expected.std()
