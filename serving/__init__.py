# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""A trained model behind HTTP: requests share batches, and what is written can be watched token by token.

transformers' own `serve` finds a model's class by its name within transformers, and speaks to chat models; it cannot run ours.
"""
