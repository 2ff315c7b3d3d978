# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The command line: `glassformer train RECIPE`, `evaluate`, `predict`, `check`, `explain`, `push`, `export` ...

Everything that is heavy is imported by the command that needs it, so that `glassformer --help` answers at once.
"""

import json
import linecache
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer


app = typer.Typer(
    help="glassformer: a Transformer that you can see through.", no_args_is_help=True, add_completion=False,
    pretty_exceptions_enable=False,
)  # fmt: skip

Overrides = Annotated[list[str] | None, typer.Argument(help="key=value, with dots: training.steps=1000", metavar="KEY=VALUE")]
Int8 = Annotated[bool, typer.Option("--int8", help="With linear layers in eight bits: smaller and faster, on a CPU.")]
RecipeName = Annotated[str, typer.Argument(help="A YAML file, or a name from `glassformer recipes`.", metavar="RECIPE")]
Folder = Annotated[Path, typer.Argument(help="A folder that training has made.", metavar="FOLDER")]


@app.command()
def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and train nothing.")] = False,
) -> None:
    """Train a model from a recipe, or go on with a run that was stopped."""
    from glassformer.training.recipe import load_recipe

    loaded = load_recipe(recipe, overrides or [])
    if dry_run:
        from glassformer.training.plan import describe_plan

        print(describe_plan(loaded))
    else:
        from glassformer.training.devices import leave
        from glassformer.training.logs import hide_small_progress_bars
        from glassformer.training.loop import train as run

        hide_small_progress_bars()
        run(loaded)
        leave()


@app.command()
def evaluate(
    folder: Folder,
    overrides: Overrides = None,
    data: Annotated[str | None, typer.Option(help="A file or dataset to measure on; the recipe's own if not given.")] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    int8: Int8 = False,
    output: Annotated[Path | None, typer.Option(help="A JSON file to write the results to as well.")] = None,
) -> None:
    """Measure a trained model on a split of its data, or on other data with the same columns."""
    from glassformer.training.inference import load_trained
    from glassformer.training.logs import hide_small_progress_bars

    hide_small_progress_bars()
    results = load_trained(folder, overrides or [], int8).evaluate(data, split)
    for name, value in results.items():
        print(f"{name:24} {value:.4f}" if isinstance(value, float) else f"{name:24} {value}")
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(results, indent=2) + "\n")


@app.command()
def predict(
    folder: Folder,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; without any, lines of --file or of stdin.")] = None,
    file: Annotated[Path | None, typer.Option(help="One input a line, as text or as a JSON object.")] = None,
    context: Annotated[str | None, typer.Option(help="The text that questions are about.")] = None,
    beams: Annotated[int | None, typer.Option(help="Beam width of models that write.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="How long a written answer may be.")] = None,
    int8: Int8 = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, with input and prediction.")] = False,
) -> None:
    """Answer texts with a trained model: translate, continue, classify, tag, fill masks or find answers."""
    from glassformer.training.inference import load_trained
    from glassformer.training.logs import hide_small_progress_bars

    hide_small_progress_bars()
    trained = load_trained(folder, int8=int8)
    rows = trained.rows(texts or read_lines(file), context)
    for row, answer in zip(rows, trained.predict(rows, num_beams=beams, max_new_tokens=max_new_tokens)):
        if as_json:
            print(json.dumps({**row, "prediction": answer}, ensure_ascii=False))
        else:
            print(" ".join(map(str, answer)) if isinstance(answer, list) else answer)


def read_lines(file: Path | None) -> list[str]:
    if file is None and sys.stdin.isatty():
        fail("There is nothing to predict: give texts, --file, or lines on stdin.")
    try:
        text = sys.stdin.read() if file is None else file.read_text(encoding="utf-8-sig")
    except OSError as error:
        fail(f"{file} cannot be read ({error.strerror}): give a text file.")
    except UnicodeDecodeError as error:
        fail(f"{file or 'stdin'} is not utf-8 (byte 0x{error.object[error.start]:02x}): convert it first.")
    if not (lines := [line for line in text.split("\n") if line.strip()]):
        fail(f"{file or 'stdin'} has no lines: there is nothing to predict.")
    return lines


@app.command()
def check(folder: Folder) -> None:
    """Check a saved model: that it loads, masks and caches as it should, and runs no code. Exit status 1 if something fails."""
    from glassformer.analysis.checks import check_folder
    from glassformer.training.logs import hide_small_progress_bars

    hide_small_progress_bars()
    verdicts = check_folder(folder)
    words = {True: "pass", False: "FAIL", None: "-"}
    for verdict in verdicts:
        print(f"{words[verdict.passed]:6}{verdict.name:28}{verdict.reason}")
    if any(verdict.passed is False for verdict in verdicts):
        raise typer.Exit(1)


@app.command()
def doctor(
    target: Annotated[str, typer.Argument(help="A recipe that is to be trained, or the folder of a run.")],
    overrides: Overrides = None,
) -> None:
    """Look for what keeps a model from learning. Exit status 1 if something is found."""
    from glassformer.analysis.doctor import examine_recipe, examine_run
    from glassformer.training.logs import hide_small_progress_bars
    from glassformer.training.recipe import load_recipe

    hide_small_progress_bars()
    is_run = (Path(target) / "log.jsonl").exists()
    report = examine_run(Path(target)) if is_run else examine_recipe(load_recipe(target, overrides or []))
    print(report)
    if report.findings:
        raise typer.Exit(1)


@app.command("import")
def import_(
    source: Annotated[str, typer.Argument(help="The folder or Hub name of a native model: GPT-2, Llama, BERT, T5 ...")],
    output: Annotated[Path, typer.Argument(help="The folder to write to.", metavar="OUT")],
    head: Annotated[str | None, typer.Option(help="Another head than it was saved with: model, causal-lm, masked-lm ...")] = None,
) -> None:
    """Make a glassformer of a native model of transformers: the same weights, the same answers."""
    from glassformer.exchange.convert import import_folder
    from glassformer.training.logs import hide_small_progress_bars

    hide_small_progress_bars()
    print(f"{output}: {type(import_folder(source, output, head)).__name__}")


@app.command()
def export(
    folder: Folder,
    output: Annotated[Path | None, typer.Argument(help="The folder to write to.", metavar="OUT")] = None,
    to: Annotated[str | None, typer.Option(help="onnx, torch, gguf, gpt2, llama, bert, t5, bart, marian ...")] = None,
    int8: Annotated[bool, typer.Option("--int8", help="With onnx: weights in eight bits.")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="With torch: machine code for processors like this one.")] = False,
) -> None:
    """Make a native model of transformers of ours, or graphs of ONNX or torch, or a GGUF file, to be used without our code.

    Without --to: which native architectures fit.
    """
    from glassformer.exchange.convert import describe_folder, export_folder
    from glassformer.exchange.families import FAMILIES
    from glassformer.training.logs import hide_small_progress_bars

    hide_small_progress_bars()
    if int8 and to != "onnx":
        fail("--int8 is for ONNX graphs: pass --to onnx, or drop it.")
    if compiled and to != "torch":
        fail("--compile is for programs of torch: pass --to torch, or drop it.")
    if to is None and output is not None:
        fail(f"It is not said what to make for {output}: name an architecture with --to.")
    if to is None:
        print(describe_folder(folder))
    elif output is None:
        fail(f"There is no folder to write to: glassformer export {folder} --to {to} OUT")
    elif to in FILES:
        for name, difference in write_files(folder, output, to, int8, compiled).items():
            print(f"{output / name}: up to {difference:.1g} from the model's outputs")
    elif to in FAMILIES:
        print(f"{output}: {type(export_folder(folder, to, output)).__name__}")
    else:
        fail(f"There is no architecture {to!r}: choose one of {', '.join((*FILES, *FAMILIES))}.")


FILES = ("onnx", "torch", "gguf")  # what an export can be beside a native model


def write_files(folder: Path, output: Path, to: str, int8: bool, compiled: bool) -> dict[str, float]:
    """What is no native model -> for each file, how far its outputs are from the model's."""
    if to == "onnx":
        from glassformer.exchange.onnx import export_onnx

        return export_onnx(folder, output, int8)
    if to == "torch":
        from glassformer.exchange.torch_export import export_torch

        return export_torch(folder, output, compiled)
    from glassformer.exchange.gguf import export_gguf

    return export_gguf(folder, output)


@app.command()
def heads(
    folder: Folder,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for the page, tables and pictures.")] = Path("heads"),
    rows: Annotated[int, typer.Option(help="Rows to look at.")] = 10_000,
    judged_on: Annotated[int, typer.Option(help="Validation rows on which heads are switched off one by one.")] = 200,
    split: Annotated[str, typer.Option(help="Where the rows are taken from.")] = "train",
) -> None:
    """Find out what each head of a trained model has learnt, which are alike, which matter, and what pruning costs."""
    from glassformer.analysis.study import study_heads
    from glassformer.training.logs import hide_small_progress_bars

    hide_small_progress_bars()
    study = study_heads(folder, output, rows, judged_on, split)
    print(f"{len(study.report.rows)} heads over {study.report.texts} rows: {output / 'heads.md'}")


@app.command()
def explain(
    folder: Annotated[Path, typer.Argument(help="A saved model with its tokenizer, or a name on the Hub.", metavar="FOLDER")],
    text: Annotated[str, typer.Argument(help="What the model reads.")],
    target: Annotated[str | None, typer.Option(help="The answer of an encoder-decoder; its own if not given.")] = None,
    context: Annotated[str | None, typer.Option(help="A second text: what a question is about, or what is compared.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="How much is written.", min=1)] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("explain.html"),
) -> None:
    """Show on a page for the browser where every head looks, what the model predicts, and what it predicts without each head."""
    from glassformer.analysis.explain import check_path, load
    from glassformer.training.logs import hide_small_progress_bars

    hide_small_progress_bars()
    check_path(output)  # before a large model is loaded
    page = load(folder).explain(text, output, target, max_new_tokens, context)
    print(f"{page}: {page.stat().st_size / 1e6:.1f} MB, open it in a browser")


@app.command()
def card(
    folder: Folder,
    repo: Annotated[str | None, typer.Option(help="USER/NAME on the Hub; push sets it.")] = None,
    samples: Annotated[bool, typer.Option("--samples", help="Show some rows of the data with the model's answers.")] = False,
    example: Annotated[str | None, typer.Option(help="A text to draw the attention for, and to try the model with.")] = None,
) -> None:
    """Write the model card, README.md, from the run; what you have written in it yourself stays."""
    from glassformer.hub_card.card import write_card

    print(write_card(folder, repo, samples, example))


@app.command()
def push(
    folder: Folder,
    repo: Annotated[str, typer.Argument(help="USER/NAME, or a NAME of your own.", metavar="REPO")],
    private: Annotated[bool, typer.Option("--private", help="For nobody else to see.")] = False,
    revision: Annotated[str | None, typer.Option(help="A branch, made if need be; main if not given.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be uploaded, and ask nobody.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a repository is made that everybody can see.")] = False,
) -> None:
    """Upload a model with its code and its card to the Hub, in one commit."""
    from glassformer.hub_card import push as hub

    if dry_run:
        print(hub.describe_push(folder, repo))
    else:
        print(hub.push(folder, repo, private, revision, agree=lambda question: yes or confirmed(question)))


def confirmed(question: str) -> bool:
    """Nobody is asked where nobody can answer."""
    return sys.stdin.isatty() and typer.confirm(question)


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(help="A folder that training has made, or a name on the Hub.", metavar="FOLDER")],
    port: Annotated[int | None, typer.Option(help="The first free one from 7860 on if not given.", min=1, max=65535)] = None,
    share: Annotated[bool, typer.Option("--share", help="With a public address, through a server of Gradio.")] = False,
    space: Annotated[Path | None, typer.Option(help="Write a folder to push as a Space, and serve nothing.")] = None,
) -> None:
    """Use a model and look inside it on a page in the browser, on this machine or as a Space."""
    from glassformer.hub_card.demo import build_demo, serve
    from glassformer.training.logs import hide_small_progress_bars

    hide_small_progress_bars()
    if space is None:
        serve(build_demo(folder), port, share)
    else:
        from glassformer.hub_card.spaces import write_space

        print(f"{write_space(folder, space)} is a Space: hf upload USER/NAME {space} . --repo-type space")


@app.command()
def serve(
    folder: Folder,
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 for all of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 for any that is free.", min=0, max=65535)] = 8000,
    int8: Int8 = False,
    max_batch: Annotated[int, typer.Option(help="Inputs that are answered together.", min=1)] = 32,
    wait_ms: Annotated[float, typer.Option(help="How long a request waits for others to share its batch.", min=0)] = 5.0,
    max_waiting: Annotated[int, typer.Option(help="Requests in the queue; further ones get status 503.", min=1)] = 256,
    max_inputs: Annotated[int, typer.Option(help="Inputs of one request.", min=1)] = 128,
    max_characters: Annotated[int, typer.Option(help="Of one input.", min=1)] = 20_000,
    max_bytes: Annotated[int, typer.Option(help="Of the body of a request.", min=1)] = 1_000_000,
    max_new_tokens: Annotated[int, typer.Option(help="That a request may ask for.", min=1)] = 512,
    timeout: Annotated[float, typer.Option(help="Seconds until a request without an answer gets status 504.", min=0.001)] = 60.0,
) -> None:
    """Answer over HTTP: POST /predict and /generate (with stream), GET /health, /metrics and /docs."""
    try:
        from glassformer.serving.app import Limits
        from glassformer.serving.app import serve as run
    except ImportError as error:
        if error.name not in ("fastapi", "prometheus_client", "uvicorn"):
            raise
        fail(f'Serving needs the package {error.name}: pip install "glassformer[serve]".')
    from glassformer.training.logs import hide_small_progress_bars

    hide_small_progress_bars()
    limits = Limits(
        max_batch=max_batch, wait_ms=wait_ms, max_waiting=max_waiting, max_inputs=max_inputs, max_characters=max_characters,
        max_bytes=max_bytes, max_new_tokens=max_new_tokens, timeout=timeout,
    )  # fmt: skip
    run(folder, host, port, limits, int8)


@app.command()
def tokenizer(
    recipe: RecipeName,
    output: Annotated[Path, typer.Argument(help="The folder to write to.")],
    overrides: Overrides = None,
) -> None:
    """Train the tokenizer of a recipe alone, and save it where AutoTokenizer finds it."""
    from glassformer.training.recipe import load_recipe
    from glassformer.training.task import train_tokenizers

    for path, trained in train_tokenizers(load_recipe(recipe, overrides or []), output).items():
        print(f"{path}: {len(trained)} tokens")


@app.command()
def recipes() -> None:
    """List the recipes that come with the package: sizes, what they reach and what they are to reach."""
    from glassformer.training.catalog import describe_recipes

    print(describe_recipes())


@app.command()
def presets() -> None:
    """List the named sizes of model, with their parameter counts."""
    from glassformer.training.catalog import describe_presets

    print(describe_presets())


@app.command()
def benchmark(
    what: Annotated[str, typer.Argument(help="train, generate, memory, scaling, start, data or all.")] = "all",
    rounds: Annotated[int | None, typer.Option(help="Turns of every contestant; 9, or 3 with --quick.")] = None,
    threads: Annotated[int | None, typer.Option(help="For each contestant; as many as there are cores.")] = None,
    size: Annotated[str | None, typer.Option(help="small or base; both if not given.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="A contestant, for data a recipe; may be given several times.")] = None,
    output: Annotated[Path, typer.Option(help="The folder for tables, charts and JSON.")] = Path("runs/benchmark"),
    quick: Annotated[bool, typer.Option("--quick", help="Few rounds of the small size: a few minutes for each.")] = False,
    same_settings: Annotated[
        bool, typer.Option("--same-settings", help="Other models have the memory and the products that ours has on a CPU.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, or the kind of GPU that torch sees: cuda, xpu, mps.")] = "cpu",
) -> None:
    """Measure our models and those of other libraries in turns: speed, memory, growth, start, and waiting for data."""
    from glassformer.benchmarks.options import Options
    from glassformer.benchmarks.suite import run

    run(what, Options(rounds, threads, size, only or [], output, quick, same_settings, device))


# Errors that a person can do something about are told in a sentence, others with their traceback.


def fail(message: str, code: int = 1) -> NoReturn:
    print(f"glassformer: {message}", file=sys.stderr)
    raise SystemExit(code)


def main(command: str | None = None) -> None:
    """Entry point of the console script; `command` fixes the subcommand, for scripts of their own."""
    set_up_messages()
    arguments = [command, *sys.argv[1:]] if command else sys.argv[1:]
    try:
        app(arguments, prog_name="glassformer")
    except Exception as error:
        if not is_for_people(error):
            raise
        code = getattr(error, "exit_code", 1)
        if code > 1 and os.environ.get("RANK", "0") != "0":  # that it was told to stop, one process says for all
            raise SystemExit(code) from None
        fail(str(error), code)


def is_for_people(error: Exception) -> bool:
    """Whether our own code has raised it, in so many words: then its message is a sentence with a cure."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    ours = frame.f_globals.get("__name__", "").partition(".")[0] == "glassformer"
    return ours and linecache.getline(frame.f_code.co_filename, line).lstrip().startswith("raise ")


def set_up_messages() -> None:
    """Our notes and warnings as plain lines on stderr; progress bars where somebody can see them move."""
    import warnings

    if not sys.stderr.isatty():
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers' own as well

    logger = logging.getLogger("glassformer")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.handlers, logger.propagate = [handler], False  # some libraries set up a logger of their own below ours
    logger.setLevel(logging.INFO)
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # what it reports, it raises too

    def one_line(message: Any, *rest: Any, **more: Any) -> str:
        return f"{message}\n"

    warnings.formatwarning = one_line


if __name__ == "__main__":
    main()
