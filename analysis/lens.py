# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Our models in TransformerLens (https://github.com/TransformerLensOrg/TransformerLens), under the names its users know.

TransformerLens finds `GlassformerAdapter` by the entry points in setup.cfg. Our own modules go on computing everything: the
adapter says which of them is the embedding, the norm, the attention. Attention runs on the textbook formula with a hook at every
step, so that scores and patterns can be changed as well as seen.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformer_lens.conversion_utils.conversion_steps import RearrangeTensorConversion
from transformer_lens.conversion_utils.param_processing_conversion import ParamProcessingConversion
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import (
    AttentionBridge,
    BlockBridge,
    EmbeddingBridge,
    GatedMLPBridge,
    LinearBridge,
    MLPBridge,
    NormalizationBridge,
    PosEmbedBridge,
    UnembeddingBridge,
)
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


# B batch, H heads, T queries, S keys, D model width, K width of a head

HOOKED = "glassformer_lens"  # the name under which transformers finds `hooked_attention`
# Names of the config's choices in TransformerLens
NORMS = {"layernorm": "LN", "rmsnorm": "RMS", "rmsnorm1p": "RMS"}
POSITIONS = {
    "sinusoidal": "standard",
    "learned": "standard",
    "rope": "rotary",
    "alibi": "alibi",
    "relative": "relative_positional_bias",
    "none": "none",
}


class GlassformerAdapter(ArchitectureAdapter):
    """Which of our modules is what: decided when the model is there, for its config says which modules it has."""

    def prepare_model(self, hf_model: PreTrainedModel) -> None:
        config = hf_model.config
        self.describe(config)
        self.component_mapping = self.map_components(config)
        ALL_ATTENTION_FUNCTIONS.register(HOOKED, hooked_attention)
        ALL_MASK_ATTENTION_FUNCTIONS.register(HOOKED, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
        hf_model.set_attn_implementation(HOOKED)

    def describe(self, config: Any) -> None:
        """The config in TransformerLens' words."""
        self.cfg.normalization_type = NORMS[config.norm]
        self.cfg.uses_rms_norm = self.cfg.final_rms = NORMS[config.norm] == "RMS"
        self.cfg.positional_embedding_type = POSITIONS[config.position_encoding]
        self.cfg.gated_mlp = config.gated_feed_forward
        self.cfg.attn_only = False
        self.cfg.output_logits_soft_cap = config.logit_softcap or -1.0
        if config.shape == "encoder":
            self.cfg.attention_dir = "bidirectional"
        self.say_what_can_be_folded(config)
        self.supports_generation = config.shape != "encoder"
        self.supports_causal_loss = config.shape == "decoder"

    def say_what_can_be_folded(self, config: Any) -> None:
        """What `enable_compatibility_mode` may rewrite into equal weights.

        It counts on one stack, on a norm before every product that reads the residual stream and, to centre what is written
        to it, on positions that are a matrix or none, on tokens alone and on nothing between them and the layers.
        """
        one_stack = not config.is_encoder_decoder
        table_or_none = config.position_encoding not in ("sinusoidal", "relative")
        before_products = config.norm_position == "pre" and config.first_norm and config.output_transform != "dense"
        self.supports_fold_ln = one_stack and before_products and config.norm != "rmsnorm1p"
        tokens_alone = config.ngram_size == config.conv_size == 1
        self.supports_center_writing_weights = self.supports_fold_ln and table_or_none and tokens_alone
        self.weight_processing_conversions = self.split_into_heads(config) if one_stack else {}

    def split_into_heads(self, config: Any) -> dict[str, ParamProcessingConversion]:
        """How each projection is written with an axis of heads."""
        rules = {"o.weight": ("D (H K) -> H K D", config.num_heads)}
        for name, heads in {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}.items():
            rules |= {f"{name}.weight": ("(H K) D -> H D K", heads), f"{name}.bias": ("(H K) -> H K", heads)}
        return {
            f"blocks.{{i}}.attn.{name}": ParamProcessingConversion(RearrangeTensorConversion(pattern, H=heads))
            for name, (pattern, heads) in rules.items()
        }

    def map_components(self, config: Any) -> dict[str, GeneralizedComponent]:
        """Names of TransformerLens -> our modules. Of two stacks, all but the source's embedding say whose they are."""
        if not config.is_encoder_decoder:
            parts = self.map_stack(config, config.shape)
        else:
            encoder, decoder = (self.map_stack(config, stack) for stack in ("encoder", "decoder"))
            parts = {name if "embed" in name else f"encoder_{name}": part for name, part in encoder.items()}
            parts |= {f"decoder_{name}": part for name, part in decoder.items()}
        return parts | {"unembed": UnembeddingBridge(name="lm_head")}

    def map_stack(self, config: Any, stack: str) -> dict[str, GeneralizedComponent]:
        path = f"model.{stack}"
        parts: dict[str, GeneralizedComponent] = {"embed": EmbeddingBridge(name=f"{path}.embed_tokens")}
        if config.position_encoding in ("sinusoidal", "learned"):
            parts["pos_embed"] = AddedPositions(name=f"{path}.positions", config=self.cfg)
        if config.embedding_norm:
            parts["embed_ln"] = self.norm(f"{path}.embedding_norm")
        parts["blocks"] = self.map_layer(config, f"{path}.layers", crosses=config.is_encoder_decoder and stack == "decoder")
        if config.norm_position != "post":
            parts["ln_final"] = self.norm(f"{path}.norm")
        return parts

    def map_layer(self, config: Any, path: str, crosses: bool) -> BlockBridge:
        attention = "self_attn" if crosses else "attn"
        parts = {attention: self.attention("self_attn"), "ln1": self.norm("self_attn_norm")}
        if crosses:
            parts |= {"cross_attn": self.attention("cross_attn"), "ln2": self.norm("cross_attn_norm")}
        parts["ln3" if crosses else "ln2"] = self.norm("feed_forward_norm")
        parts["mlp"] = self.feed_forward(config)
        aliases = {}
        if config.norm_position == "post":  # where a norm comes last, what it puts out is what goes on
            aliases["hook_resid_mid"] = "ln1.hook_out"
        if crosses:
            hooks = {"hook_attn_in": "hook_attn_in", "hook_attn_out": "hook_out"}
            hooks |= {f"hook_{x}_input": f"hook_{x}_input" for x in "qkv"}
            aliases |= {alias: f"self_attn.{hook}" for alias, hook in hooks.items()}
        block = BlockBridge(name=path, submodules=parts, hook_alias_overrides=aliases)
        block.mlp_reads_resid_directly = crosses or config.norm_position == "post"  # ln2 is not the norm before the network
        return block

    def attention(self, path: str) -> AttentionBridge:
        names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
        parts = {name: LinearBridge(name=module) for name, module in names.items()}
        return HookedAttention(name=path, config=self.cfg, submodules=parts, is_cross_attention=path == "cross_attn")

    def feed_forward(self, config: Any) -> MLPBridge:
        parts = {"in": LinearBridge(name="up_proj"), "out": LinearBridge(name="down_proj")}
        if not config.gated_feed_forward:
            return MLPBridge(name="feed_forward", config=self.cfg, submodules=parts)
        return GatedMLPBridge(name="feed_forward", config=self.cfg, submodules=parts | {"gate": LinearBridge(name="gate_proj")})

    def norm(self, path: str) -> NormalizationBridge:
        return NormalizationBridge(name=path, config=self.cfg, use_native_layernorm_autograd=True)


class AddedPositions(PosEmbedBridge):
    """Our encodings add themselves to the embeddings; TransformerLens looks at what is added."""

    @property
    def W_pos(self) -> Tensor:
        """What is added at each position that the config foresees: [positions, D]"""
        x = torch.zeros(1, self.config.n_ctx, self.config.d_model, dtype=self.config.dtype, device=self.config.device)
        return self.original_component(x)[0]

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return x + self.hook_out(self.original_component(torch.zeros_like(x), self.hook_in(position_ids)))


class HookedAttention(AttentionBridge):
    """Hands its hooks to `hooked_attention`, which our module calls in the place of a kernel."""

    def forward(self, query: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        output, weights = self.original_component(self.hook_in(query), *args, hooks=self, **kwargs)
        return self.hook_out(output), weights


def hooked_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    hooks: HookedAttention,
    scaling: float,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """`scaled_dot_product_attention` step by step, each result through its hook: [B, H, T, K] -> [B, T, H, K], weights."""
    if hasattr(hooks, "hook_rot_q") and not hooks.is_cross_attention:  # across sequences nothing is rotated
        query, key = hooks.hook_rot_q(query), hooks.hook_rot_k(key)
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = (query * scaling) @ key.transpose(-2, -1)  # [B, H, T, S]
    if position_bias is not None:
        scores = scores + position_bias
    hidden = torch.zeros_like(scores, dtype=torch.bool)
    if attention_mask is not None:  # additive: the least number hides
        scores = scores + attention_mask
        hidden = (attention_mask <= torch.finfo(scores.dtype).min / 2).expand_as(scores)
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    weights = hooks.hook_attn_scores(scores).softmax(dim=-1).masked_fill(hidden, 0.0)
    weights = hooks.hook_pattern(weights)
    return (F.dropout(weights, dropout) @ value).transpose(1, 2), weights
