"""Evaluation: the same numbers however rows are batched, padded and shared, and sentences for what cannot be measured."""

import copy
import math
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from datasets import Dataset, DatasetDict
from recipes import tiny_recipe
from torch.nn import functional as F

from glassformer.training import metrics
from glassformer.training.evaluation import (
    ALONE,
    Group,
    check_metrics,
    describe,
    evaluate_loss,
    evaluate_model,
    predict_rows,
    suitable_metrics,
)
from glassformer.training.objectives import Objective
from glassformer.training.recipe import Evaluation, RecipeError
from glassformer.training.task import Task, build_model, prepare


WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "dog", "run", "far", "over", "old", "red", "hills"]
ENCODER = {"model.num_encoder_layers": 2, "model.num_decoder_layers": 0}
DECODER = {"model.num_encoder_layers": 0, "model.num_decoder_layers": 2}
CLASSIFIER = {"objective.name": "sequence_classification", **ENCODER}
# Every objective, the classifiers under the names of what they predict
OVERRIDES = {
    "seq2seq": {},
    "span_corruption": {"objective.name": "span_corruption"},
    "text_infilling": {"objective.name": "text_infilling"},
    "causal_lm": {"objective.name": "causal_lm", **DECODER},
    "prefix_lm": {"objective.name": "prefix_lm", **DECODER},
    "masked_lm": {"objective.name": "masked_lm", **ENCODER},
    "class": {"data.columns": {"label": "class"}, **CLASSIFIER},
    "classes": {
        "data.columns": {"label": "classes"}, "objective.problem_type": "multi_label_classification", **CLASSIFIER,
    },
    "number": {"data.columns": {"label": "number"}, "objective.problem_type": "regression", **CLASSIFIER},
    "tags": {"objective.name": "token_classification", **ENCODER},
    "answers": {"objective.name": "question_answering", "data.max_length": 16, "data.stride": 4, **ENCODER},
}  # fmt: skip
NOISY = ("span_corruption", "text_infilling", "prefix_lm", "masked_lm")


def make_row(rng: random.Random) -> dict:
    """A row that serves every objective."""
    words = rng.choices(WORDS, k=rng.randint(2, 20))
    text, answer = " ".join(words), rng.choice(words)
    return {
        "text": text, "source": text, "target": " ".join(sorted(words)),
        "class": len(words) % 3, "classes": sorted({len(word) for word in words[:2]}), "number": len(words) / 10,
        "tokens": words, "tags": [f"B-{word[0]}" for word in words],
        "question": "one dog", "context": text, "answers": {"text": [answer], "answer_start": [text.index(answer)]},
    }  # fmt: skip


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Each objective with its rows, prepared when a test first asks for it."""
    folder, rng, made = tmp_path_factory.mktemp("evaluation"), random.Random(0), {}
    rows = {split: [make_row(rng) for _ in range(count)] for split, count in {"train": 60, "validation": 23}.items()}
    DatasetDict({split: Dataset.from_list(several) for split, several in rows.items()}).save_to_disk(folder / "rows")
    shared = {
        "data": {"source": str(folder / "rows")},
        "tokenizer": {"kind": "word", "vocab_size": 21, "min_frequency": 1},
        "evaluation": {"generation": {"max_new_tokens": 5}},
    }

    def task(name: str) -> Task:
        if name not in made:
            sentinels = {"tokenizer.vocab_size": 31, "tokenizer.sentinels": 10} if name == "span_corruption" else {}
            made[name] = prepare(tiny_recipe(folder / name, {**shared, **sentinels, **OVERRIDES[name]}))
        return copy.copy(made[name])

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSFORMER_CACHE", str(folder / "cache"))
        yield task


def evaluate(task: Task, model=None, group: Group = ALONE, rows: int = 23, **options):
    """Results and predictions on the validation rows."""
    raw, encoded = task.rows["validation"].select(range(rows)), task.encoded["validation"].select(range(rows))
    options = Evaluation(**{"generation": task.recipe.evaluation.generation, **options})
    return evaluate_model(model or build_model(task), task.objective, raw, encoded, options, group=group)


# The loss


def token_losses(model, row: dict, causal: bool) -> torch.Tensor:
    """By hand, without a batch: -log p of each label, and whether it is the first choice."""
    source, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["input_ids"] if causal else row["labels"])
    with torch.no_grad():
        if causal:
            logits, labels = model(source).logits[0, :-1], labels[1:]
        else:
            start = torch.tensor([model.config.decoder_start_token_id])
            logits = model(source, decoder_input_ids=torch.cat((start, labels[:-1]))[None]).logits[0]
    return torch.stack((F.cross_entropy(logits, labels, reduction="none"), (logits.argmax(-1) == labels).float()))


@pytest.mark.parametrize("tokens", [1, 50, 10_000])
@pytest.mark.parametrize("name", ["seq2seq", "causal_lm"])
def test_loss_is_the_mean_over_all_labels_whatever_the_batches(tasks, name, tokens):
    task = tasks(name)
    model = build_model(task).eval()
    by_hand = torch.cat([token_losses(model, row, name == "causal_lm") for row in task.encoded["validation"]], dim=1).mean(1)
    metrics_of_loss = ["loss", "perplexity"] + ["token_accuracy"] * (name == "causal_lm")
    results, predictions = evaluate(task, model, tokens=tokens, metrics=metrics_of_loss)
    assert results["loss"] == pytest.approx(float(by_hand[0]), rel=1e-5)
    assert results["perplexity"] == pytest.approx(math.exp(results["loss"]))
    if name == "causal_lm":
        assert results["token_accuracy"] == pytest.approx(float(by_hand[1]), rel=1e-5)
    assert predictions == []


@pytest.mark.parametrize("name", OVERRIDES)
def test_no_objective_cares_for_the_budget_of_a_batch(tasks, name):
    task = tasks(name)
    few, predictions = evaluate(task, tokens=50)
    many, others = evaluate(task, tokens=10_000)
    assert many == pytest.approx(few, rel=1e-4)
    assert many["loss"] > 0
    assert others == (pytest.approx(predictions, rel=1e-4) if name == "number" else predictions)


@pytest.mark.parametrize("name", ["seq2seq", "causal_lm", "class"])
def test_dropout_and_label_smoothing_are_for_training_only(tasks, name):
    task = tasks(name)
    plain, smooth = build_model(task).eval(), build_model(task).train()
    smooth.config.label_smoothing = 0.3
    assert evaluate(task, smooth) == evaluate(task, plain)
    assert (smooth.training, plain.training) == (True, False)


@pytest.mark.parametrize("name", NOISY)
def test_noise_is_the_same_at_every_evaluation(tasks, name):
    task = tasks(name)
    model = build_model(task)
    first, _ = evaluate(task, model, metrics=["loss", "token_accuracy"])
    torch.manual_seed(99)
    assert evaluate(task, model, metrics=["loss", "token_accuracy"])[0] == first


@pytest.mark.parametrize("name", ["causal_lm", "masked_lm"])
def test_packed_rows_have_one_loss_whatever_the_batches(tasks, name):
    task = tasks(name)
    model = build_model(task).eval()
    few, many = (
        evaluate_loss(model, task.objective, task.encoded["validation"], options, ["token_accuracy"], 16, ALONE)[0]
        for options in (Evaluation(tokens=16), Evaluation(tokens=10_000))
    )
    assert few == pytest.approx(many, rel=1e-5)


@pytest.mark.parametrize("overlap", [1, 10, 15])
def test_every_token_of_packed_documents_is_predicted_once_with_as_much_context_as_asked(tasks, overlap):
    """By hand: a row of 16 tokens starts every 16 - overlap tokens, and what an earlier row has predicted does not count."""
    task = tasks("causal_lm")
    model, encoded = build_model(task).eval(), task.encoded["validation"]
    text = [token for ids in encoded["input_ids"] for token in ids]
    one = Dataset.from_dict({"input_ids": [text], "length": [len(text)]})
    losses, start = {}, 0
    while max(losses, default=0) < len(text) - 1:
        row = torch.tensor([text[start : start + 16]])
        with torch.no_grad():
            found = F.cross_entropy(model(row).logits[0, :-1], row[0, 1:], reduction="none").tolist()
        losses = {**{start + 1 + place: loss for place, loss in enumerate(found)}, **losses}
        start += 16 - overlap
    assert sorted(losses) == list(range(1, len(text)))
    results, total = evaluate_loss(model, task.objective, one, Evaluation(overlap=overlap), ["loss"], 16, ALONE)
    assert total == pytest.approx(sum(losses.values()), rel=1e-5)
    assert results["loss"] == pytest.approx(total / (len(text) - 1), rel=1e-6)


def test_word_perplexity_counts_words_and_line_ends(tasks):
    task = tasks("causal_lm")
    task.rows = {"validation": Dataset.from_list([{"text": " = title = \n \n two words \n"}, {"text": "one"}])}
    task.encoded = {"validation": Dataset.from_dict({"input_ids": [[1, 5, 6, 7], [1, 8]], "length": [4, 2]})}
    results, _ = evaluate(task, rows=2, metrics=["loss", "word_perplexity"])
    words = 3 + 2 + 3 + 1 + 1  # the end of the second text counts, as it has no line end of its own
    assert results["word_perplexity"] == pytest.approx(math.exp(results["loss"] * 4 / words), rel=1e-6)
    with pytest.raises(RecipeError, match="word_perplexity cannot judge"):
        evaluate(tasks("masked_lm"), metrics=["word_perplexity"])


def test_rows_without_labels_are_refused(tasks):
    task = tasks("causal_lm")
    task.encoded = {"validation": Dataset.from_dict({"input_ids": [[5], [6]], "length": [1, 1]})}
    with pytest.raises(ValueError, match="ask for no token at all: give longer texts"):
        evaluate(task, rows=2)


# Predictions


def echo(objective: Objective, monkeypatch) -> list[int]:
    """Every answer is the text itself -> a list that notes how many features came together."""
    sizes = []

    def predict(model, features, generation):
        sizes.append(len(features))
        return objective.tokenizer.batch_decode([feature["input_ids"] for feature in features], skip_special_tokens=True)

    monkeypatch.setattr(objective, "predict", predict)
    return sizes


def test_predictions_come_in_the_order_of_the_rows(tasks, monkeypatch):
    task = tasks("seq2seq")
    rows, sizes = task.rows["validation"], echo(task.objective, monkeypatch)
    assert predict_rows(None, task.objective, rows, {}, tokens=40) == rows["source"][:]
    assert len(sizes) > 3
    assert sizes[0] < sizes[-2]  # long ones first, short ones together
    assert predict_rows(None, task.objective, rows, {}, tokens=1) == rows["source"][:]
    assert predict_rows(None, task.objective, [], {}) == []


@pytest.mark.parametrize("name", ["number", "tags", "answers"])
def test_a_prediction_does_not_depend_on_its_company(tasks, name):
    task = tasks(name)
    model, rows = build_model(task).eval(), list(task.rows["validation"])
    together = predict_rows(model, task.objective, rows, {})
    alone = [predict_rows(model, task.objective, [row], {})[0] for row in rows]
    assert together == (pytest.approx(alone, rel=1e-4) if name == "number" else alone)
    assert len(set(map(str, together))) > 5


def test_the_best_window_of_a_long_context_answers(tasks, monkeypatch):
    task = tasks("answers")
    rows, windows = list(task.rows["validation"]), []

    def predict(model, features, generation):
        """Sure of the end of the context where the window holds it, unsure elsewhere."""
        windows.extend(features)
        ends = [feature["offsets"][-2][1] == len(feature["context"]) for feature in features]
        return [(9.0, feature["context"][-3:]) if sure else (1.0, "zzz") for sure, feature in zip(ends, features)]

    monkeypatch.setattr(task.objective, "predict", predict)
    assert predict_rows(None, task.objective, rows, {}, tokens=40) == [row["context"][-3:] for row in rows]
    assert len(windows) > len(rows) + 5


def test_the_windows_of_a_row_come_in_order(tasks, monkeypatch):
    task = tasks("answers")
    monkeypatch.setattr(task.objective, "predict", lambda model, features, generation: [f["offsets"][-2] for f in features])
    monkeypatch.setattr(task.objective, "combine", list)
    ends = predict_rows(None, task.objective, list(task.rows["validation"]), {}, tokens=40)
    assert ends == [sorted(several) for several in ends]
    assert max(map(len, ends)) > 2


def test_a_text_without_tokens_is_named(tasks, monkeypatch):
    task = tasks("seq2seq")
    monkeypatch.setattr(task.objective, "ids", lambda texts, pairs=None: [[5], [], [6]])
    with pytest.raises(ValueError, match="Row 2 has no tokens: give it a text"):
        predict_rows(None, task.objective, [{"source": text} for text in ("a", "", "b")], {})


@pytest.mark.parametrize("was_training", [True, False])
def test_the_mode_of_the_model_survives_an_error(tasks, monkeypatch, was_training):
    task = tasks("seq2seq")
    model = build_model(task).train(was_training)

    def fail(*args):
        assert not model.training
        raise KeyboardInterrupt

    monkeypatch.setattr(task.objective, "predict", fail)
    with pytest.raises(KeyboardInterrupt):
        evaluate(task, model)
    assert model.training == was_training


# Processes


class TwoProcesses:
    """Two threads that stand for processes: each waits in `gather` for the other."""

    def __init__(self):
        self.barrier, self.parts = threading.Barrier(2, timeout=60), [[], []]

    def gather(self, rank: int, part: list) -> list:
        self.parts[rank] = part
        self.barrier.wait()
        joined = self.parts[0] + self.parts[1]
        self.barrier.wait()  # nobody writes again before both have read
        return joined

    def run(self, function) -> list:
        """What the function returns for each of the two groups."""
        groups = [Group(rank, 2, lambda part, rank=rank: self.gather(rank, part)) for rank in range(2)]
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(function, groups))


@pytest.mark.parametrize("rows", [23, 1])  # of one row the second process gets nothing
@pytest.mark.parametrize("name", ["seq2seq", "causal_lm", "masked_lm", "number", "answers"])
def test_two_processes_find_what_one_finds(tasks, name, rows):
    task = tasks(name)
    model = build_model(task)
    models = [copy.deepcopy(model), copy.deepcopy(model)]
    expected, predictions = evaluate(task, model, rows=rows, tokens=40)
    own = [task, copy.deepcopy(task)]  # processes do not share a tokenizer, which two threads must not use at once
    for results, others in TwoProcesses().run(
        lambda group: evaluate(own[group.rank], models[group.rank], group, rows, tokens=40)
    ):
        assert results == pytest.approx(expected, rel=1e-5)
        assert others == (pytest.approx(predictions, rel=1e-5) if name == "number" else predictions)


def test_two_processes_share_the_work(tasks, monkeypatch):
    task = tasks("seq2seq")
    rows, sizes = task.rows["validation"], echo(task.objective, monkeypatch)
    both = TwoProcesses().run(lambda group: predict_rows(None, task.objective, rows, {}, 40, group))
    assert both == [rows["source"][:]] * 2
    assert sum(sizes) == len(rows)


# Metrics


@pytest.mark.parametrize("name", OVERRIDES)
def test_an_objective_can_be_judged_by_every_metric_that_suits_it(tasks, name):
    task = tasks(name)
    suitable = suitable_metrics(task.objective)
    assert {*task.objective.metrics, "loss", "perplexity"} <= set(suitable)
    check_metrics(task.objective, suitable)
    results, _ = evaluate(task, metrics=suitable)
    keys = {key for metric in suitable for key in (metrics.METRICS[metric].keys if metric in metrics.METRICS else [metric])}
    assert keys <= set(results)


REFUSALS = {
    ("seq2seq", "blue"): "There is no metric 'blue': did you mean bleu",
    ("causal_lm", "bleu"): "bleu cannot judge this objective: choose from loss, perplexity, word_perplexity, token_accuracy",
    ("class", "bleu"): "bleu cannot judge this objective: choose from loss, perplexity, accuracy, f1, matthews",
    ("class", "token_accuracy"): "token_accuracy cannot judge this objective",
    ("number", "accuracy"): "accuracy cannot judge this objective: choose from loss, perplexity, mse, pearson",
    ("tags", "f1"): "f1 cannot judge this objective: choose from loss, perplexity, token_accuracy, seqeval",
    ("answers", "accuracy"): "accuracy cannot judge this objective: .*squad",
}


@pytest.mark.parametrize(("name", "metric"), REFUSALS)
def test_metrics_that_do_not_fit_are_refused_before_anything_is_computed(tasks, name, metric):
    task = tasks(name)
    for check in (check_metrics, lambda objective, names: evaluate(task, metrics=names)):
        with pytest.raises(RecipeError, match=REFUSALS[name, metric]):
            check(task.objective, [metric])


def test_a_missing_package_is_named(tasks, monkeypatch):
    monkeypatch.setattr(metrics, "find_spec", lambda package: None)
    with pytest.raises(ImportError, match=r'rouge needs the package rouge_score: pip install "glassformer\[rouge\]"'):
        check_metrics(tasks("seq2seq").objective, ["rouge"])


def test_results_are_described_in_a_line():
    assert describe({"loss": 1.23456, "bleu_signature": "x", "perplexity": math.inf}) == "loss 1.235, perplexity inf"
