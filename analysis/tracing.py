# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What one pass costs, module by module: shapes, parameters, additions and multiplications, and the memory kept for the way back.

with ShapeTracer(model) as shapes:
    model(**batch)
print(shapes.table())

with MemoryEstimate(model, optimizer="adamw") as memory:
    model(**batch).loss.backward()
print(memory.table())
"""

from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from glassformer.training.estimate import FLOAT, OPTIMIZER_VALUES, check_choice, readable_bytes, readable_count

from .hooks import Watch, format_table


ATTENTION = ("attn", "attention")  # what families call the modules that attend


class KeptTensors:
    """Bytes that autograd keeps from a forward pass for the backward pass, by the innermost module that was at work.

    A tensor that several operations keep is counted once, and weights are not counted: they are there anyway.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.bytes: dict[str, int] = defaultdict(int)

    def __enter__(self) -> "KeptTensors":
        self._open, self._modules = ExitStack(), [""]
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in self.model.parameters()}
        self._alive: list[Tensor] = []  # or an address might be given away again
        for name, module in self.model.named_modules():
            enter = module.register_forward_pre_hook(lambda *_, name=name: self._modules.append(name))
            leave = module.register_forward_hook(self._leave, always_call=True)
            self._open.callback(enter.remove)
            self._open.callback(leave.remove)
        self._open.enter_context(torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor))
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.close()
        self._alive.clear()

    def _leave(self, *_: Any) -> None:
        self._modules.pop()

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self._alive.append(tensor.detach())
            self.bytes[self._modules[-1]] += storage.nbytes()
        return tensor


# Shapes


@dataclass
class Shapes:
    name: str
    kind: str
    inputs: list[tuple[int, ...]]
    outputs: list[tuple[int, ...]]
    parameters: int  # of the module itself, without those inside it
    memory: int = 0  # bytes that it keeps itself for the backward pass, if there will be one
    flops: int = 0  # of the forward pass, with those of the modules inside it


class ShapeTracer(Watch):
    """What goes through each module, in the order of the forward pass: `rows`, and `table()` to print."""

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.rows: list[Shapes] = []
        self._kept = KeptTensors(model)
        self._flops = FlopCounterMode(display=False, custom_mapping=cpu_attention())

    def __enter__(self):
        super().__enter__()
        self._hooks.enter_context(self._kept)
        self._hooks.enter_context(self._flops)
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        whole = type(self.model).__name__
        for row in self.rows:  # of a module that is called several times, the sum
            row.memory = self._kept.bytes[row.name]
            row.flops = sum(self._flops.flop_counts[f"{whole}.{row.name}"].values())

    def see(self, name: str, module: nn.Module, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        own = sum(p.numel() for p in module.parameters(recurse=False))
        read, written = ([tuple(x.shape) for x in several] for several in (inputs, outputs))
        self.rows.append(Shapes(name, type(module).__name__, read, written, own))

    def table(self) -> str:
        rows = [
            [
                row.name, row.kind, first(row.inputs), first(row.outputs), f"{row.parameters:,}", readable_bytes(row.memory),
                readable_count(row.flops),
            ]
            for row in self.rows
            if row.kind != "Identity"
        ]  # fmt: skip
        return format_table(["module", "class", "input", "output", "parameters", "kept", "FLOPs"], rows)


def first(shapes: list[tuple[int, ...]]) -> str:
    more = f" +{len(shapes) - 1}" if len(shapes) > 1 else ""
    return f"{list(shapes[0])}{more}" if shapes else "-"


def cpu_attention() -> dict[Any, Any]:
    """torch counts its attention kernels, except the one for CPUs."""

    def flops(query, key, value, *args, **kwargs) -> int:
        return sdpa_flop_count(query, key, value)

    return {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: flops}


# Memory


class MemoryEstimate:
    """Bytes that an update takes: weights, gradients, optimizer, and what the forward pass within the `with` keeps."""

    def __init__(self, model: nn.Module, optimizer: str = "adamw"):
        check_choice("optimizer", optimizer, OPTIMIZER_VALUES)
        self.model, self.optimizer = model, optimizer
        self._kept = KeptTensors(model)

    def __enter__(self) -> "MemoryEstimate":
        self._kept.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._kept.__exit__(*error)

    @property
    def rows(self) -> dict[str, int]:
        """`attention` is what the modules that attend keep, all that is within them; `activations` is everything else."""
        trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        values = OPTIMIZER_VALUES[self.optimizer]
        attention = sum(size for name, size in self._kept.bytes.items() if any(word in name.lower() for word in ATTENTION))
        rows = {
            "weights": sum(p.numel() * p.element_size() for p in self.model.parameters()),
            "gradients": sum(p.numel() * p.element_size() for p in trained.values()),
            "optimizer": FLOAT * sum(values(name, p.shape) for name, p in trained.items()),
            "attention": attention,
            "activations": sum(self._kept.bytes.values()) - attention,
        }
        return rows | {"total": sum(rows.values())}

    def table(self) -> str:
        return format_table(["memory of an update", ""], [[name, readable_bytes(size)] for name, size in self.rows.items()])
