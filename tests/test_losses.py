"""Losses: means over what is asked, however the batch is padded, cut or smoothed."""

import math

import pytest
import torch
from models import V, tiny_language_model
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from glassformer import losses
from glassformer.losses import (
    IGNORED,
    chunked_cross_entropy,
    classification_loss,
    cross_entropy,
    shift_left,
    shift_right,
    span_loss,
)


def batch(length: int = 6):
    labels = torch.randint(1, V, (3, length))
    labels[1, 4:] = labels[2, 2:] = IGNORED
    return torch.randn(3, length, V, requires_grad=True), labels


def test_teacher_forcing_reads_start_a_b_c_for_a_b_c_end():
    labels = torch.tensor([[11, 12, 13, 2], [14, 2, IGNORED, IGNORED]])
    assert shift_right(labels, 1, 0).tolist() == [[1, 11, 12, 13], [1, 14, 2, 0]]
    assert shift_left(labels).tolist() == [[12, 13, 2, IGNORED], [2, IGNORED, IGNORED, IGNORED]]


def test_uniform_logits_cost_the_logarithm_of_the_vocabulary():
    loss = cross_entropy(torch.zeros(2, 5, 50), torch.randint(50, (2, 5)))
    assert_close(loss, torch.tensor(math.log(50)))
    assert_close(loss.exp(), torch.tensor(50.0))  # perplexity: as if choosing among all words


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_losses_of_half_precision_are_summed_in_float32(dtype):
    hidden, weight, labels = torch.randn(4000, 64) + 0.5, torch.randn(V, 64) / 8, torch.randint(V, (4000,))
    expected = cross_entropy(hidden @ weight.T, labels)
    half = hidden.to(dtype)
    chunked = chunked_cross_entropy(half, lambda h: h @ weight.to(dtype).T, labels, V)
    assert_close(chunked, expected, atol=1e-2, rtol=1e-2)
    far = classification_loss(torch.zeros(2, 1, dtype=dtype), torch.tensor([300.0, -100.0]), "regression")
    assert_close(far, torch.tensor(50_000.0))  # 300^2 is beyond float16, and -100 is a number like any other


def test_loss_without_logits_compiles():
    model = tiny_language_model("decoder")
    source = torch.randint(5, V, (2, 9))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    found = compiled(source, labels=source, return_logits=False, use_cache=False).loss
    assert_close(found, model(source, labels=source).loss)


def test_loss_is_the_mean_over_valid_positions():
    logits, labels = batch()
    valid = labels != IGNORED
    expected = -logits.log_softmax(-1)[valid].gather(1, labels[valid][:, None]).mean()
    assert_close(cross_entropy(logits, labels), expected)
    more = F.pad(logits, (0, 0, 0, 3)), F.pad(labels, (0, 3), value=IGNORED)
    assert_close(cross_entropy(*more), expected)


def test_smoothed_target_has_one_minus_a_plus_a_over_v_on_the_label():
    logits, labels = batch()
    valid, a = labels != IGNORED, 0.1
    target = torch.full((int(valid.sum()), V), a / V)
    target[torch.arange(len(target)), labels[valid]] += 1 - a
    assert_close(target.sum(-1), torch.ones(len(target)))
    assert_close(cross_entropy(logits, labels, a), -(target * logits[valid].log_softmax(-1)).sum(-1).mean())


def test_no_valid_label_costs_nothing():
    logits, _ = batch()
    nothing = torch.full((3, 6), IGNORED)
    for loss in (cross_entropy(logits, nothing), chunked_cross_entropy(logits, torch.nn.Identity(), nothing, V)):
        loss.backward()
        assert loss == 0
    assert (logits.grad == 0).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_chunked_loss_and_gradients_equal_the_whole(smoothing, chunk):
    _, labels = batch()
    weight = torch.randn(V, 8, requires_grad=True)
    hidden = torch.randn(3, 6, 8, requires_grad=True)
    whole = cross_entropy(hidden @ weight.T, labels, smoothing)
    chunked = chunked_cross_entropy(hidden, lambda h: h @ weight.T, labels, V, smoothing, chunk=chunk)
    assert_close(chunked, whole)
    for ours, reference in zip(torch.autograd.grad(chunked, (hidden, weight)), torch.autograd.grad(whole, (hidden, weight))):
        assert_close(ours, reference)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_loss_of_a_matrix_and_its_gradients_equal_the_whole(smoothing, chunk):
    _, labels = batch()
    weight = torch.randn(V, 8, dtype=torch.float64, requires_grad=True)
    hidden = torch.randn(3, 6, 8, dtype=torch.float64, requires_grad=True)
    whole = 7 * cross_entropy(hidden @ weight.T, labels, smoothing)
    chunked = 7 * chunked_cross_entropy(hidden, None, labels, V, smoothing, weight=weight, chunk=chunk)
    assert_close(chunked, whole)
    expected = torch.autograd.grad(whole, (hidden, weight))
    for _ in range(2):  # a graph that is kept gives the same again
        for ours, reference in zip(torch.autograd.grad(chunked, (hidden, weight), retain_graph=True), expected):
            assert_close(ours, reference)


def test_loss_of_a_matrix_without_gradients():
    _, labels = batch()
    hidden, weight = torch.randn(3, 6, 8), torch.randn(V, 8)
    expected = cross_entropy(hidden @ weight.T, labels, 0.1)
    assert_close(chunked_cross_entropy(hidden, None, labels, V, 0.1, weight=weight), expected)
    with torch.no_grad():
        assert_close(chunked_cross_entropy(hidden, None, labels, V, 0.1, weight=weight.requires_grad_()), expected)
    nothing = chunked_cross_entropy(hidden, None, torch.full((3, 6), IGNORED), V, weight=weight)
    nothing.backward()
    assert nothing == 0 and (weight.grad == 0).all()


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
        return result


@pytest.mark.parametrize("shape", ["encoder-decoder", "encoder", "decoder"])
def test_a_model_asked_for_its_loss_never_holds_all_logits(shape, monkeypatch):
    model = tiny_language_model(shape, vocab_size=500).train()
    ids = torch.randint(5, 500, (4, 10))
    expected = model.eval()(ids, labels=ids).loss
    monkeypatch.setattr(losses, "LOGITS_AT_ONCE", 3000)
    with Largest() as largest:
        loss = model(ids, labels=ids, return_logits=False).loss
        loss.backward()
    assert_close(loss, expected)
    assert largest.elements == 500 * model.config.d_model  # the matrix and its gradient; all logits would be 20000
    assert 3000 < largest.elements < 4 * 9 * 500


@pytest.mark.parametrize("shape", ["encoder-decoder", "encoder", "decoder"])
@pytest.mark.parametrize("options", [{}, {"logit_softcap": 3.0}, {"tie_word_embeddings": False}], ids=str)
def test_the_loss_alone_trains_like_the_loss_of_logits(shape, options):
    model = tiny_language_model(shape, label_smoothing=0.1, dropout=0.0, **options).train()
    ids = torch.randint(5, V, (4, 9))
    found = []
    for return_logits in (True, False):
        model.zero_grad()
        model(ids, labels=ids, return_logits=return_logits).loss.backward()
        found.append({name: weight.grad.clone() for name, weight in model.named_parameters()})
    for name in found[0]:
        assert_close(found[1][name], found[0][name], atol=1e-6, rtol=1e-4, msg=name)


def test_an_adapter_or_hook_on_the_output_layer_counts():
    model = tiny_language_model("decoder")
    ids = torch.randint(5, V, (2, 9))
    handle = model.lm_head.register_forward_hook(lambda module, args, logits: logits * 0.5)
    assert_close(model(ids, labels=ids, return_logits=False).loss, model(ids, labels=ids).loss)
    handle.remove()


def test_chunked_loss_never_holds_all_logits():
    largest = 0

    def to_logits(hidden):
        nonlocal largest
        logits = hidden @ torch.randn(8, V)
        largest = max(largest, logits.numel())
        return logits

    labels = torch.randint(V, (10, 50))
    labels[5:] = IGNORED
    chunked_cross_entropy(torch.randn(10, 50, 8), to_logits, labels, V, chunk=32)
    assert largest == 32 * V


@pytest.mark.parametrize("shape", ["encoder-decoder", "encoder", "decoder"])
def test_accumulated_micro_batches_equal_the_big_batch(shape):
    model = tiny_language_model(shape)
    ids = torch.randint(5, V, (4, 9))
    labels = ids.clone()
    labels[0, 3:] = labels[1, 7:] = IGNORED  # micro-batches with different numbers of valid labels
    count = (labels[:, 1:] if shape == "decoder" else labels).ne(IGNORED).sum()
    model(ids, labels=labels).loss.backward()
    whole = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    for piece in (slice(0, 1), slice(1, 4)):
        model(ids[piece], labels=labels[piece], num_items_in_batch=count, return_logits=False).loss.backward()
    for name, parameter in model.named_parameters():
        assert_close(parameter.grad, whole[name], atol=1e-6, rtol=1e-4, msg=name)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_leaves_the_loss_of_a_language_model_alone(side):
    model, source = tiny_language_model("decoder"), torch.randint(5, V, (2, 9))
    pad = (3, 0) if side == "left" else (0, 3)
    mask = F.pad(torch.ones(2, 9, dtype=torch.long), pad)
    inputs = {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
    padded = model(F.pad(source, pad), labels=F.pad(source, pad, value=IGNORED), **inputs).loss
    assert_close(padded, model(source, labels=source).loss, atol=1e-5, rtol=1e-5)


def test_smoothing_is_off_in_evaluation():
    model = tiny_language_model("decoder", label_smoothing=0.2, dropout=0.0)
    ids = torch.randint(5, V, (2, 9))
    smoothed, plain = model.train()(ids, labels=ids).loss, model.eval()(ids, labels=ids).loss
    logits = model(ids).logits[:, :-1]
    assert_close(plain, F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))
    assert_close(smoothed, F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.2))


def test_classification_losses_by_kind_of_label():
    logits = torch.randn(4, 3)
    classes, several, numbers = torch.tensor([0, 2, 1, 1]), torch.randint(2, (4, 3)).float(), torch.randn(4, 3)
    assert_close(classification_loss(logits, classes, None), F.cross_entropy(logits, classes))
    assert_close(classification_loss(logits, several, None), F.binary_cross_entropy_with_logits(logits, several))
    assert_close(classification_loss(logits, numbers, "regression"), F.mse_loss(logits, numbers))
    assert_close(classification_loss(logits[:, :1], numbers[:, 0], None), F.mse_loss(logits[:, 0], numbers[:, 0]))
    assert_close(
        classification_loss(logits, several, None, num_items_in_batch=24) * 2, classification_loss(logits, several, None)
    )


def test_answers_outside_the_sequence_do_not_count():
    start, end = torch.randn(3, 5), torch.randn(3, 5)
    inside = span_loss(start[:2], end[:2], torch.tensor([1, 2]), torch.tensor([3, 2]))
    assert_close(span_loss(start, end, torch.tensor([1, 2, 9]), torch.tensor([3, 2, -1])), inside)
    expected = F.cross_entropy(start[:2], torch.tensor([1, 2])) + F.cross_entropy(end[:2], torch.tensor([3, 2]))
    assert_close(inside, expected / 2)


def test_padding_is_no_place_for_an_answer():
    start, end, first, last = torch.randn(2, 5), torch.randn(2, 5), torch.tensor([1, 0]), torch.tensor([2, 1])
    tokens = torch.tensor([[1, 1, 1, 0, 0]] * 2)
    assert_close(span_loss(start, end, first, last, tokens), span_loss(start[:, :3], end[:, :3], first, last))
