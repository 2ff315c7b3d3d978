# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""ONNX: the graphs of a model for ONNX Runtime, which runs them without torch."""

import logging
import math
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from .graphs import TOLERANCE, Graph, export_graphs, flatten


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
    if mask is not None:
        mask = mask.expand(-1, -1, query.shape[2], -1)  # ONNX Runtime does not repeat it for all queries
        hidden = torch.where(mask, 0.0, torch.finfo(query.dtype).min)
        position_bias = hidden if position_bias is None else position_bias + hidden
    return torch.onnx.ops.attention(query, key, value, position_bias, scale=scaling)[0].transpose(1, 2), None


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
    sample, usual = graph.trace_sample(), graph.model.config._attn_implementation
    graph.model.set_attn_implementation(OPERATION)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it would miss torchvision
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "# The axis name", UserWarning)  # that several inputs share an axis is as it should be
        program = torch.onnx.export(
            graph, kwargs=sample, dynamo=True, dynamic_shapes=graph.axes, verbose=False, opset_version=OPSET,
            input_names=list(flatten(sample)), output_names=list(graph(**sample)),
        )  # fmt: skip
    graph.model.set_attn_implementation(usual)  # what is written will be compared with
    return program


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
