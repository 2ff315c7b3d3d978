"""What models of four sizes need, as the table in docs/scale.md: python scripts/scale_table.py"""

import math

import glassformer
from glassformer import GlassformerConfig
from glassformer.training.estimate import (
    estimate_memory,
    estimate_seconds,
    parameter_count,
    readable_bytes,
    readable_count,
    readable_time,
    training_flops,
)


SEQUENCES, LENGTH = 4, 1024  # what one GPU reads at a time
TOKENS_A_PARAMETER = 20
PEAK, SHARE = 312e12, 0.4  # FLOP/s of an A100 in bf16, and how much of it training reaches: an assumption
FREE = 0.1  # of a GPU's memory, for kernels, communication and layers that are gathered
GPUS = (24e9, 80e9)

LLAMA = {
    "vocab_size": 32000, "norm": "rmsnorm", "position_encoding": "rope", "activation": "silu", "gated_feed_forward": True,
    "attention_bias": False, "feed_forward_bias": False, "tie_word_embeddings": False, "dropout": 0.0,
}  # fmt: skip
SIZES = {
    "350M": {"num_decoder_layers": 24, "d_model": 1024, "num_heads": 16, "d_ff": 2752},
    "1.3B": {"num_decoder_layers": 24, "d_model": 2048, "num_heads": 16, "d_ff": 5504},
    "7B": {"num_decoder_layers": 32, "d_model": 4096, "num_heads": 32, "d_ff": 11008},
}


def row(name: str, config: GlassformerConfig, head: type) -> str:
    count = parameter_count(config, head)
    memory = estimate_memory(
        config, head, SEQUENCES, LENGTH, precision="bf16", gradient_checkpointing=True, device="cuda"
    )  # fmt: skip
    state = 4 * count + memory["gradients"] + memory["optimizer"]  # the half-size copies live one layer at a time
    gpus = [math.ceil(state / ((1 - FREE) * size - memory["activations"])) for size in GPUS]
    tokens = TOKENS_A_PARAMETER * count
    texts = 2 if config.is_encoder_decoder else 1  # a source and a target for each example
    flops = training_flops(config, head, tokens / (texts * LENGTH), LENGTH)
    cells = [
        name, readable_count(count), readable_bytes(state), readable_bytes(memory["activations"]), *map(str, gpus),
        readable_count(tokens), f"{flops:.1e}".replace("e+", "e"), readable_time(estimate_seconds(flops, PEAK, SHARE)),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    titles = [
        "model", "parameters", "state", "activations", "GPUs of 24 GB", "GPUs of 80 GB", "tokens", "FLOPs", "one A100",
    ]  # fmt: skip
    print(f"| {' | '.join(titles)} |\n|{' --- |' * len(titles)}")
    base = GlassformerConfig.from_preset("paper-base")
    print(row("65M, `paper-base`", base, glassformer.GlassformerForConditionalGeneration))
    for name, sizes in SIZES.items():
        config = GlassformerConfig(num_encoder_layers=0, **LLAMA, **sizes)
        print(row(f"{name}, Llama-like", config, glassformer.GlassformerForCausalLM))


if __name__ == "__main__":
    main()
