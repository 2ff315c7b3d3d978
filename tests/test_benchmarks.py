"""The benchmark: statistics by hand, processes that take turns, contestants of the same size that do the same work, reports."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_cli import call

from glassformer.benchmarks import corpus, generation, memory, report, scaling, start, suite, training_step, waiting
from glassformer.benchmarks.contestants import CASES, CONTESTANTS, OURS, Sizes, build, make_batch, uneven_lengths
from glassformer.benchmarks.interleave import Entry, Measurements, Spread, interleave, ratios, spread
from glassformer.benchmarks.limit import LIMIT
from glassformer.benchmarks.options import Options
from glassformer.benchmarks.worker import prepare
from glassformer.exchange import runtime


EXTRA = {
    "x-transformers": "x_transformers",
    "CTranslate2": "ctranslate2",
    "CTranslate2 int8": "ctranslate2",
    "glassformer, ONNX Runtime": "onnxscript",
    "glassformer, ONNX Runtime int8": "onnxscript",
}
TINY = {
    "encoder-decoder": Sizes(512, 64, 4, 256, 2, 2, batch=3, length=14),
    "llama-like": Sizes(512, 64, 4, 168, 0, 2, batch=3, length=14),
    "gpt2-like": Sizes(512, 64, 4, 256, 0, 2, batch=3, length=14),
    "encoder": Sizes(512, 64, 4, 256, 2, 0, batch=4, length=14),
}
PAIRS = [(kind, name) for kind, table in CONTESTANTS.items() for name in table]


def need(name: str) -> None:
    if name in EXTRA:
        pytest.importorskip(EXTRA[name])


# Statistics


def test_median_and_quartiles_by_hand():
    assert spread([4.0, 1.0, 3.0, None, 2.0, 5.0]) == Spread(median=3.0, low=2.0, high=4.0)
    assert str(Spread(3.0, 2.0, 4.0).scaled(0.5)) == "1.50 (1.00-2.00)"


def test_a_ratio_is_taken_within_each_round():
    # The machine was twice as slow in the second round; the ratio does not notice.
    assert ratios([3.0, 6.0, None], [2.0, 4.0, 1.0]) == Spread(1.5, 1.5, 1.5)
    assert ratios([None, 1.0], [1.0, None]) is None


def measurements(**rounds: list[float | None]) -> Measurements:
    results = {name: [None if value is None else {"seconds": value} for value in values] for name, values in rounds.items()}
    return Measurements(rounds={"": results}, facts={name: {"parameters": 10} for name in rounds})


def test_the_best_peer_is_the_quickest_by_its_median_and_compared_round_by_round():
    found = training_step.compare(
        measurements(glassformer=[1.0, 2.0, 1.0], slow=[9.0, 9.0, 9.0], quick=[1.5, 3.0, 1.2]), "seconds"
    )
    assert found["best_peer"] == "quick" and found["ratio"].median == pytest.approx(1.5)
    assert list(found["contestants"]) == [OURS, "quick", "slow"]
    assert found["contestants"]["slow"]["ratio"].median == pytest.approx(9.0)


def test_without_a_peer_nothing_is_compared():
    found = training_step.compare(measurements(glassformer=[1.0], gone=[None]), "seconds")
    assert found["best_peer"] is None and "nothing to compare" in training_step.verdict(found)


def test_the_share_of_the_limit_is_arithmetic_over_time_over_rate():
    case, flops = CASES["decoder like Llama"], training_step.arithmetic(CASES["decoder like Llama"])
    measured = measurements(glassformer=[2.0])
    measured.rounds[""][LIMIT] = [{"rate": flops}]
    table = training_step.step_table("decoder like Llama", case, 0.1, measured)
    assert table.data["contestants"][OURS]["share_of_limit"] == pytest.approx(0.5)
    assert table.data["contestants"][OURS]["tokens_per_second"] == pytest.approx(8 * 256 / 2)


def test_growth_of_known_curves():
    assert scaling.fit_growth([1, 2, 4, 8], [3.0, 12.0, 48.0, 192.0]) == pytest.approx((0, 3, 2), abs=1e-6)
    assert scaling.fit_growth([1, 2, 3, 4], [7.0, 9.0, 11.0, 13.0]) == pytest.approx((5, 2, 1))  # a line from 5 on
    assert scaling.fit_growth([1, 2, 4, 8, 16], [-0.1, 4.0, 8.0, 16.0, 32.0]) == pytest.approx((0, 2, 1), abs=1e-6)  # less noise


@pytest.mark.parametrize("seconds", [[1.0, 1.0, 0.99, 0.98], [0.1, -0.1, 0.2, 0.3], [-0.1] * 4])
def test_what_does_not_grow_or_is_known_at_few_points_has_no_power(seconds):
    assert scaling.fit_growth([1, 2, 4, 8], seconds) is None
    table = scaling.growth_table("growth", "length", [1, 2, 4, 8], seconds, [])
    assert table.notes == ["It does not grow in a way that could be told."] and list(table.curves) == ["measured"]


def test_no_growth_starts_below_nothing():
    assert scaling.fit_growth([1, 2, 4, 8], [0.1, 0.8, 1.5, 2.2]).constant == 0  # a logarithm, which starts at minus infinity


# Processes

TOY = """
import os, sys

def prepare(name, dies=0, module=None):
    if module:
        __import__(module)
    print("a library that prints")
    turns = []
    def run(**settings):
        turns.append(settings)
        if len(turns) == dies:
            sys.exit("the sky has fallen")
        with open("turns", "a") as file:
            file.write(name + "\\n")
        return {"seconds": len(turns), "threads": os.environ["OMP_NUM_THREADS"], **settings}
    return {"name": name}, run
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda name, threads=None, **arguments: Entry(name, "toy:prepare", {"name": name, **arguments}, threads=threads)


def test_contestants_take_turns_in_an_order_that_changes_and_can_be_repeated(toy):
    settings = {"few": {"size": 1}, "many": {"size": 2}}
    measured = interleave([toy("a", threads=1), toy("b"), toy("c")], 2, settings, threads=3)
    assert measured.values("a", "seconds", "few") == [3, 5] and measured.values("a", "size", "many") == [2, 2]
    assert [measured.values(name, "threads", "few") for name in "ab"] == [["1", "1"], ["3", "3"]]
    assert measured.facts["c"] == {"name": "c"} and not measured.notes
    turns = Path("turns").read_text().split()
    orders = [tuple(turns[start : start + 3]) for start in range(0, 18, 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders) and len(set(orders)) > 1


def test_a_process_that_dies_is_told_in_a_sentence_and_the_others_go_on(toy):
    measured = interleave([toy("well"), toy("ill", dies=3)], 3)
    assert measured.values("ill", "seconds") == [2, None, None] and measured.values("well", "seconds") == [2, 3, 4]
    assert measured.notes == ["ill is left out from here on, for its process has died: the sky has fallen"]


def test_a_missing_package_leaves_its_contestant_out(toy, tmp_path):
    (tmp_path / "x_transformers.py").write_text("raise ModuleNotFoundError(name='x_transformers')")
    measured = interleave([toy("well"), toy("absent", module="x_transformers"), toy("broken", module="no_such_module")], 1)
    assert measured.names() == ["well"]
    assert measured.notes[0] == "absent is left out, for x-transformers is not installed: pip install 'glassformer[benchmark]'."
    assert measured.notes[1].endswith("ModuleNotFoundError: No module named 'no_such_module'")


# Training


@pytest.mark.parametrize(("kind", "name"), PAIRS, ids=[f"{kind}-{name}" for kind, name in PAIRS])
def test_every_contestant_is_of_our_size_and_learns(kind, name):
    need(name)
    sizes = TINY[kind]
    counts = [sum(p.numel() for p in build(kind, one, sizes)[0].parameters()) for one in (OURS, name)]
    assert counts[1] == pytest.approx(counts[0], rel=0.15)
    trainee = build(kind, name, sizes)
    batch = make_batch(kind, sizes)
    before = trainee[1](batch)
    step = training_step.training_step(trainee)
    for _ in range(3):
        step(batch)
    assert torch.isfinite(before) and trainee[1](batch) < before


@pytest.mark.parametrize(("kind", "name"), PAIRS, ids=[f"{kind}-{name}" for kind, name in PAIRS])
def test_dropout_is_on_outputs_and_never_on_attention_weights(kind, name, monkeypatch):
    need(name)
    given, attend = [], torch.nn.functional.scaled_dot_product_attention

    def watched(*args, **kwargs):
        given.append(args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0))
        return attend(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    _, loss = build(kind, name, TINY[kind], dropout=0.5)
    batch = make_batch(kind, TINY[kind])
    assert (loss(batch) == loss(batch)) == (name == "Llama")  # which has no other dropout
    assert not any(given)
    _, loss = build(kind, name, TINY[kind], dropout=0.0)
    assert loss(batch) == loss(batch)


def test_a_quarter_of_the_classifiers_batch_is_padding():
    sizes = CASES["encoder classifier"].sizes
    lengths = uneven_lengths(sizes)
    assert sum(lengths) == 192 * 16 and max(lengths) == 256 and lengths != sorted(lengths)
    batch = make_batch("encoder", sizes)
    assert batch["attention_mask"].sum(1).tolist() == lengths and (batch["input_ids"][batch["attention_mask"] == 0] == 0).all()


def test_a_round_of_training_is_seconds_of_a_step():
    arguments = {"kind": "llama-like", "contestant": OURS, "dropout": 0.1, "sizes": dataclasses.asdict(TINY["llama-like"])}
    arguments |= {"seconds": 0.01, "device": "cpu"}
    facts, run = prepare({"prepare": "glassformer.benchmarks.training_step:prepare", "arguments": arguments})
    assert facts["parameters"] > 1000 and 0 < run()["seconds"] < 1


# Corpus


@pytest.fixture
def random_corpus(tmp_path, monkeypatch):
    monkeypatch.delenv("GLASSFORMER_DATA", raising=False)
    monkeypatch.setattr(corpus, "PAIRS", 900)
    monkeypatch.setattr(corpus, "BUDGET", 400)
    return corpus.find_corpus(tmp_path, vocab_size=512)


def test_all_see_every_sentence_once_an_epoch_in_batches_with_as_many_tokens(random_corpus):
    file, what = random_corpus
    assert "log-normal" in what
    pairs = json.loads(file.read_text())
    tokens, sizes, padded = sum(len(side) for pair in pairs for side in pair), {}, {}
    model, _ = build("encoder-decoder", "Marian", TINY["encoder-decoder"])
    for name, batches in corpus.BATCHINGS.items():
        seen, count, total = 0, 0, 0
        for batch, real in batches(pairs, model.config):
            seen, count, total = seen + real, count + 1, total + batch["input_ids"].numel() + batch["labels"].numel()
            if seen >= tokens:
                break
        assert seen == tokens
        sizes[name], padded[name] = seen / count, 1 - seen / total
    assert max(sizes.values()) < 1.05 * min(sizes.values())
    ours, shuffled, grouped = padded.values()
    assert ours < grouped < shuffled


@pytest.mark.parametrize("name", [OURS, "Marian, grouped by length"])
def test_a_round_on_the_corpus_goes_on_for_so_many_tokens(random_corpus, name):
    contestant, grouping = corpus.CONTESTANTS[name]
    sizes = dataclasses.asdict(TINY["encoder-decoder"])
    _, run = corpus.prepare(contestant, grouping, str(random_corpus[0]), sizes, 0.1, tokens=900, device="cpu")
    result = run()
    assert result["seconds"] > 0 and 200 < result["tokens_a_batch"] < 800


# Generation


def test_generation_is_measured_in_processes_as_python_starts_them(monkeypatch):
    seen = []
    monkeypatch.setattr(Options, "interleave", lambda self, entries, settings: seen.extend(entries) or {}["stop"])
    with pytest.raises(KeyError, match="stop"):
        next(generation.measure(Options(threads=2)))
    assert {entry.like_training for entry in seen} == {False} and len(seen) == 2 * len(generation.CONTESTANTS)


@pytest.mark.parametrize("name", generation.CONTESTANTS)
def test_writers_write_as_many_tokens_as_they_are_asked_for(name, monkeypatch):
    need(name)
    shared = []  # which in this process would be for good
    monkeypatch.setattr(runtime, "share_threads", shared.append)
    write = generation.CONTESTANTS[name](TINY["encoder-decoder"], 1, "cpu")
    for batch, beams in ((1, 1), (3, 4)):
        assert write(generation.make_sources(batch, 512), beams) == generation.LENGTH
    assert shared == ([1] if "ONNX" in name else [])


def test_torch_has_one_thread_where_ctranslate2_works(monkeypatch):
    need("CTranslate2")
    seen, convert, usual = [], generation.convert_marian, torch.get_num_threads()
    monkeypatch.setattr(generation, "convert_marian", lambda *args: seen.append(torch.get_num_threads()) or convert(*args))
    torch.set_num_threads(2)
    try:
        generation.CONTESTANTS["CTranslate2"](TINY["encoder-decoder"], 2, "cpu")
    finally:
        torch.set_num_threads(usual)
    assert seen == [1]


def test_a_writer_that_stops_early_is_not_compared(monkeypatch):
    monkeypatch.setitem(generation.CONTESTANTS, "lazy", lambda *_: lambda sources, beams: 3)
    _, run = generation.prepare("lazy", dataclasses.asdict(TINY["encoder-decoder"]), threads=1, seconds=0.01, device="cpu")
    with pytest.raises(ValueError, match="wrote 3 tokens instead of 24"):
        run(beams=1, batch=2)


def turns_of(**seconds):
    return {name.replace("_", " "): generation.Turns(1, values) for name, values in seconds.items()}


def test_each_counts_with_as_many_threads_as_it_is_fastest_with():
    entries = {
        "Marian, 1 thread": [3.0, 1.0, 1.0], "Marian, 2 threads": [0.9, 2.0, 2.0],
        "glassformer, ONNX Runtime, 1 thread": [0.5], "glassformer, ONNX Runtime, 2 threads": [0.4],
    }  # fmt: skip
    rounds = {name: [{"seconds": value} for value in values] for name, values in entries.items()}
    found = generation.best_turns(Measurements(rounds={"greedy": rounds}), "greedy")
    assert list(found) == ["glassformer, ONNX Runtime", "Marian"]
    assert found["Marian"] == (1, [3.0, 1.0, 1.0]) and found["glassformer, ONNX Runtime"] == (2, [0.4])


@pytest.mark.parametrize("threads, counts", [(2, [1, 2]), (1, [1])])
def test_writers_run_with_one_thread_and_with_all(threads, counts, monkeypatch):
    seen = []
    monkeypatch.setattr(Options, "interleave", lambda self, entries, settings: seen.extend(entries) or Measurements())
    monkeypatch.setattr(generation, "best_turns", lambda *_: {})
    list(generation.measure(Options(size="small", threads=threads, only=["Marian"])))
    assert [(entry.threads, entry.arguments["threads"]) for entry in seen] == [(count, count) for count in counts]


def test_rates_are_related_to_marian_and_to_ctranslate2_of_the_same_precision():
    turns = turns_of(glassformer=[0.5], Marian=[1.0], CTranslate2=[0.25], CTranslate2_int8=[0.125], glassformer_int8=[0.25])
    found = generation.rate_table("case", "greedy", turns, []).data["contestants"]
    assert [found[OURS][key].median for key in ("tokens_per_second", "to_marian", "to_ctranslate2")] == [2.0, 2.0, 0.5]
    assert found["glassformer int8"]["to_ctranslate2"].median == 0.5


def test_the_best_of_our_ways_is_held_against_ctranslate2_of_the_same_precision():
    turns = turns_of(glassformer_int8=[0.4, 0.4, 0.4])
    turns["glassformer, ONNX Runtime"] = generation.Turns(2, [0.5, 2.0, 0.5])
    turns |= turns_of(CTranslate2=[0.6, 0.6, 0.6], glassformer=[1.0, 1.0, 1.0], Marian=[1.5, 1.6, 1.7])
    table = generation.best_table("case", {"greedy": turns}, [])
    found = table.data["best"]["greedy"]
    assert found["generate"] == (OURS, pytest.approx((1.6, 1.55, 1.65)))
    assert found["CTranslate2"] == ("glassformer, ONNX Runtime", pytest.approx((1.2, 0.75, 1.2)))
    assert found["CTranslate2 int8"] == ("glassformer int8", None)  # which did not run
    assert table.rows == [["greedy", "1.60 (1.55-1.65), glassformer", "1.20 (0.75-1.20), glassformer, ONNX Runtime", "-"]]


# Memory, growth, start


@pytest.mark.skipif(not memory.COUNTER.exists(), reason="peaks are read from /proc")
def test_the_peak_is_what_an_action_needs_above_what_was_there():
    held = torch.ones(5_000_000)
    result = memory.peak(lambda: torch.ones(10_000_000).sum(), torch.nn.Linear(1, 1), "cpu")
    assert 39e6 < result["bytes"] < 50e6 and result["whole"] > result["bytes"] + held.nbytes


def test_kept_activations_are_counted_once_and_without_weights():
    layer, x = torch.nn.Linear(8, 8), torch.ones(4, 8)
    assert memory.kept_bytes(lambda: layer(x).exp().sum(), layer) == 2 * x.nbytes  # the input, and the result of exp


def test_checkpointing_keeps_less():
    sizes = dataclasses.asdict(dataclasses.replace(TINY["llama-like"], decoder_layers=6))
    kept = [memory.prepare_activations(sizes, checkpointing, "cpu")[1]()["bytes"] for checkpointing in (False, True)]
    assert kept[1] < 0.4 * kept[0]


def test_growth_is_measured_for_whole_steps_and_for_attention_alone(monkeypatch):
    monkeypatch.setattr(scaling, "SIZES", {**scaling.SIZES, "vocab_size": 100, "d_model": 32, "d_ff": 32})
    _, run = scaling.prepare(0.001, "cpu")
    assert run("depth", 2)["seconds"] > 0 and run("batch", 1)["seconds"] > 0
    assert run("length", 512)["seconds"] > 0 and "seconds" in run("window", 192)


def test_start_is_measured_in_fresh_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(start, "CLASSES", {OURS: ("toy", "Model"), "Marian": ("no_such_module", "Model")})
    (tmp_path / "toy.py").write_text(
        "class Model:\n"
        "    from_pretrained = classmethod(lambda cls, folder: cls())\n"
        "    to = lambda self, device: {'cpu': self}[device]\n"
        "    generate = lambda self, ids, **options: ids\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    measured = start.take_turns(tmp_path, Options(rounds=1, threads=1))
    [result] = measured.rounds[""][OURS]
    assert result["seconds"] == pytest.approx(result["import"] + result["load"] + result["first_token"])
    assert measured.notes[0].startswith("Marian is left out") and "no_such_module" in measured.notes[0]
    assert start.start_table("case", measured).rows[0][0] == OURS


# Waiting for data


def test_waiting_is_measured_in_updates_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")  # which `prepare` sets for its process
    from glassformer.training.loop import Training

    for forbidden in ("evaluate", "save"):
        monkeypatch.setattr(Training, forbidden, lambda self, *_: pytest.fail("that takes time, and is no update"))
    _, run = waiting.prepare("reverse", str(tmp_path), seconds=1.0, device="cpu")
    result = run()
    assert 0 < result["waiting"] < 1 and result["seconds"] > 0


def test_what_an_epoch_begins_with_is_spread_over_the_epoch(monkeypatch):
    training = waiting.UpdatesAlone.__new__(waiting.UpdatesAlone)
    # Ten updates of a second, each after 0.01 s of waiting, and a beginning of half a second in an epoch of a hundred updates
    training.state = SimpleNamespace(step=10, waited=0.5 + 9 * 0.01, seconds=10 + 0.5 + 9 * 0.01)
    training.beginnings, training.loader = [0.5], SimpleNamespace(num_updates=lambda epochs: 100 * epochs)
    assert training.of_an_update() == pytest.approx({"waiting": 0.014 / 1.014, "seconds": 1.014})


def test_recipes_without_their_corpus_are_named_and_late_ones_too(monkeypatch):
    def measured(entries, rounds, settings=None, **options):
        [entry] = entries
        found = {"sort": 0.01, "copy": 0.03}[entry.name]
        return Measurements(rounds={"": {entry.name: [{"waiting": found, "seconds": 0.02}] * rounds}})

    monkeypatch.delenv("GLASSFORMER_DATA", raising=False)
    monkeypatch.setattr("glassformer.benchmarks.options.interleave", measured)
    [table] = waiting.measure(Options(only=["trec", "sort", "copy"]))
    assert table.rows == [["copy", "20.0", "3.00 (3.00-3.00)"], ["sort", "20.0", "1.00 (1.00-1.00)"]]
    assert table.notes[0] == "Longer than 2% of the time: copy." and table.notes[1].endswith("is not set: trec.")


# Options and reports


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["benchmark", "speed"],
            "There is no benchmark 'speed': choose one of train, generate, memory, scaling, start, data or all.",
        ),
        (["benchmark", "--size", "huge"], "There is no size 'huge': choose one of small, base, or leave it out for both."),
        (["benchmark", "--rounds", "0"], "--rounds 0 is too few: give at least 1."),
        (["benchmark", "--only", "Marion"], "There is no contestant 'Marion': did you mean Marian?"),
        (["benchmark", "data", "--only", "tracs"], "There is no contestant 'tracs': did you mean trec?"),
        (["benchmark", "--quick", "--size", "base"], "--quick measures the small size only: leave out --quick or --size base."),
        (["benchmark", "--device", "abacus"], "torch sees no device 'abacus' on this machine: give --device {DEVICES}."),
    ],
)
def test_bad_options_are_told_in_a_sentence(arguments, sentence, capsys):
    assert call(*arguments) == 1
    gpu = torch.accelerator.current_accelerator(check_available=True)
    devices = "cpu" if gpu is None else f"cpu or {gpu.type}"
    assert capsys.readouterr().err == f"glassformer: {sentence.replace('{DEVICES}', devices)}\n"


@pytest.mark.parametrize("same", [False, True])
def test_the_same_settings_are_for_everybody(same, monkeypatch):
    seen = []
    monkeypatch.setattr("glassformer.benchmarks.options.interleave", lambda entries, *args, **kwargs: seen.extend(entries))
    Options(same_settings=same, threads=2).interleave([Entry(OURS, "m:f", like_training=True), Entry("Marian", "m:f")])
    assert [entry.like_training for entry in seen] == [True, same]


def test_on_a_gpu_nothing_is_set_up_for_the_cpu_and_what_needs_one_is_left_out(monkeypatch):
    seen = []
    monkeypatch.setattr("glassformer.benchmarks.options.check_device", lambda device: None)

    def measured(entries, rounds, settings, **_):
        seen.extend(entries)
        turns = {entry.name: [{"seconds": 1.0}] * rounds for entry in seen}
        return Measurements(rounds=dict.fromkeys(settings, turns))

    monkeypatch.setattr("glassformer.benchmarks.options.interleave", measured)
    table = next(generation.measure(Options(threads=2, same_settings=True, device="cuda")))
    ways = "glassformer int8; glassformer, ONNX Runtime; glassformer, ONNX Runtime int8"
    assert table.notes == [f"Left out, for they do not run on cuda: {ways}."]
    names = {entry.arguments["contestant"] for entry in seen}
    assert names == {OURS, "Marian", "BART", "CTranslate2", "CTranslate2 int8"} and len(seen) == len(names)
    assert {(entry.arguments["device"], entry.like_training) for entry in seen} == {("cuda", False)}


def test_every_contestant_works_on_a_device_that_is_not_the_cpu():
    """In a process of its own, which the device would change for good."""
    done = subprocess.run([sys.executable, Path(__file__).parent / "elsewhere.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n")[-2] == "everything has run elsewhere"


def test_a_run_prints_tables_and_writes_json_markdown_and_charts(tmp_path, monkeypatch, capsys):
    def measured(entries, rounds, settings=None, **options):
        found = measurements(**{entry.name: [0.2 if entry.name == OURS else 0.3] * rounds for entry in entries})
        found.rounds[""][LIMIT] = [{"rate": 1e12}] * rounds
        return found

    monkeypatch.setattr("glassformer.benchmarks.options.interleave", measured)
    monkeypatch.setitem(suite.BENCHMARKS, "train", ("training_step",))
    suite.run("train", Options(quick=True, output=tmp_path, only=[OURS, "BART", "GPT-2"]))
    printed = capsys.readouterr().out
    assert "BART is the best peer and takes 1.50 (1.50-1.50) times as long as glassformer." in printed
    content = json.loads((tmp_path / "train.json").read_text())
    assert content["results"][0]["ratio"] == {"median": pytest.approx(1.5), "quartiles": pytest.approx([1.5, 1.5])}
    assert content["machine"]["cpu"] and content["machine"]["versions"]["torch"] == torch.__version__
    assert content["settings"]["rounds"] == 3 and content["settings"]["quick"]
    assert "| glassformer | 200.0 (200.0-200.0) |" in (tmp_path / "train.md").read_text()
    assert (tmp_path / "train.png").stat().st_size > 5000 and "<svg" in (tmp_path / "train.svg").read_text()


def test_curves_are_drawn_and_a_benchmark_without_numbers_draws_nothing(tmp_path):
    table = scaling.growth_table("growth", "depth", [1, 2, 4, 8], [0.15, 0.25, 0.45, 0.85], [])
    assert table.notes == ["It takes 50.00 ms in any case; what comes on top grows with the power 1.00."]
    assert [path.suffix for path in report.draw(tmp_path / "scaling", [table])] == [".png", ".svg"]
    assert report.draw(tmp_path / "empty", [report.Table("nothing", [""], [])]) == []
