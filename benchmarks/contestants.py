# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Who competes in what: sizes of the cases, and for each kind of model a table of contestants, name -> builder.

A builder makes a model of the given sizes, ready to train, and the function that computes its loss on a batch. All have the same
dropout as far as they have it: on embeddings and on the output of every sub-layer, none on attention weights. All tie their
embeddings. To enter another contestant, add a line to a table.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


OURS = "glassformer"
FIRST_WORD = 10  # ids below are left to special tokens
POSITIONS = 128  # that encoder-decoders are made for; sentences are shorter

Batch = dict[str, Tensor]
Trainee = tuple[nn.Module, Callable[[Batch], Tensor]]  # a model, and its loss


@dataclass(frozen=True)
class Sizes:
    """Of a model, and of the batches that it is given."""

    vocab_size: int
    d_model: int
    num_heads: int
    d_ff: int
    encoder_layers: int
    decoder_layers: int
    batch: int
    length: int


@dataclass(frozen=True)
class Case:
    kind: str  # a key of CONTESTANTS
    size: str  # "small" or "base"
    sizes: Sizes


CASES = {
    "encoder-decoder small": Case("encoder-decoder", "small", Sizes(8192, 256, 8, 1024, 3, 3, batch=64, length=24)),
    "encoder-decoder base": Case("encoder-decoder", "base", Sizes(37000, 512, 8, 2048, 6, 6, batch=32, length=32)),
    "decoder like Llama": Case("llama-like", "small", Sizes(8192, 384, 6, 1024, 0, 6, batch=8, length=256)),
    "decoder like GPT-2": Case("gpt2-like", "small", Sizes(8192, 384, 6, 1536, 0, 6, batch=8, length=256)),
    "encoder classifier": Case("encoder", "small", Sizes(8192, 256, 8, 1024, 4, 0, batch=16, length=256)),
}
NOTES = {
    "Llama": "Llama has no dropout but on attention weights, so it never drops anything here.",
    "ModernBERT": "ModernBERT has no dropout on the output of its feed-forward network, attends to a window of 128 in all but "
    "every third layer, and has two thirds of the inner width, for it is gated and would have more parameters.",
    "x-transformers": "x-transformers learns from one token less of each target.",
}  # fmt: skip


def build(kind: str, name: str, sizes: Sizes, dropout: float = 0.0, device: str = "cpu", seed: int = 0) -> Trainee:
    torch.manual_seed(seed)
    model, loss = CONTESTANTS[kind][name](sizes, dropout)
    return model.to(device).train(), loss


def loss_of(model: nn.Module, **options: Any) -> Trainee:
    """For models that are given a batch by names and return their loss as transformers' do."""
    return model, lambda batch: model(**batch, **options).loss


# Batches


def make_batch(kind: str, sizes: Sizes, device: str = "cpu", seed: int = 0) -> Batch:
    """Random ids without padding, but for the classifier."""
    return to_device(random_batch(kind, sizes, seed), device)


def to_device(batch: Batch, device: str) -> Batch:
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def random_batch(kind: str, sizes: Sizes, seed: int) -> Batch:
    rng = torch.Generator().manual_seed(seed)

    def ids() -> Tensor:
        return torch.randint(FIRST_WORD, sizes.vocab_size, (sizes.batch, sizes.length), generator=rng)

    if kind == "encoder-decoder":
        return {"input_ids": ids(), "labels": ids()}
    if kind == "encoder":
        mask = torch.arange(sizes.length) < torch.tensor(uneven_lengths(sizes))[:, None]
        return {
            "input_ids": ids() * mask,
            "attention_mask": mask.long(),
            "labels": torch.randint(2, (sizes.batch,), generator=rng),
        }
    tokens = ids()
    return {"input_ids": tokens, "labels": tokens}


def uneven_lengths(sizes: Sizes) -> list[int]:
    """From half of the length to all of it, evenly spread and shuffled: a quarter of the batch is padding."""
    lengths = np.linspace(sizes.length // 2, sizes.length, sizes.batch).round().astype(int)
    return np.random.default_rng(0).permutation(lengths).tolist()


# Ours


def our_config(kind: str, sizes: Sizes, dropout: float = 0.0, **overrides: Any):
    from glassformer import GlassformerConfig

    return GlassformerConfig(
        vocab_size=sizes.vocab_size, d_model=sizes.d_model, num_heads=sizes.num_heads, d_ff=sizes.d_ff,
        num_encoder_layers=sizes.encoder_layers, num_decoder_layers=sizes.decoder_layers, dropout=dropout,
        max_position_embeddings=POSITIONS if kind == "encoder-decoder" else sizes.length,
        **{**OUR_SETTINGS[kind], **overrides},
    )  # fmt: skip


OUR_SETTINGS: dict[str, dict[str, Any]] = {
    "encoder-decoder": {"norm_position": "post"},
    "llama-like": {
        "norm": "rmsnorm", "position_encoding": "rope", "activation": "silu", "gated_feed_forward": True,
        "attention_bias": False, "feed_forward_bias": False, "scale_embedding": False,
    },
    "gpt2-like": {"position_encoding": "learned", "activation": "gelu_new", "scale_embedding": False},
    "encoder": {
        "norm_position": "post", "position_encoding": "learned", "activation": "gelu", "scale_embedding": False,
        "embedding_norm": True, "pooling": "first", "num_labels": 2,
    },
}  # fmt: skip
OUR_HEADS = {
    "encoder-decoder": "GlassformerForConditionalGeneration",
    "llama-like": "GlassformerForCausalLM",
    "gpt2-like": "GlassformerForCausalLM",
    "encoder": "GlassformerForSequenceClassification",
}


def our_head(kind: str) -> type:
    import glassformer

    return getattr(glassformer, OUR_HEADS[kind])


def glassformer(kind: str) -> Callable[[Sizes, float], Trainee]:
    """Asked for the loss and not for the logits, as our training does."""
    options = {} if kind == "encoder" else {"return_logits": False}
    return lambda sizes, dropout: loss_of(our_head(kind)(our_config(kind, sizes, dropout)), **options)


# Encoder-decoders


def marian_model(sizes: Sizes, dropout: float = 0.0) -> nn.Module:
    from transformers import MarianConfig, MarianMTModel

    pad = sizes.vocab_size - 1
    return MarianMTModel(
        MarianConfig(
            vocab_size=sizes.vocab_size, pad_token_id=pad, decoder_start_token_id=pad, activation_function="relu",
            scale_embedding=True, max_position_embeddings=POSITIONS, **bart_sizes(sizes, dropout),
        )
    )  # fmt: skip


def bart_model(sizes: Sizes, dropout: float = 0.0) -> nn.Module:
    from transformers import BartConfig, BartForConditionalGeneration

    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=sizes.vocab_size, activation_function="relu", max_position_embeddings=POSITIONS,
            **bart_sizes(sizes, dropout),
        )
    )  # fmt: skip


def bart_sizes(sizes: Sizes, dropout: float) -> dict[str, Any]:
    return {
        "d_model": sizes.d_model, "dropout": dropout, "attention_dropout": 0.0, "activation_dropout": 0.0,
        "encoder_layers": sizes.encoder_layers, "decoder_layers": sizes.decoder_layers,
        "encoder_ffn_dim": sizes.d_ff, "decoder_ffn_dim": sizes.d_ff,
        "encoder_attention_heads": sizes.num_heads, "decoder_attention_heads": sizes.num_heads,
    }  # fmt: skip


def t5(sizes: Sizes, dropout: float) -> Trainee:
    from transformers import T5Config, T5ForConditionalGeneration
    from transformers.models.t5.modeling_t5 import T5Attention, T5DenseActDense

    config = T5Config(
        vocab_size=sizes.vocab_size, d_model=sizes.d_model, d_kv=sizes.d_model // sizes.num_heads, d_ff=sizes.d_ff,
        num_layers=sizes.encoder_layers, num_decoder_layers=sizes.decoder_layers, num_heads=sizes.num_heads,
        dropout_rate=dropout, feed_forward_proj="relu", decoder_start_token_id=0, tie_word_embeddings=True,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    for module in model.modules():  # T5 drops attention weights and inner activations as well: the others do not
        if isinstance(module, T5Attention):
            module.dropout = 0.0
        elif isinstance(module, T5DenseActDense):
            module.dropout.p = 0.0
    return loss_of(model)


def torch_transformer(sizes: Sizes, dropout: float) -> Trainee:
    from .peers import TorchTransformer

    layers = (sizes.encoder_layers, sizes.decoder_layers)
    model = TorchTransformer(sizes.vocab_size, sizes.d_model, sizes.num_heads, sizes.d_ff, layers, dropout)
    return model, lambda batch: model(**batch)


def x_transformer(sizes: Sizes, dropout: float) -> Trainee:
    from x_transformers import XTransformer

    stack = {
        "num_tokens": sizes.vocab_size, "max_seq_len": POSITIONS, "heads": sizes.num_heads, "attn_flash": True,
        "attn_dim_head": sizes.d_model // sizes.num_heads, "ff_mult": sizes.d_ff / sizes.d_model,
        "ff_custom_activation": nn.ReLU(), "emb_dropout": dropout, "attn_sublayer_dropout": dropout,
        "ff_sublayer_dropout": dropout,
    }  # fmt: skip
    model = XTransformer(
        dim=sizes.d_model, tie_token_emb=True, enc_depth=sizes.encoder_layers, dec_depth=sizes.decoder_layers,
        **{f"{side}_{key}": copy.deepcopy(value) for side in ("enc", "dec") for key, value in stack.items()},
    )  # fmt: skip
    model.decoder.net.to_logits.weight = model.encoder.token_emb.emb.weight  # which has no option
    return model, lambda batch: model(batch["input_ids"], batch["labels"])


# Decoders


def llama(sizes: Sizes, dropout: float) -> Trainee:
    from transformers import LlamaConfig, LlamaForCausalLM

    return loss_of(
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=sizes.vocab_size, hidden_size=sizes.d_model, intermediate_size=sizes.d_ff,
                num_hidden_layers=sizes.decoder_layers, num_attention_heads=sizes.num_heads,
                max_position_embeddings=sizes.length, tie_word_embeddings=True, use_cache=False,
            )
        )
    )  # fmt: skip


def gpt2(sizes: Sizes, dropout: float) -> Trainee:
    from transformers import GPT2Config, GPT2LMHeadModel

    return loss_of(
        GPT2LMHeadModel(
            GPT2Config(
                vocab_size=sizes.vocab_size, n_positions=sizes.length, n_embd=sizes.d_model, n_inner=sizes.d_ff,
                n_layer=sizes.decoder_layers, n_head=sizes.num_heads, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=0.0,
                bos_token_id=1, eos_token_id=2, use_cache=False,
            )
        )
    )  # fmt: skip


def small_gpt(sizes: Sizes, dropout: float) -> Trainee:
    from .peers import SmallGPT

    model = SmallGPT(
        sizes.vocab_size, sizes.d_model, sizes.num_heads, sizes.d_ff, sizes.decoder_layers, sizes.length, dropout
    )  # fmt: skip
    return model, lambda batch: model(**batch)


# Encoders


def bert(sizes: Sizes, dropout: float) -> Trainee:
    from transformers import BertConfig, BertForSequenceClassification

    return loss_of(
        BertForSequenceClassification(
            BertConfig(
                vocab_size=sizes.vocab_size, hidden_size=sizes.d_model, num_hidden_layers=sizes.encoder_layers,
                num_attention_heads=sizes.num_heads, intermediate_size=sizes.d_ff, hidden_dropout_prob=dropout,
                attention_probs_dropout_prob=0.0, max_position_embeddings=sizes.length, num_labels=2,
            )
        )
    )  # fmt: skip


def modern_bert(sizes: Sizes, dropout: float) -> Trainee:
    from transformers import ModernBertConfig, ModernBertForSequenceClassification

    config = ModernBertConfig(
        vocab_size=sizes.vocab_size, hidden_size=sizes.d_model, num_hidden_layers=sizes.encoder_layers,
        num_attention_heads=sizes.num_heads, intermediate_size=round(sizes.d_ff * 2 / 3 / 8) * 8, embedding_dropout=dropout,
        classifier_dropout=dropout, max_position_embeddings=sizes.length, num_labels=2, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, cls_token_id=1, sep_token_id=2, attn_implementation="sdpa",
    )  # fmt: skip
    model = ModernBertForSequenceClassification(config)
    for layer in model.model.layers:  # its option would drop attention weights too
        layer.attn.out_drop = nn.Dropout(dropout)
    return loss_of(model)


def torch_encoder(sizes: Sizes, dropout: float) -> Trainee:
    from .peers import TorchEncoderClassifier

    model = TorchEncoderClassifier(
        sizes.vocab_size, sizes.d_model, sizes.num_heads, sizes.d_ff, sizes.encoder_layers, sizes.length, dropout
    )  # fmt: skip
    return model, lambda batch: model(**batch)


CONTESTANTS: dict[str, dict[str, Callable[[Sizes, float], Trainee]]] = {
    "encoder-decoder": {
        OURS: glassformer("encoder-decoder"),
        "Marian": lambda sizes, dropout: loss_of(marian_model(sizes, dropout)),
        "BART": lambda sizes, dropout: loss_of(bart_model(sizes, dropout)),
        "T5": t5,
        "nn.Transformer": torch_transformer,
        "x-transformers": x_transformer,
    },
    "llama-like": {OURS: glassformer("llama-like"), "Llama": llama},
    "gpt2-like": {OURS: glassformer("gpt2-like"), "GPT-2": gpt2, "nanoGPT": small_gpt},
    "encoder": {
        OURS: glassformer("encoder"),
        "BERT": bert,
        "ModernBERT": modern_bert,
        "nn.TransformerEncoder": torch_encoder,
    },
}
