"""Hugging Face's own model tests, run on our classes: make conformance HF_SRC=<directory with transformers' tests/ and utils/>

The mixins are imported from a checkout of transformers at the installed release; the library under test is the installed one.
This file only says what to build and what to feed it: every shape, with the paper's layers and with modern ones.
"""

import os
import sys
import unittest

import pytest


if "HF_SRC" not in os.environ:
    pytest.skip("HF_SRC is not set: it names a checkout of transformers", allow_module_level=True)

import torch
import transformers

import glassformer


# HF's tests would import a second transformers from the checkout.
transformers.utils.direct_transformers_import = lambda *args, **kwargs: transformers
sys.path.insert(0, os.environ["HF_SRC"])

from tests.generation.test_utils import GenerationTesterMixin
from tests.test_configuration_common import ConfigTester
from tests.test_modeling_common import ModelTesterMixin, floats_tensor, ids_tensor, random_attention_mask


SIZES = {"vocab_size": 99, "d_model": 32, "num_heads": 4, "d_ff": 37, "attention_dropout": 0.1, "decoder_start_token_id": 1}
LAYERS = {
    "Paper": {"norm_position": "post"},
    "Modern": {
        "norm": "rmsnorm",
        "position_encoding": "rope",
        "num_kv_heads": 2,
        "activation": "silu",
        "gated_feed_forward": True,
    },
}
SHAPES = {
    "EncoderDecoder": ({"num_encoder_layers": 2, "num_decoder_layers": 2}, ["Model", "ForConditionalGeneration"]),
    # Untied, because one test compares bfloat16 logits with an absolute tolerance of one rounding error at 1: it wants
    # logits that start well below 1, as those of an output layer of its own do.
    "Decoder": (
        {"num_encoder_layers": 0, "num_decoder_layers": 2, "tie_word_embeddings": False},
        ["Model", "ForCausalLM"],
    ),
    "Encoder": (
        {"num_encoder_layers": 2, "num_decoder_layers": 0},
        ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"],
    ),
    "Pictures": (
        {"num_encoder_layers": 2, "num_decoder_layers": 0, "image_size": 12, "patch_size": 4, "position_encoding": "learned"},
        ["Model", "ForImageClassification"],
    ),
}


# Tests that Hugging Face's own ViT leaves out or writes anew.
ABOUT_TOKENS = ("test_inputs_embeds", "test_inputs_embeds_matches_input_ids", "test_model_get_set_embeddings")


class ModelTester:
    """The small configuration and inputs that the mixins ask for; they read most attributes by name."""

    __test__ = False
    batch_size, seq_length, is_training = 13, 7, True
    num_labels, num_choices, type_sequence_label_size = 3, 4, 2

    def __init__(self, options: dict):
        self.options = options
        config = self.get_config()
        self.seq_length = 1 + config.num_patches if config.image_size else self.seq_length
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
            setattr(self, name, getattr(config, name))
        self.encoder_seq_length = self.decoder_seq_length = self.key_length = self.seq_length

    def get_config(self):
        return glassformer.GlassformerConfig(**self.options)

    def prepare_config_and_inputs_for_common(self):
        config, shape = self.get_config(), [self.batch_size, self.seq_length]
        if size := config.image_size:
            return config, {"pixel_values": floats_tensor([self.batch_size, config.num_channels, size, size])}
        inputs = {"input_ids": ids_tensor(shape, self.vocab_size).clamp(3), "attention_mask": random_attention_mask(shape)}
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = ids_tensor(shape, self.vocab_size).clamp(3)
            inputs["decoder_attention_mask"] = torch.ones(shape, dtype=torch.long)
        return config, inputs


class Suite:
    test_can_init_all_missing_weights_before_2023 = True  # HF runs it only on files that bear a certain line
    options: dict

    def setUp(self):
        self.model_tester = ModelTester(self.options)
        self.config_tester = ConfigTester(self, config_class=glassformer.GlassformerConfig)

    def test_config(self):
        self.config_tester.run_common_tests()


def build(shape: str, layers: str) -> type:
    counts, heads = SHAPES[shape]
    generates = "Decoder" in shape
    members = {
        "options": SIZES | LAYERS[layers] | counts,
        "is_encoder_decoder": shape == "EncoderDecoder",
        "test_resize_embeddings": shape != "Pictures",
        "all_model_classes": tuple(getattr(glassformer, f"Glassformer{head}") for head in heads),
    }
    if shape == "Pictures":
        members |= dict.fromkeys(ABOUT_TOKENS)
    mixins = (ModelTesterMixin, GenerationTesterMixin) if generates else (ModelTesterMixin,)
    return type(f"{layers}{shape}Test", (Suite, *mixins, unittest.TestCase), members)


for _shape in SHAPES:
    for _layers in LAYERS:
        _suite = build(_shape, _layers)
        globals()[_suite.__name__] = _suite
