"""The attention formula and the heads around it."""

import math
import warnings

import pytest
import torch
from models import VARIANTS, B, D, H, K, S, T, tiny_language_model
from torch.testing import assert_close

from glassformer import MultiHeadAttention, attention, causal_mask, padding_mask, scaled_dot_product_attention


def heads(length: int, width: int = K) -> torch.Tensor:
    return torch.randn(B, H, length, width)


def test_weights_are_a_distribution_over_keys_and_the_output_is_their_mean_of_values():
    query, key, value = heads(T), heads(S), heads(S, K + 1)
    output, weights = scaled_dot_product_attention(query, key, value)
    assert output.shape == (B, H, T, K + 1) and weights.shape == (B, H, T, S)
    for b, h, t in torch.cartesian_prod(torch.arange(B), torch.arange(H), torch.arange(T)).tolist():
        scores = [float(query[b, h, t] @ key[b, h, s]) / math.sqrt(K) for s in range(S)]
        total = sum(math.exp(score) for score in scores)
        expected = torch.tensor([math.exp(score) / total for score in scores])
        assert_close(weights[b, h, t], expected, atol=1e-6, rtol=1e-5)
        assert_close(output[b, h, t], expected @ value[b, h], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("leading", [(), (1,), (1, 1)], ids=["plain", "batch", "heads"])
def test_identity_example(leading):
    """softmax([1/sqrt(2), 0]) is [0.6698, 0.3302], not uniform."""
    eye, value = torch.eye(2).expand(*leading, 2, 2), torch.tensor([[2.0, 3.0], [4.0, 5.0]]).expand(*leading, 2, 2)
    output, weights = scaled_dot_product_attention(eye, eye, value)
    assert_close(weights.view(2, 2), torch.tensor([[0.669762, 0.330238], [0.330238, 0.669762]]), atol=1e-6, rtol=0)
    assert_close(output.view(2, 2), torch.tensor([[2.660477, 3.660477], [3.339523, 4.339523]]), atol=1e-6, rtol=0)


def test_scaling_keeps_the_variance_of_scores_at_one():
    query, key = torch.randn(1, 1, 500, 64), torch.randn(1, 1, 500, 64)
    raw, scaled = query @ key.mT, (query @ key.mT) * 64**-0.5
    assert raw.var() == pytest.approx(64, rel=0.1) and scaled.var() == pytest.approx(1, rel=0.1)
    _, sharp = scaled_dot_product_attention(query, key, key, scale=1.0)
    _, soft = scaled_dot_product_attention(query, key, key)
    assert_close(soft, scaled.softmax(-1))
    assert sharp.max(-1).values.mean() > 3 * soft.max(-1).values.mean()


def test_hidden_keys_have_weight_zero_and_no_influence():
    query, key, value = heads(T), heads(S), heads(S)
    mask = torch.rand(B, T, S) > 0.4
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    hidden = ~mask[:, None].expand_as(weights)
    assert (weights[hidden] == 0).all()
    assert_close(weights.sum(-1), mask.any(-1)[:, None].expand(B, H, T).float())
    # Where one example hides a key from every query, that key may be anything.
    mask[0, :, 3] = False
    output, _ = scaled_dot_product_attention(query, key, value, mask)
    key[0, :, 3], value[0, :, 3] = 1e3, -1e3
    assert_close(scaled_dot_product_attention(query, key, value, mask)[0], output)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_query_that_sees_nothing_gets_zeros_and_no_nan_in_the_gradient(dtype):
    query = heads(T).to(dtype).requires_grad_()
    mask = torch.ones(T, S, dtype=torch.bool)
    mask[2] = False
    output, weights = scaled_dot_product_attention(query, heads(S).to(dtype), heads(S).to(dtype), mask)
    assert (output[:, :, 2] == 0).all() and (weights[:, :, 2] == 0).all()
    output.sum().backward()
    assert query.grad.isfinite().all() and output.isfinite().all()
    assert (query.grad[:, :, 2] == 0).all() and (query.grad[:, :, 1] != 0).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_huge_scores_stay_finite(dtype):
    query = torch.full((1, 1, 2, 4), 100.0, dtype=dtype)
    key = torch.tensor([50.0, -50.0], dtype=dtype)[:, None].expand(1, 1, 2, 4)  # scores of +-1e4
    output, weights = scaled_dot_product_attention(query, key, torch.ones(1, 1, 2, 3, dtype=dtype))
    assert_close(weights[0, 0, 0].float(), torch.tensor([1.0, 0.0]))
    assert output.isfinite().all()


def test_a_bias_is_added_to_the_scores():
    query, key, value, bias = heads(T), heads(S), heads(S), torch.randn(1, H, T, S)
    _, weights = scaled_dot_product_attention(query, key, value, bias=bias)
    assert_close(weights, (query @ key.mT / math.sqrt(K) + bias).softmax(-1))


def test_dropout_thins_the_sum_but_not_the_weights_that_are_returned():
    query, key, value = heads(T), heads(S), heads(S)
    plain, weights = scaled_dot_product_attention(query, key, value)
    dropped, returned = scaled_dot_product_attention(query, key, value, dropout=0.5)
    assert_close(returned, weights)
    assert not torch.allclose(dropped, plain)


def test_batched_equals_one_by_one():
    query, key, value, mask = heads(T), heads(S), heads(S), torch.rand(B, S) > 0.3
    together, _ = scaled_dot_product_attention(query, key, value, mask)
    for b in range(B):
        alone, _ = scaled_dot_product_attention(query[b : b + 1], key[b : b + 1], value[b : b + 1], mask[b][None, None])
        assert_close(together[b], alone[0])


@pytest.mark.parametrize(
    "query, key, value, words",
    [
        ((2, 4, 5, 6), (2, 4, 7, 8), (2, 4, 7, 6), ["[2, 4, 5, 6]", "[2, 4, 7, 8]", "6 is not 8"]),
        ((2, 4, 5, 6), (2, 4, 7, 6), (2, 4, 8, 6), ["same length", "7 is not 8"]),
        ((2, 4, 5, 6), (3, 4, 7, 6), (3, 4, 7, 6), ["batch and heads"]),
        ((2, 5, 6), (2, 4, 7, 6), (2, 4, 7, 6), ["[B, H, length, K]"]),
    ],
    ids=["width", "length", "batch", "rank"],
)
def test_wrong_shapes_are_refused_with_what_came(query, key, value, words):
    with pytest.raises(ValueError) as error:
        scaled_dot_product_attention(torch.zeros(query), torch.zeros(key), torch.zeros(value))
    assert all(word in str(error.value) for word in words)


# The heads


def per_head_attention(attention: MultiHeadAttention, query, memory, mask=None) -> torch.Tensor:
    """Head by head with slices of the matrices, as the paper writes it."""
    outputs = []
    for head in range(H):
        group = head // attention.num_key_value_groups
        own, shared = slice(head * K, (head + 1) * K), slice(group * K, (group + 1) * K)
        q = query @ attention.q_proj.weight[own].T + attention.q_proj.bias[own]
        k = memory @ attention.k_proj.weight[shared].T + attention.k_proj.bias[shared]
        v = memory @ attention.v_proj.weight[shared].T + attention.v_proj.bias[shared]
        scores = q @ k.mT / math.sqrt(K)
        outputs.append((scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1) @ v)
    return torch.cat(outputs, -1) @ attention.out_proj.weight.T + attention.out_proj.bias


@pytest.mark.parametrize("num_kv_heads", [None, 2, 1], ids=["multi-head", "grouped", "multi-query"])
def test_equals_attention_head_by_head(num_kv_heads):
    attention = MultiHeadAttention(D, H, num_kv_heads)
    query, memory = torch.randn(B, T, D), torch.randn(B, S, D)
    output, weights = attention(query, memory)
    assert output.shape == (B, T, D) and weights.shape == (B, H, T, S)
    assert_close(output, per_head_attention(attention, query, memory), atol=1e-6, rtol=1e-5)
    assert_close(attention(query, mask=causal_mask(T))[0], per_head_attention(attention, query, query, causal_mask(T)))


def test_key_and_value_may_differ():
    attention = MultiHeadAttention(D, H)
    query, key, value = torch.randn(B, T, D), torch.randn(B, S, D), torch.randn(B, S, D)
    assert_close(attention(query, key, key)[0], attention(query, key)[0])
    assert not torch.allclose(attention(query, key, value)[0], attention(query, key)[0])


def test_splitting_into_heads_can_be_undone():
    attention = MultiHeadAttention(D, H)
    x = torch.randn(B, T, D)
    split = attention.split_heads(x)
    assert split.shape == (B, H, T, K)
    assert torch.equal(split.transpose(1, 2).reshape(B, T, D), x)
    assert torch.equal(split[:, 1], x[..., K : 2 * K])


def test_number_of_parameters():
    assert sum(p.numel() for p in MultiHeadAttention(D, H, bias=False).parameters()) == 4 * D * D
    assert sum(p.numel() for p in MultiHeadAttention(D, H).parameters()) == 4 * D * D + 4 * D


def test_heads_differ_and_all_inputs_get_gradients():
    attention = MultiHeadAttention(D, H)
    query, key, value = (torch.randn(B, S, D, requires_grad=True) for _ in range(3))
    output, weights = attention(query, key, value)
    assert all((weights[:, i] - weights[:, j]).abs().max() > 1e-4 for i in range(H) for j in range(i))
    output.sum().backward()
    assert all((x.grad != 0).any() for x in (query, key, value))
    # The bias of the keys moves all scores of a query alike, which softmax does not notice.
    assert all((p.grad.abs() > 1e-6).any() for name, p in attention.named_parameters() if name != "k_proj.bias")


def test_a_mask_over_heads_switches_heads_off():
    """A head that may attend to nothing adds nothing: only the others are left in the sum."""
    attention, x = MultiHeadAttention(D, H), torch.randn(B, T, D)
    on = torch.tensor([True, False, True, False])
    output, weights = attention(x, mask=on[None, :, None, None])
    assert (weights[:, ~on] == 0).all() and (weights[:, on] > 0).all()
    kept = attention.split_heads(attention.v_proj(x))
    kept = (weights @ kept)[:, on].transpose(1, 2).reshape(B, T, -1)
    columns = on.repeat_interleave(K)
    assert_close(output, kept @ attention.out_proj.weight[:, columns].T + attention.out_proj.bias)


def test_padding_mask_of_a_batch():
    attention, x = MultiHeadAttention(D, H), torch.randn(B, S, D)
    ids = torch.tensor([[5] * S, [5] * (S - 3) + [0] * 3])
    output, _ = attention(x, mask=padding_mask(ids))
    assert_close(output[1, : S - 3], attention(x[1:, : S - 3])[0][0])


def test_dropout_is_active_only_in_training():
    attention, x = MultiHeadAttention(D, H, dropout=0.5), torch.randn(B, T, D)
    assert not torch.allclose(attention(x)[0], attention(x)[0])
    attention.eval()
    assert torch.equal(attention(x)[0], attention(x)[0])


def test_query_key_norm_makes_scores_independent_of_the_size_of_the_input():
    attention = MultiHeadAttention(D, H, bias=False, qk_norm="rmsnorm", norm_eps=1e-12)
    x = torch.randn(B, T, D)
    assert_close(attention(x)[1], attention(100 * x)[1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("sizes", [(15, 8, None), (24, 4, 3)], ids=["heads", "kv heads"])
def test_sizes_that_do_not_divide_are_refused(sizes):
    with pytest.raises(ValueError, match=str(sizes[1])):
        MultiHeadAttention(*sizes)


@pytest.mark.parametrize(
    "shapes, words",
    [
        (((B, T, D + 1),), ["query", str([B, T, D + 1])]),
        (((T, D),), ["query", "[batch, length, 24]"]),
        (((B, T, D), (B + 1, S, D)), ["3 sequences", "2"]),
        (((B, T, D), (B, S, D), (B, S + 1, D)), ["7 positions", "8"]),
    ],
    ids=["width", "rank", "batch", "length"],
)
def test_wrong_shapes_given_to_the_heads_are_refused(shapes, words):
    with pytest.raises(ValueError) as error:
        MultiHeadAttention(D, H)(*(torch.zeros(shape) for shape in shapes))
    assert all(word in str(error.value) for word in words)


# While training on a CPU, short sequences take the textbook formula in the place of the kernel


def noted(function, calls, what):
    return lambda *args, **kwargs: calls.append(what) or function(*args, **kwargs)


@pytest.mark.parametrize("shape", ["encoder-decoder", "encoder", "decoder"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_short_sequences_train_alike_with_and_without_the_kernel(shape, variant, monkeypatch):
    model = tiny_language_model(shape, **VARIANTS[variant], dropout=0.0).double().train()
    source = torch.randint(5, 31, (2, 7))
    mask = torch.ones_like(source)
    mask[1, 5:] = 0
    found, calls = [], []
    for limit in (attention.SHORT, 0):
        monkeypatch.setattr(attention, "SHORT", limit)
        monkeypatch.setattr(attention, "short_attention_forward", noted(attention.short_attention_forward, calls, limit))
        model.zero_grad()
        model(source, attention_mask=mask, labels=source.masked_fill(mask == 0, -100)).loss.backward()
        found.append([weight.grad.clone() for weight in model.parameters()])
        monkeypatch.undo()
    assert set(calls) == {128}
    for plain, kernel in zip(*found):
        torch.testing.assert_close(plain, kernel, atol=1e-9, rtol=1e-6)


def test_as_many_examples_as_tokens_are_no_reason_to_warn():
    model, ids = tiny_language_model("decoder").train(), torch.randint(5, 31, (6, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(ids, labels=ids).loss.backward()
