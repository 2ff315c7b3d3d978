# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Metrics as `evaluate` modules that need no network: `load("bleu").compute(predictions=..., references=...)`.

Every score is a fraction from 0 to 1 (correlations from -1), except BLEU and chrF, which keep sacrebleu's scale from 0 to 100,
and perplexity and mse, which have no upper end. What is undefined, such as the F1 of a class that never occurs, is 0.
Each metric is a plain function of two lists; the table METRICS at the end names them all.
"""

import difflib
import inspect
import math
import operator
import re
import statistics
import string
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    import evaluate

Scores = dict[str, float | str]


def load(name: str) -> "evaluate.Metric":
    """The metric of that name in METRICS. It keeps everything in memory: no cache, no lock, nothing to clean up."""
    if name not in METRICS:
        raise ValueError(f'There is no metric "{name}": {suggest(name, METRICS)}')
    package = METRICS[name].package
    if package and find_spec(package) is None:
        raise ImportError(f'The metric {name} needs the package {package}: pip install "glassformer[{name}]".')
    import evaluate  # only here, since it imports every pipeline of transformers

    return type(name, (InMemory, evaluate.Metric), {"measure": METRICS[name]})()


def greater_is_better(name: str) -> bool:
    """Whether more is better for a key of the results, as `bleu` or with a prefix as `eval_bleu` and `test/bleu`."""
    for key, direction in DIRECTION.items():
        if f"_{name}".replace("/", "_").endswith(f"_{key}"):
            return direction == "greater"
    raise ValueError(f'Whether more or less of "{name}" is better is not known: {suggest(name, DIRECTION)}')


def is_better(name: str, new: float, old: float | None) -> bool:
    """Whether `new` improves on `old`. Any number improves on nothing (None) and on NaN; NaN improves on nothing."""
    greater = greater_is_better(name)
    if old is None or math.isnan(old):
        return not math.isnan(new)
    return new > old if greater else new < old


def suggest(name: str, known: Collection[str]) -> str:
    """The cure for a wrong name. Endings are compared, because the beginning may be a prefix."""
    likeness = {key: difflib.SequenceMatcher(None, name[-len(key) :], key).ratio() for key in known}
    nearest = max(likeness, key=likeness.__getitem__, default="")
    if nearest and likeness[nearest] >= 0.6:
        return f"did you mean {nearest}?"
    return f"choose from {', '.join(sorted(known))}." if known else "there are none."


@dataclass(frozen=True)
class Measure:
    """What `evaluate` wants to know about a metric.

    `inputs` are the forms that predictions and references may have: the dtype of an example, in brackets if it is a list.
    """

    score: Callable[..., Scores]
    keys: tuple[str, ...]
    inputs: tuple[tuple[Any, Any], ...]
    citation: str = ""
    package: str | None = None  # where it is an extra of glassformer


class InMemory:
    """A `Measure` as an `evaluate.Metric`: `load` puts the two together.

    evaluate writes what it is given to a locked Arrow file in the user's cache. Here two lists hold it, so that any number of
    processes can compute at once and none leaves anything behind.
    """

    measure: Measure

    def __init__(self) -> None:
        super().__init__()
        self.predictions: list = []
        self.references: list = []

    def __len__(self) -> int:
        return len(self.predictions)

    def _build_data_dir(self) -> str:
        return ""  # evaluate would make a folder

    def _info(self) -> "evaluate.MetricInfo":
        import evaluate
        from datasets import Features, List, Value

        def feature(form: Any) -> Value | List:
            return Value(form) if isinstance(form, str) else List(feature(form[0]))

        description = inspect.getdoc(self.measure.score) or ""
        return evaluate.MetricInfo(
            description=description,
            citation=self.measure.citation,
            inputs_description=f"\n{self.measure.score.__name__}{inspect.signature(self.measure.score)}\n{description}\n",
            features=[Features(predictions=feature(p), references=feature(r)) for p, r in self.measure.inputs],
        )

    def add(self, *, prediction: Any = None, reference: Any = None) -> None:
        """Keep one example for `compute`."""
        self.add_batch(predictions=[prediction], references=[reference])

    def add_batch(self, *, predictions: Any = None, references: Any = None) -> None:
        """Keep examples for `compute`: lists, tuples, arrays or tensors, one entry an example."""
        predictions, references = plain(predictions), plain(references)
        for name, values in (("predictions", predictions), ("references", references)):
            if not isinstance(values, list):
                raise ValueError(f"The {name} must be a list with one entry for each example, not {type(values).__name__}.")
        if len(predictions) != len(references):
            raise ValueError(f"There are {len(predictions)} predictions for {len(references)} references: pass one for each.")
        self.predictions += predictions
        self.references += references

    def compute(self, *, predictions: Any = None, references: Any = None, **options: Any) -> Scores:
        """The scores of these examples, together with those added before, which are then forgotten."""
        if predictions is not None or references is not None:
            self.add_batch(predictions=predictions, references=references)
        predictions, references = self.predictions, self.references
        self.predictions, self.references = [], []
        if not predictions:
            raise ValueError("There is nothing to score: pass at least one prediction with its reference.")
        return self._compute(predictions, references, **options)

    def _compute(self, predictions: list, references: list, **options: Any) -> Scores:
        known = list(inspect.signature(self.measure.score).parameters)[2:]
        for option in options:
            if option not in known:
                name = self.measure.score.__name__
                raise ValueError(f'The metric {name} has no option "{option}": {suggest(option, known)}')
        return self.measure.score(predictions, references, **options)


def plain(values: Any) -> Any:
    """Tensors, arrays and columns of a dataset as Python lists, in which equal numbers are equal."""
    if hasattr(values, "tolist"):
        return values.tolist()
    if isinstance(values, Sequence) and not isinstance(values, str):
        return [plain(value) for value in values]
    return values


def as_list(value: Any) -> list:
    return value if isinstance(value, list) else [value]


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


# Classes


def accuracy(predictions: list, references: list) -> Scores:
    """The share of examples that are right; with several labels each, of those with all labels right."""
    have_several_labels(predictions, references)  # refuses logits
    return {"accuracy": ratio(sum(map(operator.eq, predictions, references)), len(references))}


def f1(predictions: list, references: list, average: str = "macro") -> Scores:
    """2 TP / (2 TP + FP + FN): the mean over the classes that occur, or with average="binary" that of class 1.

    Rows of 0 and 1 are several labels at once: the mean is over all columns.
    """
    if average not in ("macro", "binary"):
        raise ValueError(f'There is no average "{average}": {suggest(average, ("macro", "binary"))}')
    if have_several_labels(predictions, references):
        width = len(references[0])
        if average == "binary" or not all(len(row) == width and {*row} <= {0, 1} for row in predictions + references):
            raise ValueError('F1 of several labels takes average="macro" and rows of 0 and 1 of one length: round scores first.')
        scores = [f1_of_class(1, *columns) for columns in zip(zip(*predictions), zip(*references))]
    else:
        classes = {*predictions, *references}
        if average == "binary" and not classes <= {0, 1}:
            raise ValueError(f'F1 with average="binary" is for classes 0 and 1, not {classes - {0, 1}}: use average="macro".')
        scores = [f1_of_class(positive, predictions, references) for positive in ([1] if average == "binary" else classes)]
    return {"f1": ratio(math.fsum(scores), len(scores))}  # fsum: a set has no order


def f1_of_class(positive: Any, predictions: Sequence, references: Sequence) -> float:
    both = sum(prediction == positive == reference for prediction, reference in zip(predictions, references))
    return ratio(2 * both, predictions.count(positive) + references.count(positive))


def matthews(predictions: list, references: list) -> Scores:
    """Matthews' correlation of two labellings, for any number of classes as in Gorodkin (2004)."""
    if have_several_labels(predictions, references):
        raise ValueError("Matthews' correlation takes one label for each example: score several columns one by one.")
    predicted, actual, total = Counter(predictions), Counter(references), len(references)
    right = sum(map(operator.eq, predictions, references))
    covariance = right * total - sum(predicted[label] * actual[label] for label in actual)
    spread = [total**2 - sum(count**2 for count in counts.values()) for counts in (predicted, actual)]
    return {"matthews": ratio(covariance, math.sqrt(spread[0] * spread[1]))}


def have_several_labels(predictions: list, references: list) -> bool:
    kinds = {isinstance(value, list) for value in predictions + references}
    if len(kinds) == 2:
        raise ValueError("A label cannot be compared with a list: take the argmax of logits first.")
    return kinds.pop()


# Numbers


def mse(predictions: list, references: list) -> Scores:
    """The mean squared difference, over all numbers of all examples."""
    pairs = zip(*numbers(predictions, references))
    squares = [(prediction - reference) * (prediction - reference) for prediction, reference in pairs]
    return {"mse": sum(squares) / len(squares)}


def pearson(predictions: list, references: list) -> Scores:
    """Pearson's correlation, with one number for each example."""
    found, expected = numbers(predictions, references)
    if len(found) != len(predictions):
        raise ValueError("Pearson's correlation takes one number for each example: score several columns one by one.")
    if len({*found}) == 1 or len({*expected}) == 1:
        return {"pearson": 0.0}
    return {"pearson": statistics.correlation(found, expected)}


def perplexity(predictions: list, references: list) -> Scores:
    """exp(sum of the negative log likelihoods / sum of the counts): predictions are sums over tokens, references how many."""
    count = sum(references)
    if count <= 0:
        raise ValueError("Perplexity is a mean over tokens, but the references count none: leave out empty batches.")
    try:
        return {"perplexity": math.exp(sum(predictions) / count)}
    except OverflowError:
        return {"perplexity": math.inf}


def numbers(predictions: list, references: list) -> tuple[list[float], list[float]]:
    """Both flattened, since a regression head gives rows of one number, [[0.5], [0.1]]."""
    found, expected = (list(chain.from_iterable(map(as_list, rows))) for rows in (predictions, references))
    if len(found) != len(expected):
        raise ValueError(f"There are {len(found)} predicted numbers for {len(expected)} in the references: pass as many.")
    return found, expected


# Sequences


def token_accuracy(predictions: list, references: list) -> Scores:
    """The share of places of the references where the prediction has the same id or character.

    What is missing in a prediction is wrong; what it has beyond the reference does not count, nor do places with the label -100.
    """
    from glassformer.checks import IGNORED

    if not all(isinstance(sequence, list | str) for sequence in predictions + references):
        raise ValueError("Token accuracy compares sequences: pass a list of ids or a string for each example.")
    count = sum(token != IGNORED for reference in references for token in reference)
    if not count:
        raise ValueError("Token accuracy is over the tokens of the references, but they have none: leave out empty ones.")
    pairs = (pair for prediction, reference in zip(predictions, references) for pair in zip(prediction, reference))
    return {"token_accuracy": sum(found == asked != IGNORED for found, asked in pairs) / count}


def seqeval(predictions: list, references: list) -> Scores:
    """Precision, recall and F1 of whole entities from BIO tags (IOB2), and the accuracy of the tags, as seqeval and conlleval.

    An entity is right when its type and both its ends are. I- after O or after another type starts an entity too.
    """
    for found, expected in zip(predictions, references):
        if not isinstance(found, list) or not isinstance(expected, list) or len(found) != len(expected):
            raise ValueError("Tags are compared one by one: pass for each example two lists of tags of the same length.")
    found, expected = (
        {(row, *entity) for row, tags in enumerate(side) for entity in entities(tags)} for side in (predictions, references)
    )
    right = len(found & expected)
    equal = [prediction == reference for pair in zip(predictions, references) for prediction, reference in zip(*pair)]
    return {
        "precision": ratio(right, len(found)),
        "recall": ratio(right, len(expected)),
        "f1": ratio(2 * right, len(found) + len(expected)),
        "accuracy": ratio(sum(equal), len(equal)),
    }


def entities(tags: list[str]) -> list[tuple[str, int, int]]:
    """Type, first and last place of each: [B-PER, I-PER, O, I-LOC] -> (PER, 0, 1), (LOC, 3, 3)."""
    found: list[tuple[str, int, int]] = []
    before = None
    for place, tag in enumerate(tags):
        if not isinstance(tag, str) or not re.fullmatch("O|[BI](-.+)?", tag):
            raise ValueError(f"{tag!r} is not a BIO tag: pass O, B-type or I-type, with names of config.id2label for ids.")
        kind = None if tag == "O" else tag[2:]
        if kind is not None:
            goes_on = tag[0] == "I" and kind == before
            found.append((kind, found.pop()[1] if goes_on else place, place))
        before = kind
    return found


# Texts


def exact_match(predictions: list, references: list) -> Scores:
    """The share of texts that are a reference, but for white space around them."""
    pairs = zip(predictions, references_of(predictions, references))
    right = sum(text.strip() in [reference.strip() for reference in several] for text, several in pairs)
    return {"exact_match": right / len(predictions)}


def bleu(predictions: list, references: list, tokenize: str = "13a", lowercase: bool = False) -> Scores:
    """BLEU of the corpus by sacrebleu, 0 to 100, with the signature that makes it comparable."""
    from sacrebleu.metrics import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f'sacrebleu has no tokenizer "{tokenize}": {suggest(tokenize, BLEU.TOKENIZERS)}')
    return by_sacrebleu("bleu", BLEU(tokenize=tokenize, lowercase=lowercase), predictions, references)


def moses_bleu(predictions: list, references: list, language: str = "en") -> Scores:
    """BLEU as papers on small corpora report it: punctuation normalised, words cut by Moses' rules, all in lower case."""
    from sacrebleu.metrics import BLEU
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)

    def moses(text: str) -> str:
        return tokenizer.tokenize(normalizer.normalize(text), return_str=True).lower()

    several = [[moses(text) for text in texts] for texts in references_of(predictions, references)]
    return by_sacrebleu("moses_bleu", BLEU(tokenize="none", force=True), [moses(text) for text in predictions], several)


def chrf(predictions: list, references: list, lowercase: bool = False) -> Scores:
    """chrF2 of the corpus by sacrebleu, 0 to 100: the F score of character n-grams, so there is nothing to tokenize."""
    from sacrebleu.metrics import CHRF

    return by_sacrebleu("chrf", CHRF(lowercase=lowercase), predictions, references)


def by_sacrebleu(name: str, metric: Any, predictions: list, references: list) -> Scores:
    # sacrebleu wants the first references of all texts, then the second ones, with None where a text has no more
    score = metric.corpus_score(predictions, list(zip_longest(*references_of(predictions, references))))
    return {name: score.score, f"{name}_signature": str(metric.get_signature())}


def rouge(predictions: list, references: list, use_stemmer: bool = False) -> Scores:
    """ROUGE F scores by the package rouge_score: the best over the references of a text, then the mean over the texts.

    For rougeLsum, put each sentence on a line of its own.
    """
    from rouge_score.rouge_scorer import RougeScorer

    keys = METRICS["rouge"].keys
    scorer = RougeScorer(keys, use_stemmer=use_stemmer)
    pairs = zip(predictions, references_of(predictions, references))
    scores = [scorer.score_multi(several, text) for text, several in pairs]
    return {key: statistics.fmean(score[key].fmeasure for score in scores) for key in keys}


def squad(predictions: list, references: list) -> Scores:
    """Exact match and F1 of words by the rules of SQuAD 1.1, each the best over the references of a question."""
    exact, overlap = 0, 0.0
    for text, several in zip(predictions, references_of(predictions, references)):
        answer, asked = answer_words(text), [answer_words(reference) for reference in several]
        exact += answer in asked
        overlap += max(ratio(2 * (Counter(answer) & Counter(words)).total(), len(answer) + len(words)) for words in asked)
    return {"exact_match": exact / len(predictions), "f1": overlap / len(predictions)}


def answer_words(text: str) -> list[str]:
    """Lower case without punctuation, then without articles, in this order: "A.N. Other" -> other, "The-end" -> theend."""
    text = text.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def references_of(predictions: list, references: list) -> list[list[str]]:
    """The references of each text as a list, where one string was given and where several were."""
    lists = list(map(as_list, references))
    if [] in lists:
        raise ValueError("A text has an empty list of references: give each at least one.")
    for value in chain(predictions, *lists):
        if not isinstance(value, str):
            raise ValueError(f"Texts are compared, but {value!r} is not a string: decode token ids with the tokenizer first.")
    return lists


LABELS = (("int64", "int64"), ("string", "string"), (["int64"], ["int64"]))
NUMBERS = (("float64", "float64"), (["float64"], ["float64"]))
TEXTS = (("string", "string"), ("string", ["string"]))

METRICS = {
    "accuracy": Measure(accuracy, ("accuracy",), LABELS),
    "f1": Measure(f1, ("f1",), LABELS),
    "matthews": Measure(matthews, ("matthews",), LABELS[:2], "Gorodkin 2004, doi:10.1016/j.compbiolchem.2004.09.006"),
    "mse": Measure(mse, ("mse",), NUMBERS),
    "pearson": Measure(pearson, ("pearson",), NUMBERS),
    "perplexity": Measure(perplexity, ("perplexity",), (("float64", "int64"),)),
    "token_accuracy": Measure(token_accuracy, ("token_accuracy",), ((["int64"], ["int64"]), (["string"], ["string"]), TEXTS[0])),
    "seqeval": Measure(
        seqeval,
        ("precision", "recall", "f1", "accuracy"),
        ((["string"], ["string"]),),
        "Ramshaw and Marcus 1995, https://aclanthology.org/W95-0107; https://github.com/chakki-works/seqeval",
    ),
    "exact_match": Measure(exact_match, ("exact_match",), TEXTS),
    "bleu": Measure(bleu, ("bleu",), TEXTS, "Papineni et al. 2002, https://aclanthology.org/P02-1040"),
    "moses_bleu": Measure(
        moses_bleu, ("moses_bleu",), TEXTS, "Koehn et al. 2007, https://aclanthology.org/P07-2045", package="sacremoses"
    ),
    "chrf": Measure(chrf, ("chrf",), TEXTS, "Popović 2015, https://aclanthology.org/W15-3049"),
    "rouge": Measure(
        rouge,
        ("rouge1", "rouge2", "rougeL", "rougeLsum"),
        TEXTS,
        "Lin 2004, https://aclanthology.org/W04-1013",
        package="rouge_score",
    ),
    "squad": Measure(squad, ("exact_match", "f1"), TEXTS, "Rajpurkar et al. 2016, https://aclanthology.org/D16-1264"),
}

# Which way each key of the results gets better. The loss is no metric here, but checkpoints are compared by it.
DIRECTION = {
    **{key: "greater" for measure in METRICS.values() for key in measure.keys},
    **dict.fromkeys(("loss", "perplexity", "word_perplexity", "mse"), "smaller"),
}
