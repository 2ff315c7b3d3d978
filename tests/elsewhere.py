"""Run by test_benchmarks.py: every contestant on a device that is none, whose tensors lie in the memory of the CPU.

As on a GPU, an operation that is given tensors of several devices is an error. So this finds what a benchmark forgets to move,
on a machine that has nowhere to move it; that it runs on a GPU it does not show.
"""

import dataclasses
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from test_benchmarks import PAIRS, TINY
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from glassformer import modeling_glassformer
from glassformer.benchmarks import corpus, generation, limit, memory, scaling, training_step
from glassformer.benchmarks.worker import OPTIONAL


NAME = "elsewhere"
PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}
CROSSING = {"aten::_to_copy", "aten::copy_", "aten::to"}  # between devices


waits: list[str] = []  # for which device


class There(Tensor):
    """A tensor of the device."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> "There":
        layout = {"strides": here.stride(), "storage_offset": here.storage_offset(), "dtype": here.dtype}
        there = Tensor._make_wrapper_subclass(cls, here.shape, device=f"{NAME}:0", **layout)
        there.here = here
        return there

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None) -> Any:
        return run(operation, args, kwargs or {})


class Watching(TorchDispatchMode):
    """Sees operations without tensors too, which make new ones."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None) -> Any:
        return run(operation, args, kwargs or {})


class Calling(TorchFunctionMode):
    """What such tensors cannot do by themselves: they are made on the CPU and moved, and read from there."""

    def __torch_function__(self, function, types, args=(), kwargs=None) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.tensor:
            device = kwargs.pop("device", None)
            return torch.tensor(*args, **kwargs).to(device or "cpu")
        return function(*map(to_cpu, args)) if function is Tensor.tolist else function(*args, **kwargs)


def run(operation, args, kwargs) -> Any:
    """On the CPU; its results are on the device if it says so, or where its inputs are."""
    name, given = operation._schema.name, tree_leaves((args, kwargs))
    there = [one for one in given if isinstance(one, There)]
    if name in PRODUCTS and not there:
        raise RuntimeError(f"{name} was computed on the CPU: its tensors have not been moved.")
    if (
        there
        and name not in CROSSING
        and any(isinstance(one, Tensor) and one.dim() and not isinstance(one, There) for one in given)
    ):
        raise RuntimeError(f"{name} was given tensors of several devices.")
    devices = [one.type for one in given if isinstance(one, torch.device)]
    goes_there = isinstance(args[0], There) if name == "aten::copy_" else devices == [NAME] if devices else bool(there)
    results = operation(*tree_map(to_cpu, args), **tree_map(to_cpu, kwargs))
    if not goes_there:
        return args[0] if name == "aten::copy_" else results
    results = tree_map(lambda one: There(one) if isinstance(one, Tensor) else one, results)
    return return_and_correct_aliasing(operation, args, kwargs, results) if there else results


def to_cpu(value: Any) -> Any:
    return value.here if isinstance(value, There) else torch.device("cpu") if isinstance(value, torch.device) else value


def train(kind: str, name: str) -> None:
    sizes = dataclasses.asdict(TINY[kind])
    _, step = training_step.prepare(kind, name, 0.1, sizes, 0.0, NAME)
    waits.clear()
    assert step()["seconds"] > 0 and waits == [NAME, NAME]
    _, remember = memory.prepare_step(kind, name, sizes, NAME)
    assert remember() == {"bytes": 50, "whole": 150}


def train_on_a_corpus() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.json"
        file.write_text(json.dumps(corpus.random_pairs(100, 512)))
        sizes = dataclasses.asdict(TINY["encoder-decoder"])
        for name, how in corpus.CONTESTANTS.values():
            _, turn = corpus.prepare(name, how, str(file), sizes, 0.1, 100, NAME)
            assert turn()["seconds"] > 0


def remember() -> None:
    sizes = dataclasses.asdict(TINY["llama-like"])
    for way in (False, True):
        assert memory.prepare_loss(sizes, way, NAME)[1]()["bytes"] == 50
    assert memory.prepare_attention(sizes, "eager", NAME)[1]()["bytes"] == 50


def write(name: str) -> None:
    _, turn = generation.prepare(name, dataclasses.asdict(TINY["encoder-decoder"]), 1, 0.0, NAME)
    for beams in generation.BEAMS.values():
        assert turn(beams=beams, batch=3)["seconds"] > 0


def grow() -> None:
    scaling.SIZES |= {"vocab_size": 100, "d_model": 32, "d_ff": 32}
    _, turn = scaling.prepare(0.0, NAME)
    for what in ("depth", "batch", "length", "window"):
        turn(what, 2 if what in ("depth", "batch") else 200)


def main() -> None:
    warnings.simplefilter("ignore")
    _setup_privateuseone_for_python_backend(NAME)
    torch.accelerator.synchronize = waits.append
    counter = {"reset_peak_memory_stats": int, "memory_allocated": lambda: 100, "max_memory_allocated": lambda: 150}
    for name, function in counter.items():
        setattr(torch.get_device_module(NAME), name, function)
    modeling_glassformer.is_plain = lambda layer: True  # which a layer with such a weight otherwise is not
    with Calling(), Watching(), sdpa_kernel(SDPBackend.MATH):  # the other kernels are for devices by name
        for kind, name in PAIRS:
            try:
                train(kind, name)
            except ModuleNotFoundError as missing:
                if missing.name not in OPTIONAL:
                    raise
        for name in generation.contestants_on("xpu"):
            write(name)
        train_on_a_corpus()
        remember()
        grow()
        assert limit.prepare(NAME, seconds=0.001)[1]()["rate"] > 0
    print("everything has run elsewhere", flush=True)
    os._exit(0)  # the device's thread for gradients would not end in peace


if __name__ == "__main__":
    main()
