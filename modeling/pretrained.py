# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The base class of all models: what transformers needs to know, how weights begin, how a folder is saved and loaded."""

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_utils import PreTrainedModel

from .configuration_glassformer import AUTO_MAP, GlassformerConfig
from .embeddings import NgramEmbedding, OutputProjection
from .masking import padding_mask
from .norms import RMSNorm, RMSNorm1p
from .packed_linear import Int8Linear
from .patches import PatchEmbedding
from .phrases import NOBODY, PhraseVotes
from .positions import AlibiBias, RotaryPositionEncoding


class GlassformerPreTrainedModel(PreTrainedModel):
    """Base class. A subclass names in `shapes` the shapes of config that it can be built from, and in `reads` the one kind of
    input that it is for, "text" or "pictures"."""

    config_class = GlassformerConfig
    base_model_prefix = "model"
    shapes: tuple[str, ...] = ("encoder-decoder", "encoder", "decoder")
    reads: str | None = None

    supports_gradient_checkpointing = True
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def __init__(self, config, *args, **kwargs):
        if getattr(config, "model_type", None) != GlassformerConfig.model_type:
            raise ValueError(f"{type(self).__name__} is built from a GlassformerConfig, not from a {type(config).__name__}.")
        if config.shape not in self.shapes:
            both = "encoder-decoder" in self.shapes
            cure = "set both counts above 0" if both else f"give layers to the {' or the '.join(self.shapes)} alone"
            raise ValueError(
                f"{type(self).__name__} needs the shape {' or '.join(self.shapes)}, but num_encoder_layers="
                f"{config.num_encoder_layers} and num_decoder_layers={config.num_decoder_layers} make the shape "
                f"{config.shape}: {cure}."
            )
        reads = "text" if config.image_size is None else "pictures"
        if self.reads not in (None, reads):
            cure = "leave image_size out" if reads == "pictures" else "set image_size to their height and width"
            raise ValueError(
                f"{type(self).__name__} reads {self.reads}, but image_size={config.image_size} makes a model that reads {reads}: "
                f"{cure}."
            )
        if reads == "pictures":
            self.main_input_name, self.input_modalities = "pixel_values", ("image",)
        # Flash kernels take no bias on the scores.
        self._supports_flash_attn = config.position_encoding not in ("alibi", "relative")
        super().__init__(config, *args, **kwargs)

    def token_mask(self, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
        """The mask that was given or, for ids with a pad token of their own, one that hides it."""
        if attention_mask is None and input_ids is not None and self.config.padding_idx is not None:
            return padding_mask(input_ids, self.config.padding_idx)
        return attention_mask

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Xavier for linear layers, d_model^-0.5 for embeddings, zero for biases, for the pad token, n-grams and phrases.

        An `initializer_range` takes the place of the first two.
        """
        std = self.config.initializer_range
        if isinstance(module, nn.Linear):
            if isinstance(module, OutputProjection):  # small logits: the loss starts at log(vocab_size)
                init.normal_(module.weight, std=std or 1 / self.config.d_model)
            else:
                init.xavier_uniform_(module.weight) if std is None else init.normal_(module.weight, std=std)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, NgramEmbedding):
            init.zeros_(module.weight)
        elif isinstance(module, PhraseVotes):
            init.zeros_(module.weight)
            init.constant_(module.owners, NOBODY)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=std or self.config.d_model**-0.5)
            # A slice does not carry the mark by which `init` spares loaded weights.
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, PatchEmbedding):
            init.normal_(module.class_token, std=std or self.config.d_model**-0.5)
        elif isinstance(module, (nn.LayerNorm, RMSNorm)):
            init.zeros_(module.weight) if isinstance(module, RMSNorm1p) else init.ones_(module.weight)
            if getattr(module, "bias", None) is not None:
                init.zeros_(module.bias)
        elif isinstance(module, (AlibiBias, RotaryPositionEncoding)):
            for buffer, value in module.build_buffers():
                init.copy_(buffer, value)

    def _resize_token_embeddings(self, new_num_tokens, pad_to_multiple_of=None, mean_resizing=True) -> nn.Module:
        """One vocabulary, so a target table that is not the source table grows or shrinks with it."""
        embeddings = super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        if self.config.is_encoder_decoder:
            decoder, size = self.get_decoder(), embeddings.num_embeddings
            decoder.embed_tokens = self._get_resized_embeddings(decoder.embed_tokens, size, mean_resizing=mean_resizing)
        return embeddings

    def save_pretrained(self, save_directory, *args, **kwargs) -> None:
        """As in transformers; the code goes along, and the config names every head in it."""
        if any(isinstance(module, Int8Linear) for module in self.modules()):
            raise ValueError("A model with eight-bit layers cannot be saved: save it before quantize_int8, and round it again.")
        self.config.auto_map = dict(AUTO_MAP)
        super().save_pretrained(save_directory, *args, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """As in transformers; a damaged weights file is named."""
        try:
            return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        except SafetensorError as error:
            raise ValueError(
                f"The weights in {pretrained_model_name_or_path} are damaged or cut off ({error}): copy or download "
                f"the .safetensors files again."
            ) from error
