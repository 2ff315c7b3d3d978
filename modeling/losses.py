# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The losses. Means over valid positions, so that neither padding nor the way a batch is cut up changes them.

Every loss is a sum divided by a count: by its own count of valid labels or, when the caller accumulates gradients over
several batches, by the count over all of them (`num_items_in_batch`).
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers.utils.import_utils import is_tracing

from .checks import IGNORED, check_labels


# B batch, T target length, D model width, V vocabulary


LOGITS_AT_ONCE = 2**23  # 32 MB in float32, the largest block that glibc keeps for the next chunk instead of giving it back


def shift_right(labels: Tensor, start_token_id: int | None, pad_token_id: int | None) -> Tensor:
    """Teacher forcing: the decoder reads [start, A, B, C] while it is asked for [A, B, C, end]."""
    if labels.dim() != 2:
        raise ValueError(f"Labels must be [batch, length], but have the shape {list(labels.shape)}.")
    if start_token_id is None:
        raise ValueError("decoder_start_token_id is None: set it in the config, or pass decoder_input_ids yourself.")
    start = labels.new_full((labels.shape[0], 1), start_token_id)
    shifted = torch.cat((start, labels[:, :-1]), dim=1)
    return shifted.masked_fill(shifted == IGNORED, 0 if pad_token_id is None else pad_token_id)


def shift_left(labels: Tensor) -> Tensor:
    """A language model is asked at each position for the token after it: [A, B, C] -> [B, C, nothing]."""
    return F.pad(labels[:, 1:], (0, 1), value=IGNORED)


def divide(total: Tensor, count: Tensor | int, num_items_in_batch: Tensor | int | None) -> Tensor:
    """A sum over the valid labels, made a mean. Without any valid label it is 0, not 0 / 0."""
    count = count if num_items_in_batch is None else num_items_in_batch
    return total / (count.to(total.device).clamp(min=1) if isinstance(count, Tensor) else max(count, 1))


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    label_smoothing: float = 0.0,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:
    """-log p(label), or with smoothing a against the target 1 - a + a/V on the label and a/V elsewhere.

    logits [..., V], labels [...] with -100 where nothing is asked. float16 and bfloat16 are summed in float32.
    """
    check_labels(labels, logits.shape[:-1], logits.shape[-1])
    total = summed_cross_entropy(logits.flatten(0, -2), labels.flatten(), label_smoothing)
    return divide(total, (labels != IGNORED).sum(), num_items_in_batch)


def summed_cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    labels = labels.to(logits.device)
    return F.cross_entropy(precise, labels, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing)


def chunked_cross_entropy(
    hidden: Tensor,
    to_logits: Callable[[Tensor], Tensor],
    labels: Tensor,
    vocab_size: int,
    label_smoothing: float = 0.0,
    num_items_in_batch: Tensor | int | None = None,
    weight: Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    """`cross_entropy(to_logits(hidden), labels)` without ever holding all logits.

    Positions without a label are left out; the others go through the output layer a chunk at a time. Where that layer is
    nothing but a product with a matrix, pass it as `weight`: `LinearCrossEntropy` then computes nothing twice. Any other
    layer is computed once more in the backward pass. A chunk holds LOGITS_AT_ONCE logits unless told otherwise.
    """
    check_labels(labels, hidden.shape[:-1], vocab_size)
    count = (labels != IGNORED).sum()
    hidden, targets = hidden.flatten(0, -2), labels.flatten().to(hidden.device)
    chunk = max(1, LOGITS_AT_ONCE // vocab_size) if chunk is None else chunk
    if not is_tracing(labels):  # how many are asked is not known while a graph is made
        asked = targets != IGNORED
        hidden, targets = hidden[asked], targets[asked]
        if weight is not None:
            total = LinearCrossEntropy.apply(hidden, weight, targets, label_smoothing, chunk, torch.is_grad_enabled())
            return divide(total, count, num_items_in_batch)

    def chunk_loss(hidden: Tensor, targets: Tensor) -> Tensor:
        return summed_cross_entropy(to_logits(hidden), targets, label_smoothing)

    total = hidden[:0].float().sum()  # keeps the graph when nothing is asked
    for start in range(0, targets.shape[0], chunk):
        piece = slice(start, start + chunk)
        total = total + checkpoint(chunk_loss, hidden[piece], targets[piece], use_reentrant=False)
    return divide(total, count, num_items_in_batch)


class LinearCrossEntropy(torch.autograd.Function):
    """`summed_cross_entropy(hidden @ weight.T, labels)`, the gradient formed on the way.

    The gradient of a logit is its probability minus what was asked for, known as soon as the logits are. So each chunk of
    logits turns into its share of the gradients of `hidden` and `weight` at once, while it is still in the cache, and its
    memory serves the next chunk.
    """

    @staticmethod
    def forward(ctx, hidden, weight, labels, label_smoothing, chunk, with_gradient) -> Tensor:
        """hidden [N, D], weight [V, D], labels [N], each of them a class -> the sum of N losses."""
        total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
        if with_gradient:
            ctx.gradients = of_hidden, of_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        for start in range(0, len(labels), chunk):
            piece = slice(start, start + chunk)
            log_p = F.linear(hidden[piece], weight).to(total.dtype).log_softmax(-1)  # [chunk, V]
            total += smoothed_loss(log_p, labels[piece, None], label_smoothing)
            if with_gradient:
                gradient = smoothed_gradient_(log_p, labels[piece, None], label_smoothing).to(hidden.dtype)
                of_hidden[piece] = gradient @ weight
                add_product_(of_weight, gradient.T, hidden[piece])
                del gradient
            del log_p  # before the next chunk asks for memory
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden, of_weight = ctx.gradients
        return of_hidden * gradient, of_weight * gradient, None, None, None, None


def add_product_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, without memory for the product where all is of one type: for a large vocabulary, that is as much again."""
    if a.dtype == b.dtype == total.dtype and not torch.is_autocast_enabled(total.device.type):
        total.addmm_(a, b)
    else:
        total += a @ b


def smoothed_loss(log_p: Tensor, label: Tensor, smoothing: float) -> Tensor:
    """Log-probabilities [N, V], labels [N, 1] -> the sum of N losses."""
    loss = -(1 - smoothing) * log_p.gather(-1, label).sum()
    return loss - smoothing / log_p.shape[-1] * log_p.sum() if smoothing else loss


def smoothed_gradient_(log_p: Tensor, label: Tensor, smoothing: float) -> Tensor:
    """The gradient of `smoothed_loss` with respect to the logits, in the memory of `log_p`."""
    gradient = log_p.exp_()
    if smoothing:
        gradient -= smoothing / log_p.shape[-1]
    return gradient.scatter_add_(-1, label, gradient.new_full(label.shape, smoothing - 1))


def classification_loss(
    logits: Tensor,
    labels: Tensor,
    problem_type: str | None,
    label_smoothing: float = 0.0,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:
    """Logits [B, num_labels] against classes [B], several labels at once [B, num_labels], or numbers [B] or [B, num_labels].

    The kind is read off the labels where `problem_type` does not name it, by transformers' rule. Smoothing is for classes.
    """
    if problem_type is None:
        whole = labels.dtype in (torch.int64, torch.int32)
        problem_type = "single_label_classification" if whole else "multi_label_classification"
        problem_type = "regression" if logits.shape[-1] == 1 else problem_type
    if problem_type == "single_label_classification":
        return cross_entropy(logits, labels.view(-1), label_smoothing, num_items_in_batch)
    if labels.numel() != logits.numel():
        raise ValueError(f"Labels have the shape {list(labels.shape)}, but the model gives {list(logits.shape)}: pass as many.")
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    labels = labels.to(device=logits.device, dtype=logits.dtype).view_as(logits)
    loss = F.mse_loss if problem_type == "regression" else F.binary_cross_entropy_with_logits
    return divide(loss(logits, labels, reduction="sum"), labels.numel(), num_items_in_batch)


def span_loss(
    start_logits: Tensor,
    end_logits: Tensor,
    start_positions: Tensor,
    end_positions: Tensor,
    tokens: Tensor | None = None,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:
    """Where an answer starts and where it ends, [B, T] against [B]; answers outside the sequence do not count.

    No answer is at padding, where the mask `tokens` [B, T] is False.
    """

    def loss(logits: Tensor, positions: Tensor) -> Tensor:
        positions = positions.view(-1)
        if tokens is not None and tokens.dim() == 2:
            logits = logits.masked_fill(~tokens.bool(), torch.finfo(logits.dtype).min)
        inside = (positions >= 0) & (positions < logits.shape[1])
        return cross_entropy(logits, positions.masked_fill(~inside, IGNORED), num_items_in_batch=num_items_in_batch)

    return (loss(start_logits, start_positions) + loss(end_logits, end_positions)) / 2
