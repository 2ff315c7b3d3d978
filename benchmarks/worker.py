# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The answering side: one contestant in a process of its own. `python -m glassformer.benchmarks.worker`, told by `interleave.py`.

A line of JSON in, a line of JSON out:

    {"prepare": "module:function", "arguments": {...}, "like_training": false}  ->  {"ready": facts} or {"missing": package}
    {"round": settings}                                                       ->  {"result": numbers}

`prepare(**arguments)` returns the facts and a function that runs a round, `run(**settings) -> numbers`.
"""

import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, TextIO


Prepared = tuple[dict[str, Any], Callable[..., dict[str, Any]]]

# modules, and the packages that have them
OPTIONAL = {
    "x_transformers": "x-transformers",
    "ctranslate2": "ctranslate2",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "onnxscript": "onnxscript",
}


def prepare(task: dict[str, Any]) -> Prepared:
    if task.get("like_training"):
        from glassformer.training.devices import set_up_cpu

        set_up_cpu()
    module, function = task["prepare"].split(":")
    return getattr(importlib.import_module(module), function)(**task["arguments"])


def serve(questions: TextIO, answers: TextIO) -> None:
    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        facts, run = prepare(json.loads(questions.readline()))
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        return answer({"missing": OPTIONAL[error.name]})
    answer({"ready": facts})
    for line in questions:
        answer({"result": run(**json.loads(line)["round"])})


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print, from C as well, must not be taken for an answer
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
