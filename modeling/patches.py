# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Pictures to vectors (https://arxiv.org/abs/2010.11929): to an encoder, patches of a picture are what tokens of a text are."""

import torch
from torch import Tensor, nn

from .checks import check_pixel_values


# B batch, C channels, P side of a patch, N patches, D model width


class PatchEmbedding(nn.Module):
    """[class; x_1 W + b; ...; x_N W + b]: a learned vector, which gathers what a classifier reads, and then the patches.

    Patches go row by row, and the pixels of each channel by channel.
    """

    def __init__(self, d_model: int, image_size: int, patch_size: int, num_channels: int = 3):
        super().__init__()
        self.image_size, self.patch_size, self.num_channels = image_size, patch_size, num_channels
        self.projection = nn.Linear(num_channels * patch_size**2, d_model)
        self.class_token = nn.Parameter(torch.empty(1, 1, d_model))
        nn.init.normal_(self.class_token, std=d_model**-0.5)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, 1 + N, D]"""
        check_pixel_values(pixel_values, self.image_size, self.num_channels)
        # Image processors know nothing of the precision that a model was loaded in.
        patches = self.projection(cut(pixel_values, self.patch_size).to(self.class_token.dtype))
        # Not `len`, which a trace takes for a constant.
        return torch.cat((self.class_token.expand(patches.shape[0], -1, -1), patches), dim=1)


def cut(pixel_values: Tensor, size: int) -> Tensor:
    """[B, C, H, W] -> [B, N, C * P * P]"""
    squares = pixel_values.unflatten(3, (-1, size)).unflatten(2, (-1, size))  # [B, C, H/P, P, W/P, P]
    return squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
