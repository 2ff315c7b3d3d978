# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""From the weights of each layer to how much of an input token reaches an output (https://aclanthology.org/2020.acl-main.385).

A layer adds what it attends to, to what it was given: half of its output is taken to come from there, half to be passed on.
Rollout multiplies these matrices. Flow takes their entries for the widths of pipes and asks how much can run from an output to
an input, which does not fade with depth as products do.
"""

from collections.abc import Sequence

import networkx
import torch
from torch import Tensor


# H heads, T tokens


def passed_on(weights: Tensor) -> Tensor:
    """The mean of the heads [H, T, T], and what the residual connection hands on: [T, T], rows sum to 1."""
    return (weights.mean(0) + torch.eye(weights.shape[-1])) / 2


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """Weights [H, T, T] of all layers, the first one first -> [T, T]: outputs against inputs, rows sum to 1."""
    total = torch.eye(layers[0].shape[-1])
    for weights in layers:
        total = passed_on(weights) @ total
    return total


def flow(layers: Sequence[Tensor], tokens: Sequence[int] | None = None) -> Tensor:
    """The most that can flow from each of these outputs, or from all, to every input: [tokens, T], rows scaled to sum to 1."""
    length = layers[0].shape[-1]
    network = networkx.DiGraph()
    for layer, weights in enumerate(layers):
        for query, row in enumerate(passed_on(weights).tolist()):
            network.add_edges_from(
                ((layer + 1, query), (layer, key), {"capacity": width}) for key, width in enumerate(row) if width > 0
            )
    network.add_nodes_from((0, key) for key in range(length))
    asked = range(length) if tokens is None else tokens
    flows = torch.tensor(
        [[networkx.maximum_flow_value(network, (len(layers), query), (0, key)) for key in range(length)] for query in asked]
    )
    return flows / flows.sum(-1, keepdim=True)
