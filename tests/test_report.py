"""What a run writes: log, predictions, curves and manifest."""

import importlib.metadata
import io
import json
import logging
import sys
from types import SimpleNamespace

import matplotlib.figure
import pytest
from matplotlib.image import imread
from recipes import tiny_recipe

from glassformer.training import report
from glassformer.training.logs import RunLog, flat, read_log, tracker_names
from glassformer.training.recipe import Logging, RecipeError


class FakeAccelerator:
    """Notes what trackers are told."""

    def __init__(self, is_main_process: bool = True):
        self.is_main_process, self.started, self.logged, self.finished = is_main_process, [], [], 0
        self.trackers = [SimpleNamespace(finish=self.finish)]

    def init_trackers(self, name, init_kwargs):
        self.started.append((name, init_kwargs))

    def log(self, values, step):
        self.logged.append((step, values))

    def finish(self):
        self.finished += 1


def open_log(folder, size: int = 0, step: int = 0, accelerator=None) -> RunLog:
    return RunLog(folder, accelerator or FakeAccelerator(), tiny_recipe(folder), step, 10, size)


# The log


def test_records_are_lines_of_json_and_their_numbers_go_to_trackers(tmp_path):
    accelerator = FakeAccelerator()
    log = open_log(tmp_path, step=4, accelerator=accelerator)
    log.record(5, loss=2.5, lr=0.1)
    log.record(6, validation={"loss": 2.0, "bleu_signature": "x"}, warning="careful: \u2028 ü")
    log.close()
    assert read_log(log.path) == [
        {"step": 5, "loss": 2.5, "lr": 0.1},
        {"step": 6, "validation": {"loss": 2.0, "bleu_signature": "x"}, "warning": "careful: \u2028 ü"},
    ]
    assert accelerator.started == [("tiny", {"tensorboard": {"purge_step": 5}})]
    assert accelerator.logged == [(5, {"loss": 2.5, "lr": 0.1}), (6, {"validation/loss": 2.0})]
    assert accelerator.finished == 1


def test_nested_values_get_one_name():
    assert flat({"a": 1, "b": {"c": 2, "d": {"e": 3}}, "f": {}}) == {"a": 1, "b/c": 2, "b/d/e": 3}


def test_a_run_that_goes_on_cuts_off_what_came_after_the_checkpoint(tmp_path):
    first = open_log(tmp_path)
    first.record(1, loss=3.0)
    size = first.size
    first.record(2, loss=2.0)
    first.close()
    assert size == len('{"step": 1, "loss": 3.0}\n')
    second = open_log(tmp_path, size)
    second.record(2, loss=1.5)
    second.close()
    assert [record["loss"] for record in read_log(second.path)] == [3.0, 1.5]
    open_log(tmp_path).close()
    assert read_log(second.path) == []


@pytest.mark.parametrize(
    ("left", "kept"), [("", 0), ('{"step": 1}\n', 1), ('{"step": 1}\n{"st', 1)], ids=["nothing", "a-line", "half-a-line"]
)
def test_a_log_that_is_shorter_than_it_was_stays_readable(tmp_path, left, kept):
    """As after a power cut, since nothing waits until the log has reached the disk."""
    (tmp_path / "log.jsonl").write_text(left)
    log = open_log(tmp_path, size=1000)
    log.record(9, loss=1.0)
    log.close()
    assert [record["step"] for record in read_log(log.path)] == [1] * kept + [9]


def test_one_process_writes_for_all(tmp_path):
    accelerator = FakeAccelerator(is_main_process=False)
    log = open_log(tmp_path, accelerator=accelerator)
    log.record(1, loss=1.0)
    log.progress(1.0, 0.1, 10)
    log.report(1, 1.0, 0.1)
    log.say("nothing")
    log.close()
    assert log.size == 0
    assert not list(tmp_path.iterdir())
    assert accelerator.started == accelerator.logged == []


class Screen(io.StringIO):
    def __init__(self, is_terminal: bool):
        super().__init__()
        self.isatty = lambda: is_terminal


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "file"])
def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(tmp_path, monkeypatch, caplog, is_terminal):
    caplog.set_level(logging.INFO, "glassformer")
    screen = Screen(is_terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    log = open_log(tmp_path, step=3)
    monkeypatch.setattr("glassformer.training.logs.time.perf_counter", lambda: log.started + 4)
    for tokens in (30, 50):
        log.progress(1.0, 0.1, tokens)
    log.report(5, 1.0, 0.1)
    log.say("half way")
    log.close()
    line = "update 5/10: loss 1.0000, lr 1.00e-01, 20 tokens/s, 10.0 s left"  # two updates took four seconds
    assert caplog.messages == (["half way"] if is_terminal else [line, "half way"])
    assert ("5/10" in screen.getvalue()) == is_terminal


def test_a_run_by_the_clock_does_not_say_how_much_is_left(tmp_path, caplog):
    caplog.set_level(logging.INFO, "glassformer")
    log = RunLog(tmp_path, FakeAccelerator(), tiny_recipe(tmp_path), 0, None, 0)
    log.report(1, 1.0, 0.1)
    log.close()
    assert caplog.messages[0].startswith("update 1: loss 1.0000")
    assert "left" not in caplog.messages[0]


def test_trackers_are_those_of_the_recipe(monkeypatch):
    assert tracker_names(Logging()) == ["tensorboard"]
    assert tracker_names(Logging(tensorboard=False)) == []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace())
    assert tracker_names(Logging(wandb=True)) == ["tensorboard", "wandb"]
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RecipeError, match=r"logging.wandb=true needs the package wandb: pip install wandb."):
        tracker_names(Logging(wandb=True))


# Files at the end


def test_versions_are_those_that_run():
    versions = report.versions()
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert versions["torch"] == importlib.metadata.version("torch")
    assert {"glassformer", "transformers", "datasets", "tokenizers", "accelerate"} <= versions.keys()


def test_the_manifest_says_what_ran_where(tmp_path):
    report.write_manifest(tmp_path, {"updates": 3, "metrics": {"loss": 1.0}})
    manifest = json.loads((tmp_path / "run.json").read_text())
    assert manifest["updates"] == 3
    assert manifest["versions"] == report.versions()
    assert manifest["platform"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_predictions_stand_beside_their_rows(tmp_path):
    rows = [{"source": "Grüße\u2028\nworld"}, {"source": "b", "label": 1}, {"source": "left out"}]
    file = tmp_path / "predictions.jsonl"
    report.write_predictions(file, rows, ["x", ["O", "B-PER"]])
    with file.open(encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines]
    assert found == [{**rows[0], "prediction": "x"}, {**rows[1], "prediction": ["O", "B-PER"]}]
    assert "Grüße" in file.read_text(encoding="utf-8")  # for people
    report.write_predictions(file, [], [])
    assert file.read_bytes() == b""


TRAINING = [{"step": step, "loss": 3 / step, "lr": 0.1 * step, "tokens": 10} for step in range(1, 9)]
EVALUATIONS = [{"step": step, "validation": {"loss": 2.0, "perplexity": 7.4, "bleu": 9.0 + step, "x": "y"}} for step in (4, 8)]
LOGS = {
    "training-alone": TRAINING,
    "with-loss": [*TRAINING, {"step": 8, "validation": {"loss": 2.0}}],
    "with-metrics": [*TRAINING, *EVALUATIONS],
    "with-warning": [*TRAINING, {"step": 3, "warning": "careful"}],
    "not-finite": [*TRAINING, {"step": 9, "loss": float("inf"), "lr": 0.1, "validation": {"loss": float("nan")}}],
    "one-record": TRAINING[:1],
}


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draws records -> the axes, as matplotlib has them, and the picture in numbers."""
    figures, save = [], matplotlib.figure.Figure.savefig

    def saving(figure, *args, **kwargs):
        figures.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", saving)

    def draw(records: list[dict], title: str = "a run"):
        (tmp_path / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        report.draw_curves(tmp_path / "log.jsonl", tmp_path / "curves.png", title)
        return figures[-1].axes, imread(tmp_path / "curves.png")

    return draw


@pytest.mark.parametrize("kind", LOGS)
def test_curves_are_a_picture_with_something_on_it(drawn, kind):
    axes, picture = drawn(LOGS[kind])
    assert len(axes) == (3 if kind == "with-metrics" else 2)
    assert picture.shape[:2] == (396, 1430 if len(axes) == 3 else 990)
    grey = picture[..., :3].mean(-1)
    assert 0.001 < (grey < 0.9).mean() < 0.2  # lines on white


def test_curves_show_the_numbers_of_the_log(drawn):
    axes, _ = drawn(LOGS["with-metrics"])
    lines = {(number, line.get_label()): line.get_xydata().tolist() for number, axis in enumerate(axes) for line in axis.lines}
    assert lines == {
        (0, "training"): [[record["step"], record["loss"]] for record in TRAINING],
        (0, "validation"): [[4, 2.0], [8, 2.0]],
        (1, "learning rate"): [[record["step"], record["lr"]] for record in TRAINING],
        (2, "bleu"): [[4, 13.0], [8, 17.0]],
    }


def test_a_title_is_no_formula(drawn):
    axes, _ = drawn(TRAINING, title=r"50 $\frac$")
    assert axes[0].figure.get_suptitle() == r"50 $\frac$"


def test_drawing_leaves_the_plots_of_a_notebook_alone(drawn, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # which cannot be imported now
    drawn(TRAINING)
