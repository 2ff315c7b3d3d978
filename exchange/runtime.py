# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Exported graphs at work: a loop of numpy around ONNX Runtime or torch, and nothing else.

This file needs nothing of ours, so that it can be copied to where a model is to run.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


# B batch, T tokens, V vocabulary

Tensors = dict[str, np.ndarray]  # by name
INPUTS = "inputs.json"  # what every graph takes: each axis by its name if its size is free


def load_graph(path: str | Path) -> Callable[[Tensors], Tensors]:
    """The function of named tensors that a file holds."""
    path = Path(path)
    if path.suffix == ".onnx":
        return load_onnx(path)
    import torch

    if path.name.endswith(".compiled.pt2"):
        return of_torch(torch._inductor.aoti_load_package(str(path)))
    return of_torch(torch.export.load(path).module())


def load_onnx(path: Path) -> Callable[[Tensors], Tensors]:
    from onnxruntime import InferenceSession

    session = InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs)))


def of_torch(program: Callable[..., Any]) -> Callable[[Tensors], Tensors]:
    import torch

    @torch.inference_mode()
    def run(inputs: Tensors) -> Tensors:
        # In one piece: compiled programs step through memory without asking how it is laid out.
        tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in inputs.items()}
        outputs = program(**nest(tensors))
        return {name: value.numpy() for name, value in outputs.items()}

    return run


def nest(inputs: dict[str, Any]) -> dict[str, Any]:
    """past.0.key, past.0.value, ... -> past, a list of pairs, as programs of torch take it."""
    nested = {name: value for name, value in inputs.items() if "." not in name}
    for name in {name.partition(".")[0]: None for name in inputs if "." in name}:
        layers = range(sum(each.startswith(f"{name}.") for each in inputs) // 2)
        nested[name] = [(inputs[f"{name}.{layer}.key"], inputs[f"{name}.{layer}.value"]) for layer in layers]
    return nested


class ExportedModel:
    """The graphs of a folder."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        if not (self.folder / INPUTS).exists():
            raise FileNotFoundError(f"{folder} holds no graphs: give a folder that was exported to onnx or torch.")
        files = json.loads((self.folder / INPUTS).read_text())
        self.inputs = {name.partition(".")[0]: inputs for name, inputs in files.items()}
        self.graphs = {name.partition(".")[0]: load_graph(self.folder / name) for name in files}

    def run(self, name: str, inputs: Tensors) -> Tensors:
        """Inputs by name -> outputs by name, of `model`, `encoder` or `decoder`."""
        return self.graphs[name](inputs)

    def generate(self, input_ids: np.ndarray, attention_mask: np.ndarray, max_new_tokens: int) -> np.ndarray:
        """Greedy, until every row has ended or is long enough: [B, T]. The prompts of a decoder are padded on the left."""
        settings = json.loads((self.folder / "generation_config.json").read_text())
        written, step = self.begin(input_ids, attention_mask.astype(bool), settings.get("decoder_start_token_id"))
        new, ended, pad = written, np.zeros(len(input_ids), dtype=bool), settings.get("pad_token_id") or 0
        end = settings.get("eos_token_id")
        for _ in range(max_new_tokens):
            token = np.where(ended, pad, step(new).argmax(-1))
            ended |= np.isin(token, [] if end is None else end)
            new = token[:, None]
            written = np.concatenate((written, new), axis=1)
            if ended.all():
                break
        return written

    def begin(self, input_ids: np.ndarray, mask: np.ndarray, start: int | None) -> tuple[np.ndarray, Callable]:
        """The first tokens that are written, and the function from new tokens [B, T] to logits of the next one [B, V]."""
        if "decoder" in self.graphs:
            memory = self.run("encoder", {"input_ids": input_ids, "attention_mask": mask})
            steps = Steps(self, "decoder", len(mask), {"attention_mask": mask, **memory})
            return np.full((len(mask), 1), start), steps
        return input_ids, StepsAfterPrompt(self, "model", mask)


class Steps:
    """A decoder and its past."""

    def __init__(self, model: ExportedModel, name: str, batch: int, inputs: Tensors):
        self.model, self.name, self.inputs = model, name, inputs
        free = {"batch": batch, "past": 0}
        self.past = {
            name: np.zeros([free.get(size, size) for size in sizes], dtype=np.float32)
            for name, sizes in model.inputs[name].items()
            if name.startswith("past.")
        }

    def __call__(self, new: np.ndarray) -> np.ndarray:
        outputs = self.model.run(self.name, {"input_ids": new, **self.inputs, **self.past})
        logits = outputs.pop("logits")[:, -1]
        self.past = {name.replace("present", "past"): value for name, value in outputs.items()}
        return logits


class StepsAfterPrompt(Steps):
    """A decoder whose past begins with a prompt, in which padding does not count."""

    def __init__(self, model: ExportedModel, name: str, mask: np.ndarray):
        super().__init__(model, name, len(mask), {})
        self.mask, self.positions = mask, np.maximum(mask.cumsum(1) - 1, 0)

    def __call__(self, new: np.ndarray) -> np.ndarray:
        self.inputs = {"attention_mask": self.mask, "position_ids": self.positions}
        self.mask, self.positions = np.pad(self.mask, ((0, 0), (0, 1)), constant_values=True), self.positions[:, -1:] + 1
        return super().__call__(new)
