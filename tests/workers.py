"""What the processes of the distributed tests do: launched with `accelerate launch workers.py FOLDER` or torchrun.

One launch, several runs, for starting processes takes longer than what they compute: a whole run, one that is stopped and goes
on, and for DDP a model that is spread by tensor parallelism.
"""

import contextlib
import json
import os
import sys
from pathlib import Path

import torch
from recipes import tiny_recipe

from glassformer import GlassformerForConditionalGeneration
from glassformer.training import loop
from glassformer.training.devices import leave


# 41 rows in batches of 5: the last update of an epoch leaves one process without a batch.
SHARED = {
    "data.size": 41, "batching": {"examples": 5, "bucketing": False}, "training.steps": 6, "model.label_smoothing": 0.1,
    "evaluation": {"every": 3, "best": "loss"}, "checkpoints.every": 2, "checkpoints.final": "last", "optimizer.eps": 1e-6,
}  # fmt: skip


SHARP = {**SHARED, "model.label_smoothing": 0.0, "training.steps": 3}


def stream_of(folder: Path) -> dict:
    """The same on rows that are read while training, in windows that updates straddle."""
    file = str(folder / "rows.jsonl")
    return {**SHARED, "data": {"files": {"train": file, "validation": file}, "streaming": True, "window": 16}}


class Stopped(Exception):
    pass


def stop_after(step: int) -> None:
    """All processes of the run die after this update."""
    original = loop.Training.update

    def update(self, batches):
        original(self, batches)
        if self.state.step == step:
            loop.Training.update = original
            raise Stopped

    loop.Training.update = update


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    loop.train(tiny_recipe(folder / "whole", SHARED))
    stop_after(5)
    with contextlib.suppress(Stopped):
        loop.train(tiny_recipe(folder / "stopped", SHARED))
    loop.train(tiny_recipe(folder / "stopped", SHARED))
    loop.train(tiny_recipe(folder / "sharp", SHARP))
    loop.train(tiny_recipe(folder / "stream", stream_of(folder)))
    stop_after(5)
    with contextlib.suppress(Stopped):
        loop.train(tiny_recipe(folder / "stopped-stream", stream_of(folder)))
    loop.train(tiny_recipe(folder / "stopped-stream", stream_of(folder)))
    leave()


def spread_by_tensor_parallelism(folder: Path) -> None:
    torch.set_num_threads(1)
    model = GlassformerForConditionalGeneration.from_pretrained(folder / "model", tp_plan="auto").eval()
    ids = torch.arange(5, 19).view(2, 7)
    with torch.no_grad():
        logits = model(input_ids=ids, labels=ids).logits
    if os.environ["RANK"] == "0":
        parts = type(model.get_encoder().layers[0].feed_forward.up_proj.weight).__name__
        (folder / "logits.json").write_text(json.dumps({"logits": logits.tolist(), "weight": parts}))


if __name__ == "__main__":
    if sys.argv[1] == "tensor-parallel":
        spread_by_tensor_parallelism(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
