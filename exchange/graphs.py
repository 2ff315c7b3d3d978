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
    decoder             model      input_ids, attention_mask, position_ids, past -> logits, present
    encoder-decoder     encoder    input_ids, attention_mask -> memory
                        decoder    input_ids, attention_mask, memory, past -> logits, present

`past` and `present` are keys and values of the tokens so far, a pair for each layer, with no tokens at the beginning; `memory`
are those of the source, projected once. `onnx.py` and `torch_export.py` write such graphs, `runtime.py` runs what they wrote.
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

from .convert import load_our_config, load_weights
from .folders import TARGET_TOKENIZER, new_folder
from .runtime import INPUTS, load_graph


# B batch, T new tokens, P past tokens, S source length, L decoder layers, G key/value heads, K width of a head

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
        return {"model": Writer(model)}
    if type(model).__name__ == "GlassformerForConditionalGeneration":
        return {"encoder": Memory(model), "decoder": WriterFromMemory(model)}
    return {"model": Viewer(model) if model.config.image_size else Reader(model)}


@torch.no_grad()
def compare(path: Path, graph: "Graph") -> float:
    """The largest difference between torch and what was written, over inputs of several sizes."""
    run, differences = load_graph(path), []
    for sizes in SIZES:
        sample = graph.sample(*sizes)
        expected, found = graph(**sample), run({name: value.numpy() for name, value in flatten(sample).items()})
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

    @property
    def layers(self) -> Any:
        return self.model.model.decoder.layers

    @property
    def axes(self) -> dict[str, Any]:
        pair = {0: "batch", 2: "past"}
        return {
            "input_ids": {0: "batch", 1: "length"},
            "attention_mask": {0: "batch", 1: "past_and_length"},
            "position_ids": {0: "batch", 1: "length"},
            "past": [(pair, pair) for _ in self.layers],
        }

    def sample(self, batch: int, length: int, past: int) -> dict[str, Any]:
        inputs = super().sample(batch, past + length, 0)
        return {
            "input_ids": inputs["input_ids"][:, past:].clone(),  # no view, which tracing would remember as one
            "attention_mask": inputs["attention_mask"],
            "position_ids": torch.arange(past, past + length).repeat(batch, 1),
            "past": [random_keys(layer.self_attn, batch, past) for layer in self.layers],
        }

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past: Any) -> dict[str, Tensor]:
        cache = cache_of(past)
        outputs = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache, use_cache=True
        )
        return {"logits": outputs.logits, **keys_of(cache)}


class WriterFromMemory(Writer):
    """A decoder that looks at a source: some tokens more, after those of the past."""

    @property
    def axes(self) -> dict[str, Any]:
        source = {0: "batch", 2: "source_length"}
        return {
            "input_ids": {0: "batch", 1: "length"},
            "attention_mask": {0: "batch", 1: "source_length"},
            "memory": [(source, source) for _ in self.layers],
            "past": super().axes["past"],
        }

    def sample(self, batch: int, length: int, past: int) -> dict[str, Any]:
        source = past + length + 2
        return {
            "input_ids": torch.randint(self.model.config.vocab_size, (batch, length)),
            "attention_mask": Graph.sample(self, batch, source, 0)["attention_mask"],
            "memory": [random_keys(layer.cross_attn, batch, source) for layer in self.layers],
            "past": [random_keys(layer.self_attn, batch, past) for layer in self.layers],
        }

    def forward(self, input_ids: Tensor, attention_mask: Tensor, memory: Any, past: Any) -> dict[str, Tensor]:
        cache = EncoderDecoderCache(cache_of(past), cache_of(memory))
        cache.is_updated = dict.fromkeys(range(len(memory)), True)
        batch, source = input_ids.shape[0], memory[0][0].shape[2]  # not `len`, which a trace takes for a constant
        outputs = self.model(
            encoder_outputs=(memory[0][0].new_zeros(batch, source, self.model.config.d_model),),  # for its shape alone
            attention_mask=attention_mask[:, None, None],  # as attention uses it: nothing is left to be made in the graph
            decoder_input_ids=input_ids,
            past_key_values=cache,
            use_cache=True,
        )
        return {"logits": outputs.logits, **keys_of(cache.self_attention_cache)}


def random_keys(attention: Any, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Keys and values as this layer makes them, [B, G, length, K]; G is smaller where heads were pruned."""
    size = (batch, attention.k_proj.out_features // attention.d_k, length, attention.d_k)
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
