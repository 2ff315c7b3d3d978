# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What the machine can do: the rate of bare matrix products, measured as one more contestant in the same rounds."""

from typing import Any

from .interleave import Entry
from .worker import Prepared


LIMIT = "matrix products"
ENTRY = Entry(LIMIT, "glassformer.benchmarks.limit:prepare", like_training=True)  # the faster of the libraries


def prepare(device: str, seconds: float = 0.3) -> Prepared:
    from glassformer.training.estimate import matmul_rate

    def run() -> dict[str, Any]:
        return {"rate": matmul_rate(device, seconds=seconds)}

    return {}, run
