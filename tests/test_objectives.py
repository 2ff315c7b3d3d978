"""Objectives: what is asked of a model, where nothing is asked, and that the loss is a sum over just that."""

import functools
import itertools
import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.testing import assert_close
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments

import glassformer
from glassformer import GlassformerConfig
from glassformer.checks import IGNORED
from glassformer.training import recipe
from glassformer.training.data import DataError
from glassformer.training.evaluation import predict_rows
from glassformer.training.objectives import OBJECTIVES, class_number, filled, stack
from glassformer.training.tokenization import special_ids, train_tokenizer


PAD, BOS, EOS, MASK = 0, 1, 2, 4
TEXTS = [
    "the lamp shines through the window pane .",
    "who breaks the glass ?",
    "behind the window a light shines and the lamp breaks . the glass is on the pane . what is behind the lamp ?",
    "windows unbreakable",
]
LABELS = ["O", "B-THING", "I-THING"]
CONTEXT = " ".join([*TEXTS, "the omega glass-pane breaks, (alpha) shines!", *TEXTS])
ROWS = {
    "seq2seq": {"source": TEXTS, "target": TEXTS[::-1]},
    "sequence_classification": {"text": TEXTS, "label": ["O", "I-THING", "O", "B-THING"]},
    "token_classification": {
        "tokens": [text.split() for text in TEXTS],
        "tags": [[LABELS[len(word) % 3] for word in text.split()] for text in TEXTS],
    },
    "question_answering": {
        "question": ["what breaks ?", "who shines ?"],
        "context": [CONTEXT, TEXTS[2]],
        "answers": [
            {"text": ["omega glass-pane"], "answer_start": [CONTEXT.index("omega glass-pane")]},
            {"text": ["a light"], "answer_start": [TEXTS[2].index("a light")]},
        ],
    },
}
OTHER_KINDS = {
    "multi_label": ("sequence_classification", {"problem_type": "multi_label_classification"}, [["O"], [], LABELS, ["B-THING"]]),
    "regression": ("sequence_classification", {"problem_type": "regression"}, [0.5, -1, 2.0, "3"]),
}
SHAPES = {"encoder-decoder": (1, 1), "encoder": (2, 0), "decoder": (0, 2)}
ENCODINGS = ["sinusoidal", "learned", "rope", "alibi", "relative"]


@functools.cache
def tokenizer(adds: str = "both", kind: str = "wordpiece", sentinels: int = 0):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the texts are few
        size = 330 if kind == "byte_bpe" else 120
        return train_tokenizer([*TEXTS, CONTEXT] * 2, kind, size, adds=adds, num_sentinels=sentinels)


def make(name: str, max_length: int = 40, adds: str | None = None, kind: str = "wordpiece", **options):
    """An objective by its name, with a tokenizer as a recipe would train it; `options` are the recipe's or the objective's."""
    own = {key: options.pop(key) for key in ("target_tokenizer", "labels", "stride", "tokenizer") if key in options}
    if name in OTHER_KINDS:
        name, more, _ = OTHER_KINDS[name]
        options |= more
    objective = OBJECTIVES[name]
    labelled = "Classification" in objective.head and options.get("problem_type") != "regression"
    own = {"labels": LABELS if labelled else None, **own}
    given = own.pop("tokenizer", None) or tokenizer(adds or objective.adds, kind, 30 * (name == "span_corruption"))
    return objective(recipe.Objective(name=name, **options), given, max_length, **own)


def rows_for(name: str) -> dict[str, list]:
    if name in OTHER_KINDS:
        return {"text": TEXTS, "label": OTHER_KINDS[name][2]}
    return ROWS.get(name, {"text": TEXTS})


def features_of(objective, rows: dict[str, list]) -> list[dict]:
    columns = objective.encode(rows)
    return [{**dict(zip(columns, values)), "seed": seed} for seed, values in enumerate(zip(*columns.values()))]


def model_for(objective, **overrides):
    encoder, decoder = SHAPES[objective.shapes[0]]
    fields = {
        "d_model": 16, "num_heads": 2, "d_ff": 24, "num_encoder_layers": encoder, "num_decoder_layers": decoder,
        "max_position_embeddings": 64, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "dropout": 0.0,
    }  # fmt: skip
    sizes = {**special_ids(objective.tokenizer), **objective.config_fields}
    torch.manual_seed(0)
    model = getattr(glassformer, objective.head)(GlassformerConfig(**{**fields, **sizes, **overrides})).eval()
    for parameter in model.parameters():  # a new model is nearly indifferent: make it take sides
        parameter.data.mul_(1.5)
    return model


def ids_of(objective, text: str) -> list[int]:
    return objective.tokenizer(text, add_special_tokens=False).input_ids


# Encoding


NAMES = [*OBJECTIVES, *OTHER_KINDS]
BEGINS_AND_ENDS = {
    "seq2seq": (False, True), "span_corruption": (False, True), "text_infilling": (True, True), "causal_lm": (True, True),
    "prefix_lm": (True, True), "masked_lm": (True, True), "sequence_classification": (True, True),
    "token_classification": (True, True), "question_answering": (True, True),
}  # fmt: skip


@pytest.mark.parametrize("name", OBJECTIVES)
def test_texts_begin_and_end_as_the_objective_wants(name):
    objective = make(name)
    columns = objective.encode(rows_for(name))
    begins, ends = BEGINS_AND_ENDS[name]
    for ids in columns["input_ids"]:
        assert [place for place, token in enumerate(ids) if token == BOS] == ([0] if begins else [])
        assert (ids[-1] == EOS) == ends
    for prompt in objective.prompts([dict(zip(rows_for(name), row)) for row in zip(*rows_for(name).values())]):
        ids = prompt["input_ids"]
        assert (ids[0] == BOS) == begins
        assert (ids[-1] == EOS) == (ends and name not in ("causal_lm", "prefix_lm"))  # to be continued


@pytest.mark.parametrize("adds", ["none", "bos", "eos", "both"])
def test_targets_and_texts_to_continue_end_whatever_the_tokenizer_adds(adds):
    targets = make("seq2seq", adds=adds).encode(rows_for("seq2seq"))["labels"]
    language_model = make("causal_lm", adds=adds)
    texts = language_model.encode({"text": TEXTS})["input_ids"]
    assert all(ids[-1] == EOS and ids.count(EOS) == 1 for ids in [*targets, *texts])
    assert all(EOS not in prompt["input_ids"] for prompt in language_model.prompts([{"text": text} for text in TEXTS]))


def test_a_long_text_is_continued_from_its_end():
    whole, cut = (make("causal_lm", max_length=length).prompts([{"text": TEXTS[2]}])[0]["input_ids"] for length in (100, 7))
    assert cut == whole[-7:]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "question_answering"])
def test_what_is_too_long_is_cut_but_for_its_end_and_marked(name):
    options = {"whole_words": True} if name == "masked_lm" else {}
    whole, cut = (make(name, max_length, **options).encode(rows_for(name)) for max_length in (1000, 8))
    longest = [max(map(len, both)) for both in zip(*(whole[c] for c in ("input_ids", "labels", "words") if c in whole))]
    assert whole["length"] == longest and not any(whole["cut"])
    assert cut["cut"] == [length > 8 for length in longest] and any(cut["cut"])
    assert cut["length"] == [min(length, 8) for length in longest]
    for column in {"input_ids", "labels", "words"} & set(whole):
        for before, after in zip(whole[column], cut[column]):
            assert after == (before if len(before) <= 8 else [*before[:7], before[-1]])


def test_a_pair_of_texts_becomes_one():
    objective = make("sequence_classification")
    pair = {"text": ["the lamp"], "text_pair": ["a light"], "label": ["O"]}
    expected = [BOS, *ids_of(objective, "the lamp"), EOS, *ids_of(objective, "a light"), EOS]
    assert objective.encode(pair)["input_ids"] == [expected]
    assert objective.prompts([{"text": "the lamp", "text_pair": "a light"}])[0]["input_ids"] == expected


# Batches


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_padded_on_the_right_and_padding_is_not_asked(name):
    objective = make(name)
    features = features_of(objective, rows_for(name))
    tensors = objective.collate(features)
    ids = tensors["input_ids"]
    assert ids.dtype == torch.int64 and ids.shape[0] == len(features)
    lengths = (ids != PAD).sum(1)
    assert lengths.max() == ids.shape[1] and lengths.min() < ids.shape[1]
    tokens = torch.arange(ids.shape[1]) < lengths[:, None]
    assert (ids[~tokens] == PAD).all()
    mask = tensors["attention_mask"]
    assert mask.dtype == torch.bool
    if name != "prefix_lm":
        assert mask.equal(tokens)
    if name in ("causal_lm", "prefix_lm", "masked_lm", "token_classification"):
        assert (tensors["labels"][~tokens] == IGNORED).all()
    for labels in (tensor for key, tensor in tensors.items() if key not in ("input_ids", "attention_mask")):
        assert labels.dtype == (torch.float32 if name in OTHER_KINDS else torch.int64)


def test_stacked_rows_stand_left_or_right():
    rows = [[5, 6, 7], np.array([8]), []]
    assert stack(rows, 0).tolist() == [[5, 6, 7], [8, 0, 0], [0, 0, 0]]
    assert stack(rows, IGNORED, filled(rows, left=True)).tolist() == [[5, 6, 7], [IGNORED, IGNORED, 8], [IGNORED] * 3]


@pytest.mark.parametrize("name", ["seq2seq", "causal_lm", "masked_lm"])
def test_tokens_are_counted_without_padding_and_with_it(name):
    objective = make(name)
    features = features_of(objective, rows_for(name))
    columns = [column for column in ("input_ids", "labels") if column in features[0]]
    lengths = [[len(feature[column]) for feature in features] for column in columns]
    expected = (sum(map(sum, lengths)), sum(len(several) * max(several) for several in lengths))
    assert objective.count_tokens(objective.collate(features)) == expected


def test_a_tokenizer_without_padding_is_good_enough():
    without = train_tokenizer(TEXTS * 2, "word", 20, min_frequency=1, adds="bos")
    without.pad_token = None
    objective = make("causal_lm", tokenizer=without)
    tensors = objective.collate([{"input_ids": [7, 8, 9, EOS]}, {"input_ids": [7, EOS]}])
    assert tensors["labels"].tolist() == [[7, 8, 9, EOS], [7, EOS, IGNORED, IGNORED]]
    assert objective.count_tokens(tensors) == (6, 8)


# The loss, by hand


def teacher_forced(model, tensors) -> list:
    """Decoder input [start, A, B, C] for the labels [A, B, C, end]: a pair of log-probabilities and label for each."""
    labels, pairs = tensors["labels"], []
    for row, asked in enumerate(labels.tolist()):
        target = [label for label in asked if label != IGNORED]
        inputs = {name: tensor[row : row + 1] for name, tensor in tensors.items() if name != "labels"}
        logits = model(**inputs, decoder_input_ids=torch.tensor([[BOS, *target[:-1]]])).logits[0]
        pairs += list(zip(logits.log_softmax(-1), target))
    return pairs


def asked_ahead(model, tensors) -> list:
    """Each token but the first is asked of the position before it."""
    logits = model(**{name: tensor for name, tensor in tensors.items() if name != "labels"}).logits.log_softmax(-1)
    return list(zip(logits[:, :-1].flatten(0, 1), tensors["labels"][:, 1:].flatten().tolist()))


def asked_in_place(model, tensors) -> list:
    logits = model(**{name: tensor for name, tensor in tensors.items() if name != "labels"}).logits.log_softmax(-1)
    return list(zip(logits.flatten(0, -2), tensors["labels"].flatten().tolist()))


def loss_by_hand(name: str, model, tensors) -> tuple[float, int]:
    """The sum over all that is asked, and how much that is."""
    inputs = {key: tensors[key] for key in ("input_ids", "attention_mask") if key in tensors}
    if name == "question_answering":
        outputs, rows, total = model(**inputs), range(len(tensors["input_ids"])), 0.0
        for logits, places in ((outputs.start_logits, "start_positions"), (outputs.end_logits, "end_positions")):
            logits = logits.masked_fill(~tensors["attention_mask"], -math.inf).log_softmax(-1)
            total -= sum(float(logits[row, tensors[places][row]]) / 2 for row in rows)
        return total, len(rows)
    if name == "regression":
        terms = (model(**inputs).logits[:, 0] - tensors["labels"]) ** 2
        return float(terms.sum()), len(terms)
    if name == "multi_label":
        p, labels = model(**inputs).logits.sigmoid(), tensors["labels"]
        return float(-(labels * p.log() + (1 - labels) * (1 - p).log()).sum()), labels.numel()
    pairs_of = {"causal_lm": asked_ahead, "prefix_lm": asked_ahead, "masked_lm": asked_in_place}
    pairs_of |= dict.fromkeys(("sequence_classification", "token_classification"), asked_in_place)
    pairs = pairs_of.get(name, teacher_forced)(model, tensors)
    terms = [-float(logits[label]) for logits, label in pairs if label != IGNORED]
    return sum(terms), len(terms)


def assert_loss_is_by_hand(name: str, objective, tensors) -> None:
    model = model_for(objective)
    with torch.no_grad():
        loss = model(**tensors, num_items_in_batch=1, **objective.loss_options).loss
        total, count = loss_by_hand(name, model, tensors)
    assert objective.num_items(tensors) == count > 0
    assert_close(float(loss), total, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_a_sum_over_as_many_labels_as_are_counted(name):
    objective = make(name)
    assert_loss_is_by_hand(name, objective, objective.collate(features_of(objective, rows_for(name))))


@pytest.mark.parametrize("name", ["causal_lm", "masked_lm"])
def test_the_loss_of_packed_rows_is_a_sum_over_as_many_labels_as_are_counted(name):
    objective = make(name)
    assert_loss_is_by_hand(name, objective, objective.collate(packed(objective)))


def test_the_decoder_reads_start_a_b_c_for_a_b_c_end():
    objective = make("seq2seq")
    labels = objective.collate(features_of(objective, {"source": ["who", "a"], "target": ["a lamp", "the glass is"]}))["labels"]
    first, second = ids_of(objective, "a lamp"), ids_of(objective, "the glass is")
    assert labels.tolist() == [[*first, EOS, *[IGNORED] * (len(second) - len(first))], [*second, EOS]]
    read = model_for(objective).prepare_decoder_input_ids_from_labels(labels)
    assert read[1].tolist() == [BOS, *second]
    assert read[0, : len(first) + 1].tolist() == [BOS, *first]


# Noise


NOISY = ["masked_lm", "span_corruption", "text_infilling", "prefix_lm"]


def row_of(tensors: dict, row: int) -> tuple:
    """A row of a batch without its padding."""
    ids, labels = tensors["input_ids"][row], tensors["labels"][row]
    mask = tensors["attention_mask"][row].squeeze(0)
    length = int((ids != PAD).sum())
    return ids[:length].tolist(), [label for label in labels.tolist() if label != IGNORED], mask[..., :length][:length].tolist()


@pytest.mark.parametrize("name", NOISY)
def test_noise_depends_on_the_seed_of_the_feature_alone(name):
    objective = make(name, rate=0.5)
    features = features_of(objective, {"text": TEXTS})
    together = objective.collate(features)
    for number, feature in enumerate(features):
        alone, backwards = objective.collate([feature]), objective.collate(features[::-1])
        assert row_of(together, number) == row_of(alone, 0) == row_of(backwards, len(features) - 1 - number)
    others = {str(row_of(objective.collate([{**features[2], "seed": seed}]), 0)) for seed in range(20)}
    assert len(others) > 10


@pytest.mark.parametrize("name", NOISY)
def test_a_feature_without_a_seed_draws_one_from_torch(name):
    objective = make(name, rate=0.5)
    features = [{"input_ids": feature["input_ids"]} for feature in features_of(objective, {"text": TEXTS})]
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append([row_of(tensors, 2) for tensors in (objective.collate(features), objective.collate(features))])
    assert found[0] == found[1] != found[2]
    assert found[0][0] != found[0][1]


def test_masked_labels_are_the_original_tokens_and_never_special_ones():
    objective = make("masked_lm", rate=0.5)
    [feature] = features_of(objective, {"text": TEXTS[2:3]})
    original = np.array(feature["input_ids"])
    for seed in range(400):
        tensors = objective.collate([{**feature, "seed": seed}])
        inputs, labels = tensors["input_ids"][0].numpy(), tensors["labels"][0].numpy()
        asked = labels != IGNORED
        assert asked.sum() == round(0.5 * (len(original) - 2))
        assert (labels[asked] == original[asked]).all() and (inputs[~asked] == original[~asked]).all()
        assert not asked[[0, -1]].any()
        assert not np.isin(inputs[asked], [PAD, BOS, EOS, 3]).any()  # nor is one put in the place of a token


@pytest.mark.parametrize("is_packed", [False, True], ids=["rows", "packed"])
def test_all_pieces_of_a_word_are_masked_together(is_packed):
    objective = make("masked_lm", whole_words=True, rate=0.3, max_length=100)
    text = "unbreakable windows shines unbreakable windowpanes lampglass"
    [feature] = features_of(objective, {"text": [text]})
    words = np.array(feature["words"])
    assert np.bincount(words[words >= 0]).max() > 1  # words of several pieces
    if is_packed:
        feature = {"documents": [np.array(feature["input_ids"])], "words": words}
    chosen = set()
    for seed in range(60):
        asked = objective.collate([{**feature, "seed": seed}])["labels"][0].numpy() != IGNORED
        for word in range(words.max() + 1):
            assert len(set(asked[words == word].tolist())) == 1
        chosen |= set(words[asked].tolist())
    assert len(chosen) > 2 and -1 not in chosen
    del feature["words"]
    with pytest.raises(DataError, match=r"whole_words needs the column 'words': keep it .*remove_unused_columns=False"):
        objective.collate([feature])


def test_sources_and_targets_of_span_corruption_rebuild_the_text():
    objective = make("span_corruption", max_length=100)
    features = features_of(objective, {"text": TEXTS * 3})
    tensors = objective.collate(features)
    for row, feature in enumerate(features):
        source, target, _ = row_of(tensors, row)
        assert source[-1] == target[-1] == EOS
        spans: dict[int, list[int]] = {}
        for token in target[:-1]:
            if token in objective.sentinels:
                spans[token] = []
            else:
                spans[list(spans)[-1]].append(token)
        assert spans and list(spans) == objective.sentinels[: len(spans)]
        rebuilt = [token for place in source[:-1] for token in spans.get(place, [place])]
        assert [*rebuilt, EOS] == feature["input_ids"]


def test_a_single_token_has_nothing_to_hide():
    objective = make("span_corruption")
    source, target, _ = row_of(objective.collate([{"input_ids": [50, EOS], "seed": 0}]), 0)
    assert source == target == [50, EOS]


def test_the_label_of_text_infilling_is_the_whole_text():
    objective = make("text_infilling", max_length=100)
    features = features_of(objective, {"text": TEXTS * 3})
    tensors = objective.collate(features)
    for row, feature in enumerate(features):
        source, target, _ = row_of(tensors, row)
        assert target == feature["input_ids"]
        assert source[0] == BOS and source[-1] == EOS and MASK in source
        rest = iter(target)
        assert all(token in rest for token in source if token != MASK)  # what is kept stays in order


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_permuted_sentences_stay_whole(kind):
    sentences = ["the lamp shines!", "who breaks the glass?", "behind the window a light."]  # bpe has a token for shines!
    objective = make("text_infilling", permute_sentences=True, rate=1e-6, kind=kind)  # hides one token
    pieces = [ids_of(objective, sentence) for sentence in sentences]
    expected = {tuple(itertools.chain(*order)) for order in itertools.permutations(pieces)}
    [feature] = features_of(objective, {"text": [" ".join(sentences)]})
    orders = set()
    for seed in range(80):
        source, target, _ = row_of(objective.collate([{**feature, "seed": seed}]), 0)
        assert target == feature["input_ids"] == [BOS, *itertools.chain(*pieces), EOS]
        orders |= {order for order in expected if is_part(source[1:-1], order)}
    assert orders == expected


def is_part(source: list[int], text: tuple[int, ...]) -> bool:
    """Whether the kept tokens of a source are those of the text but for one, in the same order."""
    kept, rest = [token for token in source if token != MASK], iter(text)
    return len(kept) == len(text) - 1 and all(token in rest for token in kept)


def test_objectives_name_the_tokens_they_miss():
    without = train_tokenizer(TEXTS * 2, "word", 20, min_frequency=1)
    with pytest.raises(DataError, match=r"span_corruption needs a tokenizer with the sentinels <extra_id_0>.*: train one"):
        make("span_corruption", tokenizer=without)
    without.mask_token = None
    for name in ("masked_lm", "text_infilling"):
        with pytest.raises(DataError, match="has no mask token: add one, or train a tokenizer"):
            make(name, tokenizer=without).collate([{"input_ids": [6, 7, 8], "seed": 0}])


# Packing


def packed(objective) -> list[dict]:
    """Two rows: three documents, one of a single token among them; two documents, of which the first has lost its beginning."""
    documents = [np.array(ids) for ids in objective.encode({"text": TEXTS})["input_ids"]]
    rows = [[documents[0], documents[1][:1], documents[2][:-3]], [documents[2][-6:], documents[3]]]
    return [{"documents": row, "seed": seed} for seed, row in enumerate(rows)]


@pytest.mark.parametrize("overrides", [*ENCODINGS, "window"])
@pytest.mark.parametrize("name", ["causal_lm", "masked_lm"])
def test_a_document_costs_the_same_packed_and_alone(name, overrides):
    objective = make(name, rate=0.5)
    window = {"position_encoding": "rope", "attention_window": 4}
    model = model_for(objective, **(window if overrides == "window" else {"position_encoding": overrides}))
    features = packed(objective)
    tensors = objective.collate(features)
    ids, labels = tensors.pop("input_ids"), tensors.pop("labels")
    alone_in_total = 0
    for row, feature in enumerate(features):
        end = 0
        for document in feature["documents"]:
            begin, end = end, end + len(document)
            own = torch.full_like(labels, IGNORED)
            own[row, begin:end] = labels[row, begin:end]
            place = (slice(row, row + 1), slice(begin, end))
            with torch.no_grad():
                together = model(ids, labels=own, num_items_in_batch=1, **tensors).loss
                alone = model(ids[place], labels=labels[place], num_items_in_batch=1).loss
            assert_close(together, alone, atol=1e-4, rtol=1e-5)
            alone_in_total += float(alone)
    with torch.no_grad():
        assert_close(float(model(ids, labels=labels, num_items_in_batch=1, **tensors).loss), alone_in_total, atol=1e-3, rtol=1e-5)


def test_first_tokens_of_documents_are_not_asked_and_all_others_are():
    objective = make("causal_lm")
    features = packed(objective)
    tensors = objective.collate(features)
    for row, feature in enumerate(features):
        expected = [token for document in feature["documents"] for token in [IGNORED, *document[1:].tolist()]]
        length = len(expected)
        assert tensors["labels"][row].tolist() == expected + [IGNORED] * (tensors["labels"].shape[1] - length)
        positions = [place for document in feature["documents"] for place in range(len(document))]
        assert tensors["position_ids"][row, :length].tolist() == positions


def test_full_rows_of_one_document_need_no_mask():
    objective = make("causal_lm")
    row, short = {"documents": [np.array([BOS, 50, 51])]}, {"documents": [np.array([50, EOS])]}
    assert set(objective.collate([row, row])) == {"input_ids", "labels"}
    tensors = objective.collate([row, short])
    assert tensors["attention_mask"].tolist() == [[True] * 3, [True, True, False]]
    assert tensors["labels"].tolist() == [[IGNORED, 50, 51], [IGNORED, EOS, IGNORED]]


# Prefix language model


def prefix_length(tensors: dict, row: int) -> int:
    return int((tensors["labels"][row] != IGNORED).int().argmax())


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_prefix_sees_itself_whole_and_the_rest_what_came_before(encoding):
    objective = make("prefix_lm")
    model = model_for(objective, position_encoding=encoding)
    features = features_of(objective, {"text": TEXTS})
    tensors = objective.collate(features)
    row, length = 2, len(features[2]["input_ids"])
    prefix = prefix_length(tensors, row)
    assert 2 <= prefix <= length - 3

    def hidden(changed: int | None = None) -> torch.Tensor:
        ids = tensors["input_ids"].clone()
        if changed is not None:
            ids[row, changed] = 60 if ids[row, changed] != 60 else 61
        with torch.no_grad():
            return model.model(ids, attention_mask=tensors["attention_mask"], use_cache=False).last_hidden_state[row, :length]

    before = hidden()
    for place in range(length):
        touched = ((hidden(changed=place) - before).abs() > 1e-6).any(-1)
        first = 0 if place < prefix else place
        assert not touched[:first].any() and touched[first:].all()


def test_the_prefix_is_not_asked_and_the_rest_is():
    objective = make("prefix_lm")
    features = [{**feature, "seed": seed} for feature in features_of(objective, {"text": TEXTS}) for seed in range(5)]
    tensors = objective.collate(features)
    prefixes = [prefix_length(tensors, row) for row in range(len(features))]
    for row, (feature, prefix) in enumerate(zip(features, prefixes)):
        ids = feature["input_ids"]
        assert 1 <= prefix < len(ids)
        padding = [IGNORED] * (tensors["labels"].shape[1] - len(ids))
        assert tensors["labels"][row].tolist() == [IGNORED] * prefix + ids[prefix:] + padding
    assert len(set(prefixes)) > 5
    assert objective.num_items(objective.collate([{"input_ids": [50]}])) == 0  # a single token is all prefix, or no one asks


def logits_after(model, ids: list[int], prefix: int) -> torch.Tensor:
    """The next token's, from a full pass whose mask is drawn by hand."""
    mask = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    mask[:prefix, :prefix] = True
    return model(torch.tensor([ids]), attention_mask=mask[None, None], use_cache=False).logits[0, -1]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_prefix_is_continued_as_by_full_passes_with_the_mask_of_training(encoding):
    objective = make("prefix_lm")
    model = model_for(objective, position_encoding=encoding)
    prompts = objective.prompts([{"text": text} for text in ("the lamp", "who breaks the window pane and the", "a")])
    prompts.append({"input_ids": [BOS]})
    found = objective.predict(model, prompts, {"max_new_tokens": 6, "do_sample": False})
    continuations = set()
    for prompt, text in zip(prompts, found, strict=True):
        ids = list(prompt["input_ids"])
        for _ in range(6):
            with torch.no_grad():
                ids.append(int(logits_after(model, ids, len(prompt["input_ids"])).argmax()))
            if ids[-1] == EOS:
                break
        assert text == objective.tokenizer.decode(ids, skip_special_tokens=True)
        continuations.add(tuple(ids[len(prompt["input_ids"]) :]))
    assert len(continuations) > 1  # the prompts matter


@pytest.mark.parametrize("prompts", [["the lamp", "who breaks the"], [""]], ids=["several", "one-token"])
def test_beams_start_from_the_prefix_too(prompts):
    # As many beams as tokens leave no pair of tokens out: the best pair is known from trying them all.
    objective = make("prefix_lm")
    model = model_for(objective)
    size = model.config.vocab_size
    features = objective.prompts([{"text": text} for text in prompts])
    options = {"num_beams": size, "max_new_tokens": 2, "length_penalty": 0.0, "suppress_tokens": [EOS]}
    for feature, found in zip(features, objective.predict(model, features, options), strict=True):
        ids, scores = feature["input_ids"], {}
        with torch.no_grad():
            first = logits_after(model, ids, len(ids)).index_fill(0, torch.tensor([EOS]), -math.inf)
            for token in set(range(size)) - {EOS}:
                second = logits_after(model, [*ids, token], len(ids)).index_fill(0, torch.tensor([EOS]), -math.inf)
                best = int(second.argmax())
                scores[token, best] = float(first.log_softmax(-1)[token] + second.log_softmax(-1)[best])
        best = max(scores, key=scores.get)
        assert found == objective.tokenizer.decode([*ids, *best], skip_special_tokens=True)


# Other predictions


@pytest.mark.parametrize("fills", ["with its pad token", "with an ordinary one"])
def test_a_prompt_is_continued_the_same_alone_and_among_others(fills, monkeypatch):
    objective = make("causal_lm")
    if fills == "with an ordinary one":
        ordinary = objective.ids(TEXTS[:1])[0][2]
        monkeypatch.setattr(type(objective), "pad_id", property(lambda self: ordinary))
    model, options = model_for(objective), {"max_new_tokens": 6, "do_sample": False}
    prompts = objective.prompts([{"text": text} for text in TEXTS])
    assert objective.predict(model, prompts, options) == [objective.predict(model, [one], options)[0] for one in prompts]


def favourite(token: int, size: int):
    """A model that would put the same token everywhere."""
    logits = torch.zeros(size).index_fill(0, torch.tensor([token]), 1.0)
    return lambda input_ids, **_: SimpleNamespace(logits=logits.expand(*input_ids.shape, size))


def stub(call, **attributes):
    """As much of a model as `predict` asks for."""
    model = type("Stub", (), {"__call__": lambda self, **inputs: call(**inputs), "device": torch.device("cpu"), **attributes})
    return model()


def test_masks_are_filled_in():
    objective = make("masked_lm", kind="word")
    [lamp] = ids_of(objective, "lamp")
    prompts = objective.prompts([{"text": "the <mask> shines"}, {"text": "who breaks the <mask> and the <mask> ?"}])
    found = objective.predict(stub(favourite(lamp, 200)), prompts, {})
    assert found == ["the lamp shines", "who breaks the lamp and the lamp ?"]


def test_samples_show_what_a_language_model_is_for():
    beginnings = make("causal_lm", kind="word").sample_prompts([{"text": text} for text in TEXTS])
    assert all(text.startswith(sample["text"]) for text, sample in zip(TEXTS, beginnings))
    objective = make("masked_lm", kind="word")
    [sample] = objective.sample_prompts([{"text": TEXTS[2]}])
    words, hidden = TEXTS[2].split(), sample["text"].split()
    assert "<mask>" in hidden and len(hidden) == len(words)
    assert all(shown in (word, "<mask>") for word, shown in zip(words, hidden))


def test_source_and_target_may_have_vocabularies_of_their_own():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        digits = train_tokenizer(["1 2 3 4 5 6 7 8 9"] * 2, "word", 40, adds="eos")
    objective = make("seq2seq", target_tokenizer=digits)
    features = features_of(objective, {"source": TEXTS[:2], "target": ["1 2 3", "9"]})
    tensors = objective.collate(features)
    assert objective.tokenizer.decode(features[0]["input_ids"], skip_special_tokens=True) == TEXTS[0]
    first, second = ([*digits.convert_tokens_to_ids(text.split()), EOS] for text in ("1 2 3", "9"))
    assert tensors["labels"].tolist() == [first, second + [IGNORED] * 2]
    model = model_for(objective, embedding_tying="target-output")
    assert model(**tensors, **objective.loss_options).loss.isfinite()
    written = stub(None, generate=lambda self, **inputs: tensors["labels"].masked_fill(tensors["labels"] == IGNORED, PAD))
    assert objective.predict(written, objective.prompts([{"source": text} for text in TEXTS[:2]]), {}) == ["1 2 3", "9"]
    assert objective.target_ids("1 2 3") == first[:-1]


# Classification


@pytest.mark.parametrize(
    "value, names, number",
    [
        ("b", ["a", "b"], 1),
        (1, ["a", "b"], 1),  # a number that was named
        (np.int64(0), ["a", "b"], 0),
        (7, ["3", "7"], 1),  # numbers that are their own names
        ("7", ["3", "7"], 1),
        (True, ["False", "True"], 1),
        (2.5, ["1.5", "2.5"], 1),
    ],
    ids=["name", "int", "numpy-int", "int-as-name", "digits", "bool", "float"],
)
def test_a_label_is_a_name_or_a_number(value, names, number):
    assert class_number(value, names) == number


@pytest.mark.parametrize("value", ["c", "B", 2, -1, 0.5, None], ids=str)
def test_an_unknown_label_is_named(value):
    with pytest.raises(DataError, match=f"^The label {value!r} is not among a, b: correct the row, or name all labels"):
        class_number(value, ["a", "b"])


def test_single_labels_there_and_back():
    objective = make("sequence_classification")
    assert objective.encode(rows_for("sequence_classification"))["label"] == [0, 2, 0, 1]
    assert objective.config_fields["id2label"] == dict(enumerate(LABELS))
    assert objective.reference({"label": "I-THING"}) == 2
    assert objective.readable(2) == "I-THING"


def test_several_labels_there_and_back():
    objective = make("multi_label")
    expected = [[1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0]]
    assert objective.encode(rows_for("multi_label"))["label"] == expected
    assert objective.reference({"label": ["B-THING", 0]}) == [1, 1, 0]
    logits = torch.tensor([[0.1, -3.0, 2.0], [-1.0, -1.0, -1.0]])
    found = objective.predict(stub(lambda **_: SimpleNamespace(logits=logits)), [{"input_ids": [5]}] * 2, {})
    assert found == [[1, 0, 1], [0, 0, 0]]
    assert [objective.readable(one) for one in found] == [["O", "I-THING"], []]


def test_numbers_there_and_back():
    objective = make("regression")
    assert objective.encode(rows_for("regression"))["label"] == [0.5, -1.0, 2.0, 3.0]
    assert objective.config_fields["problem_type"] == "regression" and len(objective.config_fields["id2label"]) == 1
    for value in ("many", [1.0], None):
        with pytest.raises(DataError, match="is no number, which regression needs"):
            objective.label(value)
    logits = torch.tensor([[0.5], [-2.0]])
    found = objective.predict(stub(lambda **_: SimpleNamespace(logits=logits)), [{"input_ids": [5]}] * 2, {})
    assert found == [0.5, -2.0]
    assert [objective.readable(one) for one in found] == found


def test_the_first_piece_of_a_word_carries_its_tag():
    objective = make("token_classification", max_length=100)
    words = ["windowpanes", "lamp", "glasses"]
    columns = objective.encode({"tokens": [words], "tags": [["B-THING", 2, "O"]]})
    pieces = [ids_of(objective, word) for word in words]
    assert max(map(len, pieces)) > 1
    assert columns["input_ids"] == [[BOS, *itertools.chain(*pieces), EOS]]
    tagged = [[tag] + [IGNORED] * (len(several) - 1) for tag, several in zip([1, 2, 0], pieces)]
    assert columns["labels"] == [[IGNORED, *itertools.chain(*tagged), IGNORED]]


def test_words_beyond_the_reach_of_the_model_are_outside():
    objective = make("token_classification", max_length=5, kind="word")
    prompts = objective.prompts([{"tokens": ["the", "lamp", "shines", "on", "the", "pane"]}, {"tokens": "a window"}])
    everything = stub(favourite(1, 3))
    inside = ["B-THING"] * 3
    assert objective.predict(everything, prompts, {}) == [[*inside, "O", "O", "O"], inside[:2]]
    without_outside = make("token_classification", max_length=5, kind="word", labels=["X", "Y", "Z"])
    assert without_outside.predict(everything, prompts, {})[0] == ["Y"] * 3 + ["X"] * 3


def test_tags_are_as_many_as_words():
    objective = make("token_classification")
    with pytest.raises(DataError, match="A row has 3 tokens but 2 tags: they must come in pairs"):
        objective.encode({"tokens": [["the", "lamp", "shines"]], "tags": [["O", "O"]]})
    assert objective.reference({"tags": ["O", 2]}) == ["O", "I-THING"]


# Question answering


KINDS = ["wordpiece", "bpe", "byte_bpe", "unigram", "char"]
QUESTION = "what breaks ?"


def answers_at(text: str, context: str = CONTEXT) -> dict[str, list]:
    return {"text": [text], "answer_start": [context.index(text)]}


@pytest.mark.parametrize("stride", [0, 12, 500])
@pytest.mark.parametrize("kind", KINDS)
def test_windows_cover_the_context(kind, stride):
    objective = make("question_answering", kind=kind, stride=stride)
    windows = objective.windows(QUESTION, CONTEXT)
    assert len(windows) > 2
    question = [BOS, *ids_of(objective, QUESTION), EOS]
    seen = set()
    for window in windows:
        assert len(window["input_ids"]) == len(window["offsets"]) <= 40
        assert window["input_ids"][: len(question)] == question
        assert window["offsets"][: len(question)] == [None] * len(question)
        seen |= {character for place in window["offsets"] if place for character in range(*place)}
    assert {place for place, character in enumerate(CONTEXT) if character != " "} <= seen


@pytest.mark.parametrize("answer", ["omega", "omega glass-pane", "alpha", "shines!", " glass-pane ", "windows unbreakable"])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_stand_where_the_labels_point(kind, answer):
    objective = make("question_answering", kind=kind, stride=20)
    windows = objective.windows(QUESTION, CONTEXT)
    columns = objective.encode({"question": [QUESTION], "context": [CONTEXT], "answers": [answers_at(answer)]})
    assert columns["input_ids"] == [window["input_ids"] for window in windows]
    begin = CONTEXT.index(answer.strip())
    end = begin + len(answer.strip())
    found = 0
    for window, first, last in zip(windows, columns["start_positions"], columns["end_positions"]):
        places = [place for place in window["offsets"] if place]
        if first == 0:
            assert last == 0
            assert places[0][0] > begin or places[-1][1] < end  # not all of it is in this window
        else:
            text = CONTEXT[window["offsets"][first][0] : window["offsets"][last][1]]
            assert answer.strip() in text and len(text) <= len(answer) + (4 if kind == "bpe" else 1)  # tokens may hold more
            found += 1
    assert 0 < found < len(windows)


def test_a_window_with_a_part_of_the_answer_points_to_the_first_token():
    objective = make("question_answering", kind="word", stride=0, max_length=8)  # room for two words of context
    context = "the lamp breaks on"
    row = {"question": [QUESTION], "context": [context], "answers": [answers_at("lamp breaks", context)]}
    columns = objective.encode(row)
    assert columns["start_positions"] == columns["end_positions"] == [0, 0]


@pytest.mark.parametrize("words", [1, 10, 25, 33, 34, 60])
def test_a_long_question_leaves_what_room_there_is(words):
    objective = make("question_answering", kind="word", stride=20)
    question = " ".join(["the"] * words)
    if words + 3 < 40:
        windows = objective.windows(question, CONTEXT)
        seen = {character for window in windows for place in window["offsets"] if place for character in range(*place)}
        assert len(seen) == len(CONTEXT.replace(" ", ""))
    else:
        with pytest.raises(DataError, match=f"A question of {words} tokens leaves no room .* within 40 .*: raise data"):
            objective.windows(question, CONTEXT)


def test_answers_that_are_not_there_are_named():
    objective = make("question_answering")

    def encode(answers: dict) -> None:
        objective.encode({"question": [QUESTION], "context": [CONTEXT], "answers": [answers]})

    with pytest.raises(DataError, match="The answer 'omega' does not stand at character 3 of its context"):
        encode({"text": ["omega"], "answer_start": [3]})
    for empty in ({"text": [], "answer_start": []}, {"text": [" "], "answer_start": [3]}):
        with pytest.raises(DataError, match=r"The question 'what breaks \?' has no answer: leave it out"):
            encode(empty)


def test_the_best_span_lies_in_the_context_and_runs_forward():
    objective = make("question_answering")
    feature = {"context": "abcdefgh", "offsets": [None, None, *((place, place + 1) for place in range(8)), None]}

    def best(start: dict[int, float], end: dict[int, float]) -> tuple[float, str]:
        logits = torch.zeros(2, 13)  # two of padding
        for row, scores in zip(logits, (start, end)):
            for place, score in scores.items():
                row[place] = score
        return objective.best_span(*logits, feature)

    assert best({4: 3.0}, {6: 2.0}) == (5.0, "cde")
    assert best({1: 9.0, 4: 3.0}, {6: 2.0, 10: 9.0, 12: 9.0}) == (5.0, "cde")  # question, end mark and padding do not count
    assert best({6: 3.0, 2: 1.0}, {4: 3.0, 7: 0.5}) == (4.0, "abc")  # 6 to 4 would be backwards
    objective.longest_answer = 2
    assert best({3: 3.0, 5: 1.0}, {6: 3.0})[1] == "de"  # 3 to 6 is too long
    spaced = {"context": "a bc", "offsets": [None, (0, 1), (1, 4)]}  # byte by byte, a word may begin with the space before it
    assert objective.best_span(torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, 0.0, 1.0]), spaced) == (2.0, "bc")
    nothing = {"context": "abc", "offsets": [None, None]}
    assert objective.best_span(torch.zeros(4), torch.zeros(4), nothing) == (-math.inf, "")


def test_the_best_window_answers_for_the_row():
    objective = make("question_answering", kind="word", stride=5, max_length=20)
    assert objective.combine([(1.0, "a"), (3.0, "b"), (-math.inf, "")]) == "b"
    answer = objective.tokenizer.convert_tokens_to_ids(["omega", "glass"])

    def point(input_ids, **_):
        """To the two words of the answer wherever they are, and a little to the first word."""
        start, end = ((input_ids == token).float() * 5 for token in answer)
        first = torch.nn.functional.one_hot(torch.tensor(8), input_ids.shape[1])
        return SimpleNamespace(start_logits=start + first, end_logits=end + first)

    rows = [{"question": QUESTION, "context": TEXTS[2]}, {"question": QUESTION, "context": CONTEXT}]
    assert len(objective.prompts(rows)) > 4
    found = predict_rows(stub(point), objective, rows, {}, tokens=100)
    assert found[1] == "omega glass"
    assert found[0] in TEXTS[2]


# Trainers of transformers, with our models and collators


def dataset_for(objective, name: str) -> Dataset:
    columns = objective.encode(rows_for(name))
    return Dataset.from_dict({column: values for column, values in columns.items() if column not in ("length", "cut")})


def arguments(folder, **options) -> dict:
    return {
        "output_dir": str(folder), "max_steps": 25, "per_device_train_batch_size": 3, "learning_rate": 1e-2, "use_cpu": True,
        "logging_steps": 1, "save_strategy": "no", "report_to": [], "disable_tqdm": True, "seed": 0, **options,
    }  # fmt: skip


def assert_learns(trainer) -> None:
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 25
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def counting(base: type, objective) -> type:
    """A trainer that checks its count of labels, by which it divides the loss, against ours."""

    class Counting(base):
        def compute_loss(self, model, inputs, *args, num_items_in_batch=None, **kwargs):
            if model.training and "labels" in inputs:
                assert int(num_items_in_batch) == objective.num_items(inputs)
            return super().compute_loss(model, inputs, *args, num_items_in_batch=num_items_in_batch, **kwargs)

    return Counting


@pytest.mark.parametrize("name", ["causal_lm", "masked_lm", "multi_label", "question_answering"])
def test_the_trainer_of_transformers_trains_from_our_batches(name, tmp_path):
    objective = make(name)
    trainer = counting(Trainer, objective)(
        model=model_for(objective),
        args=TrainingArguments(**arguments(tmp_path)),
        train_dataset=dataset_for(objective, name),
        eval_dataset=dataset_for(objective, name),
        data_collator=objective.collate,
    )
    assert_learns(trainer)
    assert math.isfinite(trainer.evaluate()["eval_loss"])


def test_the_sequence_trainer_of_transformers_trains_from_our_batches(tmp_path):
    objective = make("seq2seq")
    options = arguments(tmp_path, predict_with_generate=True, generation_max_length=8)
    trainer = counting(Seq2SeqTrainer, objective)(
        model=model_for(objective),
        args=Seq2SeqTrainingArguments(**options),
        train_dataset=dataset_for(objective, "seq2seq"),
        eval_dataset=dataset_for(objective, "seq2seq"),
        data_collator=objective.collate,
        processing_class=objective.tokenizer,
    )
    assert_learns(trainer)
    written = trainer.predict(trainer.eval_dataset)
    assert written.predictions.shape[0] == len(trainer.eval_dataset) and math.isfinite(written.metrics["test_loss"])
