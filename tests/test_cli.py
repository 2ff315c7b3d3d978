"""The command line: every command on tiny runs, and errors that a person can do something about."""

import io
import json
import logging
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import datasets
import pytest
import torch
import transformers
import yaml
from recipes import TASKS, keep_caches_in, rows_of, task_recipe, write_rows
from transformers import AutoTokenizer

import glassformer
from glassformer import cli
from glassformer.training import loop, report
from glassformer.training.inference import load_trained
from glassformer.training.recipe import Recipe, recipe_names


pytestmark = pytest.mark.filterwarnings("ignore:The texts support")
SHORT = {
    "training.steps": 2,
    "schedule.warmup_steps": 1,
    "checkpoints.every": 2,
    "evaluation": {"every": 2, "limit": 3, "samples": 2, "generation": {"max_new_tokens": 4}},
}


def call(*arguments, command: str | None = None) -> int:
    """As the console script does -> its exit code."""
    with pytest.MonkeyPatch.context() as patch:  # which takes back what `main` sets up
        patch.setattr(sys, "argv", ["glassformer", *map(str, arguments)])
        patch.setattr(warnings, "formatwarning", warnings.formatwarning)
        patch.setattr(logging.getLogger("glassformer"), "handlers", [])
        for library in ("DATASETS", "HUB"):
            patch.setenv(f"HF_{library}_DISABLE_PROGRESS_BARS", "1")
        try:
            cli.main(command)
        except SystemExit as end:
            return end.code or 0
    return 0


@pytest.fixture
def run(capsys):
    """Call a command -> what it printed; it must end well."""

    def run(*arguments, **options) -> str:
        code = call(*arguments, **options)
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    return run


@pytest.fixture
def refused(capsys):
    """Call a command that must fail: with code 1, and one line that has these words."""

    def refused(words: str, *arguments, code: int = 1, **options) -> None:
        capsys.readouterr()
        assert call(*arguments, **options) == code
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("glassformer: ")
        assert printed.err.count("\n") == 1
        assert words in printed.err

    return refused


def write_recipe(path: Path, recipe: Recipe) -> Path:
    path.write_text(recipe.to_yaml(), encoding="utf-8")
    return path


def split_files(folder: Path) -> dict[str, str]:
    """The rows of `seq2seq`, a file for each split."""
    rows = rows_of("seq2seq")
    parts = {"train": rows, "validation": rows[:3], "test": rows[3:]}
    return {split: str(write_rows(folder / f"{split}.jsonl", several)) for split, several in parts.items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where everything of this file is kept, caches as well; nobody watches progress, and pictures are tested elsewhere."""
    folder = tmp_path_factory.mktemp("cli")
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    with pytest.MonkeyPatch.context() as patch:
        keep_caches_in(folder, patch)
        patch.setattr(report, "draw_curves", lambda *arguments: None)
        yield folder
    datasets.enable_progress_bars()
    transformers.utils.logging.enable_progress_bar()


@pytest.fixture(scope="module")
def trained(place) -> Path:
    """The folder of a run whose YAML lies beside it."""
    recipe = task_recipe(place / "base", "seq2seq", {**SHORT, "data": {"files": split_files(place / "base")}})
    assert call("train", write_recipe(place / "base" / "base.yaml", recipe)) == 0
    return recipe.folder


@pytest.fixture(scope="module")
def trained_for(place):
    """The folder of a run on one of `TASKS`, trained when a test first asks for it."""

    def folder_of(task: str) -> Path:
        recipe = task_recipe(place / task, task, {**SHORT, "data.validation_fraction": 0.25})
        if not recipe.folder.exists():
            assert call("train", write_recipe(place / task / "recipe.yaml", recipe)) == 0
        return recipe.folder

    return folder_of


def metrics_of(folder: Path, split: str = "test") -> dict[str, float]:
    return json.loads((folder / "metrics.json").read_text())[split]


# Training


def test_finished_run_is_left_as_it_is(trained, capsys):
    files = {path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.name not in (".lock", "recipe.yaml")}
    assert call("train", trained.parent / "base.yaml") == 0
    assert capsys.readouterr().err == f"{trained} holds this run already, finished: nothing is left to do.\n"
    assert {path: path.stat().st_mtime_ns for path in files} == files


def test_overrides_of_the_command_line_reach_the_run(trained, refused):
    words = "training.steps was 2 and is now 3"
    refused(words, "train", trained.parent / "base.yaml", "training.steps=3")


def test_dry_run_tells_what_would_be_done_and_does_nothing(trained, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = run("train", trained.parent / "base.yaml", "--dry-run", "output=new", "training.steps=7")
    assert list(tmp_path.iterdir()) == []
    resolved, _, rest = printed.partition("\n\n")
    recipe = yaml.safe_load(resolved)
    assert (recipe["output"], recipe["training"]["steps"], recipe["model"]["d_model"]) == ("new", 7, 16)
    facts = dict(line.split(maxsplit=1) for line in rest.replace("tokens an update", "tokens").splitlines())
    assert facts["rows"] == "train 8, validation 3, test 5"
    assert int(facts["parameters"].replace(",", "")) == load_trained(trained).model.num_parameters()
    assert facts["updates"] == "7"
    assert facts["tokens"].endswith("% padding")
    assert facts["memory"].startswith("about ")
    assert facts["time"].startswith("about ")


# Evaluation


def numbers(printed: str) -> dict[str, float]:
    return {name: float(value) for name, value in (line.split() for line in printed.splitlines())}


@pytest.mark.parametrize("split", ["test", "validation"])
def test_evaluation_of_the_own_data_is_what_training_has_measured(trained, run, split, tmp_path):
    output = tmp_path / "new" / "results.json"
    printed = run("evaluate", trained, "--split", split, "--output", output)
    assert json.loads(output.read_text()) == pytest.approx(metrics_of(trained, split))
    assert numbers(printed) == pytest.approx(metrics_of(trained, split), abs=1e-4)


def test_evaluation_takes_all_rows_of_another_file(trained, run):
    assert numbers(run("evaluate", trained, "--data", trained.parent / "test.jsonl")) == numbers(run("evaluate", trained))
    other = run("evaluate", trained, "--data", trained.parent / "train.jsonl", "--split", "validation")
    assert numbers(other)["loss"] == pytest.approx(numbers(run("evaluate", trained, "--split", "train"))["loss"])


def test_a_trained_model_passes_its_checks_and_a_broken_one_does_not(run, trained, tmp_path, capsys):
    printed = run("check", trained)
    assert printed.count("pass") >= 10 and "FAIL" not in printed
    broken = shutil.copytree(trained, tmp_path / "broken")
    (broken / "weights.pt").write_bytes(b"")
    assert call("check", broken) == 1
    assert "FAIL  no pickle" in capsys.readouterr().out


def test_the_doctor_looks_at_recipes_and_at_runs(run, trained, capsys):
    assert call("doctor", trained) in (0, 1)  # two updates have taught it little
    assert "Findings" in capsys.readouterr().out
    assert call("doctor", trained / "recipe.yaml") in (0, 1)
    assert "Shapes of one batch" in capsys.readouterr().out


def test_eight_bits_give_nearly_the_same(run, trained, monkeypatch):
    made = []
    monkeypatch.setattr(
        glassformer, "quantize_int8", lambda model, original=glassformer.quantize_int8: made.append(model) or original(model)
    )
    exact, rounded = numbers(run("evaluate", trained)), numbers(run("evaluate", trained, "--int8"))
    assert len(made) == 1 and rounded["loss"] == pytest.approx(exact["loss"], rel=0.02)
    assert run("predict", trained, "in", "--int8").count("\n") == 1 and len(made) == 2


def test_two_models_read_the_same_file_each_with_its_own_tokenizer(trained, run, place):
    files = {"data": {"files": split_files(place / "base")}}
    recipe = task_recipe(place / "other", "seq2seq", {**SHORT, **files, "tokenizer": {"kind": "bpe", "vocab_size": 60}})
    run("train", write_recipe(place / "other.yaml", recipe))
    for folder in (trained, recipe.folder):
        printed = run("evaluate", folder, "--data", trained.parent / "test.jsonl")
        assert numbers(printed) == pytest.approx(metrics_of(folder), abs=1e-4)


def test_packed_documents_are_measured_whole_and_blank_lines_left_out(run, tmp_path, place):
    for name in ("train", "test"):
        (tmp_path / f"{name}.txt").write_text("\n".join(["abc" * 20, "", "cab" * 5, " "]))
    overrides = {
        **SHORT,
        "data": {"files": {name: str(tmp_path / f"{name}.txt") for name in ("train", "test")}},
        "batching": {"tokens": 64, "packing": True},
        "model.max_position_embeddings": 16,
    }
    recipe = task_recipe(tmp_path, "causal_lm", overrides)
    run("train", write_recipe(tmp_path / "packed.yaml", recipe))
    assert numbers(run("evaluate", recipe.folder)) == pytest.approx(metrics_of(recipe.folder), abs=1e-3)


@pytest.fixture
def generations(monkeypatch):
    """What `generate` is asked for, call by call."""
    asked = []
    generate = glassformer.GlassformerForConditionalGeneration.generate

    def watched(self, *arguments, **options):
        asked.append({name: value for name, value in options.items() if not torch.is_tensor(value)})
        return generate(self, *arguments, **options)

    monkeypatch.setattr(glassformer.GlassformerForConditionalGeneration, "generate", watched)
    return asked


def test_overrides_of_an_evaluation_reach_generate(trained, run, generations):
    run("evaluate", trained, "evaluation.generation.num_beams=3")
    assert generations == [{"max_new_tokens": 4, "num_beams": 3}]


def test_options_of_a_prediction_reach_generate(trained, run, generations):
    run("predict", trained, "the red lamp", "--beams", 2, "--max-new-tokens", 3)
    run("predict", trained, "the red lamp")
    assert generations == [{"max_new_tokens": 3, "num_beams": 2}, {}]


# Prediction

TEXTS = ["the red lamp", "a green pane is out", "in"]


def test_texts_come_as_arguments_from_a_file_or_from_stdin(trained, run, tmp_path, monkeypatch):
    printed = run("predict", trained, *TEXTS)
    assert printed.count("\n") == 3
    (tmp_path / "texts.txt").write_bytes("\r\n".join(["", *TEXTS, "  "]).encode("utf-8-sig"))
    assert run("predict", trained, "--file", tmp_path / "texts.txt") == printed
    write_rows(tmp_path / "rows.jsonl", [{"source": text} for text in TEXTS])
    assert run("predict", trained, "--file", tmp_path / "rows.jsonl") == printed
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(TEXTS)))
    assert run("predict", trained) == printed


def test_json_has_every_input_with_its_prediction(trained, run):
    plain = run("predict", trained, *TEXTS, '{"source": "ü", "id": 7}').splitlines()
    rows = [json.loads(line) for line in run("predict", trained, *TEXTS, '{"source": "ü", "id": 7}', "--json").splitlines()]
    assert [row["source"] for row in rows] == [*TEXTS, "ü"]
    assert rows[-1]["id"] == 7
    assert [row["prediction"] for row in rows] == plain


def test_text_that_looks_like_json_but_is_none_is_a_text(trained, run):
    assert json.loads(run("predict", trained, "{red", "--json"))["source"] == "{red"


INPUTS = {
    "token_classification": ["the red lamp is out"],
    "question_answering": ["where", "--context", "the red lamp is out"],
    "masked_lm": ["the <mask> lamp"],
}


def is_a_prediction(task: str, answer) -> bool:
    """Of the kind that the task asks for."""
    if task == "regression":
        return isinstance(answer, float)
    if task == "multi_label":
        return set(answer) <= {"red", "lamp"}
    if task == "sequence_classification":
        return answer in ("in", "ut")
    if task == "token_classification":
        return len(answer) == 5 and set(answer) <= {"B-X", "O"}
    if task == "question_answering":
        return answer != "" and answer in "the red lamp is out"
    if task in ("causal_lm", "prefix_lm"):
        return answer.startswith("the red")
    return isinstance(answer, str)


@pytest.mark.parametrize("task", TASKS)
def test_every_objective_is_trained_measured_and_answers(task, run, trained_for):
    folder = trained_for(task)
    printed = run("evaluate", folder, "--split", "validation")
    assert numbers(printed) == pytest.approx(metrics_of(folder, "validation"), abs=1e-3)
    inputs = INPUTS.get(task, ["the red"])
    answer = json.loads(run("predict", folder, *inputs, "--json"))["prediction"]
    assert is_a_prediction(task, answer)
    assert run("predict", folder, *inputs) == f"{' '.join(answer) if isinstance(answer, list) else answer}\n"


@pytest.mark.parametrize("task", ["sequence_classification", "multi_label", "regression", "token_classification"])
def test_what_a_model_is_for_is_told_by_its_config_too(task, run, trained_for, tmp_path):
    shutil.copytree(trained_for(task), tmp_path / "run", ignore=shutil.ignore_patterns("recipe.yaml", "checkpoints"))
    assert run("predict", tmp_path / "run", "the red") == run("predict", trained_for(task), "the red")


# Other commands


def test_tokenizer_is_trained_alone_and_found_by_transformers(trained, run, refused, tmp_path):
    printed = run("tokenizer", trained.parent / "base.yaml", tmp_path / "one")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one")
    assert printed == f"{tmp_path / 'one'}: {len(tokenizer)} tokens\n"
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(trained).get_vocab()
    run("tokenizer", trained.parent / "base.yaml", tmp_path / "two", "tokenizer.joint=false")
    assert "D" not in AutoTokenizer.from_pretrained(tmp_path / "two").get_vocab()
    assert "D" in AutoTokenizer.from_pretrained(tmp_path / "two" / "target").get_vocab()
    for taken in (tmp_path / "one", trained / "config.json"):
        refused(f"{taken} is not an empty folder: name another one.", "tokenizer", trained.parent / "base.yaml", taken)


def test_recipes_are_listed_with_what_they_are(run):
    _, _, *lines = run("recipes").splitlines()
    assert [line.split("`")[1] for line in lines] == recipe_names()


def test_a_card_is_written_and_its_place_told(trained, run, refused, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "run")
    assert run("card", folder, "--repo", "ada/mine", "--example", "the red lamp") == f"{folder / 'README.md'}\n"
    assert 'from_pretrained("ada/mine"' in (folder / "README.md").read_text() and (folder / "attention.png").exists()
    refused("holds no model: give a folder that training has made.", "card", tmp_path)


def test_presets_are_listed_smallest_first(run):
    _, _, *rows = run("presets").splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    sizes = [float(row[-1].rstrip("M")) for row in cells]
    assert sizes == sorted(sizes)
    by_name = {row[0]: row[1:] for row in cells}
    assert by_name["`paper-base`"][:3] == ["encoder-decoder", "6+6", "512"]


def test_scripts_may_fix_the_command(run):
    assert run(command="recipes") == run("recipes")


def test_help_names_every_command_and_asks_for_nothing_heavy():
    """In a process of its own, where nothing has been imported yet."""
    code = (
        "import sys, glassformer.cli as cli\n"
        "sys.argv = ['glassformer', '--help']\n"
        "try: cli.main()\n"
        "finally: assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    commands = (
        "train",
        "evaluate",
        "predict",
        "check",
        "doctor",
        "heads",
        "explain",
        "card",
        "push",
        "tokenizer",
        "recipes",
        "presets",
    )
    for command in commands:
        assert command in done.stdout


# Errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "nothing"], "There is no recipe 'nothing', neither as a file nor by name"),
        (["train", "dates", "training.steps"], "The override 'training.steps' is not of the form section.key=value."),
        (["train", "dates", "optimizer.lr=1e3"], "optimizer.lr=1000 would throw the weights away"),
        (["train", "dates", "model.d_modle=5"], "There is no key 'd_modle' in the section 'model': did you mean 'd_model'?"),
        (["train", "dates", "--dry-run", "data={source: no.csv}"], "data.source='no.csv' is no local file or folder"),
        (["train", "dates", "--dry-run", "data={files: {train: no.csv}}"], "There is no file no.csv."),
        (["train", "dates", "--dry-run", "data.size=9", "tokenizer.vocab_size=9"], "vocab_size=9 leaves no room for 5 special"),
        (["train", "dates", "--dry-run", "data={source: FILE}"], "bad.jsonl cannot be read as json: JSON parse error"),
        (["evaluate", "RUN", "--split", "dev"], "There are no dev rows: choose one of train, validation, test."),
        (["evaluate", "RUN", "--data", "no.csv"], "data.source='no.csv' is no local file or folder"),
        (["evaluate", "RUN", "evaluation.beams=2"], "There is no key 'beams' in the section 'evaluation'"),
        (["evaluate", "elsewhere"], "elsewhere holds no model: give a folder that training has made."),
        (["predict", "elsewhere", "x"], "elsewhere holds no model: give a folder that training has made."),
        (["predict", "UNFINISHED", "x"], "holds no model: its training has not ended: start it again to go on."),
        (["predict", "CHECKPOINT", "x"], "holds a checkpoint, which is none of GlassformerForCausalLM"),
        (["predict", "RUN", "--file", "no.txt"], "no.txt cannot be read (No such file or directory): give a text file."),
        (["predict", "RUN", "--file", "FILE"], "bad.jsonl is not utf-8 (byte 0xfc): convert it first."),
        (["predict", "RUN", ""], 'Input 1 has no source: write it as {"source": "..."}.'),
        (["predict", "RUN", "x", '{"target": "x"}'], 'Input 2 has no source: write it as {"source": "..."}.'),
        (["predict", "RUN", '{"source": 5}'], "Input 1 has a source of type int: write it in quotes."),
    ],
    ids=[
        "recipe", "override", "check", "model", "dataset", "file", "tokenizer", "json", "split", "other-data", "evaluation",
        "evaluate-folder", "predict-folder", "unfinished", "checkpoint", "no-file", "bytes", "empty", "json-role", "json-type",
    ],
)  # fmt: skip
def test_errors_are_one_line_with_a_cure(trained, refused, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unfinished" / "checkpoints").mkdir(parents=True)
    (tmp_path / "bad.jsonl").write_bytes("grün".encode("latin-1") if "predict" in arguments else b"{]\n")
    places = {
        "RUN": trained,
        "UNFINISHED": tmp_path / "unfinished",
        "CHECKPOINT": trained / "checkpoints" / "step-00000002",
    }
    filled = [str(places.get(argument, argument)).replace("FILE", str(tmp_path / "bad.jsonl")) for argument in arguments]
    refused(words, *filled)


def test_nothing_to_predict_is_told(trained, refused, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n \n"))
    refused("stdin has no lines: there is nothing to predict.", "predict", trained)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    refused("There is nothing to predict: give texts, --file, or lines on stdin.", "predict", trained)


def test_model_of_unknown_origin_answers_and_asks_for_data_to_be_measured_on(trained, run, refused, tmp_path):
    answers = run("predict", trained, *TEXTS)
    saved = load_trained(trained)
    saved.model.save_pretrained(tmp_path / "a model")
    saved.objective.tokenizer.save_pretrained(tmp_path / "a model")
    assert run("predict", tmp_path / "a model", *TEXTS) == answers
    words = "This model came without a recipe, so its data is not known: pass some with --data."
    refused(words, "evaluate", tmp_path / "a model")
    found = numbers(run("evaluate", tmp_path / "a model", "--data", trained.parent / "test.jsonl"))
    assert found["loss"] == pytest.approx(metrics_of(trained)["loss"], abs=1e-4)
    saved.model.model.save_pretrained(tmp_path / "no head")
    refused("holds a GlassformerModel, which is none of GlassformerForCausalLM", "predict", tmp_path / "no head", "x")


def test_questions_need_a_context(trained_for, refused, run):
    folder = trained_for("question_answering")
    refused("Input 1 has no context: pass one, or write it as", "predict", folder, "where")
    own = '{"question": "where", "context": "out"}'
    assert run("predict", folder, own, "--context", "in") == run("predict", folder, "where", "--context", "out")


def test_serving_without_its_packages_says_how_to_get_them(trained, refused, monkeypatch):
    monkeypatch.delitem(sys.modules, "glassformer.serving.app", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    refused('Serving needs the package uvicorn: pip install "glassformer[serve]".', "serve", trained)


def test_inputs_with_and_without_a_pair_do_not_mix(trained_for, refused, run):
    folder, pair = trained_for("sequence_classification"), '{"text": "red", "text_pair": "green"}'
    assert run("predict", folder, pair, pair).count("\n") == 2
    refused("Some inputs have a text_pair and others have none: predict these apart.", "predict", folder, pair, "red")


def test_bug_keeps_its_traceback(trained, monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("deep inside")

    monkeypatch.setattr(torch.nn.functional, "linear", broken)
    with pytest.raises(RuntimeError, match="deep inside"):
        call("predict", trained, "the red lamp")


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("bad shape")], ids=["KeyError", "ValueError"])
def test_errors_of_other_packages_are_no_sentences_of_ours(error):
    """Wherever they are installed: it is the module that raises which decides."""
    namespace: dict = {"__name__": "torch.functional"}
    exec(compile("def f(error):\n    raise error\n", cli.__file__, "exec"), namespace)
    with pytest.raises(type(error)) as caught:
        namespace["f"](error)
    assert not cli.is_for_people(caught.value)


def test_accidents_in_our_own_code_are_no_sentences_either():
    with pytest.raises(AttributeError) as caught:
        cli.is_for_people(None)
    assert not cli.is_for_people(caught.value)


def test_interruptions_end_with_the_code_of_their_signal(refused, monkeypatch, capsys):
    def stop(recipe):
        raise loop.Interrupted("Stopped by SIGTERM.", 15)

    monkeypatch.setattr(loop, "train", stop)
    monkeypatch.setattr(cli, "is_for_people", lambda error: True)  # it was raised here, not in the package
    refused("Stopped by SIGTERM.", "train", "dates", code=143)
    monkeypatch.setenv("RANK", "1")  # the first process speaks for all
    assert call("train", "dates") == 143
    assert capsys.readouterr().err == ""

    def interrupt(recipe):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "train", interrupt)
    assert call("train", "dates") == 130
    assert "Traceback" not in capsys.readouterr().err
