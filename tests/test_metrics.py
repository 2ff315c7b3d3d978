"""Metrics: worked out by hand, or equal to the package whose name they carry; without network, files or surprises."""

import gzip
import json
import math
import multiprocessing
import os
import socket
import sys
from pathlib import Path

import evaluate
import numpy
import pytest
import sacrebleu
import torch
from processes import run_python
from torch.nn import functional as F

from glassformer.training.metrics import DIRECTION, METRICS, entities, greater_is_better, is_better, load


TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
EXAMPLES = {
    "accuracy": ([0, 1, 2, 2], [0, 1, 1, 2]),
    "f1": ([0, 1, 2, 2], [0, 1, 1, 2]),
    "matthews": ([0, 1, 2, 2], [0, 1, 1, 2]),
    "mse": ([0.5, 1.0, 3.0], [0.0, 1.0, 2.0]),
    "pearson": ([0.5, 1.0, 3.0], [0.0, 1.0, 2.0]),
    "perplexity": ([7.0, 3.0], [5, 4]),
    "token_accuracy": ([[5, 6, 7], [8]], [[5, 6], [8, 9]]),
    "seqeval": ([["B-PER", "O"], ["B-LOC"]], [["B-PER", "O"], ["O"]]),
    "exact_match": (["one", "two "], ["one", "three"]),
    "bleu": (["the cat sat on the mat"], ["the cat sat on a mat"]),
    "moses_bleu": (["the cat sat on the mat"], ["the cat sat on a mat"]),
    "chrf": (["the cat sat on the mat"], ["the cat sat on a mat"]),
    "rouge": (["the cat sat on the mat"], ["the cat sat on a mat"]),
    "squad": (["the cat", "a dog"], ["cat", "dogs"]),
}


def score(name: str, predictions, references, **options):
    return load(name).compute(predictions=predictions, references=references, **options)


# Every metric


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_an_evaluate_metric_that_describes_itself(name):
    metric = load(name)
    assert isinstance(metric, evaluate.Metric) and metric.name == name and metric.description
    assert all({*features} == {"predictions", "references"} for features in metric.features)
    predictions, references = EXAMPLES[name]
    features = metric.features[0].encode_batch({"predictions": predictions, "references": references})
    assert features["predictions"] == predictions and metric.description in metric.compute.__doc__


@pytest.mark.parametrize("name", METRICS)
def test_results_have_the_keys_that_the_table_names(name):
    result = score(name, *EXAMPLES[name])
    numbers = {key: value for key, value in result.items() if not key.endswith("_signature")}
    assert tuple(numbers) == METRICS[name].keys and {*map(type, numbers.values())} == {float}
    assert {*map(type, result.values())} <= {float, str}


@pytest.mark.parametrize("name", METRICS)
def test_examples_added_in_batches_or_one_by_one_score_as_at_once(name):
    predictions, references = EXAMPLES[name]
    metric, expected = load(name), score(name, predictions, references)
    for prediction, reference in zip(predictions, references):
        metric.add(prediction=prediction, reference=reference)
    assert len(metric) == len(predictions) and metric.compute() == expected
    assert len(metric) == 0  # and are forgotten
    metric.add_batch(predictions=predictions[:1], references=references[:1])
    assert metric.compute(predictions=predictions[1:], references=references[1:]) == expected


@pytest.mark.parametrize("name", ["accuracy", "f1", "matthews", "mse", "pearson", "perplexity"])
@pytest.mark.parametrize("kind", [numpy.array, torch.tensor, tuple], ids=["array", "tensor", "tuple"])
def test_arrays_and_tensors_score_as_lists(name, kind):
    predictions, references = EXAMPLES[name]
    assert score(name, kind(predictions), kind(references)) == score(name, predictions, references)


def test_metrics_combine():
    both = evaluate.combine([load("accuracy"), load("f1")])
    assert both.compute(predictions=[0, 1, 1, 0], references=[0, 1, 0, 0]) == {"accuracy": 0.75, "f1": pytest.approx(11 / 15)}


def test_two_processes_compute_at_once_without_network_or_files(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(socket, "socket", None)
    monkeypatch.chdir(tmp_path)
    fork = multiprocessing.get_context("fork")
    barrier, results = fork.Barrier(2), fork.SimpleQueue()

    def work():
        metrics = {name: load(name) for name in METRICS}
        for name, metric in metrics.items():
            metric.add_batch(predictions=EXAMPLES[name][0], references=EXAMPLES[name][1])
        barrier.wait(30)
        results.put({name: metric.compute() for name, metric in metrics.items()})

    workers = [fork.Process(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert results.get() == results.get() == {name: score(name, *EXAMPLES[name]) for name in METRICS}
    assert not [*tmp_path.iterdir()]


def test_importing_the_module_is_light(tmp_path):
    heavy = "{'torch', 'transformers', 'datasets', 'evaluate', 'sacrebleu', 'numpy'}"
    assert run_python(f"import sys, glassformer.training.metrics; print({heavy} & {{*sys.modules}})", tmp_path) == "set()\n"


# Classes


def test_f1_is_that_of_the_confusion_matrix():
    references, predictions = [0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 2]
    # TP FP FN of class 0: 2 0 1, of class 1: 1 1 1, of class 2: 1 1 0
    assert score("f1", predictions, references)["f1"] == pytest.approx((4 / 5 + 2 / 4 + 2 / 3) / 3)
    assert score("accuracy", predictions, references)["accuracy"] == pytest.approx(4 / 6)
    names = ["no", "maybe", "yes"]
    assert score("f1", [names[i] for i in predictions], [names[i] for i in references]) == score("f1", predictions, references)
    assert score("f1", [3, 3], [0, 0])["f1"] == 0  # class 3 occurs too, though only as a mistake


def test_binary_f1_is_that_of_class_one():
    predictions, references = [1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 1, 1, 0, 0]  # TP 2, FP 1, FN 2
    assert score("f1", predictions, references, average="binary")["f1"] == pytest.approx(4 / 7)
    assert score("f1", [0, 0], [0, 0], average="binary")["f1"] == 0
    assert score("f1", [0, 0], [0, 0])["f1"] == 1


def test_f1_of_several_labels_is_the_mean_over_columns():
    references = [[1, 0, 1, 0], [1, 1, 0, 0], [0, 1, 1, 0]]
    predictions = [[1, 0, 0, 0], [1, 0, 1, 0], [1, 1, 1, 0]]
    # by columns, TP FP FN: 2 1 0, 1 0 1, 1 1 1, and one that never occurs
    assert score("f1", predictions, references)["f1"] == pytest.approx((4 / 5 + 2 / 3 + 1 / 2 + 0) / 4)
    assert score("accuracy", predictions, [predictions[0], *references[1:]])["accuracy"] == pytest.approx(1 / 3)


def test_matthews_correlation_is_that_of_the_confusion_matrix():
    references = [1] * 8 + [0] * 4
    predictions = [1] * 6 + [0] * 2 + [1] + [0] * 3  # TP 6, FN 2, FP 1, TN 3
    assert score("matthews", predictions, references)["matthews"] == pytest.approx((6 * 3 - 1 * 2) / math.sqrt(7 * 8 * 4 * 5))
    assert score("matthews", [1 - label for label in references], references)["matthews"] == pytest.approx(-1)
    assert score("matthews", [1] * 12, references)["matthews"] == 0


def test_matthews_correlation_of_many_classes_is_the_correlation_of_one_hot_columns():
    predictions, references = torch.randint(4, (2, 200))
    predictions = torch.where(torch.rand(200) < 0.5, references, predictions)
    x, y = (F.one_hot(labels, 4).double() for labels in (predictions, references))
    x, y = x - x.mean(0), y - y.mean(0)
    expected = (x * y).sum() / ((x * x).sum() * (y * y).sum()).sqrt()
    assert score("matthews", predictions, references)["matthews"] == pytest.approx(expected.item())


# Numbers


def test_regression_is_scored_as_by_torch():
    predictions, references = torch.randn(2, 50, dtype=torch.float64)
    assert score("mse", predictions, references)["mse"] == pytest.approx(F.mse_loss(predictions, references).item())
    expected = torch.corrcoef(torch.stack((predictions, references)))[0, 1].item()
    assert score("pearson", predictions[:, None], references)["pearson"] == pytest.approx(expected)  # as a head gives it
    rows = predictions.view(25, 2), references.view(25, 2)
    assert score("mse", *rows) == score("mse", predictions, references)


def test_correlation_follows_straight_lines_and_not_constants():
    numbers = [0.1, 0.7, 0.3, 2.5]
    assert score("pearson", [3 * n + 1 for n in numbers], numbers)["pearson"] == pytest.approx(1)
    assert score("pearson", [-n for n in numbers], numbers)["pearson"] == pytest.approx(-1)
    assert score("pearson", [0.1] * 4, numbers)["pearson"] == 0


def test_perplexity_of_guessing_is_the_size_of_the_vocabulary():
    lengths = [3, 11, 1]
    losses = [length * math.log(37) for length in lengths]
    assert score("perplexity", losses, lengths)["perplexity"] == pytest.approx(37)
    assert score("perplexity", [sum(losses)], [15])["perplexity"] == pytest.approx(37)  # however the tokens are batched
    assert score("perplexity", [0.0], [4])["perplexity"] == 1
    assert score("perplexity", [1e6], [2])["perplexity"] == math.inf


# Sequences


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ([5, 6, 7], [5, 6, 7], 1),
        ([5, 6], [5, 6, 7, 8], 1 / 2),  # what is missing is wrong
        ([5, 6, 7, 8], [5, 6], 1),  # what is too much does not count
        ([9, 5, 6], [5, 6, 9], 0),  # places are compared, not sets
        ([5, -100, 7], [5, -100, -100], 1),  # only one place is asked for
        ("2024-01-31", "2024-07-30", 8 / 10),
        (["2024", "01"], ["2024", "07"], 1 / 2),
    ],
)
def test_token_accuracy_goes_place_by_place(prediction, reference, expected):
    assert score("token_accuracy", [prediction], [reference]) == {"token_accuracy": expected}


def test_token_accuracy_weighs_tokens_and_not_sequences():
    assert score("token_accuracy", [[1], [1, 2, 3]], [[2], [1, 2, 3]]) == {"token_accuracy": 3 / 4}
    generated, labels = [torch.tensor([1]), torch.tensor([1, 2, 3])], torch.tensor([[2, -100, -100], [1, 2, 3]])
    assert score("token_accuracy", generated, labels) == {"token_accuracy": 3 / 4}


def test_seqeval_gives_the_published_numbers():
    references = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    predictions = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    # https://github.com/chakki-works/seqeval, README
    assert score("seqeval", predictions, references) == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "accuracy": 0.8}
    assert score("seqeval", [["I-NP", "I-NP", "O"]], [["B-NP", "I-NP", "O"]])["f1"] == 1  # the README's lenient mode
    # its tests/test_v1.py, micro average
    result = score("seqeval", [["O", "B-B", "B-C", "B-A"]], [["B-A", "B-B", "O", "B-A"]])
    assert result == pytest.approx({"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "accuracy": 1 / 2})


def test_precision_is_of_what_was_found_and_recall_of_what_there_was():
    result = score("seqeval", [["B-PER", "B-PER", "B-PER", "O"]], [["B-PER", "O", "O", "B-LOC"]])
    assert result == pytest.approx({"precision": 1 / 3, "recall": 1 / 2, "f1": 2 / 5, "accuracy": 1 / 4})
    nothing = score("seqeval", [["O"], []], [["O"], []])
    assert nothing == {"precision": 0, "recall": 0, "f1": 0, "accuracy": 1}


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-PER I-PER O B-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),
        ("O I-PER I-PER O", [("PER", 1, 2)]),  # I- after O starts one
        ("B-PER I-LOC I-LOC", [("PER", 0, 0), ("LOC", 1, 2)]),  # and so does another type
        ("I-PER B-PER I-PER", [("PER", 0, 0), ("PER", 1, 2)]),  # and B- always
        ("B-first-name I-first-name", [("first-name", 0, 1)]),
        ("B I O", [("", 0, 1)]),
    ],
)
def test_entities_start_by_the_rules_of_conlleval(tags, expected):
    assert entities(tags.split()) == expected


def test_entities_are_the_stretches_that_nothing_interrupts_or_continues():
    def goes_on(tags, place):  # the same type as before, without B-
        return 0 < place < len(tags) and tags[place][0] == "I" and tags[place - 1][1:] == tags[place][1:]

    for _ in range(200):
        tags = [TAGS[i] for i in torch.randint(len(TAGS), (7,))]
        stretches = [(first, last) for first in range(7) for last in range(first, 7)]
        expected = [
            (tags[first][2:], first, last)
            for first, last in stretches
            if tags[first] != "O"
            and [goes_on(tags, place) for place in range(first, last + 2)] == [False] + [True] * (last - first) + [False]
        ]
        assert entities(tags) == expected


# Texts


def test_exact_match_ignores_only_the_white_space_around():
    predictions = [" 2024-01-31\n", "Two words", "two  words", "c"]
    references = ["2024-01-31", "two words", "two words", ["a", "b", "c "]]
    assert score("exact_match", predictions, references) == {"exact_match": 1 / 2}


HYPOTHESES = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him, again."]
FIRST = ["The dog bit the man.", "It was not unexpected.", "The man bit him first, again."]
SECOND = ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."]


def test_bleu_is_sacrebleus_with_its_signature():
    result = score("bleu", HYPOTHESES, FIRST)
    assert result["bleu"] == sacrebleu.corpus_bleu(HYPOTHESES, [FIRST]).score
    assert result["bleu_signature"] == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    several = score("bleu", HYPOTHESES, [[*pair] for pair in zip(FIRST, SECOND)])
    assert several["bleu"] == sacrebleu.corpus_bleu(HYPOTHESES, [FIRST, SECOND]).score > result["bleu"]
    assert several["bleu_signature"].startswith("nrefs:2|")


def test_bleu_is_the_geometric_mean_of_the_precisions():
    # n-gram precisions 5/6, 4/5, 3/4 and 2/3, whose product is 1/3
    assert score("bleu", ["a b c d e f"], ["a b c d e g"])["bleu"] == pytest.approx(100 * (1 / 3) ** (1 / 4))
    brief = score("bleu", ["a b c d e"], ["a b c d e g"])["bleu"]  # all right, but five words for six
    assert brief == pytest.approx(100 * math.exp(1 - 6 / 5))


def test_bleu_takes_as_many_references_as_each_text_has():
    result = score("bleu", HYPOTHESES, [FIRST[0], [FIRST[1], SECOND[1]], [FIRST[2]]])
    assert result["bleu"] == sacrebleu.corpus_bleu(HYPOTHESES, [FIRST, [None, SECOND[1], None]]).score
    assert result["bleu_signature"].startswith("nrefs:var|")


def test_bleu_and_chrf_have_sacrebleus_options():
    shouted = [text.upper() for text in HYPOTHESES]
    result = score("bleu", shouted, FIRST, tokenize="intl", lowercase=True)
    assert result["bleu"] == sacrebleu.corpus_bleu(HYPOTHESES, [FIRST], tokenize="intl", lowercase=True).score
    assert "|case:lc|" in result["bleu_signature"] and "|tok:intl|" in result["bleu_signature"]
    assert score("chrf", ["ABC"], ["abc"])["chrf"] == 0
    assert score("chrf", ["ABC"], ["abc"], lowercase=True)["chrf"] == pytest.approx(100)


def test_chrf_is_sacrebleus_with_its_signature():
    result = score("chrf", HYPOTHESES, FIRST)
    assert result["chrf"] == sacrebleu.corpus_chrf(HYPOTHESES, [FIRST]).score
    assert result["chrf_signature"] == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"
    # of single letters 2/3 are right, of pairs 1/2, of triples none
    assert score("chrf", ["abc"], ["abd"])["chrf"] == pytest.approx(100 * (2 / 3 + 1 / 2 + 0) / 3)


def test_rouge_counts_words_pairs_and_common_subsequences():
    result = score("rouge", ["the cat on the mat"], ["the cat sat on the mat"])
    # 5 words of 5 and 6 agree, 3 pairs of 4 and 5, and the longest common subsequence is the whole prediction
    assert result == pytest.approx({"rouge1": 10 / 11, "rouge2": 6 / 9, "rougeL": 10 / 11, "rougeLsum": 10 / 11})


def test_rouge_lsum_compares_line_by_line():
    result = score("rouge", ["c d\na b"], ["a b\nc d"])
    assert result == pytest.approx({"rouge1": 1, "rouge2": 2 / 3, "rougeL": 1 / 2, "rougeLsum": 1})


def test_rouge_takes_the_best_reference_and_the_mean_over_texts():
    result = score("rouge", ["cat dog", "bird"], [["fish", "dog cat"], "birds"])
    assert result == {"rouge1": 0.5, "rouge2": 0, "rougeL": 0.25, "rougeLsum": 0.25}
    assert score("rouge", ["bird"], ["birds"], use_stemmer=True)["rouge1"] == 1


@pytest.mark.parametrize(
    ("prediction", "references", "exact", "f1"),
    [
        ("the Eiffel Tower!", "Eiffel tower", 1, 1),  # case, articles and punctuation
        ("  a   cat\tsat ", "cat sat", 1, 1),  # white space
        ("anthem", "them", 0, 0),  # articles are whole words
        ("A.N. Other", "other", 1, 1),  # punctuation goes first, so that A.N. becomes an article
        ("well-known", "well known", 0, 0),  # and words grow together
        ("in 1066", "1066", 0, 2 / 3),
        ("the cat the cat", "cat", 0, 2 / 3),  # each word counts as often as it occurs
        ("in 1066", ["1066", "the year 1066", "In 1066."], 1, 1),  # the best reference
        ("blue sea", ["sea", "deep blue sea"], 0, 4 / 5),
        ("the", "a", 1, 0),  # nothing is left: the same, but without a word in common
    ],
)
def test_squad_scores_by_the_rules_of_its_official_script(prediction, references, exact, f1):
    assert score("squad", [prediction], [references]) == pytest.approx({"exact_match": exact, "f1": f1})


def test_moses_bleu_cuts_words_as_the_published_corpus_was_cut():
    folder = os.environ.get("GLASSFORMER_DATA")
    if not folder:
        pytest.skip("GLASSFORMER_DATA is not set: it names the folder of the corpora")
    files = [Path(folder) / "multi30k" / name for name in ("val.jsonl.gz", "tok/val.jsonl.gz")]
    raw, cut = ([json.loads(line)["de"] for line in gzip.decompress(file.read_bytes()).splitlines()] for file in files)
    found = score("moses_bleu", [text.lower() for text in raw], raw, language="de")  # case does not matter
    assert found["moses_bleu"] == pytest.approx(100)
    moses, by_hand = score("moses_bleu", raw[1:], raw[:-1], language="de"), score("bleu", cut[1:], cut[:-1], tokenize="none")
    assert moses["moses_bleu"] == pytest.approx(by_hand["bleu"], abs=0.01)
    assert "tok:none" in moses["moses_bleu_signature"]


# Better and worse


def test_every_key_of_every_metric_has_a_direction():
    assert {key for measure in METRICS.values() for key in measure.keys} | {"loss", "word_perplexity"} == {*DIRECTION}
    assert {key for key in DIRECTION if not greater_is_better(key)} == {"loss", "perplexity", "word_perplexity", "mse"}


@pytest.mark.parametrize("prefix", ["", "eval_", "test/", "valid/newstest2014_"])
def test_keys_may_have_a_prefix(prefix):
    assert greater_is_better(prefix + "exact_match") and greater_is_better(prefix + "rougeLsum")
    assert not greater_is_better(prefix + "loss")
    assert is_better(prefix + "bleu", 27.3, 27.2) and not is_better(prefix + "bleu", 27.2, 27.2)
    assert is_better(prefix + "perplexity", 4.9, math.inf) and not is_better(prefix + "perplexity", 5.0, 4.9)


def test_any_number_is_better_than_none():
    for key in ("loss", "f1"):
        assert is_better(key, 1.0, None) and is_better(key, 1.0, math.nan)
        assert not any(is_better(key, math.nan, old) for old in (1.0, math.nan, None))


# Bad input


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blue", 'There is no metric "blue": did you mean bleu'),
        ("acuracy", "did you mean accuracy"),
        ("wer", "choose from accuracy, bleu, chrf, exact_match, f1, "),
    ],
)
def test_an_unknown_metric_is_told_the_nearest(name, message):
    with pytest.raises(ValueError, match=message):
        load(name)


def test_an_unknown_direction_is_told_the_nearest():
    with pytest.raises(ValueError, match=r'"eval_blue" is better is not known: did you mean bleu\?$'):
        greater_is_better("eval_blue")
    with pytest.raises(ValueError, match="choose from"):
        is_better("bleu_signature", 1.0, 0.0)


def test_rouge_without_its_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    with pytest.raises(ImportError, match=r'The metric rouge needs .*: pip install "glassformer\[rouge\]"\.'):
        load("rouge")


@pytest.mark.parametrize("name", METRICS)
def test_lists_that_do_not_belong_together_are_refused(name):
    metric, (predictions, references) = load(name), EXAMPLES[name]
    with pytest.raises(ValueError, match=rf"There are {len(predictions) + 1} predictions for {len(references)} references"):
        metric.compute(predictions=predictions + predictions[:1], references=references)
    for nothing in ({}, {"predictions": [], "references": []}):
        with pytest.raises(ValueError, match="There is nothing to score"):
            metric.compute(**nothing)
    for one in ({"predictions": predictions}, {"predictions": predictions, "references": "text"}):
        with pytest.raises(ValueError, match="The references must be a list with one entry for each example, not"):
            metric.compute(**one)
    assert metric.compute(predictions=predictions, references=references) == score(name, predictions, references)  # unharmed


@pytest.mark.parametrize(
    ("name", "predictions", "references", "options", "message"),
    [
        ("accuracy", [[0.1, 0.9]], [1], {}, "take the argmax of logits first"),
        ("accuracy", [1], [1], {"normalize": True}, 'The metric accuracy has no option "normalize": there are none.'),
        ("f1", [1], [1], {"averge": "macro"}, 'The metric f1 has no option "averge": did you mean average'),
        ("f1", [1], [1], {"average": "micro"}, 'There is no average "micro": did you mean macro'),
        ("f1", [2], [1], {"average": "binary"}, r"classes 0 and 1, not \{2\}"),
        ("f1", [[0.2, 0.9]], [[0, 1]], {}, "rows of 0 and 1"),
        ("f1", [[0, 1, 1]], [[0, 1]], {}, "of one length"),
        ("matthews", [[0, 1]], [[0, 1]], {}, "one label for each example"),
        ("mse", [[1.0, 2.0]], [1.0], {}, "There are 2 predicted numbers for 1 in the references"),
        ("pearson", [[1.0, 2.0]], [[1.0, 2.0]], {}, "one number for each example"),
        ("perplexity", [0.0], [0], {}, "the references count none"),
        ("token_accuracy", [1, 2], [1, 2], {}, "pass a list of ids or a string"),
        ("token_accuracy", [[1]], [[-100]], {}, "they have none"),
        ("seqeval", [["O", "O"]], [["O"]], {}, "two lists of tags of the same length"),
        ("seqeval", [["S-PER"]], [["O"]], {}, "'S-PER' is not a BIO tag"),
        ("seqeval", [[3]], [[3]], {}, "3 is not a BIO tag: .* config.id2label"),
        ("exact_match", ["a"], [[]], {}, "empty list of references"),
        ("squad", [[5, 6]], ["a"], {}, r"\[5, 6\] is not a string: decode token ids"),
        ("bleu", ["a"], [["a", None]], {}, "None is not a string"),
        ("bleu", ["a"], ["a"], {"tokenize": "13b"}, 'sacrebleu has no tokenizer "13b": did you mean 13a'),
        ("chrf", ["a"], ["a"], {"tokenize": "13a"}, 'The metric chrf has no option "tokenize": choose from lowercase.'),
    ],
)
def test_bad_input_is_told_in_one_sentence(name, predictions, references, options, message):
    with pytest.raises(ValueError, match=message) as error:
        score(name, predictions, references, **options)
    assert str(error.value).endswith((".", "?")) and "\n" not in str(error.value)
