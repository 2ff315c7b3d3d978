"""Draws the pictures of docs/how-it-works.md into docs/pictures: python scripts/pictures.py

All but the drawing of the architecture come from the code that they show: masks, positions and learning rates are computed, and
the attention is that of a model that the recipe `reverse` trains here, for half as long as it says.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from glassformer import GlassformerConfig, GlassformerModel, causal_mask, combine_masks, padding_mask
from glassformer.analysis import AttentionVisualizer
from glassformer.training.loop import train
from glassformer.training.optimization import noam_factor
from glassformer.training.recipe import load_recipe


FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
WORD = "transformer"
SHORTER = ["training.steps=300", "schedule.decay_steps=150", "evaluation.every=300", "logging.tensorboard=false"]


def main() -> None:
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    draw_architecture(FOLDER / "architecture.png")
    draw_masks(FOLDER / "masks.png")
    draw_schedule(FOLDER / "schedule.png")
    draw_positions(FOLDER / "positions.png")
    with tempfile.TemporaryDirectory() as folder:
        draw_reversal(FOLDER / "reverse.png", train(load_recipe("reverse", [f"output={folder}/reverse", *SHORTER])))


def draw_positions(path: Path) -> None:
    config = GlassformerConfig(vocab_size=8, d_model=64, num_heads=2, d_ff=8, num_encoder_layers=1, num_decoder_layers=0)
    AttentionVisualizer(GlassformerModel(config), tokenizer=None).plot_positions(path)  # type: ignore[arg-type]


def draw_reversal(path: Path, folder: Path) -> None:
    visualizer = AttentionVisualizer(AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))
    layers = [visualizer.capture(WORD).weights("cross", layer) for layer in (0, 1)]
    sharpest = max((0, 1), key=lambda layer: float(layers[layer].max(-1).values.mean()))
    visualizer.plot_attention_heads(WORD, layer=sharpest, save_path=path, kind="cross")


def draw_masks(path: Path) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9, 2], [5, 6, 7, 2, 0, 0]])
    words = [["a", "b", "c", "d", "e", "end"], ["a", "b", "c", "end", "pad", "pad"]]
    causal, padding = causal_mask(6), padding_mask(ids)
    both = combine_masks(causal, padding=padding)
    assert both is not None
    shown = [
        ("causal_mask(6)", causal, words[0]),
        ("padding_mask, second sentence", padding[1].expand(6, 6), words[1]),
        ("combined, first sentence", both[0], words[0]),
        ("combined, second sentence", both[1], words[1]),
    ]
    figure = Figure(figsize=(10, 2.9), layout="constrained")
    for axis, (title, mask, labels) in zip(figure.subplots(1, 4), shown):
        axis.imshow(mask, cmap="cividis", vmin=0, vmax=1)
        axis.set_title(title, fontsize=9)
        axis.set_xticks(range(6), labels, fontsize=8)
        axis.set_yticks(range(6), labels, fontsize=8)
        axis.set_xlabel("looked at", fontsize=8)
    figure.suptitle("Who (row) may look at whom (column): light = may", fontsize=9)
    figure.savefig(path, dpi=100)


def draw_schedule(path: Path) -> None:
    figure = Figure(figsize=(6, 3), layout="constrained")
    axis = figure.subplots()
    steps = range(1, 20_001, 20)
    for d_model, warmup in ((512, 4000), (512, 8000), (256, 4000)):
        rates = [noam_factor(step, d_model, warmup) for step in steps]
        axis.plot(steps, rates, label=f"d_model {d_model}, warm-up {warmup}")
    axis.set(xlabel="update", ylabel="learning rate")
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=100)


# The architecture

BLUE, GREEN, YELLOW, GREY = "#dbe7f3", "#dff0df", "#f7efd2", "#eeeeee"
ENCODER = [
    ("input_ids", "[B, S]", None),
    ("TokenEmbedding", "[B, S, D]", YELLOW),
    ("+ SinusoidalPositionEncoding", "[B, S, D]", YELLOW),
    ("self_attn: MultiHeadAttention", "[B, S, D]", BLUE),
    ("feed_forward: FeedForward", "", GREEN),
]
DECODER = [
    ("decoder_input_ids", "[B, T]", None),
    ("TokenEmbedding", "[B, T, D]", YELLOW),
    ("+ SinusoidalPositionEncoding", "[B, T, D]", YELLOW),
    ("self_attn, causal", "[B, T, D]", BLUE),
    ("cross_attn: queries [B, T, D], keys [B, S, D]", "[B, T, D]", BLUE),
    ("feed_forward: FeedForward", "[B, T, D]", GREEN),
]


def draw_architecture(path: Path) -> None:
    figure = Figure(figsize=(10, 6), layout="constrained")
    axis = figure.subplots()
    axis.axis("off")
    column(axis, 0.0, ENCODER, "EncoderLayer, N times")
    column(axis, 5.6, DECODER, "DecoderLayer, N times")
    box(axis, 5.6, len(DECODER), "lm_head: OutputProjection, the embeddings again", GREY, "[B, T, V]")
    axis.plot([2.1, 5.15, 5.15], [5.0, 5.0, 4.3], color="black", linewidth=1)
    axis.annotate("", (5.6, 4.3), (5.15, 4.3), arrowprops={"arrowstyle": "->", "shrinkA": 0})
    axis.text(3.6, 5.1, "memory [B, S, D]", fontsize=8, color="dimgrey", ha="center")
    axis.text(0.0, 6.3, "Every part of a layer is in a residual connection\nwith a norm and dropout.", fontsize=9)
    axis.set(xlim=(-0.4, 10.4), ylim=(-0.1, 7.2))
    figure.savefig(path, dpi=100)


def column(axis: Any, left: float, parts: list[tuple[str, str, str | None]], title: str) -> None:
    """Boxes upwards; those of a layer, from the fourth on, are framed together."""
    for height, (text, shape, colour) in enumerate(parts):
        box(axis, left, height, text, colour, shape)
    top = len(parts) - 0.28
    axis.add_patch(rectangle(left - 0.25, 2.86, 4.7, top - 2.86, fill=False, linestyle="--", edgecolor="grey"))
    axis.text(left - 0.2, top + 0.05, title, fontsize=8, va="bottom", color="dimgrey")


def box(axis: Any, left: float, height: float, text: str, colour: str | None, shape: str) -> None:
    if colour is not None:
        axis.add_patch(rectangle(left, height, 4.2, 0.6, facecolor=colour, edgecolor="black"))
    axis.text(left + 2.1, height + 0.3, text, ha="center", va="center", fontsize=9)
    axis.annotate("", (left + 2.1, height + 1), (left + 2.1, height + 0.6), arrowprops={"arrowstyle": "->"})
    axis.text(left + 2.2, height + 0.78, shape, fontsize=8, va="center", color="dimgrey")


def rectangle(left: float, bottom: float, width: float, height: float, **style: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((left, bottom), width, height, **style)


if __name__ == "__main__":
    main()
