"""Position encodings: what the papers say they compute."""

import math

import pytest
import torch
from models import B, D, H, K, T, tiny_config
from torch.testing import assert_close

from glassformer import (
    AlibiBias,
    LearnedPositionEncoding,
    RelativePositionBias,
    RotaryPositionEncoding,
    SinusoidalPositionEncoding,
    rotate,
)


def test_sinusoids_of_width_four():
    encoding = SinusoidalPositionEncoding(4)(torch.zeros(1, 2, 4))[0]
    assert_close(encoding, torch.tensor([[0, 1, 0, 1], [0.841471, 0.540302, 0.010000, 0.999950]]), atol=1e-6, rtol=0)


def test_even_places_are_sines_and_odd_places_cosines():
    encoding = SinusoidalPositionEncoding(D)(torch.zeros(1, 600, D))[0]
    for position in (0, 1, 7, 599):
        for place in range(0, D, 2):
            angle = position / 10000 ** (place / D)
            assert encoding[position, place] == pytest.approx(math.sin(angle), abs=2e-5)
            assert encoding[position, place + 1] == pytest.approx(math.cos(angle), abs=2e-5)
    assert torch.cdist(encoding, encoding).fill_diagonal_(1).min() > 0.01  # no two positions alike
    assert not list(SinusoidalPositionEncoding(D).parameters())


def test_sinusoids_of_far_positions_are_rounded_once():
    positions = torch.tensor([[1_000, 77_777, 1_000_000]])
    precise = SinusoidalPositionEncoding(D)(torch.zeros(1, 3, D, dtype=torch.float64), positions)
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(SinusoidalPositionEncoding(D)(torch.zeros(1, 3, D, dtype=dtype), positions), precise.to(dtype))
    angles = positions[0, :, None].double() / 10000 ** (torch.arange(0, D, 2).double() / D)
    assert_close(precise[0, :, ::2], angles.sin(), atol=1e-9, rtol=0)


def test_positions_can_be_given():
    x, positions = torch.randn(B, T, D), torch.tensor([[3, 4, 5, 6, 7], [0, 1, 0, 1, 2]])
    for encode in (SinusoidalPositionEncoding(D), LearnedPositionEncoding(D, 9)):
        table = encode(torch.zeros(1, 8, D))[0]
        assert_close(encode(x, positions), x + table[positions])
        assert_close(encode(x), x + table[:T])


def test_learned_positions_end_somewhere():
    encode = LearnedPositionEncoding(D, 5)
    encode(torch.zeros(1, 5, D))
    with pytest.raises(ValueError, match="Position 5 does not exist, for 5 positions were learned"):
        encode(torch.zeros(1, 6, D))


def test_sinusoids_refuse_an_odd_width():
    with pytest.raises(ValueError, match="d_model=5 is odd"):
        SinusoidalPositionEncoding(5)


# RoPE


def rope(**parameters) -> RotaryPositionEncoding:
    return RotaryPositionEncoding(tiny_config("decoder", position_encoding="rope", rope_parameters=parameters))


def test_rotation_turns_pairs_by_position_over_frequency():
    positions, x = torch.tensor([[0, 1, 5]]), torch.randn(1, 1, 3, K)
    rotated = rotate(x, *rope(rope_theta=100.0)(x, positions))
    for t, position in enumerate(positions[0].tolist()):
        for pair in range(K // 2):
            angle = position / 100 ** (2 * pair / K)
            turned = complex(x[0, 0, t, pair], x[0, 0, t, pair + K // 2]) * complex(math.cos(angle), math.sin(angle))
            assert rotated[0, 0, t, pair] == pytest.approx(turned.real, abs=1e-5)
            assert rotated[0, 0, t, pair + K // 2] == pytest.approx(turned.imag, abs=1e-5)


def test_scores_of_rotated_vectors_depend_on_distance_alone():
    encode, query, key = rope(), torch.randn(1, 1, 1, K), torch.randn(1, 1, 1, K)

    def score(query_position: int, key_position: int) -> torch.Tensor:
        q = rotate(query, *encode(query, torch.tensor([[query_position]])))
        k = rotate(key, *encode(key, torch.tensor([[key_position]])))
        return (q * k).sum()

    assert_close(score(7, 3), score(104, 100), atol=1e-4, rtol=1e-4)
    assert not torch.isclose(score(7, 3), score(3, 7))


def test_partial_rotation_leaves_the_rest_alone():
    encode, x = rope(partial_rotary_factor=1 / 3), torch.randn(1, 1, 4, K)
    rotated = rotate(x, *encode(x, torch.arange(4)[None]))
    assert torch.equal(rotated[..., 2:], x[..., 2:])
    assert not torch.allclose(rotated[..., 1:, :2], x[..., 1:, :2])


def test_linear_scaling_stretches_positions():
    x, positions = torch.zeros(1, 1, 1, K), torch.tensor([[12]])
    plain, stretched = rope(), rope(rope_type="linear", factor=4.0)
    assert_close(stretched(x, positions), plain(x, positions // 4))


# Biases


def test_alibi_falls_with_distance_by_a_slope_per_head():
    bias = AlibiBias(8)(torch.arange(5))
    assert bias.shape == (1, 8, 5, 5)
    for head in range(8):
        for query in range(5):
            for key in range(5):
                assert bias[0, head, query, key] == pytest.approx(-(2.0 ** -(head + 1)) * abs(query - key))


def test_alibi_slopes_of_heads_that_are_no_power_of_two():
    """As in the authors' code: those of the nearest smaller power, then every other one of the next."""
    assert_close(AlibiBias(6).slopes, torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_buckets_are_those_of_t5(bidirectional):
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-200, 201)
    ours = RelativePositionBias(H, 32, 128, bidirectional).bucket(distance)
    assert torch.equal(ours, T5Attention._relative_position_bucket(distance, bidirectional, 32, 128))


@pytest.mark.parametrize("make", [AlibiBias, RelativePositionBias])
def test_biases_of_cached_keys_are_rows_of_the_whole(make):
    bias = make(H)
    whole = bias(torch.arange(9))
    assert_close(bias(torch.arange(7, 9), torch.arange(9)), whole[:, :, 7:])
    assert_close(bias(torch.arange(7, 9), torch.arange(4, 9)), whole[:, :, 7:, 4:])
    rows = torch.tensor([[0, 1, 2], [4, 5, 8]])
    assert_close(bias(rows)[1], whole[0][:, rows[1]][:, :, rows[1]])


def test_rotation_is_as_exact_in_a_half_precision_model():
    """1000 turns of a rounded frequency would be far off."""
    x, positions = torch.zeros(1, 1, 1, K), torch.tensor([[1001]])
    assert_close(rope().half()(x, positions), rope()(x, positions))
    assert_close(rope().bfloat16()(x, positions), rope()(x, positions))


def test_sinusoids_are_exact_in_float64():
    encoding = SinusoidalPositionEncoding(4)(torch.zeros(1, 5000, 4, dtype=torch.float64))[0]
    assert encoding[4999, 2] == pytest.approx(math.sin(4999 / 100), abs=1e-12)


def test_slopes_are_as_exact_in_a_half_precision_model():
    positions = torch.arange(300)
    assert_close(AlibiBias(6).bfloat16()(positions), AlibiBias(6)(positions))
