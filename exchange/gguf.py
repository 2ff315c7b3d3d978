# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""GGUF: a model in the layout of Llama, with its tokenizer, as the one file that llama.cpp reads.

llama.cpp cuts texts by rules of its own, of which one is that of byte_bpe: other tokenizers are refused. Weights stay in float32;
llama.cpp's own `llama-quantize` makes everything smaller from there.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, LlamaForCausalLM

import glassformer

from .convert import choose_family, load_our_config, load_weights, to_native
from .folders import load_reader, new_folder
from .graphs import TOLERANCE


FILE = "model.gguf"


def export_gguf(folder: str | Path, output: str | Path) -> dict[str, float]:
    """Write `model.gguf` -> how far the logits of what transformers reads from it are from the model's."""
    if find_spec("gguf") is None:
        raise ImportError('GGUF needs the package gguf: pip install "glassformer[gguf]".')
    config = load_our_config(folder)
    if (head := config.architectures[0]) != "GlassformerForCausalLM":
        raise ValueError(f"{folder} holds a {head}: as GGUF there can be language models, a GlassformerForCausalLM.")
    family = choose_family(config, head, "llama")
    check_tokenizer(folder)
    with new_folder(Path(output)) as draft:
        model = load_weights(glassformer.GlassformerForCausalLM, folder)
        native: Any = to_native(model.float().eval(), family, release=False)
        check_rope(native.config)
        write(native, load_reader(AutoTokenizer, "tokenizer", folder), draft / FILE)
        difference = compare(model, draft)
    return {FILE: difference}


def check_tokenizer(folder: str | Path) -> None:
    path = Path(folder, "tokenizer.json")
    if not path.exists():
        raise FileNotFoundError(f"{folder} has no tokenizer.json, without which llama.cpp reads no text: put one there.")
    parts = json.loads(path.read_text(encoding="utf-8"))
    cut = parts["pre_tokenizer"] or {}
    as_gpt2 = cut.get("type") == "ByteLevel" and cut.get("use_regex", True) and not cut["add_prefix_space"]
    if parts["model"]["type"] != "BPE" or not as_gpt2 or parts["normalizer"] is not None:
        raise ValueError(
            f"llama.cpp cannot cut texts as the tokenizer of {folder} does: train one of kind byte_bpe, not lowercased."
        )


def check_rope(config: Any) -> None:
    if (kind := config.rope_parameters["rope_type"]) != "default":
        raise ValueError(f"Rotary positions of type {kind} cannot be written as GGUF yet: only those without scaling can.")


def write(native: Any, tokenizer: Any, path: Path) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    add_sizes(writer, native.config)
    add_vocabulary(writer, tokenizer, native.config.vocab_size)
    add_weights(writer, native)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_sizes(writer: Any, config: Any) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def add_vocabulary(writer: Any, tokenizer: Any, size: int) -> None:
    from gguf import TokenType

    tokens = [f"[unused {index}]" for index in range(size)]
    kinds = [TokenType.UNUSED] * size
    for token, index in tokenizer.get_vocab().items():
        tokens[index], kinds[index] = token, TokenType.NORMAL
    for index in tokenizer.all_special_ids:
        kinds[index] = TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")  # how byte_bpe cuts a text into words
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    if tokenizer.bos_token_id is not None:
        writer.add_bos_token_id(tokenizer.bos_token_id)
    if tokenizer.eos_token_id is not None:
        writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(tokenizer.bos_token_id in tokenizer("").input_ids)
    writer.add_add_eos_token(False)  # what is to be continued has no end, as in `glassformer predict`


def add_weights(writer: Any, native: Any) -> None:
    from gguf import MODEL_ARCH, get_tensor_name_map

    names = get_tensor_name_map(MODEL_ARCH.LLAMA, native.config.num_hidden_layers)
    heads = {"q_proj": native.config.num_attention_heads, "k_proj": native.config.num_key_value_heads}
    for name, weight in native.state_dict().items():
        if name in native.all_tied_weights_keys:
            continue
        for part, count in heads.items():
            if f".{part}." in name:
                weight = interleave(weight, count)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), weight.numpy())


def interleave(weight: Tensor, heads: int) -> Tensor:
    """llama.cpp rotates neighbours, transformers the two halves of a head: rows in the order 0, K/2, 1, K/2 + 1, ..."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2).contiguous()


@torch.no_grad()
def compare(model: Any, folder: Path) -> float:
    back = LlamaForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32).eval()
    ids = torch.randint(model.config.vocab_size, (2, 9))
    mask = torch.ones_like(ids)
    difference = float((model(ids, attention_mask=mask).logits - back(ids, attention_mask=mask).logits).abs().max())
    if not difference <= TOLERANCE:
        raise RuntimeError(f"{FILE} differs from the model by {difference:.2g}, more than {TOLERANCE:g}: nothing was written.")
    return difference
