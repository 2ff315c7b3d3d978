"""Train recipes from nothing, beside transformers' models on the same batches, and write down what came of it:

    python scripts/results.py NAME [NAME ...]     all seeds of these recipes and their baselines -> docs/results.md
    python scripts/results.py NAME --alone        the same without the baselines, which take as long again
    python scripts/results.py --smoke             every recipe at a hundredth of its size, to see that all of it runs
    python scripts/results.py --page              docs/results.md and README's table again, from what docs/results/ holds

Runs are kept below runs/results, where one that was stopped goes on. What the page needs of them is in docs/results.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from glassformer.training.data import DataError
from glassformer.training.estimate import readable_count, readable_time
from glassformer.training.logs import read_log
from glassformer.training.loop import train
from glassformer.training.recipe import BUILT_IN, Recipe, RecipeError, get_key, load_recipe, recipe_names


ROOT = Path(__file__).parents[1]
RUNS, PAGE, FACTS = ROOT / "runs" / "results", ROOT / "docs" / "results.md", ROOT / "docs" / "results"
README, MARKS = ROOT / "README.md", ("<!-- results -->\n", "<!-- end of results -->\n")
SMOKE = 0.01


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Recipes to train, all seeds of each.")] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Without the baselines.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Every recipe at a hundredth of its size.")] = False,
    page: Annotated[bool, typer.Option("--page", help="Write docs/results.md again.")] = False,
) -> None:
    if smoke:
        return try_all()
    for name in names or ():
        facts = run_all(load_recipe(name), alone)
        (FACTS / f"{name}.json").write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    if names or page:
        PAGE.write_text(write_page())
        README.write_text(with_table(README.read_text()))
        print(f"Written: {PAGE}")


def try_all() -> None:
    """Every recipe that others do not run first anyway, each with its baseline."""
    before = {load_recipe(name).pretraining for name in recipe_names()}
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(set(recipe_names()) - before):
            baseline = load_recipe(name).reference.baseline
            for model in ["glassformer", *([baseline] if baseline else [])]:
                start = time.perf_counter()
                train(load_recipe(name, [f"scale={SMOKE}", f"output={folder}/{name}-{model}", *choice(model)]))
                print(f"{name}, {model}: {time.perf_counter() - start:.0f} s", flush=True)


# Runs


def run_all(recipe: Recipe, alone: bool = False) -> dict[str, Any]:
    """All seeds and baselines of a recipe -> what the page says about them."""
    models = ["glassformer", *([recipe.reference.baseline] if recipe.reference.baseline and not alone else [])]
    runs = {model: [run(recipe.name, model, seed) for seed in range(recipe.reference.seeds)] for model in models}
    folder = folder_of(recipe.name, "glassformer", 0)
    FACTS.mkdir(parents=True, exist_ok=True)
    (FACTS / f"{recipe.name}.png").write_bytes((folder / "curves.png").read_bytes())
    return {"name": recipe.name, "runs": runs, "samples": samples(recipe, folder)}


def run(name: str, model: str, seed: int) -> dict[str, Any]:
    """One run, as far as it has not been made yet, with the time that everything took."""
    folder = folder_of(name, model, seed)
    clock = folder.with_suffix(".seconds")
    start, before = time.perf_counter(), float(clock.read_text()) if clock.exists() else 0.0
    finished = (folder / "run.json").exists()
    folder.parent.mkdir(parents=True, exist_ok=True)
    overrides = [f"output={folder}", f"seed={seed}", "evaluation.samples=1000000", "checkpoints.keep=10", *choice(model)]
    try:
        train(load_recipe(name, overrides))
    finally:
        if not finished:  # a run that goes on later adds to it
            clock.write_text(str(before + time.perf_counter() - start))
    made = json.loads((folder / "run.json").read_text())
    kept = ("seed", "parameters", "updates", "epochs", "tokens", "padding", "waiting", "metrics")
    return {**{key: made[key] for key in kept}, "seconds": float(clock.read_text())}


def folder_of(name: str, model: str, seed: int) -> Path:
    return RUNS / name / f"{model}-{seed}"


def choice(model: str) -> list[str]:
    """Overrides for a baseline."""
    return [] if model == "glassformer" else [f"baseline={model}"]


def samples(recipe: Recipe, folder: Path) -> list[dict[str, Any]]:
    """Three answers that are right and two that are wrong, as far as there are such.

    Of a corpus that is not ours no text is shown: neither rows, nor right translations, nor answers that are parts of a text.
    """
    rows = [{"row": number, **row} for number, row in enumerate(read_log(folder / "predictions.jsonl"), 1)]
    classes = json.loads((folder / "config.json").read_text()).get("id2label", {})
    for row in rows:
        if "label" in row:
            row["label"] = classes.get(str(row["label"]), row["label"])  # by its name, as the model says it
        row["right"] = is_right(row)
        row["prediction"] = without_prompt(row)
    right, wrong = ([row for row in rows if row["right"] is truth] for truth in (True, False))
    ours = recipe.data.source.startswith(BUILT_IN)
    if not ours and "target" in rows[0]:
        right = []  # which would be text of the corpus, word for word
    unjudged = [row for row in rows if row["right"] is None]
    chosen = [*right[:3], *wrong, *unjudged][:5]
    shown = ["row", "right", *(["source", "target"] if ours else []), *([] if "answers" in rows[0] else ["prediction"])]
    return [{key: row[key] for key in (*shown, "label") if key in row} for row in chosen]


def without_prompt(row: dict[str, Any]) -> Any:
    """What a language model has added to the beginning that it was given."""
    answer = row["prediction"]
    return answer.removeprefix(row["text"]) if "text" in row and isinstance(answer, str) else answer


def is_right(row: dict[str, Any]) -> bool | None:
    if "label" in row:
        return row["prediction"] == row["label"]
    if "answers" in row:
        return row["prediction"] in row["answers"]["text"]
    return row["prediction"].strip() == row["target"].strip() if "target" in row else None


# The page


def write_page() -> str:
    head = (ROOT / "docs" / "results" / "head.md").read_text()
    facts = all_facts()
    table = ["| recipe | result | goal | published | time | parameters |", "| --- | --- | --- | --- | --- | --- |"]
    table += [row(load_recipe(name), several) for name, several in facts.items()]
    return "\n".join([head, *table, "", *(section(load_recipe(name), several) for name, several in facts.items())])


def all_facts() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(FACTS.glob("*.json"))}


def with_table(readme: str) -> str:
    """The README with the headline figures between its marks."""
    before, rest = readme.split(MARKS[0])
    lines = ["| recipe | result | published | time |", "| --- | --- | --- | --- |"]
    for name, facts in all_facts().items():
        recipe, runs = load_recipe(name), facts["runs"]["glassformer"]
        published = recipe.reference.published[0].partition(" http")[0].rstrip(",")
        seconds = statistics.fmean(one["seconds"] for one in runs)
        result = f"{recipe.reference.result} **{spread(recipe, runs)}**"
        lines.append(f"| `{name}` | {result} | {published} | {readable_time(seconds)} |")
    return "".join([before, MARKS[0], "\n".join(lines), "\n", MARKS[1], rest.split(MARKS[1])[1]])


def row(recipe: Recipe, facts: dict[str, Any]) -> str:
    reference, runs = recipe.reference, facts["runs"]["glassformer"]
    published = "; ".join(text.partition(" http")[0].rstrip(",") for text in reference.published)
    time_taken = readable_time(statistics.fmean(one["seconds"] for one in runs))
    cells = [
        f"[`{recipe.name}`](#{recipe.name})", f"{reference.result} **{spread(recipe, runs)}**",
        "" if reference.goal is None else f"{reference.goal:g}", published, time_taken, readable_count(runs[0]["parameters"]),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def spread(recipe: Recipe, runs: list[dict[str, Any]]) -> str:
    """Mean and standard deviation of the result that counts."""
    values = [get_key(one["metrics"], recipe.reference.result) for one in runs]
    digits = 4 if max(map(abs, values)) < 10 else 2
    text = f"{statistics.fmean(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ± {statistics.stdev(values):.{digits}f}"


def section(recipe: Recipe, facts: dict[str, Any]) -> str:
    reference, runs = recipe.reference, facts["runs"]
    lines = [f"## {recipe.name}\n", f"{recipe.description}. `make results RECIPE={recipe.name}`\n"]
    if reference.protocol:
        lines.append(f"{reference.protocol}\n")
    lines += ["| model | seed | results | time | updates | tokens | parameters |", "| --- | --- | --- | --- | --- | --- | --- |"]
    lines += [line(model, one) for model, several in runs.items() for one in several]
    if len(runs["glassformer"]) > 1:
        means = [f"{model} {spread(recipe, several)}" for model, several in runs.items()]
        lines.append(f"\nMean and standard deviation of {reference.result}: {'; '.join(means)}.")
    lines += ["", *(f"- Published: {text}" for text in reference.published)]
    lines += [f"- Did not help: {text}" for text in reference.did_not_help]
    lines += ["", f"![curves](results/{recipe.name}.png)", "", *sample_table(facts["samples"]), ""]
    return "\n".join(lines)


def line(model: str, one: dict[str, Any]) -> str:
    results = "; ".join(f"{split} {describe(values)}" for split, values in one["metrics"].items())
    sizes = [readable_count(one[key]) for key in ("tokens", "parameters")]
    cells = [model, one["seed"], results, readable_time(one["seconds"]), one["updates"], *sizes]
    return f"| {' | '.join(map(cell, cells))} |"


def describe(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"`{value}`" for key, value in values.items())


def sample_table(samples: list[dict[str, Any]]) -> list[str]:
    if not samples:
        return []
    columns = list(dict.fromkeys(key for sample in samples for key in sample if sample[key] is not None))
    rows = [f"| {' | '.join(cell(sample.get(key)) for key in columns)} |" for sample in samples]
    return [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |", *rows]


def cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ⏎ ")


if __name__ == "__main__":
    try:
        typer.run(main)
    except (RecipeError, DataError) as error:
        sys.exit(f"results.py: {error}")
