# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Token ids to vectors (section 3.4 of https://arxiv.org/abs/1706.03762)."""

import math

from torch import Tensor, nn

from .checks import check_token_ids


class TokenEmbedding(nn.Embedding):
    """embedding[id] * sqrt(d_model); the row of the pad token is zero and gets no gradient.

    The rows have variance 1 / d_model, which suits the output layer that shares them; the factor brings the input to
    variance 1.
    """

    def __init__(self, vocab_size: int, d_model: int, pad_token_id: int | None = 0, scale: bool = True):
        super().__init__(vocab_size, d_model, padding_idx=pad_token_id)
        self.scale = math.sqrt(d_model) if scale else 1.0
        nn.init.normal_(self.weight, std=d_model**-0.5)
        self._fill_padding_idx_with_zero()

    def forward(self, input_ids: Tensor) -> Tensor:
        check_token_ids(input_ids, self.num_embeddings)
        return super().forward(input_ids) * self.scale  # [B, T] -> [B, T, D]
