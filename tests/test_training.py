"""The loop: what it leaves behind, that it goes on exactly where it stopped, and that batches may be cut anyhow."""

import itertools
import json
import math
import time

import pytest
import torch
from processes import run_python
from recipes import task_recipe, tiny_recipe
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from glassformer.training import loop
from glassformer.training.batching import Loader, MicroBatch
from glassformer.training.checkpoints import CheckpointError, LoopState
from glassformer.training.devices import make_accelerator
from glassformer.training.loop import Diverged, Training, train
from glassformer.training.recipe import RecipeError
from glassformer.training.task import prepare


CLOCK = ("seconds", "waited", "tokens_per_second")
# Everything that has a state: moving average, accumulation, early stopping, a schedule with an end.
EVERYTHING = {"training.ema": 0.8, "batching.accumulation": 2, "training.patience": 50, "model.label_smoothing": 0.1}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never stopped."""
    return train(tiny_recipe(tmp_path_factory.mktemp("whole"), EVERYTHING))


class Stopped(Exception):
    pass


def train_with_a_stop(recipe, monkeypatch, method="update", call=3, before=False):
    """Die when `method` is called for the n-th time, then start again."""
    original, calls = getattr(Training, method), []

    def stopping(self, *args, **kwargs):
        calls.append(method)
        if before and len(calls) == call:
            raise Stopped
        result = original(self, *args, **kwargs)
        if len(calls) == call:
            raise Stopped
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Training, method, stopping)
        with pytest.raises(Stopped):
            train(recipe)
    return train(recipe)


def read_log(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in CLOCK} for line in lines]


def assert_same_run(folder, other):
    weights, others = load_file(folder / "model.safetensors"), load_file(other / "model.safetensors")
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, others[name]), name
    assert read_log(folder) == read_log(other)
    assert json.loads((folder / "metrics.json").read_text()) == json.loads((other / "metrics.json").read_text())
    assert (folder / "predictions.jsonl").read_text() == (other / "predictions.jsonl").read_text()


# What is left behind


def test_the_folder_loads_with_the_auto_classes_and_tells_what_the_run_was(whole):
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(whole), AutoTokenizer.from_pretrained(whole)
    assert model.config.vocab_size == len(tokenizer)
    assert (model.config.pad_token_id, model.config.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id)
    assert model.config.decoder_start_token_id == tokenizer.bos_token_id
    written = model.generate(**tokenizer(["abc", "defgh"], padding=True, return_tensors="pt"))
    assert len(tokenizer.batch_decode(written, skip_special_tokens=True)) == 2

    manifest = json.loads((whole / "run.json").read_text())
    assert manifest["updates"] == 6 and manifest["recipe"]["batching"]["accumulation"] == 2 and manifest["tokens"] > 0
    assert set(manifest["data_fingerprints"]) == {"train", "validation", "test"} and 0 <= manifest["padding"] < 1
    assert manifest["metrics"] == json.loads((whole / "metrics.json").read_text())
    assert manifest["versions"]["torch"] == torch.__version__
    assert 0 < manifest["waiting"] < 0.5
    samples = [json.loads(line) for line in (whole / "predictions.jsonl").read_text().splitlines()]
    assert len(samples) == 10 and set(samples[0]) == {"source", "target", "prediction"}
    assert (whole / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_the_log_has_loss_rate_and_padding_at_the_steps_that_were_asked_for(whole):
    log = read_log(whole)
    assert [line["step"] for line in log if "loss" in line] == [2, 4, 6]
    assert [line["step"] for line in log if "validation" in line] == [3, 6]
    assert all(math.isfinite(line[key]) for line in log if "loss" in line for key in ("loss", "lr", "gradient_norm", "padding"))


def test_a_finished_run_is_left_alone(whole, caplog):
    before = (whole / "model.safetensors").stat().st_mtime_ns
    caplog.set_level("INFO", logger="glassformer")
    train(tiny_recipe(whole, EVERYTHING))
    assert (whole / "model.safetensors").stat().st_mtime_ns == before and "finished" in caplog.text


# Going on


@pytest.mark.parametrize("step", [1, 3, 4, 6])
def test_a_run_that_was_stopped_after_any_step_ends_the_same(whole, step, tmp_path, monkeypatch):
    assert_same_run(whole, train_with_a_stop(tiny_recipe(tmp_path, EVERYTHING), monkeypatch, "update", step))


@pytest.mark.parametrize("method, call", [("backward", 8), ("evaluate", 2), ("gather_weights", 2), ("clip_gradients", 5)])
def test_so_does_one_that_was_stopped_in_the_middle_of_a_step(whole, method, call, tmp_path, monkeypatch):
    assert_same_run(whole, train_with_a_stop(tiny_recipe(tmp_path, EVERYTHING), monkeypatch, method, call, before=True))


def test_so_does_one_that_was_stopped_while_it_was_being_finished(whole, tmp_path, monkeypatch):
    def full(*args):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr("glassformer.training.finish.write_samples", full)
        with pytest.raises(Stopped):
            train(tiny_recipe(tmp_path, EVERYTHING))
    assert not (tmp_path / "run.json").exists()
    assert_same_run(whole, train(tiny_recipe(tmp_path, EVERYTHING)))


@pytest.mark.parametrize("optimizer", ["adafactor", "muon", "lamb"])
def test_every_optimiser_goes_on_exactly(optimizer, tmp_path, monkeypatch):
    overrides = {"optimizer.name": optimizer, "schedule.name": "one_cycle", "training.steps": 4, "evaluation.every": 4}
    undisturbed = train(tiny_recipe(tmp_path / "a", overrides))
    assert_same_run(undisturbed, train_with_a_stop(tiny_recipe(tmp_path / "b", overrides), monkeypatch, "update", 3))


def test_a_stream_goes_on_exactly(tmp_path, monkeypatch):
    letters = "abcdefgh"
    rows = [{"source": letters[: 1 + i % 7], "target": letters[i % 5 :]} for i in range(53)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    data = {"files": {"train": str(file), "validation": str(file)}, "streaming": True, "window": 20}
    overrides = {"data": data, "batching.tokens": 40, "training.steps": 7, "batching.accumulation": 2}
    undisturbed = train(tiny_recipe(tmp_path / "a", overrides))
    assert json.loads((undisturbed / "run.json").read_text())["epochs"] >= 1  # the stream was begun anew
    for step in (3, 5):
        recipe = tiny_recipe(tmp_path / str(step), overrides)
        assert_same_run(undisturbed, train_with_a_stop(recipe, monkeypatch, "update", step))


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(whole, tmp_path, monkeypatch, caplog):
    recipe = tiny_recipe(tmp_path, EVERYTHING)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "finish", lambda *args: (_ for _ in ()).throw(Stopped()))
        with pytest.raises(Stopped):
            train(recipe)
    newest = tmp_path / "checkpoints" / "step-00000006" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"\x00\x01")
    train(recipe)
    assert "step-00000006 is damaged (model.safetensors has changed)" in caplog.text
    assert_same_run(whole, tmp_path)


def test_another_recipe_is_refused_with_the_differences(whole):
    with pytest.raises(CheckpointError, match=r"model.d_model was 16 and is now 32; optimizer.lr was 0.001 and is now 0.1"):
        train(tiny_recipe(whole, {**EVERYTHING, "model.d_model": 32, "optimizer.lr": 0.1}))


def test_a_recipe_that_was_refused_before_it_learnt_may_be_mended(tmp_path):
    """With its output folder as it is, and another tokenizer than the one that lies there."""
    with pytest.raises(RecipeError, match="warmup_steps=9 leaves nothing"):
        train(tiny_recipe(tmp_path, {"training.steps": 3, "schedule.warmup_steps": 9}))
    assert json.loads((tmp_path / "tokenizer" / "tokenizer.json").read_text())["model"]["type"] == "WordLevel"
    train(tiny_recipe(tmp_path, {"training.steps": 3, "tokenizer.kind": "bpe"}))
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["type"] == "BPE"


def test_what_does_not_change_the_result_may_change(whole):
    free = {"logging.every": 1, "checkpoints.keep": 1, "training.minutes": 9.0, "description": "again"}
    assert train(tiny_recipe(whole, {**EVERYTHING, **free})) == whole


def test_resume_never_refuses_a_folder_with_a_run(whole):
    with pytest.raises(CheckpointError, match="resume=never"):
        train(tiny_recipe(whole, {**EVERYTHING, "resume": "never"}))


# One gradient


def training_of(recipe, folder):
    return Training(prepare(recipe, folder), make_accelerator(recipe), folder)


def gradients_of(training, features, parts):
    """The gradient that an update sees when these examples come in batches of these sizes."""
    places = [sum(parts[:i]) for i in range(len(parts) + 1)]
    batches = [
        MicroBatch(i, training.objective.collate(features[start:end]), list(range(start, end)))
        for i, (start, end) in enumerate(itertools.pairwise(places))
    ]
    items = sum(training.objective.num_items(batch.tensors) for batch in batches)
    loss = sum(training.backward(batch, items, last=batch is batches[-1]) for batch in batches)
    gradients = {name: p.grad.clone() for name, p in training.model.named_parameters()}
    training.model.zero_grad()
    return loss, gradients


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("objective", ["seq2seq", "causal_lm", "masked_lm", "prefix_lm"])
def test_the_gradient_does_not_depend_on_how_examples_are_split(objective, smoothing, tmp_path):
    stacks = {
        "causal_lm": {"num_encoder_layers": 0},
        "prefix_lm": {"num_encoder_layers": 0},
        "masked_lm": {"num_decoder_layers": 0},
    }
    columns = {} if objective == "seq2seq" else {"data.columns": {"text": "source"}}
    columns |= {f"model.{name}": count for name, count in stacks.get(objective, {}).items()}
    overrides = {"objective.name": objective, "model.dropout": 0.0, "model.label_smoothing": smoothing, **columns}
    training = training_of(tiny_recipe(tmp_path, {**overrides, "evaluation.metrics": ["loss"]}), tmp_path)
    training.model.train()
    rows = training.task.encoded["train"]
    features = [{**rows[i], "seed": i} for i in range(13)]
    loss, together = gradients_of(training, features, [13])
    for parts in ([1, 12], [5, 3, 5], [1] * 13):
        split_loss, split = gradients_of(training, features, parts)
        assert abs(loss - split_loss) < 1e-6
        for name, gradient in together.items():
            torch.testing.assert_close(split[name], gradient, rtol=0, atol=1e-6, msg=name)


def test_the_loss_of_a_whole_batch_is_the_mean_over_its_labels(tmp_path):
    training = training_of(tiny_recipe(tmp_path, {"model.dropout": 0.0}), tmp_path)
    rows = training.task.encoded["train"]
    tensors = training.objective.collate([rows[i] for i in range(9)])
    logits = training.model(**tensors).logits.detach()
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tensors["labels"].flatten())
    loss, _ = gradients_of(training, [rows[i] for i in range(9)], [2, 7])
    assert abs(loss - float(expected)) < 1e-6


def test_gradient_checkpointing_and_bf16_learn_too(tmp_path):
    plain = train(tiny_recipe(tmp_path / "plain"))
    spared = train(tiny_recipe(tmp_path / "spared", {"training.gradient_checkpointing": True}))
    weights, others = load_file(plain / "model.safetensors"), load_file(spared / "model.safetensors")
    for name, tensor in weights.items():
        torch.testing.assert_close(others[name], tensor, rtol=0, atol=1e-5, msg=name)
    half = train(tiny_recipe(tmp_path / "half", {"training.precision": "bf16"}))
    losses = [[line["loss"] for line in read_log(folder) if "loss" in line] for folder in (plain, half)]
    assert losses[0] != losses[1] and losses[1] == pytest.approx(losses[0], rel=0.02)


@pytest.mark.slow
def test_a_compiled_model_learns_the_same(tmp_path):
    overrides = {"model.dropout": 0.0, "evaluation.every": 6}
    plain = train(tiny_recipe(tmp_path / "plain", overrides))
    compiled = train(tiny_recipe(tmp_path / "compiled", {**overrides, "training.compile": True}))
    losses = [[line["loss"] for line in read_log(folder) if "loss" in line] for folder in (plain, compiled)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


# Ends


def test_a_loss_that_is_no_number_stops_the_run_and_spares_the_checkpoint(tmp_path, monkeypatch):
    original = Training.backward

    def poisoned(self, batch, total, last):
        loss = original(self, batch, total, last)
        return float("nan") if self.state.step == 3 else loss

    with monkeypatch.context() as patch:
        patch.setattr(Training, "backward", poisoned)
        with pytest.raises(Diverged, match=r"loss became nan at step 4 .*rows \[.*norms before: .*-00000003"):
            train(tiny_recipe(tmp_path))
    undisturbed = train(tiny_recipe(tmp_path / "other"))
    assert_same_run(undisturbed, train(tiny_recipe(tmp_path)))  # the weights had not been touched


def test_a_run_that_no_longer_gains_is_stopped(tmp_path):
    overrides = {"training.steps": 60, "evaluation.every": 1, "evaluation.best": "exact_match", "training.patience": 3}
    manifest = json.loads((train(tiny_recipe(tmp_path, overrides)) / "run.json").read_text())
    assert manifest["updates"] == 4 and manifest["best"]["update"] == 1  # a first value, then three that are no better


def test_the_clock_ends_a_run_too(tmp_path):
    folder = train(tiny_recipe(tmp_path, {"training.steps": 10_000, "training.minutes": 1e-6}))
    assert json.loads((folder / "run.json").read_text())["updates"] == 1


def test_an_epoch_is_every_row_once(tmp_path):
    folder = train(tiny_recipe(tmp_path, {"training": {"epochs": 2}, "evaluation.every": None, "checkpoints.every": None}))
    manifest = json.loads((folder / "run.json").read_text())
    rows = prepare(tiny_recipe(tmp_path)).encoded["train"]
    assert manifest["tokens"] == 2 * sum(len(row["input_ids"]) + len(row["labels"]) for row in rows)
    assert [line["epoch"] for line in read_log(folder) if "loss" in line][-1] == manifest["epochs"] == 2
    assert len([line for line in read_log(folder) if "validation" in line]) == 2


@pytest.mark.parametrize("final", ["last", "best", "average"])
def test_the_final_weights_are_those_that_were_asked_for(final, tmp_path):
    overrides = {"checkpoints.final": final, "checkpoints.average": 2, "checkpoints.keep": 2, "evaluation.every": 1}
    folder = train(tiny_recipe(tmp_path, overrides))
    state = json.loads((folder / "checkpoints" / "step-00000006" / "loop.json").read_text())
    best = next((folder / "checkpoints").glob(f"*-{state['best_step']:08d}"))
    steps = {"last": ["step-00000006"], "best": [best.name], "average": ["step-00000004", "step-00000006"]}[final]
    sources = [load_file(folder / "checkpoints" / name / "model.safetensors") for name in steps]
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    for name, tensor in model.named_parameters():
        expected = sum(weights[name] for weights in sources) / len(sources)
        torch.testing.assert_close(tensor.detach(), expected, rtol=1e-6, atol=1e-7)
    assert json.loads((folder / "run.json").read_text())["weights_from"] == steps


def test_the_moving_average_is_what_is_kept(whole):
    state = LoopState.from_dict(json.loads((whole / "checkpoints" / "step-00000006" / "loop.json").read_text()))
    chosen = next((whole / "checkpoints").glob(f"*-{state.best_step:08d}"))
    average, weights = load_file(chosen / "average.safetensors"), load_file(chosen / "model.safetensors")
    final = dict(AutoModelForSeq2SeqLM.from_pretrained(whole).named_parameters())
    assert final.keys() == average.keys() and all(torch.equal(final[name], average[name]) for name in average)
    assert any(not torch.equal(weights[name], average[name]) for name in average)


def test_a_metric_that_is_not_there_cannot_be_the_best(tmp_path):
    with pytest.raises(RecipeError, match=r"evaluation.best=bleu is not among the results: choose one of loss, exact_match"):
        train(tiny_recipe(tmp_path, {"evaluation.best": "bleu"}))


def test_separate_vocabularies_have_tables_and_tokenizers_of_their_own(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps({"source": "abc"[: 1 + i % 3], "target": "uvwxyz"[: 1 + i % 6]}) for i in range(20)))
    overrides = {"data": {"source": str(file)}, "tokenizer.joint": False, "tokenizer.vocab_size": 11, "evaluation": {}}
    folder = train(tiny_recipe(tmp_path / "run", overrides))
    source, target = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(folder / "target_tokenizer")
    assert "a" in source.get_vocab() and "a" not in target.get_vocab() and "u" in target.get_vocab()
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert model.get_encoder().embed_tokens.weight is not model.get_decoder().embed_tokens.weight
    assert model.lm_head.weight is model.get_decoder().embed_tokens.weight
    assert model.config.vocab_size == len(target) == 11 > len(source)


def test_time_spent_waiting_for_data_is_told(tmp_path, monkeypatch):
    updates = Loader.updates

    def slowly(self, position):
        for update in updates(self, position):
            time.sleep(0.2)
            yield update

    monkeypatch.setattr(Loader, "updates", slowly)
    folder = train(tiny_recipe(tmp_path / "run"))
    manifest = json.loads((folder / "run.json").read_text())
    assert manifest["waiting"] * manifest["seconds"] >= 0.2 * manifest["updates"]


@pytest.mark.parametrize(("native", "meant"), [(True, "bf16"), (False, "float32")])
def test_automatic_precision_is_bf16_where_the_processor_has_it(native, meant, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    automatic = train(tiny_recipe(tmp_path / "auto", {"training.precision": "auto"}))
    definite = train(tiny_recipe(tmp_path / "definite", {"training.precision": meant}))
    assert read_log(automatic) == read_log(definite)


def test_memory_that_is_freed_is_kept_for_the_next_step(tmp_path):
    code = """
import resource, sys, torch
from glassformer.training.devices import keep_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.ones(2**24)  # 64 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

without = faults()
keep_memory()
faults()  # asks for the memory once
print(without, faults())
"""
    without, kept = map(int, run_python(code, tmp_path).split())
    assert without > 4 * 2**26 / 2**12 / 2 and kept < 100


@pytest.mark.parametrize("baseline", [None, "gpt2"])
def test_samples_end_where_positions_do(baseline, tmp_path):
    """A table of positions has an end, and a language model that is shown at work stays before it."""
    changes = {
        "model.position_encoding": "learned", "model.max_position_embeddings": 12, "evaluation.metrics": ["loss"],
        "data.validation_fraction": 0.25,
    }  # fmt: skip
    folder = train(task_recipe(tmp_path, "causal_lm", {**changes, "baseline": baseline}))
    rows = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert rows and all(row["prediction"] for row in rows)
