"""The presets and their sizes, as a table: python scripts/presets.py"""

from pathlib import Path

import torch

import glassformer
from glassformer import GlassformerConfig, configuration


HEADS = {
    "encoder-decoder": "GlassformerForConditionalGeneration",
    "encoder": "GlassformerForMaskedLM",
    "decoder": "GlassformerForCausalLM",
}


def describe(name: str) -> tuple[int, str]:
    """Number of parameters of the model that predicts tokens, and a row of the table."""
    config = GlassformerConfig.from_preset(name)
    with torch.device("meta"):  # sizes alone, no memory
        model = getattr(glassformer, HEADS[config.shape])(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    layers = f"{config.num_encoder_layers}+{config.num_decoder_layers}"
    return count, f"| `{name}` | {config.shape} | {layers} | {config.d_model} | {config.position_encoding} | {count / 1e6:.1f}M |"


def main() -> None:
    folder = Path(configuration.__file__).parent / "presets"
    print("| preset | shape | layers | width | positions | parameters |\n| --- | --- | --- | --- | --- | --- |")
    for _, row in sorted(describe(path.stem) for path in folder.glob("*.json")):
        print(row)


if __name__ == "__main__":
    main()
