# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The Space of a model: that of GLASSFORMER_MODEL, or the one that README.md names, or the one in the folder `model`."""

import os
from pathlib import Path

from huggingface_hub import SpaceCard

from glassformer.hub_card.demo import build_demo, launch


here = Path(__file__).parent
card = SpaceCard.load(here / "README.md").data
model = os.environ.get("GLASSFORMER_MODEL") or (card.models[0] if card.models else here / "model")
demo = build_demo(model, card.title)

if __name__ == "__main__":
    launch(demo)
