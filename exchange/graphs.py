# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""A trained model as graphs of tensors alone, in any batch and length: what every runtime that is not Python gets.

    reads only          model      input_ids, attention_mask -> logits
    reads pictures      model      pixel_values -> logits
    decoder             model      new tokens, past -> logits, present
                        ranking    logits, scores -> the best candidates of a beam search
    encoder-decoder     encoder    input_ids, attention_mask -> memory
                        decoder    new tokens, memory_mask, memory, past -> logits, present
                        ranking

`past` and `present` are keys and values of the tokens so far, a pair for each layer, with no tokens at the beginning; `memory`
are those of the source, projected once. New tokens are input_ids, position_ids and past_position_ids, and an attention_mask that
tells which of all tokens each new one sees. So they are what a caller makes of them: a text in which each sees those before
it, or the beams of a search, each of which sees what it continues. Beams then share a source, a prompt and a past.
`onnx.py` and `torch_export.py` write such graphs, `runtime.py` runs what they wrote.
"""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

import glassformer
from glassformer.masking import causal_mask
from glassformer.positions import rotate

from .convert import load_our_config, load_weights
from .folders import TARGET_TOKENIZER, new_folder
from .runtime import INPUTS, load_graph


# B batch, T new tokens, S source length, H heads, G key/value heads, K width of a head

TOLERANCE = 1e-4
SIZES = ((3, 5, 2), (1, 1, 6), (2, 4, 0), (1, 1, 0), (1, 2, 1))  # batch, length and past: beside those of tracing, the smallest
KEPT = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    TARGET_TOKENIZER,
)
OUTPUTS = {
    "GlassformerForMaskedLM": ("logits",),
    "GlassformerForSequenceClassification": ("logits",),
    "GlassformerForTokenClassification": ("logits",),
    "GlassformerForQuestionAnswering": ("start_logits", "end_logits"),
    "GlassformerForImageClassification": ("logits",),
}


def export_graphs(
    folder: str | Path, output: str | Path, suffix: str, write: Callable[["Graph", Path], None], tolerance: float = TOLERANCE
) -> dict[str, float]:
    """Write the graphs of a folder's model -> for each, how far its outputs are from torch's on inputs of other sizes.

    A graph that is further away than `tolerance` is an error, and then there is no folder at all.
    """
    with new_folder(Path(output)) as draft:
        graphs = {f"{name}{suffix}": graph for name, graph in graphs_of(load_model(folder)).items()}
        differences = {}
        for name, graph in graphs.items():
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # torch about torch
                write(graph, draft / name)
            differences[name] = compare(draft / name, graph)
            if not differences[name] <= tolerance:
                far = f"{differences[name]:.2g}, more than {tolerance:g}"
                raise RuntimeError(f"{name} differs from torch by {far}: nothing was written.")
        (draft / INPUTS).write_text(json.dumps({name: graph.sizes for name, graph in graphs.items()}, indent=2) + "\n")
        for name in KEPT:
            if (source := Path(folder, name)).exists():
                (shutil.copytree if source.is_dir() else shutil.copy)(source, draft / name)
    return differences


def load_model(folder: str | Path) -> PreTrainedModel:
    head = load_our_config(folder).architectures[0]
    known = [*OUTPUTS, "GlassformerForCausalLM", "GlassformerForConditionalGeneration"]
    if head not in known:
        raise ValueError(f"{folder} holds a {head}, which is none of {', '.join(known)}: give a finished model.")
    return load_weights(getattr(glassformer, head), folder).float().eval()


def graphs_of(model: PreTrainedModel) -> dict[str, "Graph"]:
    if type(model).__name__ == "GlassformerForCausalLM":
        return {"model": Writer(model), "ranking": Ranking(model)}
    if type(model).__name__ == "GlassformerForConditionalGeneration":
        return {"encoder": Memory(model), "decoder": WriterFromMemory(model), "ranking": Ranking(model)}
    return {"model": Viewer(model) if model.config.image_size else Reader(model)}


@torch.no_grad()
def compare(path: Path, graph: "Graph") -> float:
    """The largest difference between the model and what was written, over inputs of several sizes."""
    run, differences = load_graph(path), []
    for sizes in SIZES:
        sample = graph.sample(*sizes)
        expected, found = graph.expected(sample), run({name: value.numpy() for name, value in flatten(sample).items()})
        differences += [float((ours - torch.from_numpy(found[name])).abs().max()) for name, ours in expected.items()]
    return max(differences)


# Graphs: modules of tensors alone, each with the names and sizes of what it takes


class Graph(nn.Module):
    """A part of a model as a function of tensors."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = model
        self.eval()

    @property
    def axes(self) -> dict[str, Any]:
        """The names of the axes whose size is free, by input."""
        return {"input_ids": {0: "batch", 1: "length"}, "attention_mask": {0: "batch", 1: "length"}}

    @property
    def sizes(self) -> dict[str, list[str | int]]:
        """Every axis of every input: its name where its size is free, its size where it is not."""
        axes, sample = flatten(self.axes), flatten(self.trace_sample())
        return {name: [axes[name].get(axis, size) for axis, size in enumerate(sample[name].shape)] for name in axes}

    def trace_sample(self) -> dict[str, Any]:
        """Inputs to trace with: no two axes of one size, that they are not taken for one axis."""
        return self.sample(batch=2, length=3, past=4)

    def sample(self, batch: int, length: int, past: int) -> dict[str, Any]:
        """Inputs of these sizes, the second row of a batch with padding at its end."""
        ids = torch.randint(self.model.config.vocab_size, (batch, length))
        mask = torch.ones(batch, length, dtype=torch.bool)
        mask[1:, -1] = False
        return {"input_ids": ids, "attention_mask": mask}

    def expected(self, sample: dict[str, Any]) -> dict[str, Tensor]:
        """What the model itself makes of a sample: the same, unless a graph goes a way of its own."""
        return self(**sample)


class Reader(Graph):
    """A model that answers about the text as a whole, or each token of it."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return {name: outputs[name] for name in OUTPUTS[type(self.model).__name__]}


class Viewer(Graph):
    """A model that answers about pictures, which have one size."""

    @property
    def axes(self) -> dict[str, Any]:
        return {"pixel_values": {0: "batch"}}

    def sample(self, batch: int, length: int, past: int) -> dict[str, Any]:
        config = self.model.config
        return {"pixel_values": torch.randn(batch, config.num_channels, config.image_size, config.image_size)}

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        return {"logits": self.model(pixel_values=pixel_values).logits}


class Memory(Graph):
    """The encoder, and what each layer of the decoder makes of its output."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        hidden = self.model.model.encoder(input_ids, attention_mask).last_hidden_state
        pairs = [layer.cross_attn.keys_and_values(hidden, hidden) for layer in self.model.model.decoder.layers]
        return flatten({"memory": [(keys.contiguous(), values.contiguous()) for keys, values in pairs]})


class Writer(Graph):
    """A decoder by itself: some tokens more, after those of the past."""

    def __init__(self, model: PreTrainedModel):
        super().__init__(model)
        self.decoder = model.get_decoder()
        for layer in self.decoder.layers:
            layer.self_attn = JoinedAttention(layer.self_attn)

    @property
    def axes(self) -> dict[str, Any]:
        pair = {0: "batch", 2: "past"}
        return {
            "input_ids": {0: "batch", 1: "length"},
            "position_ids": {0: "batch", 1: "length"},
            "past_position_ids": {0: "batch", 1: "past"},
            "attention_mask": {0: "batch", 1: "length", 2: "past_and_length"},
            "past": [(pair, pair) for _ in self.decoder.layers],
        }

    def sample(self, batch: int, length: int, past: int) -> dict[str, Any]:
        inputs = super().sample(batch, past + length, 0)
        return {
            "input_ids": inputs["input_ids"][:, past:].clone(),  # no view, which tracing would remember as one
            "position_ids": torch.arange(past, past + length).repeat(batch, 1),
            "past_position_ids": torch.arange(past).repeat(batch, 1),
            "attention_mask": causal_mask(length, past + length) & inputs["attention_mask"][:, None],
            "past": [random_keys(layer.self_attn, batch, past) for layer in self.decoder.layers],
        }

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, past_position_ids: Tensor, attention_mask: Tensor, past: Any
    ) -> dict[str, Tensor]:
        return self.step(input_ids, position_ids, past_position_ids, attention_mask, cache_of(past))

    def expected(self, sample: dict[str, Any]) -> dict[str, Tensor]:
        cache, visible = cache_of(sample["past"]), sample["attention_mask"][:, -1]  # by the last token, after all others
        outputs = self.model(
            sample["input_ids"], visible, position_ids=sample["position_ids"], past_key_values=cache, use_cache=True
        )
        return {"logits": outputs.logits, **keys_of(cache)}

    def step(
        self, input_ids: Tensor, position_ids: Tensor, past_position_ids: Tensor, mask: Tensor, cache: Any, **memory: Tensor
    ) -> dict[str, Tensor]:
        """What `Decoder.forward` does, but for tokens that need not stand one after the other."""
        decoder, window = self.decoder, self.model.config.attention_window
        positions = torch.cat((past_position_ids, position_ids), dim=1)
        if window is not None:
            mask = mask & (position_ids[:, :, None] - positions[:, None] < window)
        x = decoder.embed_tokens(input_ids)
        bias, rotary = decoder.attention_positions(x, position_ids, position_ids, positions)
        x = decoder.enter(x, position_ids)
        for layer in decoder.layers:
            x = layer(x, mask=mask[:, None], position_bias=bias, rotary=rotary, past_key_values=cache, **memory)
        tokens = getattr(cache, "self_attention_cache", cache)
        return {"logits": self.model.logits(decoder.norm(x)), **keys_of(tokens)}


class WriterFromMemory(Writer):
    """A decoder that looks at a source: some tokens more, after those of the past."""

    @property
    def axes(self) -> dict[str, Any]:
        axes, source = super().axes, {0: "batch", 2: "source_length"}
        return {
            "input_ids": axes["input_ids"],
            "position_ids": {1: "length"},  # the same for all, since nothing stands before what is written
            "past_position_ids": {1: "past"},
            "attention_mask": axes["attention_mask"],
            "memory_mask": {0: "batch", 1: "source_length"},
            "memory": [(source, source) for _ in self.decoder.layers],
            "past": axes["past"],
        }

    def sample(self, batch: int, length: int, past: int) -> dict[str, Any]:
        source, inputs = past + length + 2, super().sample(batch, length, past)
        return {
            "input_ids": inputs["input_ids"],
            "position_ids": inputs["position_ids"][:1].clone(),
            "past_position_ids": inputs["past_position_ids"][:1].clone(),
            "attention_mask": inputs["attention_mask"],
            "memory_mask": Graph.sample(self, batch, source, 0)["attention_mask"],
            "memory": [random_keys(layer.cross_attn, batch, source) for layer in self.decoder.layers],
            "past": inputs["past"],
        }

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        past_position_ids: Tensor,
        attention_mask: Tensor,
        memory_mask: Tensor,
        memory: Any,
        past: Any,
    ) -> dict[str, Tensor]:
        source = {"memory": self.unread(memory), "memory_mask": memory_mask[:, None, None]}
        return self.step(input_ids, position_ids, past_position_ids, attention_mask, source_cache(past, memory), **source)

    def expected(self, sample: dict[str, Any]) -> dict[str, Tensor]:
        cache = source_cache(sample["past"], sample["memory"])
        outputs = self.model(
            encoder_outputs=(self.unread(sample["memory"]),),
            attention_mask=sample["memory_mask"],
            decoder_input_ids=sample["input_ids"],
            decoder_attention_mask=sample["attention_mask"][:, -1],
            past_key_values=cache,
            use_cache=True,
        )
        return {"logits": outputs.logits, **keys_of(cache.self_attention_cache)}

    def unread(self, memory: Any) -> Tensor:
        """In the place of the encoder's output, whose keys and values are in the cache: for its shape alone."""
        keys = memory[0][0]
        return keys.new_zeros(keys.shape[0], keys.shape[2], self.model.config.d_model)


class Ranking(Graph):
    """The best continuations of all sequences of an example: a step of beam search, as far as every word has a part in it."""

    @property
    def axes(self) -> dict[str, Any]:
        return {"logits": {0: "batch", 1: "beams"}, "scores": {0: "batch", 1: "beams"}, "wanted": {}}

    def sample(self, batch: int, length: int, past: int) -> dict[str, Any]:
        """As many beams as there are tokens otherwise."""
        logits = torch.randn(batch, length, self.model.config.vocab_size)
        return {"logits": logits, "scores": torch.randn(batch, length), "wanted": torch.tensor(2 * length)}

    def forward(self, logits: Tensor, scores: Tensor, wanted: Tensor) -> dict[str, Tensor]:
        """Logits of the next token [B, W, V], scores of what is continued [B, W], how many -> scores, and places in W * V."""
        how_many: Any = wanted.item()
        best = (logits.log_softmax(dim=-1) + scores[..., None]).flatten(1).topk(how_many)
        return {"best": best.values, "places": best.indices}


class JoinedAttention(nn.Module):
    """Self-attention whose queries, keys and values are one product: there are few tokens at a time, and many products."""

    def __init__(self, attention: Any):
        super().__init__()
        self.attention, self.d_model, self.d_k = attention, attention.d_model, attention.d_k
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.sizes = [part.out_features // self.d_k for part in parts]  # heads of each
        self.product = nn.Linear(self.d_model, self.d_k * sum(self.sizes), bias=parts[0].bias is not None)
        for name, joined in self.product.named_parameters():
            joined.data = torch.cat([getattr(part, name).detach() for part in parts])
        del attention.q_proj, attention.k_proj, attention.v_proj  # or they would be written too

    def forward(
        self, x: Tensor, mask: Tensor | None, position_bias: Tensor | None, rotary: Any, past_key_values: Any, **kwargs
    ) -> tuple[Tensor, Tensor | None]:
        attention, cache = self.attention, getattr(past_key_values, "self_attention_cache", past_key_values)
        heads = attention.split_heads(self.product(x))  # [B, H + 2G, T, K]
        q, k, v = heads.split(self.sizes, dim=1)
        q, k = attention.q_norm(q), attention.k_norm(k)
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        k, v = cache.update(k, v, attention.layer_idx)
        output, weights = attention.attend(q, k, v, mask, position_bias, **kwargs)
        return attention.out_proj(output.flatten(2)), weights


def source_cache(past: Any, memory: Any) -> EncoderDecoderCache:
    """The past, and the source as if it had been read already."""
    cache = EncoderDecoderCache(cache_of(past), cache_of(memory))
    cache.is_updated = dict.fromkeys(range(len(memory)), True)
    return cache


def random_keys(attention: Any, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Keys and values as this layer makes them, [B, G, length, K]; G is smaller where heads were pruned."""
    joined = isinstance(attention, JoinedAttention)
    heads = attention.sizes[1] if joined else attention.k_proj.out_features // attention.d_k
    size = (batch, heads, length, attention.d_k)
    return torch.randn(size), torch.randn(size)


def cache_of(pairs: list[tuple[Tensor, Tensor]]) -> DynamicCache:
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(pairs):
        cache.update(keys, values, layer)
    return cache


def keys_of(cache: Any) -> dict[str, Tensor]:
    return flatten({"present": [(layer.keys.contiguous(), layer.values.contiguous()) for layer in cache.layers]})


def flatten(inputs: dict[str, Any]) -> dict[str, Any]:
    """Pairs of keys and values by names of their own: past.0.key, past.0.value, ..."""
    flat: dict[str, Any] = {}
    for name, value in inputs.items():
        if isinstance(value, list):
            flat |= {f"{name}.{layer}.{part}": x for layer, pair in enumerate(value) for part, x in zip(("key", "value"), pair)}
        else:
            flat[name] = value
    return flat
