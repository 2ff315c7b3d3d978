# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""torch.export: the graphs of a model as programs of torch, as they are or compiled.

    .pt2             torch.export.load(path).module()                  on any machine that has torch
    .compiled.pt2    torch._inductor.aoti_load_package(path)           machine code, for processors like this one

Neither needs transformers or our code to run. Both are called with the graph's inputs by name, in which `past` and `memory` are
lists of pairs, and return a dictionary.
"""

from pathlib import Path

import torch
from torch.export import Dim, ExportedProgram
from torch.utils._pytree import tree_map
from torch.utils._sympy.value_ranges import ValueRanges

from .graphs import Graph, export_graphs


def export_torch(folder: str | Path, output: str | Path, compiled: bool = False) -> dict[str, float]:
    """Write the model of a folder as programs of torch -> for each, how far its outputs are from the model's.

    `compiled` makes machine code of them, which needs a C++ compiler here but not where they run.
    """
    if not compiled:
        return export_graphs(folder, output, ".pt2", lambda graph, path: torch.export.save(trace(graph), path))
    check_compiler()
    return export_graphs(folder, output, ".compiled.pt2", write_compiled)


def check_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise OSError("Compiling needs a C++ compiler: install g++, or name another in the variable CXX.") from error


def write_compiled(graph: Graph, path: Path) -> None:
    torch._inductor.aoti_compile_and_package(trace(graph), package_path=str(path))


@torch.no_grad()
def trace(graph: Graph) -> ExportedProgram:
    free = tree_map(lambda _: Dim.DYNAMIC, graph.axes)
    program = torch.export.export(graph, (), graph.trace_sample(), dynamic_shapes=free)
    program = program.run_decompositions({})  # the vmap in masks of windows, which cannot be saved, becomes what it does
    # torch takes every free size for two or more and asks nobody to keep to that, except where it adds two such sizes up, as a
    # mask does: it would refuse one of less than four. `compare` shows that the smaller ones are right.
    for size, bounds in program.range_constraints.items():
        program.range_constraints[size] = bounds | ValueRanges(2, 2)
    return program
