# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Reshapes that transformers' own conversion operations do not have."""

from typing import Any

import torch
from transformers.core_model_loading import ConversionOps


class HeadsApart(ConversionOps):
    """Rows in the order (head, query or key or value, width) -> (query or key or value, head, width), and back."""

    def __init__(self, inverse: bool = False):
        self.inverse = inverse

    @torch.no_grad()
    def convert(self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], config=None, **kwargs):
        ((name, tensor),) = input_dict.items()
        tensor = tensor[0] if isinstance(tensor, list) else tensor
        groups = (3, config.num_attention_heads) if self.inverse else (config.num_attention_heads, 3)
        return {name: tensor.unflatten(0, (*groups, -1)).transpose(0, 1).flatten(0, 2)}

    @property
    def reverse_op(self) -> ConversionOps:
        return HeadsApart(not self.inverse)


class FlatPatches(ConversionOps):
    """The kernel of a convolution [D, C, P, P] -> the matrix of a product with flat patches [D, C * P * P], and back."""

    dim = 1

    def __init__(self, inverse: bool = False):
        self.inverse = inverse

    @torch.no_grad()
    def convert(self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], config=None, **kwargs):
        ((tensor,),) = input_dict.values()
        kernel = (config.num_channels, config.patch_size, config.patch_size)
        return {target_patterns[0]: tensor.unflatten(1, kernel) if self.inverse else tensor.flatten(1)}

    @property
    def reverse_op(self) -> ConversionOps:
        return FlatPatches(not self.inverse)


class Row(ConversionOps):
    """[1, N, ...] -> [N, ...], and back."""

    def __init__(self, inverse: bool = False):
        self.inverse = inverse

    @torch.no_grad()
    def convert(self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs):
        ((tensor,),) = input_dict.values()
        return {target_patterns[0]: tensor[None] if self.inverse else tensor[0]}

    @property
    def reverse_op(self) -> ConversionOps:
        return Row(not self.inverse)
