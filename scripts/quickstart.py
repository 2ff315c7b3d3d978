"""From nothing to a date translator: python scripts/quickstart.py [OUTPUT], which is what `make quickstart` runs.

Trains the recipe `dates`, measures it, loads the result in a new process, and draws where the decoder looks while it writes.
"""

import json
import subprocess
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import glassformer  # noqa: F401  (makes the Auto classes know our models)
from glassformer.cli import set_up_messages
from glassformer.training.logs import hide_small_progress_bars
from glassformer.training.loop import train
from glassformer.training.recipe import load_recipe


DATES = ["Saturday, the 17th of March 2018", "Montag, den 3. Oktober 1988", "le 14 juillet 1923"]
RELOAD = """
import sys
import glassformer
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()
folder, *texts = sys.argv[1:]
model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
written = model.generate(**tokenizer(texts, padding=True, return_tensors="pt"))
for text, answer in zip(texts, tokenizer.batch_decode(written, skip_special_tokens=True)):
    print(f"  {text:34} -> {answer}")
"""


def main(output: str) -> None:
    set_up_messages()
    hide_small_progress_bars()
    torch.set_num_threads(1)  # so small a model gains little from a second one, and suffers where cores are busy
    folder = train(load_recipe("dates", [f"output={output}"]))
    show_metrics(folder)
    show_predictions(folder)
    print("\nThe same model, loaded by AutoModelForSeq2SeqLM in a new process:", flush=True)
    subprocess.run([sys.executable, "-c", RELOAD, str(folder), *DATES], check=True)
    draw_attention(folder, DATES, folder / "attention.png")
    show_files(folder)


def show_metrics(folder: Path) -> None:
    run = json.loads((folder / "run.json").read_text())
    print(f"\n{run['parameters']:,} parameters, {run['updates']} updates, {run['tokens']:,} tokens, {run['seconds']:.0f} seconds")
    for split, results in run["metrics"].items():
        rows = ", ".join(f"{name} {value:.4f}" for name, value in results.items())
        print(f"  {split:10} {rows}")


def show_predictions(folder: Path) -> None:
    print("\nTen dates of days that the model has never seen:")
    for line in (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        mark = "" if row["prediction"] == row["target"] else f"   (should be {row['target']})"
        print(f"  {row['source']:34} -> {row['prediction']}{mark}")


def draw_attention(folder: Path, texts: list[str], picture: Path) -> None:
    """Cross-attention of the layer that looks most sharply, the mean of its heads: one panel a date."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager").eval()
    figure = Figure(figsize=(9, 3.4 * len(texts)), layout="constrained")
    for text, axis in zip(texts, figure.subplots(len(texts), 1)):
        source = tokenizer(text, return_tensors="pt")
        written = model.generate(**source)
        with torch.no_grad():
            layers = model(**source, decoder_input_ids=written[:, :-1], output_attentions=True).cross_attentions
        weights = sharpest(torch.stack([layer[0].mean(0) for layer in layers]))
        labels = [tokenizer.convert_ids_to_tokens(ids.tolist()) for ids in (source.input_ids[0], written[0, 1:])]
        axis.imshow(weights, cmap="viridis", aspect="auto")
        axis.set_xticks(range(len(labels[0])), ["␣" if token == " " else token for token in labels[0]])
        axis.set_yticks(range(len(labels[1])), labels[1])
        axis.set(title=text, xlabel="read", ylabel="written")
    figure.savefig(picture, dpi=110)


def sharpest(maps: torch.Tensor) -> torch.Tensor:
    """Of several maps [L, T, S], the one of least entropy."""
    return maps[torch.special.entr(maps).sum((1, 2)).argmin()]


def show_files(folder: Path) -> None:
    print("\nWhat was made:")
    for name, meaning in {
        "model.safetensors": "the weights, with config.json, the tokenizer and the code beside them",
        "metrics.json": "what the model reaches on validation and test dates",
        "predictions.jsonl": "some of its answers",
        "curves.png": "how it learnt",
        "attention.png": "where it looks while it writes",
        "run.json": "the recipe, versions, data fingerprints and times of this run",
        "log.jsonl": "the log, line by line; tensorboard/ has the same",
        "checkpoints": "what it takes to go on",
    }.items():
        print(f"  {folder / name!s:34} {meaning}")
    print(f'\nTry it: glassformer predict {folder} "2nd of February 2022"')


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/dates")
