# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Exported graphs at work: a loop of numpy around ONNX Runtime or torch, and nothing else.

This file needs nothing of ours, so that it can be copied to where a model is to run. Only beam search does: it takes the rules
of `generate` from `modeling/beams.py`.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


# B batch, W beams, T tokens, V vocabulary

Tensors = dict[str, np.ndarray]  # by name
INPUTS = "inputs.json"  # what every graph takes: each axis by its name if its size is free

_shared_threads: int | None = None  # how many `share_threads` was asked for


def load_graph(path: str | Path, threads: int = 0) -> Callable[[Tensors], Tensors]:
    """The function of named tensors that a file holds.

    Threads are for ONNX Runtime, 0 for its own choice, and not heeded where `share_threads` was called; torch has its own.
    """
    path = Path(path)
    if path.suffix == ".onnx":
        return load_onnx(path, threads)
    import torch

    if path.name.endswith(".compiled.pt2"):
        return of_torch(torch._inductor.aoti_load_package(str(path)))
    return of_torch(torch.export.load(path).module())


def share_threads(threads: int = 0) -> None:
    """One pool of threads for all graphs of ONNX Runtime in this process: up to 1.3 times as fast as a pool for each graph.

    Threads of a graph fall asleep after it, and are woken up again for every token; those of a shared pool stay awake a while,
    whoever else wants the cores. So this is for a process that does nothing but generate. Call it before the first graph is
    loaded; from then on ONNX Runtime refuses sessions that want threads of their own. 0: one for each core.
    """
    from onnxruntime import set_global_thread_pool_sizes

    global _shared_threads
    if threads < 0:
        raise ValueError(f"threads={threads} must be at least 0, which is one for each core.")
    if _shared_threads not in (None, threads):
        raise ValueError(f"The graphs of this process share threads already, {_shared_threads}: {threads} needs another process.")
    if _shared_threads is None:
        set_global_thread_pool_sizes(threads, 1)
    _shared_threads = threads


def load_onnx(path: Path, threads: int) -> Callable[[Tensors], Tensors]:
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    if _shared_threads is None:
        options.intra_op_num_threads = threads
        # Threads that wait actively share the work of a graph sooner: up to 1.8 times as fast. But after it they would keep the
        # cores from who works then, the other graph too: half as fast.
        options.add_session_config_entry("session.force_spinning_stop", "1")
    else:
        options.use_per_session_threads = False
    # A sum and a norm in one are slower than one after the other: 1.5 of 12 ms in a step of 128 rows.
    session = InferenceSession(path, options, providers=["CPUExecutionProvider"], disabled_optimizers=["SkipLayerNormFusion"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs)))


def of_torch(program: Callable[..., Any]) -> Callable[[Tensors], Tensors]:
    import torch

    @torch.inference_mode()
    def run(inputs: Tensors) -> Tensors:
        # In one piece: compiled programs step through memory without asking how it is laid out.
        tensors = {name: torch.from_numpy(np.asarray(value, order="C")) for name, value in inputs.items()}
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
    """The graphs of a folder, and the settings to write with."""

    def __init__(self, folder: str | Path, threads: int = 0):
        self.folder = Path(folder)
        if not (self.folder / INPUTS).exists():
            raise FileNotFoundError(f"{folder} holds no graphs: give a folder that was exported to onnx or torch.")
        files = json.loads((self.folder / INPUTS).read_text())
        self.inputs = {name.partition(".")[0]: inputs for name, inputs in files.items()}
        self.graphs = {name.partition(".")[0]: load_graph(self.folder / name, threads) for name in files}
        settings = self.folder / "generation_config.json"
        self.settings = json.loads(settings.read_text()) if settings.exists() else {}

    def run(self, name: str, inputs: Tensors) -> Tensors:
        """Inputs by name -> outputs by name, of `model`, `encoder`, `decoder` or `ranking`."""
        return self.graphs[name](inputs)

    def generate(self, input_ids: np.ndarray, attention_mask: np.ndarray, max_new_tokens: int, num_beams: int = 1) -> np.ndarray:
        """Greedy or beam search, until all have ended or are long enough: [B, T]. A decoder's prompts are padded on the left."""
        if num_beams < 1:
            raise ValueError(f"num_beams={num_beams} must be at least 1, which is greedy search.")
        prompt, steps = self.begin(input_ids, attention_mask.astype(bool))
        search = self.write_greedily if num_beams == 1 else functools.partial(self.write_with_beams, num_beams)
        return search(prompt, steps, max_new_tokens)

    def write_greedily(self, prompt: np.ndarray, steps: "Steps", max_new_tokens: int) -> np.ndarray:
        ends, pad = self.ends, self.settings.get("pad_token_id") or 0
        written, ended, logits = [prompt], np.zeros((len(prompt), 1), dtype=bool), steps.read(prompt)  # [B, 1, V]
        for left in reversed(range(max_new_tokens)):
            token = logits.argmax(axis=-1)  # [B, 1]
            if ends:
                token = np.where(ended, pad, token)
                ended |= (token[..., None] == ends).any(axis=-1)
            written.append(token)
            if left == 0 or ended.all():
                break
            logits = steps.go_on(token)
        return np.concatenate(written, axis=1)

    def write_with_beams(self, num_beams: int, prompt: np.ndarray, steps: "Steps", max_new_tokens: int) -> np.ndarray:
        beams, logits = self.new_beams(num_beams, prompt, max_new_tokens), steps.read(prompt, num_beams)  # [B, W, V]
        while True:
            ranked = self.run("ranking", {"logits": logits, "scores": beams.scores, "wanted": np.array(beams.wanted)})
            origin = beams.advance(ranked["best"], *np.divmod(ranked["places"], logits.shape[-1]))
            if beams.is_over:
                return beams.best(1)
            logits = steps.go_on(beams.newest, origin)

    def new_beams(self, num_beams: int, prompt: np.ndarray, max_new_tokens: int) -> Any:
        if "ranking" not in self.graphs:
            raise FileNotFoundError(f"{self.folder} has no graph that ranks beams: export the model again, or num_beams=1.")
        try:
            from glassformer.beams import Beams
        except ImportError as error:
            raise ImportError("Beam search needs more than this file: pip install glassformer, or num_beams=1.") from error
        names = ("pad_token_id", "length_penalty", "early_stopping")
        known = {name.removesuffix("_token_id"): self.settings[name] for name in names if self.settings.get(name) is not None}
        return Beams(prompt.repeat(num_beams, 0), num_beams, prompt.shape[1] + max_new_tokens, self.ends, **known)

    @property
    def ends(self) -> list[int]:
        """The tokens that end an answer."""
        end = self.settings.get("eos_token_id")
        return [] if end is None else end if isinstance(end, list) else [end]

    def begin(self, input_ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, "Steps"]:
        """The first tokens of every example [B, T], and what makes logits of the next ones."""
        if "decoder" not in self.graphs:
            return input_ids, Steps(self, "model", mask, np.maximum(mask.cumsum(1) - 1, 0), {})
        memory = self.run("encoder", {"input_ids": input_ids, "attention_mask": mask})
        start = np.full((len(mask), 1), self.settings["decoder_start_token_id"])
        return start, Steps(self, "decoder", start == start, np.zeros((1, 1), dtype=int), {"memory_mask": mask, **memory})


class Steps:
    """A decoder and what it has read: one past for all W beams of an example, of which each sees what it continues.

    Args:
        mask: which tokens of the prompt are no padding [B, T].
        positions: of the prompt, [B, T] or [1, T] for all.
        inputs: what else the graph takes, the same in every step.
    """

    def __init__(self, model: ExportedModel, name: str, mask: np.ndarray, positions: np.ndarray, inputs: Tensors):
        self.model, self.name, self.inputs = model, name, inputs
        self.positions, self.past_positions = positions, positions[:, :0]
        self.visible = np.tri(mask.shape[1], dtype=bool) & mask[:, None]  # who sees whom, [B, T, T]
        free = {"batch": len(mask), "past": 0}
        self.past = {
            name: np.zeros([free.get(size, size) for size in sizes], dtype=np.float32)
            for name, sizes in model.inputs[name].items()
            if name.startswith("past.")
        }

    def read(self, prompt: np.ndarray, num_beams: int = 1) -> np.ndarray:
        """Tokens [B, T] -> logits of the one after them, the same for all beams: [B, W, V]"""
        logits = self.run(prompt)[:, -1:].repeat(num_beams, 1)
        self.visible = self.visible[:, -1:].repeat(num_beams, 1)
        self.positions = self.positions[:, -1:].repeat(num_beams, 1)
        itself = np.eye(num_beams, dtype=bool)
        self.examples, self.itself = np.arange(len(prompt))[:, None], np.broadcast_to(itself, (len(prompt), *itself.shape))
        return logits

    def go_on(self, tokens: np.ndarray, origin: np.ndarray | None = None) -> np.ndarray:
        """One more token of every beam, and the beam that it continues, by default the same, both [B, W] -> logits [B, W, V]"""
        # What the beam that it continues sees, itself, and none of the other beams
        seen = self.visible if origin is None else self.visible[self.examples, origin]
        self.visible = np.concatenate((seen, self.itself), axis=2)
        self.positions = self.positions + 1
        return self.run(tokens)

    def run(self, tokens: np.ndarray) -> np.ndarray:
        places = {"position_ids": self.positions, "past_position_ids": self.past_positions, "attention_mask": self.visible}
        outputs = self.model.run(self.name, {"input_ids": tokens, **places, **self.inputs, **self.past})
        logits = outputs.pop("logits")
        self.past_positions = np.concatenate((self.past_positions, self.positions), axis=1)
        self.past = {name.replace("present", "past"): value for name, value in outputs.items()}
        return logits
