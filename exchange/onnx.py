# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""ONNX: the graphs of a model for ONNX Runtime, which runs them without torch."""

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from .graphs import TOLERANCE, Graph, JoinedAttention, export_graphs, flatten


# B batch, H heads, G key/value heads, T queries, S keys, K width of a head

OPSET = 23  # the first that has attention as one operation
ROUNDED = ["Conv", "Gather", "MatMul"]  # and not attention, for there is an older operation of this name that could be


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    position_bias: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """Attention as one operation of the graph: [B, H, T, K], keys and values [B, G, S, K] -> [B, T, H, K]."""
    bias = additive(mask, position_bias, query.shape[2], query.dtype)
    return torch.onnx.ops.attention(query, key, value, bias, scale=scaling)[0].transpose(1, 2), None


def additive(mask: Tensor | None, bias: Tensor | None, queries: int, dtype: torch.dtype) -> Tensor | None:
    """A mask and a bias as what is added to scores, [B or 1, H or 1, T, S]."""
    if mask is None:
        return bias
    if mask.shape[2] != queries:
        mask = mask.expand(-1, -1, queries, -1)  # ONNX Runtime does not repeat it for all queries
    hidden = torch.where(mask, 0.0, torch.finfo(dtype).min)
    return hidden if bias is None else bias + hidden


class SideBySide(nn.Module):
    """Self-attention, and what it adds to the past, as one operation whose heads lie side by side from beginning to end."""

    def __init__(self, joined: JoinedAttention):
        super().__init__()
        self.joined, self.d_model = joined, joined.d_model

    def forward(
        self, x: Tensor, mask: Tensor | None, position_bias: Tensor | None, rotary: Any, past_key_values: Any, **kwargs
    ) -> tuple[Tensor, Tensor | None]:
        joined, attention = self.joined, self.joined.attention
        if rotary is not None or attention.pruned is not None or not isinstance(attention.q_norm, nn.Identity):
            return joined(x, mask, position_bias, rotary, past_key_values, **kwargs)  # something is done to heads by themselves
        past = getattr(past_key_values, "self_attention_cache", past_key_values).layers[attention.layer_idx]
        q, k, v = joined.product(x).split([heads * joined.d_k for heads in joined.sizes], dim=-1)
        output, past.keys, past.values, _ = torch.onnx.ops.attention(
            q, k, v, additive(mask, position_bias, x.shape[1], x.dtype), past.keys, past.values,
            scale=attention.scaling, q_num_heads=joined.sizes[0], kv_num_heads=joined.sizes[1],
        )  # fmt: skip
        return attention.out_proj(output), None


OPERATION = "operation"
AttentionInterface.register(OPERATION, attention_forward)
AttentionMaskInterface.register(OPERATION, sdpa_mask)


def export_onnx(folder: str | Path, output: str | Path, int8: bool = False) -> dict[str, float]:
    """Write the model of a folder as ONNX -> for each graph, how far its outputs are from torch's on inputs of other sizes.

    In float32 a graph that is further away than `TOLERANCE` is not written; with `int8`, the weights of matrix products are
    rounded to eight bits, and the difference is what that costs.
    """
    check_packages()

    def write(graph: Graph, path: Path) -> None:
        if int8:
            separate_output_layer(graph.model)
        program = trace(graph)
        (round_weights(program) if int8 else program).save(path)

    return export_graphs(folder, output, ".onnx", write, tolerance=math.inf if int8 else TOLERANCE)


def check_packages() -> None:
    for package in ("onnx", "onnxruntime", "onnxscript"):
        if find_spec(package) is None:
            raise ImportError(f'ONNX needs the package {package}: pip install "glassformer[onnx]".')


def trace(graph: Graph) -> Any:
    sample = graph.trace_sample()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it would miss torchvision
    with torch.no_grad(), warnings.catch_warnings(), attention_as_operations(graph.model):
        warnings.filterwarnings("ignore", "# The axis name", UserWarning)  # that several inputs share an axis is as it should be
        return torch.onnx.export(
            graph, kwargs=sample, dynamo=True, dynamic_shapes=graph.axes, verbose=False, opset_version=OPSET,
            input_names=list(flatten(sample)), output_names=list(graph(**sample)),
        )  # fmt: skip


@contextlib.contextmanager
def attention_as_operations(model: PreTrainedModel) -> Iterator[None]:
    """While a graph is traced: what is written will be compared with the model as it was."""
    usual = model.config._attn_implementation
    layers: list[Any] = [module for module in model.modules() if isinstance(getattr(module, "self_attn", None), JoinedAttention)]
    model.set_attn_implementation(OPERATION)
    for layer in layers:
        layer.self_attn = SideBySide(layer.self_attn)
    yield
    for layer in layers:
        layer.self_attn = layer.self_attn.joined
    model.set_attn_implementation(usual)


def separate_output_layer(model: PreTrainedModel) -> None:
    """Weights that are looked up in one place and multiplied with in another would be rounded for the first alone."""
    head: Any = model.get_output_embeddings()
    if head is not None:
        head.weight = nn.Parameter(head.weight.detach().clone())


def round_weights(program: Any) -> Any:
    from transformers.exporters.configs import ExportFormat
    from transformers.exporters.quantizers import OnnxRuntimeDynamicConfig, OnnxRuntimeQuantizer

    # Weights of seven bits: processors without VNNI add pairs of products in sixteen, which eight could overflow.
    quantizer = OnnxRuntimeQuantizer(OnnxRuntimeDynamicConfig(per_channel=True, reduce_range=True, op_types_to_quantize=ROUNDED))
    logging.disable(logging.WARNING)  # it would recommend for every graph to prepare it in its own way
    try:
        program.model = quantizer.quantize(program.model, {}, ExportFormat.ONNX)
    finally:
        logging.disable(logging.NOTSET)
    return program
