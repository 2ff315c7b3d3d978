# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""ONNX: a trained model as graphs that ONNX Runtime runs without torch, in any batch and length.

    reads only          model.onnx     input_ids, attention_mask -> logits
    reads pictures      model.onnx     pixel_values -> logits
    decoder             model.onnx     input_ids, attention_mask, position_ids, past -> logits, present
    encoder-decoder     encoder.onnx   input_ids, attention_mask -> memory
                        decoder.onnx   input_ids, attention_mask, memory, past -> logits, present

`past` and `present` are keys and values of the tokens so far, a pair for each layer, with no tokens at the beginning; `memory`
are those of the source, projected once. `OnnxModel` is the loop around them.
"""

import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, DynamicCache, EncoderDecoderCache, GenerationConfig, PreTrainedModel

import glassformer


# B batch, T new tokens, P past tokens, S source length, L decoder layers, G key/value heads, K width of a head

TOLERANCE = 1e-4
KEPT = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "target_tokenizer",
    "preprocessor_config.json",
)
OUTPUTS = {
    "GlassformerForMaskedLM": ("logits",),
    "GlassformerForSequenceClassification": ("logits",),
    "GlassformerForTokenClassification": ("logits",),
    "GlassformerForQuestionAnswering": ("start_logits", "end_logits"),
    "GlassformerForImageClassification": ("logits",),
}


def export_onnx(folder: str | Path, output: str | Path, int8: bool = False) -> dict[str, float]:
    """Write the model of a folder as ONNX -> for each graph, how far its outputs are from torch's on inputs of another size.

    In float32 a graph that is further away than `TOLERANCE` is not written; with `int8`, the weights of matrix products are
    rounded to eight bits, and the difference is what that costs.
    """
    check_packages()
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileExistsError(f"{output} exists already: give a new folder.")
    model = load_model(Path(folder))
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".onnx-") as place:
        made = Path(place, "made")  # of which the folder appears whole or not at all
        made.mkdir()
        differences = {name: write_graph(made / name, graph, int8) for name, graph in graphs_of(model).items()}
        for name in KEPT:
            if (source := Path(folder, name)).exists():
                (shutil.copytree if source.is_dir() else shutil.copy)(source, made / name)
        if output.exists():
            output.rmdir()
        made.rename(output)
    return differences


def check_packages() -> None:
    for package in ("onnx", "onnxruntime", "onnxscript"):
        if find_spec(package) is None:
            raise ImportError(f'ONNX needs the package {package}: pip install "glassformer[onnx]".')


def load_model(folder: Path) -> PreTrainedModel:
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder} holds no model: give a folder that training has made.")
    config = AutoConfig.from_pretrained(folder)
    head = (config.architectures or ["checkpoint"])[0]
    known = [*OUTPUTS, "GlassformerForCausalLM", "GlassformerForConditionalGeneration"]
    if head not in known:
        raise ValueError(f"{folder} holds a {head}, which is none of {', '.join(known)}: give a finished model.")
    return getattr(glassformer, head).from_pretrained(folder, dtype=torch.float32).eval()


# Graphs: modules of tensors alone, each with the names and sizes of what it takes


class Graph(nn.Module):
    """A part of a model as a function of tensors."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = model
        self.eval()

    @property
    def layers(self) -> range:
        return range(self.model.config.num_decoder_layers)

    @property
    def axes(self) -> dict[str, Any]:
        """The names of the axes whose size is free, as `torch.onnx.export` takes them."""
        return {"input_ids": {0: "batch", 1: "length"}, "attention_mask": {0: "batch", 1: "length"}}

    @property
    def output_names(self) -> list[str]:
        raise NotImplementedError

    def sample(self, batch: int, length: int, past: int) -> dict[str, Any]:
        """Inputs of these sizes, the second row of a batch with padding at its end."""
        ids = torch.randint(self.model.config.vocab_size, (batch, length))
        mask = torch.ones(batch, length, dtype=torch.bool)
        mask[1:, -1] = False
        return {"input_ids": ids, "attention_mask": mask}

    def random_keys(self, batch: int, length: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of every layer, [B, G, length, K] each."""
        config = self.model.config
        size = (batch, config.num_kv_heads or config.num_heads, length, config.d_model // config.num_heads)
        return [(torch.randn(size), torch.randn(size)) for _ in self.layers]


class Reader(Graph):
    """A model that answers about the text as a whole, or each token of it."""

    @property
    def output_names(self) -> list[str]:
        return list(OUTPUTS[type(self.model).__name__])

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return tuple(outputs[name] for name in self.output_names)


class Viewer(Graph):
    """A model that answers about pictures, which have one size."""

    @property
    def axes(self) -> dict[str, Any]:
        return {"pixel_values": {0: "batch"}}

    @property
    def output_names(self) -> list[str]:
        return list(OUTPUTS[type(self.model).__name__])

    def sample(self, batch: int, length: int, past: int) -> dict[str, Any]:
        config = self.model.config
        return {"pixel_values": torch.randn(batch, config.num_channels, config.image_size, config.image_size)}

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, ...]:
        return (self.model(pixel_values=pixel_values).logits,)


class Memory(Graph):
    """The encoder, and what each layer of the decoder makes of its output."""

    @property
    def output_names(self) -> list[str]:
        return [f"memory.{layer}.{part}" for layer in self.layers for part in ("key", "value")]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        hidden = self.model.model.encoder(input_ids, attention_mask).last_hidden_state
        attentions = [layer.cross_attn for layer in self.model.model.decoder.layers]
        return tuple(part for attention in attentions for part in attention.keys_and_values(hidden, hidden))


class Writer(Graph):
    """A decoder by itself: some tokens more, after those of the past."""

    @property
    def axes(self) -> dict[str, Any]:
        pair = {0: "batch", 2: "past"}
        return {
            "input_ids": {0: "batch", 1: "length"},
            "attention_mask": {0: "batch", 1: "past_and_length"},
            "position_ids": {0: "batch", 1: "length"},
            "past": [(pair, pair) for _ in self.layers],
        }

    @property
    def output_names(self) -> list[str]:
        return ["logits", *(f"present.{layer}.{part}" for layer in self.layers for part in ("key", "value"))]

    def sample(self, batch: int, length: int, past: int) -> dict[str, Any]:
        inputs = super().sample(batch, past + length, 0)
        positions = torch.arange(past, past + length).expand(batch, -1)
        return {
            "input_ids": inputs["input_ids"][:, past:],
            "attention_mask": inputs["attention_mask"],
            "position_ids": positions,
            "past": self.random_keys(batch, past),
        }

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past: Any) -> tuple[Tensor, ...]:
        cache = cache_of(past)
        outputs = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache, use_cache=True
        )
        return outputs.logits, *keys_of(cache)


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
            "memory": self.random_keys(batch, source),
            "past": self.random_keys(batch, past),
        }

    def forward(self, input_ids: Tensor, attention_mask: Tensor, memory: Any, past: Any) -> tuple[Tensor, ...]:
        cache = EncoderDecoderCache(cache_of(past), cache_of(memory))
        cache.is_updated = dict.fromkeys(self.layers, True)
        (batch, length), source, seen = input_ids.shape, memory[0][0].shape[2], past[0][0].shape[2]
        outputs = self.model(
            encoder_outputs=(memory[0][0].new_zeros(batch, source, self.model.config.d_model),),  # for its shape alone
            attention_mask=attention_mask,
            decoder_input_ids=input_ids,
            decoder_attention_mask=attention_mask.new_ones(batch, seen + length),
            past_key_values=cache,
            use_cache=True,
        )
        return outputs.logits, *keys_of(cache.self_attention_cache)


def cache_of(pairs: list[tuple[Tensor, Tensor]]) -> DynamicCache:
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(pairs):
        cache.update(keys, values, layer)
    return cache


def keys_of(cache: Any) -> list[Tensor]:
    return [part for layer in cache.layers for part in (layer.keys, layer.values)]


def graphs_of(model: PreTrainedModel) -> dict[str, Graph]:
    if type(model).__name__ == "GlassformerForCausalLM":
        return {"model.onnx": Writer(model)}
    if type(model).__name__ == "GlassformerForConditionalGeneration":
        return {"encoder.onnx": Memory(model), "decoder.onnx": WriterFromMemory(model)}
    return {"model.onnx": Viewer(model) if model.config.image_size else Reader(model)}


# Writing and checking


def write_graph(path: Path, graph: Graph, int8: bool) -> float:
    program = trace(graph)
    if int8:
        from transformers.exporters.configs import ExportFormat
        from transformers.exporters.quantizers import OnnxRuntimeDynamicConfig, OnnxRuntimeQuantizer

        # Weights of seven bits: processors without VNNI add pairs of products in sixteen, which eight could overflow.
        quantizer = OnnxRuntimeQuantizer(OnnxRuntimeDynamicConfig(per_channel=True, reduce_range=True))
        program.model = quantizer.quantize(program.model, {}, ExportFormat.ONNX)
    program.save(path)
    difference = max(compare(path, graph, *sizes) for sizes in ((3, 5, 2), (1, 1, 6), (2, 4, 0)))
    if not int8 and not difference <= TOLERANCE:
        raise RuntimeError(f"{path.name} differs from torch by {difference:.2g}, more than {TOLERANCE:g}: nothing was written.")
    return difference


def trace(graph: Graph) -> Any:
    sample = graph.sample(batch=2, length=3, past=4)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it would miss torchvision
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "# The axis name", UserWarning)  # that several inputs share an axis is as it should be
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        return torch.onnx.export(
            graph, kwargs=sample, dynamo=True, dynamic_shapes=graph.axes, verbose=False,
            input_names=list(flatten(sample)), output_names=graph.output_names,
        )  # fmt: skip


def compare(path: Path, graph: Graph, batch: int, length: int, past: int) -> float:
    """The largest difference between torch and ONNX Runtime, on inputs of this size."""
    sample = graph.sample(batch, length, past)
    with torch.no_grad():
        expected = graph(**sample)
    found = start_session(path).run(None, {name: value.numpy() for name, value in flatten(sample).items()})
    return max(float(np.abs(ours.numpy() - theirs).max()) for ours, theirs in zip(expected, found))


def flatten(inputs: dict[str, Any]) -> dict[str, Any]:
    """Pairs of keys and values by names of their own: past.0.key, past.0.value, ..."""
    flat: dict[str, Any] = {}
    for name, value in inputs.items():
        if isinstance(value, list):
            flat |= {f"{name}.{layer}.{part}": x for layer, pair in enumerate(value) for part, x in zip(("key", "value"), pair)}
        else:
            flat[name] = value
    return flat


def start_session(path: Path) -> Any:
    from onnxruntime import InferenceSession

    return InferenceSession(path, providers=["CPUExecutionProvider"])


# Running


class OnnxModel:
    """The graphs of a folder at work."""

    def __init__(self, folder: str | Path):
        check_packages()
        self.folder = Path(folder)
        self.sessions = {path.stem: start_session(path) for path in sorted(self.folder.glob("*.onnx"))}
        if not self.sessions:
            raise FileNotFoundError(f"{folder} holds no ONNX graphs: give a folder that was exported.")

    def run(self, name: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Inputs by name -> outputs by name, of `model`, `encoder` or `decoder`."""
        session = self.sessions[name]
        return dict(zip((output.name for output in session.get_outputs()), session.run(None, inputs)))

    def generate(self, input_ids: np.ndarray, attention_mask: np.ndarray, max_new_tokens: int) -> np.ndarray:
        """Greedy, until every row has ended or is long enough: [B, T]. The prompts of a decoder are padded on the left."""
        config = GenerationConfig.from_pretrained(self.folder)
        written, step = self.begin(input_ids, attention_mask.astype(bool), config.decoder_start_token_id)
        new, ended, pad = written, np.zeros(len(input_ids), dtype=bool), config.pad_token_id or 0
        ends = np.atleast_1d([] if config.eos_token_id is None else config.eos_token_id)
        for _ in range(max_new_tokens):
            token = np.where(ended, pad, step(new).argmax(-1))
            ended |= np.isin(token, ends)
            new = token[:, None]
            written = np.concatenate((written, new), axis=1)
            if ended.all():
                break
        return written

    def begin(self, input_ids: np.ndarray, mask: np.ndarray, start: int | None) -> tuple[np.ndarray, Callable]:
        """The first tokens that are written, and the function from new tokens [B, T] to logits of the next one [B, V]."""
        if "decoder" in self.sessions:
            memory = self.run("encoder", {"input_ids": input_ids, "attention_mask": mask})
            steps = Steps(self, "decoder", len(mask), {"attention_mask": mask, **memory})
            return np.full((len(mask), 1), start), steps
        return input_ids, StepsAfterPrompt(self, "model", mask)


class Steps:
    """A decoder and its past."""

    def __init__(self, model: OnnxModel, name: str, batch: int, inputs: dict[str, np.ndarray]):
        self.model, self.name, self.inputs = model, name, inputs
        pairs = [given for given in model.sessions[name].get_inputs() if given.name.startswith("past.")]
        self.past = {pair.name: np.zeros((batch, pair.shape[1], 0, pair.shape[3]), dtype=np.float32) for pair in pairs}

    def __call__(self, new: np.ndarray) -> np.ndarray:
        outputs = self.model.run(self.name, {"input_ids": new, **self.inputs, **self.past})
        logits = outputs.pop("logits")[:, -1]
        self.past = {name.replace("present", "past"): value for name, value in outputs.items()}
        return logits


class StepsAfterPrompt(Steps):
    """A decoder whose past begins with a prompt, in which padding does not count."""

    def __init__(self, model: OnnxModel, name: str, mask: np.ndarray):
        super().__init__(model, name, len(mask), {})
        self.mask, self.positions = mask, np.maximum(mask.cumsum(1) - 1, 0)

    def __call__(self, new: np.ndarray) -> np.ndarray:
        self.inputs = {"attention_mask": self.mask, "position_ids": self.positions}
        self.mask, self.positions = np.pad(self.mask, ((0, 0), (0, 1)), constant_values=True), self.positions[:, -1:] + 1
        return super().__call__(new)
