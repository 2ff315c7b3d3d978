"""The config: shapes, names, round trips, presets, parallel plans, and a clear sentence for every mistake."""

import ast
import copy
import inspect
import json
import pickle
import re
import traceback
import warnings
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from models import LANGUAGE_MODELS, SHAPES, VARIANTS, tiny_config
from transformers import AutoConfig, BertConfig, PreTrainedConfig
from transformers.integrations import ALL_PARALLEL_STYLES

import glassformer
from glassformer import GlassformerConfig
from glassformer.configuration import configuration_glassformer


PRESETS = sorted((Path(configuration_glassformer.__file__).parent / "presets").glob("*.json"))
OWN_FIELDS = {field.name: field.default for field in fields(GlassformerConfig)}
OWN_FIELDS = {name: default for name, default in OWN_FIELDS.items() if name not in {f.name for f in fields(PreTrainedConfig)}}
# A value for each field that is not its default.
CHANGED = {
    "vocab_size": 101, "d_model": 48, "num_heads": 6, "num_kv_heads": 3, "d_ff": 80, "num_encoder_layers": 1,
    "num_decoder_layers": 2, "max_position_embeddings": 33, "norm": "rmsnorm", "norm_position": "parallel", "norm_eps": 1e-3,
    "activation": "silu", "gated_feed_forward": True, "attention_bias": False, "feed_forward_bias": False, "qk_norm": True,
    "attention_window": 9, "pruned_heads": {"cross.1": [0, 4]}, "position_encoding": "rope", "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 64, "scale_embedding": False, "embedding_norm": True, "tie_word_embeddings": False,
    "embedding_tying": "target-output", "logit_softcap": 30.0, "pooling": "last", "dropout": 0.2, "attention_dropout": 0.3,
    "activation_dropout": 0.4, "token_dropout": 0.35, "layer_drop": 0.05, "label_smoothing": 0.15,
    "initializer_range": 0.02,
    "pad_token_id": 5, "bos_token_id": 6,
    "head_width": 12, "attention_out_bias": True, "scale_attention": False, "position_offset": 2, "num_token_types": 3,
    "ngram_size": 3, "ngram_buckets": 1000, "conv_size": 5, "phrase_size": 4, "phrase_buckets": 3000,
    "output_transform": "dense", "output_bias": True, "classifier_activation": "tanh", "classifier_bias": False,
    "norm_bias": False, "first_norm": False, "classifier_norm": True, "dense_bias": False,
    "eos_token_id": [7, 8], "unk_token_id": 9, "mask_token_id": 10, "decoder_start_token_id": 11, "use_cache": False,
}  # fmt: skip
PICTURES = {"image_size": 12, "patch_size": 3, "num_channels": 1}  # for an encoder alone
ROPE = {"rope_type": "linear", "factor": 2.5, "rope_theta": 500.0, "partial_rotary_factor": 0.5}
MIXED = {
    "num_encoder_layers": 2, "num_decoder_layers": 0, "attention_window": 9, "position_encoding": "rope",
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {"full_attention": ROPE, "sliding_attention": {"rope_type": "default", "rope_theta": 9.0}},
}  # fmt: skip


@pytest.fixture
def silence(caplog):
    """Fails the test if anything is warned about or logged."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert not caplog.get_records("call")


# Shape and sizes


@pytest.mark.parametrize("names", [("num_encoder_layers", "num_decoder_layers"), ("encoder_layers", "decoder_layers")])
@pytest.mark.parametrize(
    ("counts", "shape"), [((2, 3), "encoder-decoder"), ((2, 0), "encoder"), ((0, 3), "decoder")], ids=lambda value: str(value)
)
def test_the_layer_counts_decide_the_shape(names, counts, shape):
    # A contradicting flag, as in a config that was edited by hand, has no say.
    config = GlassformerConfig(**dict(zip(names, counts)), is_encoder_decoder=shape != "encoder-decoder")
    assert config.shape == shape
    assert config.is_encoder_decoder == (shape == "encoder-decoder")
    assert config.pooling == ("last" if shape == "decoder" else "mean")
    assert config.decoder_start_token_id == (config.bos_token_id if shape == "encoder-decoder" else None)


def test_the_defaults_are_the_base_model_of_the_paper(silence):
    config = GlassformerConfig()
    assert (config.d_model, config.num_heads, config.d_ff, config.vocab_size) == (512, 8, 2048, 37000)
    assert (config.num_encoder_layers, config.num_decoder_layers) == (6, 6)
    assert (config.max_position_embeddings, config.dropout) == (512, 0.1)
    assert (config.d_k, config.num_kv_heads) == (64, 8)
    assert config.position_encoding == "sinusoidal" and config.activation == "relu"


@pytest.mark.parametrize("shape", SHAPES)
def test_default_construction_warns_about_nothing(shape, silence):
    GlassformerConfig(**SHAPES[shape])


@pytest.mark.parametrize("name", ["d_k", "head_dim"])
def test_the_width_of_a_head_is_derived(name):
    config = GlassformerConfig(d_model=48, num_heads=6)
    assert getattr(config, name) == 8
    config.num_heads = 4
    assert getattr(config, name) == 12
    assert name not in config.to_dict()
    with pytest.raises(AttributeError, match="d_k"):
        setattr(config, name, 16)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, 0),
        ({"pad_token_id": 7}, 7),
        ({"pad_token_id": None}, None),
        ({"pad_token_id": 1}, None),
        ({"pad_token_id": 2}, None),
        ({"pad_token_id": 3}, None),
        ({"pad_token_id": 6, "mask_token_id": 6}, None),
        ({"decoder_start_token_id": 0}, None),
        ({"eos_token_id": [2, 0]}, None),
        ({"eos_token_id": [2, 7]}, 0),
    ],
    ids=lambda value: str(value),
)
@pytest.mark.filterwarnings("ignore:.*same id")
def test_the_padding_row_is_the_pad_token_unless_it_has_another_job(overrides, expected):
    assert GlassformerConfig(**overrides).padding_idx == expected


# Names


HUGGING_FACE_NAMES = {
    "hidden_size": "d_model", "num_attention_heads": "num_heads", "num_key_value_heads": "num_kv_heads",
    "intermediate_size": "d_ff", "encoder_layers": "num_encoder_layers", "decoder_layers": "num_decoder_layers",
    "hidden_act": "activation", "layer_norm_eps": "norm_eps", "rms_norm_eps": "norm_eps", "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout", "layerdrop": "layer_drop", "sliding_window": "attention_window",
    "final_logit_softcapping": "logit_softcap", "type_vocab_size": "num_token_types",
}  # fmt: skip


def test_no_name_of_hugging_face_is_left_out_below():
    assert GlassformerConfig.attribute_map.keys() == HUGGING_FACE_NAMES.keys() | {"head_dim"}


@pytest.mark.parametrize(("theirs", "ours"), HUGGING_FACE_NAMES.items())
def test_hugging_faces_names_work(theirs, ours):
    others = {name: value for name, value in CHANGED.items() if name != ours}
    config = GlassformerConfig(**others, **{theirs: CHANGED[ours]})
    assert getattr(config, theirs) == getattr(config, ours) == CHANGED[ours]
    assert theirs not in config.to_dict()

    config = GlassformerConfig()
    setattr(config, theirs, CHANGED[ours])
    assert getattr(config, theirs) == getattr(config, ours) == CHANGED[ours]


@pytest.mark.parametrize("shape", SHAPES)
def test_num_hidden_layers_is_the_depth_of_the_last_stack(shape):
    name = "num_encoder_layers" if shape == "encoder" else "num_decoder_layers"
    config = GlassformerConfig(**SHAPES[shape])
    assert config.num_hidden_layers == SHAPES[shape][name]
    config.num_hidden_layers = 5
    assert {key: getattr(config, key) for key in SHAPES[shape]} == SHAPES[shape] | {name: 5}
    config = GlassformerConfig(**SHAPES[shape], num_hidden_layers=4)
    assert {key: getattr(config, key) for key in SHAPES[shape]} == SHAPES[shape] | {name: 4}
    assert config.shape == shape


@pytest.mark.parametrize("order", [1, -1], ids=["stack-first", "depth-first"])
def test_the_order_of_hugging_faces_names_does_not_matter(order):
    names = [("decoder_layers", 0), ("num_hidden_layers", 4)]
    config = GlassformerConfig(**dict(names[::order]))
    assert (config.num_encoder_layers, config.num_decoder_layers) == (4, 0)


# Saving and loading


def saved(config, folder):
    config.save_pretrained(folder)
    return folder


ROUND_TRIPS = {
    "to_dict": lambda config, _: GlassformerConfig.from_dict(config.to_dict()),
    "json-string": lambda config, _: GlassformerConfig.from_dict(json.loads(config.to_json_string())),
    "full-json-string": lambda config, _: GlassformerConfig.from_dict(json.loads(config.to_json_string(use_diff=False))),
    "json-file": lambda config, folder: GlassformerConfig.from_json_file(saved(config, folder) / "config.json"),
    "from_pretrained": lambda config, folder: GlassformerConfig.from_pretrained(saved(config, folder)),
    "AutoConfig": lambda config, folder: AutoConfig.from_pretrained(saved(config, folder)),
    "deepcopy": lambda config, _: copy.deepcopy(config),
    "pickle": lambda config, _: pickle.loads(pickle.dumps(config)),
}
CONFIGS = {
    "changed": CHANGED | {"rope_parameters": ROPE, "num_labels": 3},
    "decoder-start-none": {"bos_token_id": None},
    "pictures": PICTURES | SHAPES["encoder"],
    "mixed": MIXED,
    **SHAPES,
}


def test_the_round_trips_change_every_field():
    changed = CHANGED | PICTURES
    assert set(changed) == set(OWN_FIELDS)
    assert not [name for name, default in OWN_FIELDS.items() if changed[name] == default]


@pytest.mark.parametrize("arguments", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("round_trip", ROUND_TRIPS.values(), ids=ROUND_TRIPS)
def test_every_field_survives(round_trip, arguments, tmp_path, silence):
    config = GlassformerConfig(**arguments)
    back = round_trip(config, tmp_path)
    assert type(back) is GlassformerConfig
    for name in [*OWN_FIELDS, *(arguments.keys() - {"rope_parameters"}), "is_encoder_decoder", "id2label", "shape", "d_k"]:
        assert getattr(back, name) == getattr(config, name), name
    for name, value in arguments.items():
        assert getattr(back, name) == value, name
    assert hasattr(back, "rope_parameters") == (config.position_encoding == "rope")
    assert hasattr(back, "layer_types") == ("layer_types" in arguments)  # or transformers takes the layers for different ones


def test_hugging_faces_rope_names_end_in_rope_parameters():
    config = GlassformerConfig(position_encoding="rope", rope_theta=500.0, rope_scaling={"rope_type": "linear", "factor": 2.0})
    assert config.rope_parameters == {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    assert GlassformerConfig(position_encoding="rope").rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}


@pytest.mark.parametrize(
    ("stored", "dropped"), [({"colour": "red"}, "colour"), ({"d_k": 64}, "d_k"), ({"head_dim": 64}, "head_dim")]
)
def test_unknown_keys_of_a_stored_config_are_dropped_with_a_warning(stored, dropped, caplog):
    config = GlassformerConfig.from_dict({"d_model": 48, "num_heads": 6, **stored})
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert dropped in caplog.text and "dropped" in caplog.text
    assert dropped not in config.to_dict() and config.d_k == 8


@pytest.mark.parametrize("load", [GlassformerConfig.from_pretrained, AutoConfig.from_pretrained], ids=["own", "auto"])
def test_overrides_at_loading_count_like_constructor_arguments(load, tmp_path):
    GlassformerConfig().save_pretrained(tmp_path)
    config = load(tmp_path, num_heads=16, num_decoder_layers=0, position_encoding="rope")
    direct = GlassformerConfig(num_heads=16, num_decoder_layers=0, position_encoding="rope")
    for name in ("num_heads", "num_kv_heads", "shape", "is_encoder_decoder", "rope_parameters"):
        assert getattr(config, name, None) == getattr(direct, name), name


# Presets


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_has_what_its_file_says(path, silence):
    config = GlassformerConfig.from_preset(path.stem)
    for name, value in json.loads(path.read_text()).items():
        assert getattr(config, name) == value, name


@pytest.mark.parametrize(
    ("name", "shape", "low", "high"),
    [
        ("paper-base", "encoder-decoder", 60e6, 66e6),
        ("paper-big", "encoder-decoder", 205e6, 220e6),
        ("gpt2-small", "decoder", 124.4e6 * 0.99, 124.4e6 * 1.01),
        ("bert-base", "encoder", 108e6, 110e6),
    ],
)
def test_a_preset_is_as_large_as_the_model_it_is_named_after(name, shape, low, high):
    config = GlassformerConfig.from_preset(name)
    assert config.shape == shape
    with torch.device("meta"):
        model = getattr(glassformer, LANGUAGE_MODELS[shape])(config)
    assert low < model.num_parameters() < high


def test_the_preset_for_imdb_is_a_small_encoder():
    config = GlassformerConfig.from_preset("imdb-classifier")
    assert (config.shape, config.d_model, config.num_encoder_layers, config.num_labels) == ("encoder", 256, 4, 2)


def test_a_preset_is_overridden_field_by_field():
    config = GlassformerConfig.from_preset("tiny", num_decoder_layers=0, hidden_size=96, position_encoding="rope")
    assert (config.shape, config.d_model, config.d_ff, config.rope_parameters["rope_type"]) == ("encoder", 96, 128, "default")


# Doubtful values


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"pad_token_id": 2}, "pad_token_id and eos_token_id are the same id 2"),
        ({"bos_token_id": 0, "mask_token_id": 0}, "pad_token_id and bos_token_id and mask_token_id are the same id 0"),
        ({"eos_token_id": [2, 0]}, "pad_token_id and eos_token_id are the same id 0"),
        ({"max_position_embeddings": 2049}, "max_position_embeddings=2049 is long"),
    ],
    ids=["pad-is-eos", "three-alike", "pad-among-several-eos", "long"],
)
def test_doubtful_values_only_warn(overrides, message):
    with pytest.warns(UserWarning, match=message):
        config = GlassformerConfig(**overrides)
    for name, value in overrides.items():
        assert getattr(config, name) == value


@pytest.mark.parametrize(
    "overrides", [{"max_position_embeddings": 2048}, {"decoder_start_token_id": 0}, {"pad_token_id": None, "unk_token_id": None}]
)
def test_usual_values_do_not_warn(overrides, silence):
    GlassformerConfig(**overrides)


# Mistakes


def cases(**arguments):
    return {f"{name}={value}": ({name: value}, [f"{name}={value}"]) for name, values in arguments.items() for value in values}


def wrong_type(expected, **argument):
    ((name, value),) = argument.items()
    return argument, [f"{name}={value!r}", f"type {type(value).__name__}", f"type {expected}"]


def load(**stored):
    return lambda: GlassformerConfig.from_dict(stored)


def changed_later(**values):
    """The config of a careless script: valid when made, not when saved."""

    def make():
        config = GlassformerConfig()
        for name, value in values.items():
            setattr(config, name, value)
        return config

    return make


ROPE_POSITIONS = {"position_encoding": "rope"}
# What is done -> what the message must say. A dict stands for arguments of the constructor.
MISTAKES = {
    "511-over-8": ({"d_model": 511}, ["d_model=511", "num_heads=8", "change one of them"]),
    "15-over-8": ({"d_model": 15}, ["d_model=15", "num_heads=8", "change one of them"]),
    "7-over-8": ({"d_model": 7}, ["d_model=7", "num_heads=8", "change one of them"]),
    "their-names": ({"hidden_size": 20, "num_attention_heads": 6}, ["d_model=20", "num_heads=6", "change one of them"]),
    "kv-heads": ({"num_kv_heads": 3}, ["num_kv_heads=3", "num_heads=8", "divide"]),
    "more-kv-heads-than-heads": ({"num_kv_heads": 16}, ["num_kv_heads=16", "num_heads=8", "divide"]),
    "pruned-nowhere": ({"pruned_heads": {"cross.9": [1]}}, ["'cross.9'", "not there", "cross.0"]),
    "pruned-too-many": ({"pruned_heads": {"encoder.0": [7, 8]}}, ["[7, 8]", "'encoder.0'", "0 to 7"]),
    "odd-rope": ({"d_model": 24, **ROPE_POSITIONS}, ["3 wide", "d_model=24", "num_heads=8", "even"]),
    "odd-sinusoidal": ({"d_model": 9, "num_heads": 3}, ["d_model=9", "sinusoidal", "even"]),
    "no-layers": (
        {"num_encoder_layers": 0, "num_decoder_layers": 0},
        ["num_encoder_layers=0", "num_decoder_layers=0", "at least one"],
    ),
    "negative-encoder": ({"num_encoder_layers": -1}, ["num_encoder_layers=-1", "use 0"]),
    "negative-decoder": ({"num_decoder_layers": -2}, ["num_decoder_layers=-2", "use 0"]),
    # Sizes
    **{
        name: (arguments, [*words, "must be positive"])
        for name, (arguments, words) in cases(
            vocab_size=[0, -1], d_model=[0, -8], num_heads=[0, -8], num_kv_heads=[0, -1], d_ff=[0, -1],
            max_position_embeddings=[0], norm_eps=[0, -1e-6, float("nan")], attention_window=[0, -3], logit_softcap=[0, -5.0],
            relative_attention_num_buckets=[0], relative_attention_max_distance=[0], initializer_range=[0.0, -0.02],
            ngram_size=[0, -1], ngram_buckets=[0, -5], conv_size=[0, -3], phrase_buckets=[0, -5],
        ).items()
    },
    "no-labels": ({"num_labels": 0}, ["num_labels=0", "at least 1"]),
    "negative-labels": ({"num_labels": -3}, ["num_labels=-3", "at least 1"]),
    "empty-id2label": ({"id2label": {}}, ["num_labels=0", "must be positive"]),
    # Probabilities
    **{
        name: (arguments, [*words, "[0, 1)"])
        for name, (arguments, words) in cases(
            dropout=[1, 1.5, -0.1, float("nan")], attention_dropout=[1.0], activation_dropout=[-0.5], layer_drop=[1.0],
            token_dropout=[1.0],
            label_smoothing=[1],
        ).items()
    },
    # Names
    "norm": ({"norm": "batchnorm"}, ["norm='batchnorm'", "layernorm", "rmsnorm"]),
    "norm-position": ({"norm_position": "middle"}, ["norm_position='middle'", "pre", "post"]),
    "position-encoding": (
        {"position_encoding": "sine"},
        ["position_encoding='sine'", "sinusoidal", "learned", "rope", "alibi", "relative", "none"],
    ),
    "activation": ({"activation": "rleu"}, ["activation='rleu'", "relu", "gelu", "silu"]),
    "tying": ({"embedding_tying": "all"}, ["embedding_tying='all'", "three-way", "target-output", "source-target"]),
    "pooling": ({"pooling": "min"}, ["pooling='min'", "mean", "max", "first", "last"]),
    "problem-type": (
        {"problem_type": "ranking"},
        ["problem_type='ranking'", "regression", "single_label_classification", "multi_label_classification"],
    ),
    "half-a-pair": ({"partial_rotary_factor": 0.05, **ROPE_POSITIONS}, ["partial_rotary_factor=0.05", "64 wide", "even"]),
    "more-than-all": ({"partial_rotary_factor": 1.5, **ROPE_POSITIONS}, ["partial_rotary_factor=1.5", "(0, 1]"]),
    "generation-parameter": ({"num_beams": 4}, ["num_beams"]),
    "negative-offset": ({"position_offset": -1}, ["position_offset=-1", "negative"]),
    "pictures-and-words": ({"image_size": 32}, ["image_size=32", "encoder by itself", "num_decoder_layers=0"]),
    "uncovered-picture": ({"num_decoder_layers": 0, "image_size": 30}, ["image_size=30", "patch_size=16 (remainder 14)"]),
    "ngrams-of-decoder": ({"num_encoder_layers": 0, "ngram_size": 2}, ["ngram_size=2", "shape is decoder", "leave it out"]),
    "convolution-of-decoder": ({"num_encoder_layers": 0, "conv_size": 3}, ["conv_size=3", "shape is decoder", "leave it out"]),
    "convolution-without-middle": ({"conv_size": 4}, ["conv_size=4", "no token in its middle", "choose 5"]),
    "phrases-of-pictures": (
        {"num_decoder_layers": 0, "image_size": 32, "phrase_size": 2}, ["phrase_size=2", "image_size=32", "leave one of them"],
    ),
    "ngrams-of-pictures": (
        {"num_decoder_layers": 0, "image_size": 32, "ngram_size": 3}, ["ngram_size=3", "image_size=32", "leave one of them out"],
    ),
    "window-of-one": ({"attention_window": 1}, ["attention_window=1", "at least 2"]),
    "no-norm-to-leave-out": ({"norm_position": "post", "first_norm": False}, ["first_norm=False", '"post"', "drop it"]),
    "norm-of-nothing": ({"classifier_norm": True}, ["classifier_norm=True", "set classifier_activation"]),
    "types-of-decoder": (MIXED | {"num_decoder_layers": 2}, ["layer_types", "encoder alone", "encoder-decoder", "drop them"]),
    "types-of-other-layers": (MIXED | {"num_encoder_layers": 3}, ["2 entries", "num_encoder_layers=3", "one a layer"]),
    "no-such-type": (MIXED | {"layer_types": ["chunked_attention"] * 2}, ["'chunked_attention'", "sliding_attention"]),
    "type-for-all": wrong_type("list[str]", layer_types="full_attention"),
    "types-without-window": (MIXED | {"attention_window": None}, ["attention_window=None", "give a window"]),
    "window-for-nobody": (MIXED | {"layer_types": ["full_attention"] * 2}, ["attention_window=9", "and none if not"]),
    "rope-of-no-type": (MIXED | {"layer_types": None}, ["rope_parameters", "layer_types=None", "one for all"]),
    "rope-of-one-type": (
        MIXED | {"rope_parameters": {"full_attention": ROPE}},
        ["rope_parameters with full_attention", "each type", "one for all"],
    ),
    "rope-beside-types": (
        MIXED | {"rope_parameters": MIXED["rope_parameters"] | {"factor": 2.0}}, ["factor", "do not fit", "one for all"],
    ),
    "rope-of-a-type-not-a-dict": (
        MIXED | {"rope_parameters": {"full_attention": 3, "sliding_attention": ROPE}}, ["full_attention=3", "type int", "dict"],
    ),
    "half-a-pair-in-one-type": (
        MIXED | {"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.05}, "sliding_attention": ROPE}},
        ["partial_rotary_factor=0.05", "64 wide", "even"],
    ),
    "first-token-of-decoder": ({"num_encoder_layers": 0, "pooling": "first"}, ['pooling="first"', '"last"', '"mean"']),
    "typo": ({"d_modle": 64}, ["'d_modle'", "did you mean d_model?"]),
    "typo-in-their-name": ({"hiden_size": 64}, ["'hiden_size'", "did you mean hidden_size?"]),
    "unlike-anything": ({"zzzz": 1}, ["'zzzz'", "GlassformerConfig"]),
    "preset": (lambda: GlassformerConfig.from_preset("huge"), ["'huge'", *(path.stem for path in PRESETS)]),
    **{name: ({name: 64}, [name, "d_model / num_heads", "choose these two"]) for name in ("d_k", "d_v", "head_dim")},
    # Special tokens
    **{
        f"{name}-{where}": ({name: token}, [f"{name}={token}", "37000", "0 to 36999", "None"])
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "unk_token_id", "mask_token_id", "decoder_start_token_id")
        for where, token in {"negative": -1, "too-large": 37000}.items()
    },
    "one-of-several-eos": ({"eos_token_id": [2, 40000]}, ["eos_token_id=40000", "0 to 36999"]),
    # Types
    "float-size": wrong_type("int", d_model=512.0),
    "text-size": wrong_type("int", num_heads="8"),
    "bool-size": wrong_type("int", d_ff=True),
    "no-size": wrong_type("int", vocab_size=None),
    "text-probability": wrong_type("float | int", dropout="0.1"),
    "int-flag": wrong_type("bool", qk_norm=1),
    "int-name": wrong_type("str", norm=3),
    "tuple-of-ids": wrong_type("int | list[int] | None", eos_token_id=(2, 3)),
    "text-labels": wrong_type("int", num_labels="2"),
    "float-labels": wrong_type("int", num_labels=2.5),
    "their-name-for-a-size": ({"hidden_size": "512"}, ["'512'", "type str", "type int"]),
    "assigned-float": (changed_later(d_model=3.5), ["d_model=3.5", "type float", "type int"]),
    "assigned-layer-types": (lambda: changed_later(layer_types=3)().validate(), ["layer_types=3", "type int", "list[str]"]),
    "assigned-none": (changed_later(norm=None), ["norm=None", "type NoneType", "type str"]),
    "assigned-in-their-name": (changed_later(hidden_size=3.5), ["3.5", "type float", "type int"]),
    "assigned-depth": (changed_later(num_hidden_layers=1.5), ["num_decoder_layers=1.5", "type float", "type int"]),
    # Positions
    **{
        f"{name}-without-rope": ({name: value}, [name, 'position_encoding="sinusoidal"', "drop it", 'position_encoding="rope"'])
        for name, value in {
            "rope_parameters": ROPE, "rope_theta": 500.0, "rope_scaling": {"factor": 2.0}, "partial_rotary_factor": 0.5,
        }.items()
    },
    "rope-type": ({**ROPE_POSITIONS, "rope_parameters": {"rope_type": "bogus"}}, ["rope_type", "bogus", "linear", "yarn"]),
    "rope-without-factor": ({**ROPE_POSITIONS, "rope_parameters": {"rope_type": "linear"}}, ["linear", "factor"]),
    "rope-not-a-dict": ({**ROPE_POSITIONS, "rope_parameters": 3}, ["rope_parameters=3", "type int", "dict"]),
    "buckets": ({"relative_attention_num_buckets": 6}, ["relative_attention_num_buckets=6", "multiple of 4"]),
    "two-buckets": ({"relative_attention_num_buckets": 2}, ["relative_attention_num_buckets=2", "multiple of 4"]),
    "distance": (
        {"relative_attention_max_distance": 16},
        ["relative_attention_max_distance=16", "more than half", "relative_attention_num_buckets=32"],
    ),
    # Loading and saving
    "other-model": (load(**BertConfig().to_dict()), ["'bert'", "'glassformer'", "AutoConfig"]),
    "stored-sizes": (load(d_model=511), ["d_model=511", "num_heads=8", "change one of them"]),
    "changed-later": (lambda: changed_later(d_model=511)().validate(), ["d_model=511", "num_heads=8", "change one of them"]),
    "override-at-loading": (lambda: GlassformerConfig.from_dict({}, d_model=511), ["d_model=511", "num_heads=8"]),
}  # fmt: skip


def run(mistake):
    return GlassformerConfig(**mistake) if isinstance(mistake, dict) else mistake()


def check_message(error, words):
    assert type(error) is ValueError
    message = str(error)
    assert re.fullmatch(r"[^\n]+[.?]", message) and ". " not in message, "one sentence, on one line"
    for word in words:
        assert word in message


@pytest.mark.parametrize(("mistake", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_in_one_sentence(mistake, words):
    with pytest.raises(ValueError) as caught:
        run(mistake)
    check_message(caught.value, words)


def test_a_config_that_became_invalid_is_not_saved(tmp_path):
    with pytest.raises(ValueError) as caught:
        changed_later(d_model=511)().save_pretrained(tmp_path)
    check_message(caught.value, ["d_model=511", "num_heads=8", "change one of them"])


def test_a_value_that_was_refused_is_not_kept():
    config = GlassformerConfig()
    with pytest.raises(ValueError, match="d_model"):
        config.d_model = "wide"
    assert config.d_model == 512


def test_every_error_of_the_config_is_provoked_above():
    tree = ast.parse(inspect.getsource(configuration_glassformer))
    unseen = {node for node in ast.walk(tree) if isinstance(node, ast.Raise)}
    assert unseen
    for mistake, _ in MISTAKES.values():
        try:
            run(mistake)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == configuration_glassformer.__file__]
            unseen = {node for node in unseen if not any(node.lineno <= line <= node.end_lineno for line in lines)}
    assert not [ast.unparse(node) for node in unseen]


# Parallel plans


def with_parameters(model):
    """Names of the modules that have weights, `*` for the number of a layer."""
    return {re.sub(r"\d+", "*", name) for name, module in model.named_modules() if any(True for _ in module.parameters())}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_parallel_plans_name_modules_that_exist(shape, variant):
    config = tiny_config(shape, **VARIANTS[variant])
    with torch.device("meta"):
        head = getattr(glassformer, LANGUAGE_MODELS[shape])(config)
    for plan in (config.base_model_tp_plan, config.base_model_fsdp_plan):
        assert plan and plan.keys() <= with_parameters(head.model)
    assert set(config.base_model_tp_plan.values()) <= set(ALL_PARALLEL_STYLES)
    assert set(config.base_model_fsdp_plan.values()) <= {"free_full_weight", "keep_full_weight"}
    assert head.tp_plan.keys() == {f"model.{name}" for name in config.base_model_tp_plan} | {"lm_head"}
    assert head.tp_plan.keys() <= with_parameters(head)
