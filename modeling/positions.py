# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""How the model knows the order of tokens.

Two kinds are added to the embeddings: `SinusoidalPositionEncoding` (section 3.5 of https://arxiv.org/abs/1706.03762) and
`LearnedPositionEncoding`. Three act inside attention: `RotaryPositionEncoding` turns queries and keys
(https://arxiv.org/abs/2104.09864), `AlibiBias` (https://arxiv.org/abs/2108.12409) and `RelativePositionBias`
(https://arxiv.org/abs/1910.10683) are added to the scores.
"""

import copy
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update
from transformers.utils.import_utils import is_tracing

from .checks import check_width


# B batch, H heads, T queries (target), S keys (source), D model width, K width of one head


# Added to the embeddings


class SinusoidalPositionEncoding(nn.Module):
    """x + PE with PE[pos, 2i] = sin(pos / 10000^(2i/D)) and PE[pos, 2i+1] = cos(pos / 10000^(2i/D)).

    Computed for the positions at hand rather than stored: there is no longest sequence, nothing to save with the model, and
    no precision to lose in a half-precision copy.
    """

    def __init__(self, d_model: int):
        super().__init__()
        if d_model % 2:
            raise ValueError(f"d_model={d_model} is odd, but a sine goes with a cosine: choose an even width.")
        self.d_model = d_model

    def forward(self, x: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """x [B, T, D], position_ids [B or 1, T], by default 0, 1, 2, ..."""
        check_width("SinusoidalPositionEncoding", x, self.d_model)
        if position_ids is None:
            position_ids = torch.arange(x.shape[1], device=x.device)[None]
        # In double precision, or the angles of far positions are rounded before their sine is taken; Apple's GPUs have none.
        precise = torch.float32 if x.device.type == "mps" else torch.float64
        even = torch.arange(0, self.d_model, 2, dtype=precise, device=x.device)
        angles = position_ids[..., None] * 10000 ** (-even / self.d_model)  # [B, T, D/2]
        encoding = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)  # sine and cosine take turns
        return x + encoding.to(x.dtype)


class LearnedPositionEncoding(nn.Embedding):
    """x + table[pos]: one trained vector a position, up to a fixed number of them.

    With an `offset`, the table has that many rows more, before the row of position 0.
    """

    def __init__(self, d_model: int, max_positions: int, offset: int = 0):
        super().__init__(max_positions + offset, d_model)
        self.max_positions, self.offset = max_positions, offset
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(self, x: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """x [B, T, D], position_ids [B or 1, T], by default 0, 1, 2, ..."""
        check_width("LearnedPositionEncoding", x, self.embedding_dim)
        if position_ids is None:
            position_ids = torch.arange(x.shape[1], device=x.device)[None]
        low, high = (0, 0) if is_tracing(position_ids) or position_ids.is_meta else position_ids.aminmax()
        if low < 0 or high >= self.max_positions:
            raise ValueError(
                f"Position {int(low if low < 0 else high)} does not exist, for {self.max_positions} positions were learned "
                f"(0 to {self.max_positions - 1}): shorten the sequence, or train with a larger max_position_embeddings or "
                f"another position_encoding."
            )
        return x + super().forward(position_ids + self.offset if self.offset else position_ids)


# Inside attention: rotation


class Float32Buffers(nn.Module):
    """Buffers that go where the model goes but stay in float32: rounded, they would misplace far positions."""

    def _apply(self, fn, recurse: bool = True):
        precise = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, buffer in precise.items():
            if not buffer.is_meta:
                setattr(self, name, buffer.to(getattr(self, name).device))
        return self


class RotaryPositionEncoding(Float32Buffers):
    """Cosines and sines by which `rotate` turns a query or key: position p turns pair i by p / base^(2i/K).

    The score of a rotated query and key then depends on their distance alone. Base and scaling are transformers'
    `rope_parameters`, its attribute names included.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.rope_type = config.rope_parameters["rope_type"]
        self.max_seq_len_cached = self.original_max_seq_len = config.max_position_embeddings
        frequencies, self.attention_scaling = self.compute_frequencies()
        self.inv_freq = nn.Buffer(frequencies, persistent=False)
        self.original_inv_freq = nn.Buffer(frequencies.clone(), persistent=False)

    def compute_frequencies(self) -> tuple[Tensor, float]:
        """Turns per position for each pair [K/2], and a factor for the result (1 unless the scaling asks for another)."""
        if self.rope_type != "default":
            return ROPE_INIT_FUNCTIONS[self.rope_type](self.config)
        width = int(self.config.d_k * self.config.rope_parameters.get("partial_rotary_factor", 1.0))
        even = torch.arange(0, width, 2, dtype=torch.float32)
        # Written as in transformers, whose models are ours to the last bit: rounding grows with the position.
        return 1.0 / self.config.rope_parameters["rope_theta"] ** (even / width), 1.0

    def build_buffers(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every buffer with its value: loading a checkpoint starts from empty memory."""
        frequencies, _ = self.compute_frequencies()
        yield self.inv_freq, frequencies
        yield self.original_inv_freq, frequencies

    @torch.no_grad()
    @dynamic_rope_update  # some scalings depend on the length seen
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """x is asked for its dtype; position_ids [B or 1, T] -> cosine and sine, each [B or 1, T, K]."""
        angles = position_ids[..., None].float() * self.inv_freq.float()
        angles = torch.cat((angles, angles), dim=-1)  # the pair of i is i + K/2
        cos, sin = angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


class RotaryByLayerType(nn.ModuleDict):
    """A `RotaryPositionEncoding` for each type of layer, by name: layers that see far may turn slower."""

    def __init__(self, config):
        super().__init__()
        for kind in sorted(set(config.layer_types)):
            own = copy.copy(config)
            own.rope_parameters = config.rope_parameters[kind]  # where transformers looks for one set of them
            self[kind] = RotaryPositionEncoding(own)

    def forward(self, x: Tensor, position_ids: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        return {kind: rotary(x, position_ids) for kind, rotary in self.items()}


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs (x[i], x[i + K/2]) of x [B, H, T, K] by the angles of `RotaryPositionEncoding`."""
    cos, sin = cos[:, None], sin[:, None]  # the same for all heads
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]  # the rest is empty unless rotation is partial
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


# Inside attention: a bias on the scores


class AlibiBias(Float32Buffers):
    """bias[h, t, s] = -slope[h] * |t - s|: the further away, the lower the score, each head with its own slope."""

    def __init__(self, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.slopes = nn.Buffer(self.compute_slopes(), persistent=False)

    def compute_slopes(self) -> Tensor:
        """2^(-8/n), 2^(-16/n), ... for n heads; n that is no power of two borrows between those of the next power."""
        power = 2 ** math.floor(math.log2(self.num_heads))
        slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
        between = [2 ** (-4 * (head + 1) / power) for head in range(0, 2 * power, 2)]
        return torch.tensor(slopes + between[: self.num_heads - power])

    def build_buffers(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every buffer with its value: loading a checkpoint starts from empty memory."""
        yield self.slopes, self.compute_slopes()

    def forward(self, query_positions: Tensor, key_positions: Tensor | None = None) -> Tensor:
        """Positions [T] and [S], or a row for each example -> [B or 1, H, T, S]"""
        distance = key_distance(query_positions, key_positions)
        return -self.slopes[:, None, None] * distance[:, None].abs()


class RelativePositionBias(nn.Module):
    """bias[h, t, s] = table[bucket(s - t), h], T5's way: near distances have a bucket each, far ones share, log-spaced.

    An encoder gives half of the buckets to each direction; a decoder, which only looks back, all of them to the past.
    """

    def __init__(self, num_heads: int, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True):
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.table = nn.Embedding(num_buckets, num_heads)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of each distance (key position minus query position)."""
        num_buckets, offset = self.num_buckets, torch.zeros_like(distance)
        if self.bidirectional:
            num_buckets //= 2
            offset = (distance > 0).long() * num_buckets
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        exact = num_buckets // 2
        # Beyond `exact`, buckets grow by a constant factor up to max_distance.
        ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = exact + (ratio * (num_buckets - exact)).long()
        return offset + torch.where(distance < exact, distance, far.clamp(max=num_buckets - 1))

    def forward(self, query_positions: Tensor, key_positions: Tensor | None = None) -> Tensor:
        """Positions [T] and [S], or a row for each example -> [B or 1, H, T, S]"""
        distance = key_distance(query_positions, key_positions)
        return self.table(self.bucket(distance)).permute(0, 3, 1, 2)  # [B, T, S, H] -> [B, H, T, S]


def key_distance(query_positions: Tensor, key_positions: Tensor | None) -> Tensor:
    """Position of each key minus position of each query: [B or 1, T, S]."""
    key_positions = query_positions if key_positions is None else key_positions
    return torch.atleast_2d(key_positions)[:, None, :] - torch.atleast_2d(query_positions)[:, :, None]
