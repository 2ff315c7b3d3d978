"""glassformer: a Transformer that you can see through, and a first-class Hugging Face model.

Importing it registers the models with transformers' Auto classes. The names below are loaded when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .registration import register_all


__version__ = "0.1.0"

_MODULES = {
    "attention": ["MultiHeadAttention", "scaled_dot_product_attention"],
    "configuration_glassformer": ["GlassformerConfig"],
    "convolution": ["Convolution"],
    "decoder": ["Decoder", "DecoderLayer"],
    "embeddings": ["NgramEmbedding", "TokenEmbedding"],
    "encoder": ["Encoder", "EncoderLayer"],
    "exchange.convert": ["from_hf", "to_hf"],
    "feed_forward": ["FeedForward"],
    "masking": ["causal_mask", "combine_masks", "padding_mask", "window_mask"],
    "modeling_glassformer": [
        "GlassformerForCausalLM",
        "GlassformerForConditionalGeneration",
        "GlassformerForImageClassification",
        "GlassformerForMaskedLM",
        "GlassformerForQuestionAnswering",
        "GlassformerForSequenceClassification",
        "GlassformerForTokenClassification",
        "GlassformerModel",
        "GlassformerPreTrainedModel",
    ],
    "norms": ["RMSNorm"],
    "packed_linear": ["quantize_int8"],
    "patches": ["PatchEmbedding"],
    "phrases": ["PhraseVotes"],
    "positions": [
        "AlibiBias",
        "LearnedPositionEncoding",
        "RelativePositionBias",
        "RotaryPositionEncoding",
        "SinusoidalPositionEncoding",
        "rotate",
    ],
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

if TYPE_CHECKING:
    from .attention import MultiHeadAttention, scaled_dot_product_attention
    from .configuration_glassformer import GlassformerConfig
    from .convolution import Convolution
    from .decoder import Decoder, DecoderLayer
    from .embeddings import NgramEmbedding, TokenEmbedding
    from .encoder import Encoder, EncoderLayer
    from .exchange.convert import from_hf, to_hf
    from .feed_forward import FeedForward
    from .masking import causal_mask, combine_masks, padding_mask, window_mask
    from .modeling_glassformer import (
        GlassformerForCausalLM,
        GlassformerForConditionalGeneration,
        GlassformerForImageClassification,
        GlassformerForMaskedLM,
        GlassformerForQuestionAnswering,
        GlassformerForSequenceClassification,
        GlassformerForTokenClassification,
        GlassformerModel,
        GlassformerPreTrainedModel,
    )
    from .norms import RMSNorm
    from .packed_linear import quantize_int8
    from .patches import PatchEmbedding
    from .phrases import PhraseVotes
    from .positions import (
        AlibiBias,
        LearnedPositionEncoding,
        RelativePositionBias,
        RotaryPositionEncoding,
        SinusoidalPositionEncoding,
        rotate,
    )

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"glassformer has no {name!r}")
    value = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]


register_all()
