"""Train a model from a recipe, on as many devices as accelerate is told to use:

    accelerate launch scripts/train.py RECIPE [key=value ...]

The same as `glassformer train RECIPE [key=value ...]`, which uses one process.
"""

from glassformer.cli import main


if __name__ == "__main__":
    main("train")
