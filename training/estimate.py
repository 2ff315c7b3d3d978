# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What a training run will need, told before it starts: parameters, memory, arithmetic, time.

Everything is counted from the architecture, for one process; nothing is allocated. The tests hold the counts against what
torch really keeps and computes.
"""

import difflib
import math
import time

import torch
from torch import nn

from glassformer import losses
from glassformer.attention import SHORT
from glassformer.feed_forward import activation_function


# B batch, T queries (target), S keys (source), N positions, D model width, F inner width, H heads, V vocabulary

FLOAT = 4  # bytes of a float32 value: weights, gradients, optimizer, residual stream, norms, softmax and loss
PRECISIONS = {"float32": 4, "bf16": 2, "fp16": 2}  # bytes of a value that goes through matrix products


# Parameters


def empty_model(config, head_class: type) -> nn.Module:
    """The model with the sizes of its weights but without the weights."""
    with torch.device("meta"):
        return head_class(config)


def parameter_count(config, head_class: type) -> int:
    """Trained values; matrices that are tied count once."""
    return sum(parameter.numel() for parameter in empty_model(config, head_class).parameters())


# Memory


def estimate_memory(
    config,
    head_class: type,
    batch_size: int,
    source_length: int,
    target_length: int | None = None,
    *,
    optimizer: str = "adamw",
    precision: str = "float32",
    gradient_checkpointing: bool = False,
    return_logits: bool = False,
    device: str | torch.device = "cpu",
) -> dict[str, int]:
    """Bytes at the fullest moment of an update: weights, gradients, optimizer, activations, and their total.

    Lengths include padding, and every position is taken to have a label. `bf16` and `fp16` are mixed precision: weights stay
    in float32, and matrix products work on half-size copies of them. The work space of kernels comes on top: leave a tenth.
    """
    check_choice("precision", precision, PRECISIONS)
    check_choice("optimizer", optimizer, OPTIMIZER_VALUES)
    source_length, target_length = check_lengths(config, source_length, target_length)
    model = empty_model(config, head_class)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    count = sum(shape.numel() for shape in shapes.values())
    activations = Activations(model.config, batch_size, PRECISIONS[precision], on_cpu=torch.device(device).type == "cpu")
    kept = activations.kept(source_length, target_length, gradient_checkpointing)
    on_top = activations.backward(source_length, target_length, gradient_checkpointing)
    if hasattr(model, "lm_head"):
        length = target_length or source_length
        kept += activations.logits(length) if return_logits else 0
        on_top = max(on_top, activations.loss(length, chunked=not return_logits))
    memory = {
        "weights": count * (FLOAT if precision == "float32" else FLOAT + PRECISIONS[precision]),
        "gradients": count * FLOAT,
        "optimizer": FLOAT * sum(OPTIMIZER_VALUES[optimizer](name, shape) for name, shape in shapes.items()),
        "activations": kept + on_top,
    }
    return memory | {"total": sum(memory.values())}


def two_values(name: str, shape: torch.Size) -> int:
    """A mean of the gradient and one of its square."""
    return 2 * shape.numel()


def sophia_values(name: str, shape: torch.Size) -> int:
    """A mean of the gradient, the curvature and its mean."""
    return 3 * shape.numel()


def muon_values(name: str, shape: torch.Size) -> int:
    """A mean of the gradient for matrices inside the layers; all else is left to Adam."""
    return shape.numel() if len(shape) == 2 and ".layers." in name else two_values(name, shape)


def adafactor_values(name: str, shape: torch.Size) -> int:
    """A mean of the square, of matrices by row and by column only."""
    return sum(shape) if len(shape) == 2 else shape.numel()


OPTIMIZER_VALUES = {
    "adamw": two_values,
    "lamb": two_values,
    "sophia": sophia_values,
    "muon": muon_values,
    "adafactor": adafactor_values,
}


class Activations:
    """Bytes that the parts of a model keep from the forward pass for the backward pass, one method a part.

    Batches have padding, so that masks exist. `item` is the size of a value that goes through matrix products.
    """

    def __init__(self, config, batch: int, item: int, on_cpu: bool):
        self.config, self.batch, self.item, self.on_cpu = config, batch, item, on_cpu
        self.has_bias = config.position_encoding in ("alibi", "relative")

    def kept(self, source: int, target: int | None, checkpointed: bool) -> int:
        """All stacks. With checkpointing a layer keeps its input, and all layers together what they are told of positions."""
        config, total = self.config, 0
        for layers, length, memory in self.stacks(source, target):
            if checkpointed:
                total += layers * self.batch * length * config.d_model * FLOAT + self.masks(length, memory)
            else:
                total += layers * self.layer(length, memory)
            total += self.entry(length, memory) + (self.norm(length) if config.norm_position != "post" else 0)
        # The encoder's output, which every layer of the decoder reads.
        return total + (0 if target is None else self.batch * source * config.d_model * FLOAT)

    def backward(self, source: int, target: int | None, checkpointed: bool) -> int:
        """On top of that, at worst: a layer that is computed again, and the widest gradients on their way through it."""
        widest = self.config.d_model + self.config.d_ff * (2 if self.config.gated_feed_forward else 1)
        return max(
            self.batch * length * widest * self.item + (self.layer(length, memory) if checkpointed else 0)
            for _, length, memory in self.stacks(source, target)
        )

    def logits(self, length: int) -> int:
        """What the model returns."""
        return self.batch * length * self.config.vocab_size * self.item

    def loss(self, length: int, chunked: bool) -> int:
        """On top of that, at worst: the output layer's input, log-probabilities, their gradients and those of the logits.

        In chunks, logits turn into gradients at once: those of the input and of the output layer's matrix are then held.
        """
        config, positions = self.config, self.batch * length
        values, width = positions * config.vocab_size, config.d_model
        if not chunked:
            softcap = 0 if config.logit_softcap is None else self.item
            return positions * width * FLOAT + values * (3 * FLOAT + softcap)
        chunk = min(values, max(losses.LOGITS_AT_ONCE, config.vocab_size))
        return 2 * positions * width * FLOAT + config.vocab_size * width * FLOAT + 2 * chunk * FLOAT

    def stacks(self, source: int, target: int | None) -> list[tuple[int, int, int | None]]:
        """Number of layers, length, and length of the memory, for every stack that there is."""
        encoder, decoder = self.config.num_encoder_layers, self.config.num_decoder_layers
        if target is None:
            return [(encoder + decoder, source, None)]
        return [(encoder, source, None), (decoder, target, source)]

    def masks(self, length: int, memory: int | None) -> int:
        """Boolean masks, for "eager" numbers, and the bias on the scores if there is one."""
        item = FLOAT if self.config._attn_implementation == "eager" else 1
        bias = FLOAT * self.config.num_heads * length**2 if self.has_bias else 0
        return item * self.batch * length * (length + (memory or 0)) + bias

    def entry(self, length: int, memory: int | None) -> int:
        """Ids, those of n-grams if it is an encoder, and what is done to their embeddings."""
        config, positions = self.config, self.batch * length
        norm = self.norm(length) if config.embedding_norm else 0
        ids = 8 * (config.ngram_size if memory is None else 1)
        neighbours = self.convolution(length) if memory is None and config.conv_size > 1 else 0
        return positions * ids + norm + self.dropout(positions * config.d_model, config.dropout) + neighbours

    def convolution(self, length: int) -> int:
        """The windows, and what the activation keeps."""
        tensors, _ = kept_by_activation(self.config.activation)
        return self.linear_input(length) * self.config.conv_size + tensors * self.batch * length * self.config.d_model * self.item

    def layer(self, length: int, memory: int | None = None) -> int:
        sublayers = [self.attention(length), self.feed_forward(length)]
        if memory is not None:
            sublayers.append(self.attention(length, memory))
        residual = self.norm(length) + self.dropout(self.batch * length * self.config.d_model, self.config.dropout)
        return sum(sublayers) + len(sublayers) * residual

    def attention(self, queries: int, memory: int | None = None) -> int:
        """Inputs of the projections; queries and output, keys and values (repeated for every query head); scores."""
        config, keys = self.config, queries if memory is None else memory
        if memory is None:
            inputs = self.linear_input(queries, readers=3)
        else:  # the memory itself is kept once for all layers
            inputs = self.linear_input(queries) + (0 if self.item == FLOAT else self.linear_input(memory, readers=2))
        heads = 2 * self.batch * (queries + keys) * config.d_model * self.item
        normed = 2 * self.batch * (queries + keys) * config.d_model * FLOAT if config.qk_norm else 0
        return inputs + heads + normed + self.scores(queries, keys, self.has_bias and memory is None)

    def scores(self, queries: int, keys: int, biased: bool) -> int:
        """[B, H, T, S] where the softmax is written out: in "eager" and, to drop weights or if sequences are short, on a CPU.

        Elsewhere the sum of each row, and the mask as numbers: [B, 1, T, S], or [B, H, T, S] with a bias for every head.
        """
        config, mask = self.config, self.batch * queries * keys
        values = attention_values(self.batch, config.num_heads, queries, keys)
        written_out = config.attention_dropout or max(queries, keys) <= SHORT
        if config._attn_implementation == "eager" or (self.on_cpu and written_out):
            # The weights, the copy that meets the values, what was dropped (on a CPU as numbers), and the boolean mask.
            dropped = 0 if config.attention_dropout == 0 else values * (FLOAT if self.on_cpu else 1)
            return values * (FLOAT + self.item) + dropped + mask
        return self.batch * config.num_heads * queries * FLOAT + (values if biased else mask) * self.item

    def feed_forward(self, length: int) -> int:
        config, inner = self.config, self.batch * length * self.config.d_ff
        tensors, result_is_kept = kept_by_activation(config.activation)
        if config.gated_feed_forward:  # both factors of the product
            tensors += 1 if result_is_kept else 2
        if config.gated_feed_forward or config.activation_dropout or not result_is_kept:  # the input of the last matrix
            tensors += 1
        inputs = self.linear_input(length, readers=2 if config.gated_feed_forward else 1)
        return inputs + tensors * inner * self.item + self.dropout(inner, config.activation_dropout)

    def norm(self, length: int) -> int:
        """The input and its statistics; RMSNorm, written out, also the normalised input."""
        values = 2 * self.config.d_model + 1 if self.config.norm != "layernorm" else self.config.d_model + 2
        return self.batch * length * values * FLOAT

    def linear_input(self, length: int, readers: int = 1) -> int:
        """In mixed precision, every matrix that reads it makes a half-size copy."""
        copies = 1 if self.item == FLOAT else readers
        return self.batch * length * self.config.d_model * self.item * copies

    def dropout(self, values: int, probability: float) -> int:
        """What was dropped: a byte a value."""
        return 0 if probability == 0 else values


def kept_by_activation(name: str) -> tuple[int, bool]:
    """How many tensors of its input's size an activation keeps, and whether its result is one of them. Tried on one value."""
    kept = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = activation_function(name)(torch.ones(1, requires_grad=True) * 1)
    places = {tensor.data_ptr() for tensor in kept}
    return len(places), result.data_ptr() in places


def attention_values(batch: int, heads: int, length: int, keys: int | None = None) -> int:
    """Scores of one layer, a value for each pair of positions in each head: 32 x 8 x 512 x 512 = 67,108,864."""
    return batch * heads * length * (length if keys is None else keys)


# Arithmetic and time


def training_flops(config, head_class: type, batch_size: float, source_length: int, target_length: int | None = None) -> float:
    """Additions and multiplications of one forward and backward pass over a batch.

    6 for each weight of a matrix and each token that it sees (2 forward, 4 backward), and 12 D for each pair of query and
    key in each attention. The encoder and the keys and values of cross-attention see source tokens, the rest of the decoder
    and the output layer target tokens. Embeddings are looked up, not multiplied; what checkpointing repeats is not counted.
    """
    source, target = check_lengths(config, source_length, target_length)
    reads_source = ("encoder.", "cross_attn.k_proj", "cross_attn.v_proj")
    flops = 0
    for name, module in empty_model(config, head_class).named_modules():
        if isinstance(module, nn.Linear):
            tokens = source if target is None or any(part in name for part in reads_source) else target
            flops += 6 * module.in_features * module.out_features * tokens
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    if target is None:
        pairs = (encoder + decoder) * source**2
    else:
        pairs = encoder * source**2 + decoder * (target**2 + target * source)
    return float(batch_size * (flops + 12 * config.d_model * pairs))


def matmul_rate(device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32, seconds: float = 0.3) -> float:
    """FLOP/s of this machine, now: products of matrices of 1024 x 1024 for a moment."""
    size, device = 1024, torch.device(device)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))

    def run(products: int) -> float:
        start = time.perf_counter()
        for _ in range(products):
            product = left @ right
        product[0, 0].item()  # waits for a GPU
        return time.perf_counter() - start

    products, spent = 1, run(1)
    while spent < seconds / 2:  # the first ones are slow, and few are measured badly
        products *= 2
        spent = run(products)
    return 2 * size**3 * products / spent


def estimate_seconds(flops: float, rate: float, efficiency: float = 0.5) -> float:
    """Time for so much arithmetic. That training reaches half of the rate of bare products is an assumption."""
    return flops / (rate * efficiency)


# For people


def readable_bytes(n: float) -> str:
    """1234567 -> 1.2 MB"""
    return _readable(n, ("B", "kB", "MB", "GB", "TB", "PB"))


def readable_count(n: float) -> str:
    """65000000 -> 65.0 M"""
    return _readable(n, ("", "k", "M", "B", "T"))


def _readable(n: float, units: tuple[str, ...]) -> str:
    for unit in units:
        # 999.95 would be written 1000.0
        if n < 999.95 or unit == units[-1]:
            break
        n /= 1000
    return f"{n:.0f} {unit}".strip() if unit == units[0] else f"{n:.1f} {unit}"


def readable_time(seconds: float) -> str:
    """90 -> 1.5 min"""
    units = {"s": (1, 59.95), "min": (60, 59.95), "h": (3600, 47.95), "days": (86400, math.inf)}
    return next(f"{seconds / length:.1f} {unit}" for unit, (length, limit) in units.items() if seconds / length < limit)


# Checks


def check_choice(name: str, value: str, valid: dict) -> None:
    if value not in valid:
        nearest = difflib.get_close_matches(value, valid, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"choose one of {', '.join(valid)}."
        raise ValueError(f"There is no {name} {value!r}: {hint}")


def check_lengths(config, source_length: int, target_length: int | None) -> tuple[int, int | None]:
    """Both lengths of an encoder-decoder, the target as long as the source unless told; of other shapes one."""
    if config.is_encoder_decoder:
        return source_length, source_length if target_length is None else target_length
    if target_length is not None:
        raise ValueError(f"A model of shape {config.shape} reads one sequence: leave target_length out.")
    return source_length, None
