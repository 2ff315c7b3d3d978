# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""`GlassformerConfig`: one configuration for the encoder-decoder, the encoder and the decoder.

The layer counts decide the shape. Names are the paper's (https://arxiv.org/abs/1706.03762); Hugging Face's names work too,
through `attribute_map`. Everything that can be wrong is checked at construction, one sentence for each mistake.
"""

import copy
import difflib
import json
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassClassValidationError, StrictDataclassFieldValidationError
from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig
from transformers.generation import GenerationConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging


logger = logging.get_logger(__name__)

# What the folder of a saved model declares, so that every Auto class finds its head among the files beside the weights.
AUTO_MAP = {
    "AutoConfig": "configuration_glassformer.GlassformerConfig",
    "AutoModel": "modeling_glassformer.GlassformerModel",
    "AutoModelForSeq2SeqLM": "modeling_glassformer.GlassformerForConditionalGeneration",
    "AutoModelForCausalLM": "modeling_glassformer.GlassformerForCausalLM",
    "AutoModelForMaskedLM": "modeling_glassformer.GlassformerForMaskedLM",
    "AutoModelForSequenceClassification": "modeling_glassformer.GlassformerForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_glassformer.GlassformerForTokenClassification",
    "AutoModelForQuestionAnswering": "modeling_glassformer.GlassformerForQuestionAnswering",
    "AutoModelForImageClassification": "modeling_glassformer.GlassformerForImageClassification",
}

CHOICES = {
    "norm": ("layernorm", "rmsnorm", "rmsnorm1p"),
    "norm_position": ("pre", "post", "parallel"),
    "position_encoding": ("sinusoidal", "learned", "rope", "alibi", "relative", "none"),
    "activation": tuple(ACT2FN),
    "embedding_tying": ("three-way", "target-output", "source-target"),
    "output_transform": ("none", "scale", "dense"),
    "pooling": ("mean", "max", "first", "last"),
    "problem_type": ("regression", "single_label_classification", "multi_label_classification"),
    "classifier_activation": tuple(ACT2FN),
}
OPTIONAL = (("problem_type", None), ("classifier_activation", None))  # choices of nothing
POSITIVE = (
    "vocab_size", "d_model", "num_heads", "num_kv_heads", "head_width", "d_ff", "max_position_embeddings", "norm_eps",
    "attention_window", "logit_softcap", "relative_attention_num_buckets", "relative_attention_max_distance", "num_labels",
    "image_size", "patch_size", "num_channels", "initializer_range", "ngram_size", "ngram_buckets", "conv_size",
    "phrase_buckets",
)  # fmt: skip
LAYER_COUNTS = ("num_encoder_layers", "num_decoder_layers")  # they decide the shape
NOT_NEGATIVE = ("num_token_types", "position_offset", "phrase_size")
PROBABILITIES = ("dropout", "attention_dropout", "activation_dropout", "token_dropout", "layer_drop", "label_smoothing")
SPECIAL_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "unk_token_id", "mask_token_id", "decoder_start_token_id")
DERIVED = ("d_k", "d_v", "head_dim")  # d_model / num_heads or head_width, never passed
ROPE_KEYS = ("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor")
# Constructor arguments that transformers handles itself although they are not fields.
TRANSFORMERS_KEYS = {
    "attn_implementation", "experts_implementation", "output_attentions", "dtype", "torch_dtype", "num_labels", "name_or_path",
    "_name_or_path", "per_layer_config", "auto_map", "quantization_config", "model_type", "_commit_hash",
    "gradient_checkpointing", "tie_last_hidden_states",
}  # fmt: skip
LAYER_TYPES = ("full_attention", "sliding_attention")  # transformers' names
LONG_SEQUENCE = 2048  # attention needs memory in proportion to the square of the length


def one_sentence_errors(config_class):
    """Turns the type errors of `@strict` into a ValueError that says what was expected, in one sentence."""
    strict_setattr, strict_validate = config_class.__setattr__, config_class.validate

    def __setattr__(self, name: str, value: Any) -> None:
        name = config_class.attribute_map.get(name, name)  # the check knows fields by their own name only
        try:
            strict_setattr(self, name, value)
            if name in LAYER_COUNTS and hasattr(self, "num_decoder_layers"):
                strict_setattr(self, "is_encoder_decoder", self.shape == "encoder-decoder")
        except StrictDataclassFieldValidationError as error:
            expected = config_class.__annotations__.get(name, config_class.__dataclass_fields__[name].type)
            expected = getattr(expected, "__name__", str(expected))
            raise ValueError(f"{name}={value!r} is of type {type(value).__name__}: pass a value of type {expected}.") from error

    def validate(self) -> None:
        try:
            strict_validate(self)
        except StrictDataclassClassValidationError as error:
            raise ValueError(str(error.__cause__)) from error
        except KeyError as error:  # transformers' way to say what a RoPE scaling lacks
            raise ValueError(f"{error.args[0]}: add it, or choose another rope_type.") from error

    config_class.__setattr__, config_class.validate = __setattr__, validate
    return config_class


@one_sentence_errors
@strict
class GlassformerConfig(PreTrainedConfig):
    """
    Sizes and choices of a glassformer model.

    >>> GlassformerConfig()                                            # encoder-decoder, base size of the paper
    >>> GlassformerConfig(num_decoder_layers=0)                        # encoder
    >>> GlassformerConfig(num_encoder_layers=0)                        # decoder
    >>> GlassformerConfig(num_decoder_layers=0, image_size=224)        # encoder of pictures
    >>> GlassformerConfig.from_preset("tiny", position_encoding="rope")

    Args, beside those that the comments below explain:
        rope_parameters (`dict`): with `position_encoding="rope"`, transformers' own RoPE parameters (`rope_theta`,
            `rope_type`, `factor`, `partial_rotary_factor`, ...), one set of them or, with `layer_types`, one for each type.
        layer_types (`list[str]`): of an encoder, what each of its layers sees: "sliding_attention" for the tokens within
            `attention_window`, "full_attention" for all. Without it, all layers are alike.
        num_labels (`int`): classes of a classification head, or 1 for regression.
    """

    model_type = "glassformer"
    _auto_class = "AutoConfig"  # its code is saved beside the weights
    keys_to_ignore_at_inference = ["past_key_values"]
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_key_value_heads": "num_kv_heads",
        "head_dim": "d_k",
        "intermediate_size": "d_ff",
        "encoder_layers": "num_encoder_layers",
        "decoder_layers": "num_decoder_layers",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_eps",
        "rms_norm_eps": "norm_eps",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "layerdrop": "layer_drop",
        "sliding_window": "attention_window",
        "type_vocab_size": "num_token_types",
        "final_logit_softcapping": "logit_softcap",
    }

    # Sizes
    vocab_size: int = 37000
    d_model: int = 512  # width of every layer
    num_heads: int = 8
    num_kv_heads: int | None = None  # key/value heads shared by groups of query heads; None: one each, 1: multi-query
    head_width: int | None = None  # of one head; None: d_model / num_heads
    d_ff: int = 2048  # inner width of the feed-forward network
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    max_position_embeddings: int = 512  # a hard limit for learned positions only; for pictures: 1 + the number of patches

    # Pictures; an encoder that reads them has no vocabulary, whatever is said about tokens below and above
    image_size: int | None = None  # their height and width; None: it reads text
    patch_size: int = 16  # height and width of the squares that they are cut into
    num_channels: int = 3

    # Layers
    norm: str = "layernorm"
    # "pre": x + sublayer(norm(x)), and a final norm; "post", as in the paper: norm(x + sublayer(x)); "parallel", as in GPT-NeoX:
    # pre-norm, where all sub-layers of a layer read its input, x + attention(norm(x)) + feed_forward(norm(x))
    norm_position: str = "pre"
    norm_eps: float | int = 1e-6
    norm_bias: bool = True  # of layer norms; RMS norms have none
    first_norm: bool = True  # False: none before the first attention, as in ModernBERT, where the embedding norm takes its place
    activation: str = "relu"
    gated_feed_forward: bool = False  # activation(x W_gate) * (x W_up): ReGLU, GEGLU or SwiGLU, after the activation
    attention_bias: bool = True
    attention_out_bias: bool | None = None  # of the output projection alone; None: as attention_bias
    scale_attention: bool = True  # divide scores by sqrt(d_k), which T5 does not
    feed_forward_bias: bool = True
    qk_norm: bool = False  # normalise queries and keys, head by head
    attention_window: int | None = None  # see only tokens less than this many positions away
    pruned_heads: dict[str, list[int]] | None = None  # {"encoder.0": [1, 3]}: without these; kinds are encoder, decoder, cross

    # Positions
    position_encoding: str = "sinusoidal"
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    position_offset: int = 0  # rows of a learned table before that of position 0, which BART and RoBERTa leave unused

    # Embeddings and output
    scale_embedding: bool = True  # multiply embeddings by sqrt(d_model)
    num_token_types: int = 0  # an embedding for each `token_type_ids` of an encoder, added to that of the token; BERT has two
    ngram_size: int = 1  # beside each token, embed the pair, triple, ... of up to this many ids that ends with it; 1: do not;
    # for an encoder, since a decoder that generates sees one token at a time
    ngram_buckets: int = 2**17  # rows that n-grams are hashed into; those that meet in one share it
    conv_size: int = 1  # tokens side by side that a convolution makes one of, before the layers of an encoder; 1: none; odd
    embedding_norm: bool = False  # normalise the sum of token and position embedding, as BERT and BART do
    tie_word_embeddings: bool = True  # False: source embedding, target embedding and output are three matrices
    embedding_tying: str = "three-way"  # which of the three are one matrix; "target-output" and "source-target" tie two
    output_transform: str = "none"  # before the output: "scale" by d_model^-0.5 (T5), "dense" layer, activation, norm (BERT)
    output_bias: bool = False  # added to the logits
    logit_softcap: float | int | None = None  # squeeze the final logits into (-cap, cap) with tanh
    pooling: str | None = None  # of classification heads; None: "mean" for an encoder, "first" for pictures, "last" for a decoder
    classifier_activation: str | None = None  # a dense layer with this activation before the classifier; BERT: "tanh"
    classifier_norm: bool = False  # normalise what comes out of that dense layer, as ModernBERT does
    classifier_bias: bool = True
    dense_bias: bool = True  # of the dense layer before the output or the classifier
    phrase_size: int = 0  # words, pairs, triples, ... of up to this many ids vote on a text's class beside the model; 0: none
    phrase_buckets: int = 2**20  # rows for phrases, of which each has one to itself or none

    # Before training
    # Standard deviation of all weights, 0.02 in BERT; None: Xavier's for matrices, d_model^-0.5 for embeddings
    initializer_range: float | None = None

    # Regularisation
    dropout: float | int = 0.1  # on embeddings and on the output of every sub-layer
    attention_dropout: float | int = 0.0  # on attention weights
    activation_dropout: float | int = 0.0  # inside the feed-forward network
    token_dropout: float | int = 0.0  # on the embeddings of whole tokens, and on the votes of whole phrases
    layer_drop: float | int = 0.0  # stochastic depth: the chance that an example skips a layer while training
    label_smoothing: float | int = 0.0  # while training only

    # Special tokens; decoder_start_token_id None: bos_token_id
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    unk_token_id: int | None = 3
    mask_token_id: int | None = None
    decoder_start_token_id: int | None = None

    use_cache: bool = True

    def __post_init__(self, **kwargs):
        self._refuse_unknown(kwargs)
        if (layer_types := kwargs.pop("layer_types", None)) is not None:
            # Set here and not a field: transformers takes the mere presence of the name for "layers differ".
            self.layer_types = self._checked_layer_types(layer_types)
        if self.position_encoding == "rope":
            # No field either: the presence of this name means "this model is rotary".
            self.rope_parameters = self._checked_rope_parameters(kwargs.pop("rope_parameters", None))
        elif given := [key for key in ROPE_KEYS if kwargs.get(key) is not None]:
            raise ValueError(
                f'{given[0]} has no meaning with position_encoding="{self.position_encoding}": drop it or set '
                f'position_encoding="rope".'
            )
        self._check_num_labels(kwargs.get("num_labels"))

        depth = kwargs.pop("num_hidden_layers", None)
        super().__post_init__(**kwargs)  # alternative names reach their fields in here
        if depth is not None:  # after the layer counts, which say whose depth this is
            self.num_hidden_layers = depth

        if self.num_kv_heads is None:
            self.num_kv_heads = self.num_heads
        if self.pooling is None:
            self.pooling = "last" if self.shape == "decoder" else "mean" if self.image_size is None else "first"
        self.is_encoder_decoder = self.shape == "encoder-decoder"  # whatever was passed
        if self.is_encoder_decoder and self.decoder_start_token_id is None:
            self.decoder_start_token_id = self.bos_token_id
        self.validate_glassformer()
        if self.image_size is not None:
            self.max_position_embeddings = 1 + self.num_patches
        self._warn_about_doubtful_values()

    # What follows from the fields

    @property
    def shape(self) -> str:
        """`"encoder-decoder"`, `"encoder"` or `"decoder"`."""
        if self.num_encoder_layers and self.num_decoder_layers:
            return "encoder-decoder"
        return "encoder" if self.num_encoder_layers else "decoder"

    @property
    def d_k(self) -> int:
        """Width of one head."""
        return self.head_width or self.d_model // self.num_heads

    def type_of_layer(self, layer_idx: int) -> str:
        """Of the encoder: "full_attention" or "sliding_attention"."""
        if hasattr(self, "layer_types"):
            return self.layer_types[layer_idx]
        return LAYER_TYPES[self.attention_window is not None]

    def window_of(self, layer_type: str) -> int | None:
        return self.attention_window if layer_type == "sliding_attention" else None

    def rope_by_layer_type(self) -> dict[str, dict[str, Any]]:
        """`rope_parameters`, where they are given for each type of layer; else nothing."""
        parameters = getattr(self, "rope_parameters", None) or {}
        return {name: parameters[name] for name in LAYER_TYPES if name in parameters}

    @property
    def num_patches(self) -> int:
        """Of a picture; none, where text is read."""
        return (self.image_size // self.patch_size) ** 2 if self.image_size else 0

    @property
    def num_hidden_layers(self) -> int:
        """Depth of the decoder if there is one, for it is what caches are made for; else of the encoder."""
        return self.num_decoder_layers or self.num_encoder_layers

    @num_hidden_layers.setter
    def num_hidden_layers(self, depth: int) -> None:
        name = "num_decoder_layers" if self.num_decoder_layers else "num_encoder_layers"
        setattr(self, name, depth)

    @property
    def padding_idx(self) -> int | None:
        """The id whose embedding stays zero: the pad token, unless it does a second job (pad = eos is common)."""
        end = self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]
        other_jobs = [self.bos_token_id, self.unk_token_id, self.mask_token_id, self.decoder_start_token_id, *end]
        return None if self.pad_token_id in other_jobs else self.pad_token_id

    @property
    def base_model_tp_plan(self) -> dict[str, str]:
        """Tensor parallelism: split heads and feed-forward units over devices, join where the residual is added."""
        attention = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "out_proj": "rowwise"}
        feed_forward = {"up_proj": "colwise", "down_proj": "rowwise"}
        if self.gated_feed_forward:
            feed_forward["gate_proj"] = "colwise"
        stacks = {"encoder": ["self_attn"], "decoder": ["self_attn"]}
        if self.is_encoder_decoder:
            stacks["decoder"].append("cross_attn")
        plan = {}
        for stack, attentions in stacks.items():
            if stack not in self.shape:
                continue
            if self.image_size is None:
                plan[f"{stack}.embed_tokens"] = "embedding_rowwise"
            # A position bias is made for all heads at once: those heads stay together.
            if self.position_encoding not in ("alibi", "relative"):
                for name in attentions:
                    plan |= {f"{stack}.layers.*.{name}.{linear}": how for linear, how in attention.items()}
            plan |= {f"{stack}.layers.*.feed_forward.{linear}": how for linear, how in feed_forward.items()}
        return plan

    @property
    def base_model_fsdp_plan(self) -> dict[str, str]:
        """Fully sharded data parallelism: one unit a layer."""
        plan: dict[str, str] = {}
        for stack in ("encoder", "decoder"):
            if stack in self.shape:
                embedding = "embed_tokens" if self.image_size is None else "embed_patches"
                plan |= {f"{stack}.{embedding}": "free_full_weight", f"{stack}.layers.*": "free_full_weight"}
                if stack == "encoder" and self.ngram_size > 1:
                    plan["encoder.embed_ngrams"] = "free_full_weight"
                if stack == "encoder" and self.conv_size > 1:
                    plan["encoder.convolution"] = "free_full_weight"
                if self.norm_position != "post":
                    plan[f"{stack}.norm"] = "keep_full_weight"
        return plan

    def get_text_config(self, decoder=None, encoder=None) -> "GlassformerConfig":
        """One flat config: caches and `generate` read the very fields that the model reads."""
        return self

    # Loading

    @classmethod
    def from_preset(cls, name: str, **overrides) -> "GlassformerConfig":
        """A named size from `configuration/presets/`, with fields replaced at will."""
        presets = {path.stem: path for path in (Path(__file__).parent / "presets").glob("*.json")}
        if name not in presets:
            choice = ", ".join(sorted(presets)) or "none, for they come with the installed package"
            raise ValueError(f"There is no preset {name!r}: choose one of {choice}.")
        return cls(**{**json.loads(presets[name].read_text()), **overrides})

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        """As in transformers, but a config of another model is refused, and unknown keys are dropped with a warning."""
        if (model_type := config_dict.get("model_type", cls.model_type)) != cls.model_type:
            raise ValueError(
                f"This is the config of a {model_type!r} model, not of a {cls.model_type!r} one: load it with AutoConfig or "
                f"AutoModel, which pick the class that fits."
            )
        known = cls._known_keys()
        # Configs of old checkpoints may carry generation parameters, which live elsewhere now: no news to the reader.
        generation = set(GenerationConfig._get_default_generation_params())
        if dropped := sorted(key for key in config_dict if key not in known | generation):
            logger.warning(f"GlassformerConfig has no {', '.join(dropped)}: dropped.")
        overrides = {key: kwargs.pop(key) for key in list(kwargs) if key in cls._field_names()}
        stored = {key: value for key, value in config_dict.items() if key in known}
        return super().from_dict(cls._override(stored, overrides), **kwargs)

    @classmethod
    def _override(cls, stored: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
        """Stored fields, some replaced; what had been derived from the replaced ones is left to be derived again."""
        replaced = {cls.attribute_map.get(key, key) for key in overrides}
        if "num_heads" in replaced and stored.get("num_kv_heads") == stored.get("num_heads"):
            replaced.add("num_kv_heads")
        if "position_encoding" in replaced:
            replaced.add("rope_parameters")
        return {key: value for key, value in stored.items() if cls.attribute_map.get(key, key) not in replaced} | overrides

    # Checks

    @classmethod
    def _field_names(cls) -> set[str]:
        """By either name; `dtype` is transformers' own business."""
        own = {field.name for field in fields(cls)} - {"dtype"}
        return own | set(cls.attribute_map) | set(ROPE_KEYS) | {"num_hidden_layers", "layer_types"}

    @classmethod
    def _known_keys(cls) -> set[str]:
        return (cls._field_names() | TRANSFORMERS_KEYS) - set(DERIVED)

    def _refuse_unknown(self, kwargs: dict[str, Any]) -> None:
        known = self._known_keys() | {"transformers_version"}
        for name in kwargs:
            if name in DERIVED:
                raise ValueError(f"{name} cannot be passed: it is d_model / num_heads, so choose these two, or head_width.")
            if name not in known:
                nearest = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {nearest[0]}?" if nearest else "see GlassformerConfig for the fields there are."
                raise ValueError(f"GlassformerConfig has no field {name!r}: {hint}")

    @staticmethod
    def _check_num_labels(num_labels: Any) -> None:
        if num_labels is not None and not isinstance(num_labels, int):
            raise ValueError(f"num_labels={num_labels!r} is of type {type(num_labels).__name__}: pass a value of type int.")
        if num_labels is not None and num_labels < 1:
            raise ValueError(f"num_labels={num_labels} is too small: a head needs at least 1 output.")

    @staticmethod
    def _checked_rope_parameters(given: Any) -> dict[str, Any] | None:
        by_type = {name: given[name] for name in LAYER_TYPES if name in given} if isinstance(given, dict) else {}
        for name, parameters in (by_type or {"rope_parameters": given or {}}).items():
            if not isinstance(parameters, dict):
                raise ValueError(f"{name}={parameters!r} is of type {type(parameters).__name__}: pass a value of type dict.")
            kinds = ("default", *ROPE_INIT_FUNCTIONS)
            if (kind := parameters.get("rope_type", "default")) not in kinds:
                raise ValueError(f"rope_type={kind!r} is unknown: choose one of {', '.join(kinds)}.")
        return copy.deepcopy(given)  # transformers adds to it, which is no business of the caller's

    @staticmethod
    def _checked_layer_types(given: Any) -> list[str]:
        if not isinstance(given, list):
            raise ValueError(f"layer_types={given!r} is of type {type(given).__name__}: pass a value of type list[str].")
        if unknown := [name for name in given if name not in LAYER_TYPES]:
            raise ValueError(f"layer_types names {unknown[0]!r}: choose from {' and '.join(LAYER_TYPES)}.")
        return list(given)

    def validate_glassformer(self) -> None:
        for name in POSITIVE:
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name}={value} must be positive.")
        for name in LAYER_COUNTS:
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"{name}={value} must not be negative: use 0 to leave that stack out.")
        for name in NOT_NEGATIVE:
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"{name}={value} must not be negative.")
        if not self.num_encoder_layers and not self.num_decoder_layers:
            raise ValueError("num_encoder_layers=0 and num_decoder_layers=0 leave no model: give at least one stack a layer.")
        for name in PROBABILITIES:
            if not 0 <= (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}={value} is not a probability: choose a value in [0, 1).")
        for name, valid in CHOICES.items():
            if (value := getattr(self, name)) not in valid and (name, value) not in OPTIONAL:
                raise ValueError(f"{name}={value!r} is unknown: choose one of {', '.join(valid)}.")
        self._validate_layers()
        self._validate_heads()
        self._validate_pruned_heads()
        self._validate_special_ids()
        self._validate_pictures()
        self._validate_neighbours()
        if self.attention_window == 1:
            raise ValueError("attention_window=1 lets a token see itself alone: choose at least 2, or None for no window.")
        if self.shape == "decoder" and self.pooling == "first":
            raise ValueError(
                'pooling="first" is blind in a decoder, whose first token sees only itself: choose "last" or "mean".'
            )
        if self.relative_attention_num_buckets % 4 or self.relative_attention_num_buckets < 4:
            raise ValueError(
                f"relative_attention_num_buckets={self.relative_attention_num_buckets} cannot be split by direction and "
                f"distance: choose a multiple of 4."
            )
        if self.relative_attention_max_distance <= self.relative_attention_num_buckets // 2:
            raise ValueError(
                f"relative_attention_max_distance={self.relative_attention_max_distance} must be more than half of "
                f"relative_attention_num_buckets={self.relative_attention_num_buckets}."
            )

    def _validate_layers(self) -> None:
        if not self.first_norm and self.norm_position == "post":
            raise ValueError('first_norm=False has no meaning with norm_position="post", where no norm comes first: drop it.')
        if self.classifier_norm and self.classifier_activation is None:
            raise ValueError("classifier_norm=True normalises a dense layer that is not there: set classifier_activation too.")
        given, by_type = getattr(self, "layer_types", None), self.rope_by_layer_type()
        if given is not None:
            self._checked_layer_types(given)
        if by_type and (given is None or not set(given) <= set(by_type) or set(self.rope_parameters) > set(by_type)):
            raise ValueError(
                f"rope_parameters with {', '.join(self.rope_parameters)} do not fit layer_types={given}: give one set for each "
                f"type of layer that there is, or one for all."
            )
        if given is None:
            return
        if self.shape != "encoder":
            raise ValueError(f"layer_types are for an encoder alone, but the shape is {self.shape}: drop them.")
        if len(given) != self.num_encoder_layers:
            raise ValueError(
                f"layer_types has {len(given)} entries, but num_encoder_layers={self.num_encoder_layers}: give one a layer."
            )
        if ("sliding_attention" in given) != (self.attention_window is not None):
            raise ValueError(
                f"attention_window={self.attention_window} does not fit layer_types={given}: give a window if some layer has "
                f'"sliding_attention", and none if not.'
            )

    def _validate_heads(self) -> None:
        if self.head_width is None and (remainder := self.d_model % self.num_heads):
            raise ValueError(
                f"d_model={self.d_model} is not divisible by num_heads={self.num_heads} (remainder {remainder}): "
                f"change one of them so that every head has the same width, or set head_width."
            )
        if self.num_heads % (self.num_kv_heads or self.num_heads):
            raise ValueError(
                f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}: every group of query heads "
                f"shares one key/value head."
            )
        if self.position_encoding == "rope" and self.d_k % 2:
            raise ValueError(
                f"RoPE rotates pairs, but a head is {self.d_k} wide (d_model={self.d_model}, num_heads={self.num_heads}): "
                f"choose sizes that give an even width."
            )
        for parameters in self.rope_by_layer_type().values() or [getattr(self, "rope_parameters", None) or {}]:
            rotated = parameters.get("partial_rotary_factor")
            if rotated is not None and not (0 < rotated <= 1 and int(self.d_k * rotated) in range(2, self.d_k + 1, 2)):
                raise ValueError(
                    f"partial_rotary_factor={rotated} of a head {self.d_k} wide does not make pairs: choose one in (0, 1] "
                    f"that gives an even number."
                )
        if self.position_encoding == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"d_model={self.d_model} is odd, but sinusoidal positions pair a sine with a cosine: choose an even width."
            )

    def _validate_pictures(self) -> None:
        if self.image_size is None:
            return
        if self.shape != "encoder":
            raise ValueError(
                f"image_size={self.image_size} is for an encoder by itself, not for the shape {self.shape}: set "
                f"num_decoder_layers=0, or leave image_size out."
            )
        if remainder := self.image_size % self.patch_size:
            raise ValueError(
                f"image_size={self.image_size} is not divisible by patch_size={self.patch_size} (remainder {remainder}): change "
                f"one of them so that patches cover the picture."
            )

    def _validate_neighbours(self) -> None:
        for name in ("ngram_size", "conv_size"):
            size = getattr(self, name)
            if size > 1 and self.shape == "decoder":
                raise ValueError(
                    f"{name}={size} is for an encoder, but the shape is decoder, which generates one token at a time: leave it "
                    f"out, or give the encoder layers."
                )
            if size > 1 and self.image_size is not None:
                raise ValueError(
                    f"{name}={size} joins tokens, but image_size={self.image_size} makes an encoder of pictures: leave one of "
                    f"them out."
                )
        if self.phrase_size and self.image_size is not None:
            raise ValueError(
                f"phrase_size={self.phrase_size} is about words, but image_size={self.image_size} makes an encoder of pictures: "
                f"leave one of them out."
            )
        if self.conv_size % 2 == 0:
            size = self.conv_size
            raise ValueError(f"conv_size={size} has no token in its middle: choose {size + 1}, or 1 for no convolution.")

    def _validate_pruned_heads(self) -> None:
        layers = {"encoder": self.num_encoder_layers, "decoder": self.num_decoder_layers}
        layers["cross"] = self.num_decoder_layers if self.num_encoder_layers else 0
        places = {f"{kind}.{layer}" for kind, count in layers.items() for layer in range(count)}
        for place, heads in (self.pruned_heads or {}).items():
            if place not in places:
                raise ValueError(f"pruned_heads names {place!r}, which is not there: choose from {', '.join(sorted(places))}.")
            if not set(heads) < set(range(self.num_heads)):
                raise ValueError(f"pruned_heads takes {heads} of {place!r}: take some of 0 to {self.num_heads - 1}, not all.")

    def _validate_special_ids(self) -> None:
        for name in SPECIAL_IDS:
            value = getattr(self, name)
            for token_id in value if isinstance(value, list) else [value]:
                if token_id is not None and not 0 <= token_id < self.vocab_size:
                    raise ValueError(
                        f"{name}={token_id} is outside the vocabulary of {self.vocab_size} tokens: pass an id from 0 to "
                        f"{self.vocab_size - 1}, or None."
                    )

    def _warn_about_doubtful_values(self) -> None:
        by_id: dict[int, list[str]] = {}
        for name in SPECIAL_IDS[:-1]:  # decoding often starts with one of the others
            value = getattr(self, name)
            for token_id in value if isinstance(value, list) else [value]:
                if token_id is not None:
                    by_id.setdefault(token_id, []).append(name)
        for token_id, names in by_id.items():
            if len(names) > 1:
                warnings.warn(f"{' and '.join(names)} are the same id {token_id}.", stacklevel=5)
        if self.max_position_embeddings > LONG_SEQUENCE:
            warnings.warn(
                f"max_position_embeddings={self.max_position_embeddings} is long: attention needs memory in proportion to "
                f"the square of the length.",
                stacklevel=5,
            )


__all__ = ["GlassformerConfig"]
