# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Seconds until a model is there: import, loading of saved weights, first token. Each time in a fresh process, beside Marian."""

import json
import logging
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .contestants import CASES, OURS, marian_model, our_config, our_head
from .interleave import Measurements, spread, thread_settings
from .options import Options
from .report import Table
from .training_step import compare


logger = logging.getLogger("glassformer")

STAGES = {"import": "import", "load": "from_pretrained", "first_token": "first token", "seconds": "all"}
CLASSES = {OURS: ("glassformer", "GlassformerForConditionalGeneration"), "Marian": ("transformers", "MarianMTModel")}

SCRIPT = """
import json, sys, time
times = [time.perf_counter()]
from {module} import {name} as Model
times.append(time.perf_counter())
model = Model.from_pretrained(sys.argv[1]).to(sys.argv[2])
times.append(time.perf_counter())
import torch
with torch.inference_mode():
    model.generate(torch.arange(10, 34, device=sys.argv[2])[None], max_new_tokens=1, do_sample=False).tolist()
times.append(time.perf_counter())
stages = [after - before for before, after in zip(times, times[1:])]
print(json.dumps(dict(zip(("import", "load", "first_token"), stages), seconds=times[-1] - times[0])))
"""


def measure(options: Options) -> Iterator[Table]:
    case = "encoder-decoder small" if "base" not in options.sizes else "encoder-decoder base"
    logger.info(f"start: {case}")
    with tempfile.TemporaryDirectory() as folder:
        save_models(case, Path(folder))
        yield start_table(case, take_turns(Path(folder), options))


def save_models(case: str, folder: Path) -> None:
    torch.manual_seed(0)
    sizes = CASES[case].sizes
    models: dict[str, Any] = {
        OURS: our_head("encoder-decoder")(our_config("encoder-decoder", sizes)),
        "Marian": marian_model(sizes),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)


def take_turns(folder: Path, options: Options) -> Measurements:
    """The first round, which warms up the file cache, does not count."""
    assert options.rounds is not None and options.threads is not None
    names, rng = [name for name in CLASSES if options.wants(name)], random.Random(0)
    measured = Measurements(rounds={"": {name: [None] * options.rounds for name in names}})
    environment = {**os.environ, **thread_settings(options.threads), "HF_HUB_OFFLINE": "1"}
    for number in range(options.rounds + 1):
        for name in rng.sample(names, len(names)):
            code = SCRIPT.format(module=CLASSES[name][0], name=CLASSES[name][1])
            command = [sys.executable, "-c", code, str(folder / name), options.device]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                last_words = (done.stderr.strip() or f"code {done.returncode}").splitlines()[-1]
                measured.notes.append(f"{name} is left out from here on, for its process has died: {last_words}")
                names.remove(name)
            elif number > 0:
                measured.rounds[""][name][number - 1] = json.loads(done.stdout.splitlines()[-1])
    return measured


def start_table(case: str, measured: Measurements) -> Table:
    found = compare(measured, "seconds")
    for name, result in found["contestants"].items():
        result |= {stage: spread(measured.values(name, stage)) for stage in STAGES}
    return Table(
        title=f"start of a process, {case}",
        columns=["", *(f"{label}, s" for label in STAGES.values()), "time / ours"],
        rows=[
            [name, *(str(result[stage]) for stage in STAGES), str(result["ratio"] or "-")]
            for name, result in found["contestants"].items()
        ],
        notes=measured.notes,
        bars={name: result["seconds"] for name, result in found["contestants"].items()},
        bar_label="seconds to the first token",
        data={"case": case, **found},
    )
