# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The benchmarks there are, run and reported: what `glassformer benchmark` calls."""

import dataclasses
import importlib
import logging

from . import report
from .contestants import CONTESTANTS
from .options import Options


logger = logging.getLogger("glassformer")

# Each module has `measure(options) -> tables`.
BENCHMARKS = {
    "train": ("training_step", "corpus"),
    "generate": ("generation",),
    "memory": ("memory",),
    "scaling": ("scaling",),
    "start": ("start",),
    "data": ("waiting",),
}


def run(what: str = "all", options: Options | None = None) -> None:
    """Print tables, and write JSON, Markdown and pictures to `options.output`."""
    options = options or Options()
    if what not in (*BENCHMARKS, "all"):
        raise ValueError(f"There is no benchmark {what!r}: choose one of {', '.join(BENCHMARKS)} or all.")
    options.check_names(names(what))
    for benchmark in BENCHMARKS if what == "all" else [what]:
        tables = []
        for module in BENCHMARKS[benchmark]:
            for table in importlib.import_module(f".{module}", __package__).measure(options):
                print(report.plain(table))
                tables.append(table)
        paths = report.write(options.output, benchmark, tables, {**dataclasses.asdict(options), "output": str(options.output)})
        print(f"Written: {', '.join(map(str, paths))}\n")


def names(what: str) -> list[str]:
    """Of what can be measured: models, or recipes where it is about data."""
    from glassformer.training.recipe import recipe_names

    from .generation import CONTESTANTS as writers

    models = list(dict.fromkeys([name for table in CONTESTANTS.values() for name in table] + list(writers)))
    return {"data": recipe_names(), "all": models + recipe_names()}.get(what, models)
