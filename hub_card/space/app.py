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
named = SpaceCard.load(here / "README.md").data.models
demo = build_demo(os.environ.get("GLASSFORMER_MODEL") or (named[0] if named else here / "model"))

if __name__ == "__main__":
    launch(demo)
