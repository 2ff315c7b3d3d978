"""Small models for the tests: sizes that differ from each other, so that a swapped axis cannot pass unnoticed."""

import torch

import glassformer
from glassformer import GlassformerConfig, NgramEmbedding


# B batch, T target length, S source length, D model width, H heads, K width of one head, V vocabulary
B, T, S, D, H, V = 2, 5, 7, 24, 4, 31
K = D // H

SHAPES = {
    "encoder-decoder": {"num_encoder_layers": 2, "num_decoder_layers": 3},
    "encoder": {"num_encoder_layers": 2, "num_decoder_layers": 0},
    "decoder": {"num_encoder_layers": 0, "num_decoder_layers": 3},
}
# Each choice of the config at least once.
VARIANTS = {
    "paper": {"norm_position": "post"},
    "default": {},
    "modern": {
        "norm": "rmsnorm", "position_encoding": "rope", "num_kv_heads": 2, "activation": "silu", "gated_feed_forward": True,
        "attention_bias": False, "feed_forward_bias": False, "qk_norm": True, "scale_embedding": False,
    },
    "learned": {"position_encoding": "learned", "embedding_norm": True, "activation": "gelu", "num_kv_heads": 1},
    "alibi": {"position_encoding": "alibi", "logit_softcap": 5.0},
    "relative": {
        "position_encoding": "relative", "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
    },
    "none": {"position_encoding": "none"},
    "window": {"attention_window": 3, "position_encoding": "rope"},
    "borrowed": {  # choices that other people's models have made
        "norm": "rmsnorm1p", "norm_position": "parallel", "head_width": 10, "attention_out_bias": False, "scale_attention": False,
        "position_encoding": "learned", "position_offset": 2, "num_token_types": 2, "output_transform": "scale",
        "output_bias": True, "classifier_activation": "tanh", "classifier_bias": False,
    },
    "mixed": {  # layers that differ from each other, as ModernBERT's; only an encoder's may
        "layer_types": ["sliding_attention", "full_attention"], "attention_window": 3, "position_encoding": "rope",
        "rope_parameters": {"full_attention": {"rope_theta": 160.0}, "sliding_attention": {"rope_theta": 10.0}},
        "norm_bias": False, "first_norm": False, "embedding_norm": True, "output_transform": "dense", "dense_bias": False,
        "classifier_activation": "gelu", "classifier_norm": True,
    },
    "window-alibi": {"attention_window": 3, "position_encoding": "alibi"},
    "neighbours": {"ngram_size": 3, "ngram_buckets": 19, "conv_size": 3},  # not for a decoder by itself
}  # fmt: skip
LANGUAGE_MODELS = {
    "encoder-decoder": "GlassformerForConditionalGeneration",
    "encoder": "GlassformerForMaskedLM",
    "decoder": "GlassformerForCausalLM",
}


def tiny_config(shape: str = "encoder-decoder", **overrides) -> GlassformerConfig:
    if types := overrides.get("layer_types"):
        overrides["num_encoder_layers"] = len(types)  # also where a test asks for fewer
    sizes = {"vocab_size": V, "d_model": D, "num_heads": H, "d_ff": 40, "max_position_embeddings": 64}
    return GlassformerConfig(**{**sizes, **SHAPES[shape], "mask_token_id": 4, **overrides})


def tiny_language_model(shape: str = "encoder-decoder", **overrides):
    """The model of this shape that predicts tokens, in evaluation mode."""
    return with_ngrams(getattr(glassformer, LANGUAGE_MODELS[shape])(tiny_config(shape, **overrides))).eval()


def with_ngrams(model):
    """A table of n-grams as after training: it starts at zero, where it cannot be wrong."""
    for module in model.modules():
        if isinstance(module, NgramEmbedding):
            torch.nn.init.normal_(module.weight[1:], std=D**-0.5)
    return model
