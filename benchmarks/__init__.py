# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""How fast and how large the models are, beside other libraries' models of the same size: `glassformer benchmark`.

Start with `suite.py`, which runs the benchmarks and reports. Each contestant is measured in a process of its own, in turns with
the others (`interleave.py` asks, `worker.py` answers); who they are is listed in `contestants.py`.
"""
