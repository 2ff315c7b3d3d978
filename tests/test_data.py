"""Rows: the same from every source, cut and named as the recipe says; whatever is wrong with them is told in a sentence."""

import csv
import gzip
import json
import pickle
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, IterableDataset, Value, concatenate_datasets
from recipes import ROWS, TASKS, keep_caches_in, rows_of, task_recipe, tiny_recipe, write_rows

from glassformer.training import corpora
from glassformer.training import task as task_module
from glassformer.training.data import (
    Column,
    DataError,
    default_cache,
    encode_rows,
    fingerprint,
    is_missing,
    load_rows,
    load_split,
)
from glassformer.training.objectives import OBJECTIVES
from glassformer.training.recipe import Data, RecipeError
from glassformer.training.task import fitting, prepare, train_tokenizers


pytestmark = pytest.mark.filterwarnings("ignore:The texts support")
PAIR, TEXT = {"source": True, "target": True}, {"text": True}
# What readers of tables like to take for something else
PAIRS = [
    {"source": 'die Tür, "rot"', "target": "the door\nred"},
    {"source": "007", "target": "NA"},
    {"source": "null", "target": "1e5"},
    {"source": "True", "target": " None"},
]
NUMBERED = [{"source": f"s{i}", "target": f"t{i}"} for i in range(10)]
EITHER_WAY = pytest.mark.parametrize("streaming", [False, True], ids=["at-once", "streaming"])


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    keep_caches_in(tmp_path / "caches", monkeypatch)


def load(roles=PAIR, seed: int = 0, **data) -> dict[str, list[dict]]:
    splits = load_rows(Data(**data), roles, seed)
    assert isinstance(splits["train"], IterableDataset if data.get("streaming") else Dataset)
    return {split: list(rows) for split, rows in splits.items()}


def refuse(words: str, act, *arguments, error=DataError, **options):
    """`act` fails, in one sentence that has these words."""
    with pytest.raises(error) as caught:
        act(*arguments, **options)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert message.endswith((".", "?"))


def write_table(path: Path, rows: list[dict]) -> str:
    """As the name of the file says."""
    *_, kind = [suffix for suffix in path.suffixes if suffix != ".gz"]
    if kind == ".parquet":
        Dataset.from_list(rows).to_parquet(path)
    elif kind == ".jsonl":
        write_rows(path, rows)
    else:
        with (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8", newline="") as file:
            if kind == ".json":
                json.dump(rows, file)
            else:
                writer = csv.DictWriter(file, rows[0], delimiter="\t" if kind == ".tsv" else ",")
                writer.writeheader()
                writer.writerows(rows)
    return str(path)


# Sources


@EITHER_WAY
@pytest.mark.parametrize(
    "name", ["a.csv", "a.csv.gz", "a.tsv", "a.tsv.gz", "a.json", "a.json.gz", "a.jsonl", "a.jsonl.gz", "a.parquet", "A.CSV"]
)
def test_every_kind_of_file_gives_the_same_rows(tmp_path, name, streaming):
    assert load(source=write_table(tmp_path / name, PAIRS), streaming=streaming) == {"train": PAIRS}


@EITHER_WAY
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_text_that_is_all_numbers_stays_as_it_was_written(tmp_path, name, streaming):
    rows = [{"frage": "007", "target": "1.50"}, {"frage": "12", "target": "-3"}]
    found = load(source=write_table(tmp_path / name, rows), columns={"source": "frage"}, streaming=streaming)
    assert found == {"train": [{"source": row["frage"], "target": row["target"]} for row in rows]}


@EITHER_WAY
@pytest.mark.parametrize("name", ["a.txt", "a.text.gz"])
@pytest.mark.parametrize(
    ("sample_by", "expected"),
    [
        ("line", ["one", "two", "three"]),
        ("paragraph", ["one\ntwo", "three\n"]),
        ("document", ["one\ntwo\n\nthree\n"]),
    ],
    ids=["line", "paragraph", "document"],
)
def test_row_of_a_text_is_a_line_a_paragraph_or_all_of_it(tmp_path, name, sample_by, expected, streaming):
    content = b"one\r\ntwo\r\n\r\nthree\r\n"
    # Some editors put a mark first.
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else b"\xef\xbb\xbf" + content)
    found = load(TEXT, source=str(tmp_path / name), sample_by=sample_by, streaming=streaming, incomplete="drop")
    assert [row["text"] for row in found["train"] if row["text"]] == expected


@EITHER_WAY
def test_saved_datasets_are_read_from_their_folder(tmp_path, streaming):
    rows = Dataset.from_list(PAIRS)
    rows.save_to_disk(tmp_path / "one")
    DatasetDict({"train": rows, "dev": rows.select([1])}).save_to_disk(tmp_path / "several")
    assert load(source=str(tmp_path / "one"), streaming=streaming) == {"train": PAIRS}
    several = load(source=str(tmp_path / "several"), streaming=streaming)
    assert several == {"train": PAIRS, "validation": PAIRS[1:2]}


@EITHER_WAY
def test_folder_laid_out_like_a_dataset_of_the_hub_is_one(tmp_path, streaming):
    for name, rows in {"train-0": PAIRS[:2], "train-1": PAIRS[2:], "test-0": PAIRS[:1]}.items():
        write_table(tmp_path / f"{name}.parquet", rows)
    assert load(source=str(tmp_path), streaming=streaming) == {"train": PAIRS, "test": PAIRS[:1]}


@EITHER_WAY
def test_files_are_given_by_split_one_or_several(tmp_path, streaming):
    first, second = write_table(tmp_path / "1.jsonl", PAIRS[:3]), write_table(tmp_path / "2.jsonl", PAIRS[3:])
    found = load(files={"train": [first, second], "test": second}, streaming=streaming)
    assert found == {"train": PAIRS, "test": PAIRS[3:]}


def test_builtin_corpora_have_all_splits_and_as_many_training_rows_as_asked_for():
    found = load_rows(Data(source="builtin:reverse", size=50), PAIR)
    assert {split: len(rows) for split, rows in found.items()} == {"train": 50, "validation": 1000, "test": 2000}
    assert list(found["train"]) == list(corpora.generate("reverse", "train", 50).select_columns(["source", "target"]))
    refuse("There is no corpus 'revers': did you mean 'reverse'?", load, source="builtin:revers", error=ValueError)


def test_paths_may_name_an_environment_variable(tmp_path, monkeypatch):
    write_table(tmp_path / "a.jsonl", PAIRS)
    monkeypatch.setenv("GLASS_DATA", str(tmp_path))
    assert load(source="$GLASS_DATA/a.jsonl") == load(files={"train": "${GLASS_DATA}/a.jsonl"})
    refuse("needs the environment variable GLASS_NO", load, source="$GLASS_NO/a.jsonl", error=RecipeError)


# Splits


def save_numbered(folder: Path, kind: str) -> str:
    """Ten rows, as one dataset or as the only split of several."""
    rows = Dataset.from_list(NUMBERED)
    if kind == "file":
        return write_table(folder / "numbered.csv", NUMBERED)
    (rows if kind == "dataset" else DatasetDict({"all": rows})).save_to_disk(folder / kind)
    return str(folder / kind)


@pytest.mark.parametrize("kind", ["file", "dataset", "splits"])
@pytest.mark.parametrize(
    ("part", "first", "end"),
    [("", 0, 10), ("[:70%]", 0, 7), ("[70%:]", 7, 10), ("[2:5]", 2, 5), ("[-3:]", 7, 10), ("[:99]", 0, 10)],
    ids=["all", "percent", "rest", "numbers", "from-the-end", "beyond"],
)
def test_splits_take_their_rows_from_where_they_are_told(tmp_path, kind, part, first, end):
    name = "all" if kind == "splits" else "train"
    found = load(source=save_numbered(tmp_path, kind), splits={"train": f"{name}[:1]", "test": name + part})
    assert found == {"train": NUMBERED[:1], "test": NUMBERED[first:end]}


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ({"train": "all[:x]"}, "'all[:x]' is no slice of a split: write train[:90%] or train[1000:]."),
        ({"train": "all[:1"}, "is no slice of a split"),
        ({"train": "all[:1]+all[5:]"}, "is no slice of a split"),
        ({"train": "all[10:]"}, "all[10:] holds no rows: the whole split has 10."),
        ({"train": "some"}, "has no split 'some': it has all."),
        ({"trian": "all"}, "data.splits has no split 'trian': did you mean 'train'?"),
        ({"test": "all"}, "The data has no training split: name it with data.splits.train."),
        ({}, "The data has no training split"),
    ],
    ids=["bound", "bracket", "sum", "beyond", "source", "ours", "no-train", "none"],
)
def test_splits_that_do_not_exist_are_refused(tmp_path, splits, words):
    refuse(words, load, source=save_numbered(tmp_path, "splits"), splits=splits)


def test_files_of_unknown_splits_and_slices_of_streams_are_refused(tmp_path):
    path = save_numbered(tmp_path, "file")
    refuse("data.files has no split 'valid': did you mean 'validation'?", load, files={"train": path, "valid": path})
    refuse("The data has no training split", load, files={"test": path})
    refuse("data.files has no split 'rest': it has train.", load, files={"train": path}, splits={"test": "rest"})
    refuse("train[:5] cannot be cut from a stream", load, source=path, streaming=True, splits={"train": "train[:5]"})


def test_validation_rows_are_cut_from_the_training_rows_by_the_seed(tmp_path):
    path = save_numbered(tmp_path, "file")
    found = load(source=path, validation_fraction=0.3)
    assert (len(found["train"]), len(found["validation"])) == (7, 3)
    assert sorted(row["source"] for rows in found.values() for row in rows) == [row["source"] for row in NUMBERED]
    assert load(source=path, validation_fraction=0.3) == found
    assert load(source=path, validation_fraction=0.3, seed=1) != found


def test_no_validation_rows_are_cut_where_there_are_some(tmp_path):
    path = save_numbered(tmp_path, "file")
    found = load(files={"train": path, "validation": path}, validation_fraction=0.3)
    assert found == {"train": NUMBERED, "validation": NUMBERED}


def test_cut_that_leaves_no_training_row_is_refused(tmp_path):
    path = write_table(tmp_path / "a.csv", NUMBERED[:1])
    refuse("data.validation_fraction=0.1 of 1 rows leaves none to train on", load, source=path, validation_fraction=0.1)


@EITHER_WAY
def test_size_takes_the_first_training_rows_and_no_others(tmp_path, streaming):
    path = save_numbered(tmp_path, "file")
    files = {"train": path, "test": path}
    assert load(files=files, size=4, streaming=streaming) == {"train": NUMBERED[:4], "test": NUMBERED}
    assert load(files=files, size=400, streaming=streaming) == {"train": NUMBERED, "test": NUMBERED}


def test_size_comes_after_the_cut(tmp_path):
    found = load(source=save_numbered(tmp_path, "file"), size=4, validation_fraction=0.3)
    assert (len(found["train"]), len(found["validation"])) == (4, 3)


@EITHER_WAY
def test_held_out_rows_of_a_stream_are_all_read(tmp_path, streaming):
    """With what is known about their columns."""
    rows = Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}).cast_column("label", ClassLabel(names=["no", "yes"]))
    DatasetDict({"train": rows, "test": rows}).save_to_disk(tmp_path / "rows")
    found = load_rows(Data(source=str(tmp_path / "rows"), streaming=streaming), {"text": True, "label": True})
    assert isinstance(found["test"], Dataset)
    assert found["test"].features["label"].names == ["no", "yes"]


# One split, for evaluation


@EITHER_WAY
def test_split_of_the_own_data_is_the_one_that_training_saw(tmp_path, streaming):
    cut = {"size": 5} if streaming else {"size": 5, "validation_fraction": 0.2}
    data = Data(source=save_numbered(tmp_path, "file"), streaming=streaming, **cut)
    for split, rows in load_rows(data, PAIR, seed=3).items():
        assert list(load_split(data, PAIR, None, split, seed=3)) == list(rows)
    refuse("There are no test rows: choose one of train", load_split, data, PAIR, None, "test")


@EITHER_WAY
@pytest.mark.parametrize("split", ["train", "test"])
def test_of_another_file_all_rows_are_taken(tmp_path, split, streaming):
    own = Data(
        source="builtin:copy", size=3, validation_fraction=0.5, splits={"test": "train[:1]"}, columns={"source": "frage"},
        streaming=streaming,
    )  # fmt: skip
    other = write_table(tmp_path / "other.csv", [{"frage": row["source"], "target": row["target"]} for row in NUMBERED])
    found = load_split(own, PAIR, other, split)
    assert isinstance(found, Dataset)
    assert list(found) == NUMBERED


def test_of_another_dataset_the_split_is_taken(tmp_path):
    source = save_numbered(tmp_path, "dataset")
    assert list(load_split(Data(files={"test": "gone.csv"}), PAIR, source, "train")) == NUMBERED
    words = "There are no test rows: choose one of train."
    refuse(words, load_split, Data(source="gone.csv"), PAIR, source, "test")


# Columns


@EITHER_WAY
def test_columns_are_named_by_the_role_they_play_and_others_dropped(tmp_path, streaming):
    rows = [{"en": row["target"], "id": i, "de": row["source"]} for i, row in enumerate(PAIRS)]
    path = write_table(tmp_path / "a.csv", rows)
    assert load(source=path, columns={"source": "de", "target": "en"}, streaming=streaming) == {"train": PAIRS}


@EITHER_WAY
def test_columns_may_swap_their_roles(tmp_path, streaming):
    swapped = [{"source": row["target"], "target": row["source"]} for row in PAIRS]
    path = write_table(tmp_path / "a.jsonl", swapped)
    assert load(source=path, columns={"source": "target", "target": "source"}, streaming=streaming) == {"train": PAIRS}


@EITHER_WAY
@pytest.mark.parametrize(
    ("columns", "roles", "words"),
    [
        (
            {},
            TEXT,
            "The train rows have no column 'text' for the role 'text': they have source, target, n; set data.columns.text",
        ),
        ({"text": "txt"}, TEXT, "The train rows have no column 'txt' for the role 'text'"),
        ({"pair": "txt"}, {**PAIR, "pair": False}, "The train rows have no column 'txt' for the role 'pair'"),
        ({"sauce": "source"}, PAIR, "data.columns.sauce plays no part in this objective: did you mean 'source'?"),
        ({"source": "target"}, PAIR, "'target' is to be source and target at once: name another column in data.columns."),
        ({"source": "n"}, PAIR, "The train rows have int64 in the column 'n', not texts: put the values in quotes."),
    ],
    ids=["missing", "named", "optional", "unknown-role", "twice", "numbers"],
)
def test_columns_that_do_not_fit_are_refused(tmp_path, columns, roles, words, streaming):
    path = write_table(tmp_path / "a.jsonl", [{**row, "n": 5} for row in NUMBERED])
    refuse(words, load, roles, source=path, columns=columns, streaming=streaming)


@EITHER_WAY
def test_optional_columns_are_taken_where_they_are(tmp_path, streaming):
    roles = {"source": True, "extra": False, "target": True}
    path = write_table(tmp_path / "a.jsonl", NUMBERED)
    assert load(roles, source=path, streaming=streaming) == {"train": NUMBERED}
    more = write_table(tmp_path / "b.jsonl", [{**row, "extra": ""} for row in NUMBERED])
    assert load(roles, source=more, streaming=streaming)["train"][0]["extra"] == ""


# Files that cannot be used


@EITHER_WAY
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"", "a.csv is empty."),
        ("a.txt", b"\xef\xbb\xbf \n\n", "a.txt is empty."),
        ("a.csv.gz", gzip.compress(b""), "a.csv.gz is empty."),
        ("a.csv.gz", b"source,target\na,b\n", "a.csv.gz is damaged or no gzip file: make it again, or drop the .gz"),
        ("a.csv.gz", gzip.compress(b"source,target\na,b\n")[:-9], "a.csv.gz is damaged or no gzip file"),
        ("a.csv.gz", gzip.compress(b"source,target\na,b\n")[:-8] + bytes(8), "a.csv.gz is damaged or no gzip file"),
        ("a.csv.gz", gzip.compress(b"source,target\na,b\n")[:10] + b"\xff" * 20, "a.csv.gz is damaged or no gzip file"),
        ("a.jsonl", b"source,target\na,b\n", "JSON parse error: Invalid value. in row 0."),
        ("a.jsonl", b'{"source": "a", "target": "b"}\n{"source": \n', "JSON parse error"),
        ("a.csv", b"source,target\na,b\na,b,c,d\n", "Expected 2 fields in line 3, saw 4."),
        ("a.parquet", b"no parquet", "a.parquet cannot be read as parquet: Parquet magic bytes not found"),
        ("a.doc", b"x", "a.doc is of no known kind: rename it to one of *.csv, *.tsv, *.json"),
        ("a.gz", b"x", "a.gz is of no known kind"),
    ],
    ids=[
        "empty", "blank", "empty-gz", "no-gz", "cut-gz", "checksum-gz", "scrambled-gz", "no-json", "cut-json", "ragged-csv",
        "no-parquet", "unknown-kind", "nothing-but-gz",
    ],
)  # fmt: skip
def test_files_that_cannot_be_read_are_told(tmp_path, name, content, words, streaming):
    (tmp_path / name).write_bytes(content)
    refuse(words, load, source=str(tmp_path / name), streaming=streaming)


def test_table_of_nothing_but_names_has_no_rows(tmp_path):
    (tmp_path / "a.csv").write_text("source,target\n")
    refuse('a.csv cannot be read as csv: Instruction "train" corresponds to no data.', load, source=str(tmp_path / "a.csv"))
    refuse("There are no train rows.", load, source=str(tmp_path / "a.csv"), streaming=True)
    Dataset.from_dict({"source": [], "target": []}).save_to_disk(tmp_path / "none")
    refuse("none cannot be read as a saved dataset: ", load, source=str(tmp_path / "none"))


def test_missing_files_and_kinds_that_do_not_mix_are_told(tmp_path):
    table, tabs = write_table(tmp_path / "a.csv", PAIRS), write_table(tmp_path / "a.tsv", PAIRS)
    refuse(f"There is no file {tmp_path / 'no.csv'}.", load, files={"train": [table, str(tmp_path / "no.csv")]})
    refuse("The files of a recipe must be of one kind, but these are csv and tsv.", load, files={"train": [table, tabs]})


@EITHER_WAY
def test_dataset_that_the_hub_does_not_have_is_told(streaming):
    words = "data.source='nobody/nothing' is no local file or folder, and as a dataset of the Hub it cannot be loaded: "
    refuse(words, load, source="nobody/nothing", streaming=streaming)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.csv.gz"])
@pytest.mark.parametrize("before", [0, 2_000_000], ids=["at-once", "far-in"])
def test_wrong_encoding_is_told_with_the_byte_and_its_place(tmp_path, name, before):
    start = b" " * before + ("source,target\ngr" if ".csv" in name else '{"source": "gr').encode()
    content = start + "ün".encode("latin-1") + (b",green\n" if ".csv" in name else b'", "target": "green"}\n')
    path = tmp_path / name
    path.write_bytes(gzip.compress(content, 1) if name.endswith("gz") else content)
    words = f"{name} is not utf-8 (byte 0xfc at place {len(start)}): set data.encoding to what it is, such as latin-1 or utf-16."
    refuse(words, load, source=str(path))
    refuse(words, load, source=str(path), streaming=True)
    if not before:
        assert load(source=str(path), encoding="latin-1") == {"train": [{"source": "grün", "target": "green"}]}


def test_text_that_ends_within_a_character_is_told(tmp_path):
    (tmp_path / "a.txt").write_bytes("rot\ngrü".encode()[:-1])
    refuse("a.txt is not utf-8 (byte 0xc3 at place 6)", load, TEXT, source=str(tmp_path / "a.txt"))


@EITHER_WAY
@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt"])
def test_files_are_read_in_the_encoding_they_are_in(tmp_path, name, encoding, streaming):
    texts = {"a.csv": "text\ngrün\n", "a.jsonl": '{"text": "grün"}\n', "a.txt": "grün\n"}
    (tmp_path / name).write_bytes(texts[name].encode(encoding))
    found = load(TEXT, source=str(tmp_path / name), encoding=encoding, streaming=streaming)
    assert found == {"train": [{"text": "grün"}]}


def test_encodings_that_cannot_be_read_are_told(tmp_path):
    path = write_table(tmp_path / "a.json", PAIRS)
    refuse("data.encoding='utf-9' is unknown: try utf-8, latin-1 or utf-16.", load, source=path, encoding="utf-9")
    words = "a.json is a JSON array, which must be utf-8: convert it, or write one object a line."
    refuse(words, load, source=path, encoding="latin-1")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"x"))
    words = "a.txt.gz is a packed text, which must be utf-8: convert or unpack it."
    refuse(words, load, TEXT, source=str(tmp_path / "a.txt.gz"), encoding="latin-1")


# Rows that cannot be used


def with_rows(tmp_path: Path, rows: list[dict], task: str = "seq2seq", **data):
    """The task of a recipe on these rows."""
    source = str(write_rows(tmp_path / "rows.jsonl", rows))
    return prepare(task_recipe(tmp_path, task, {"data": {"source": source, **data}}))


@pytest.mark.parametrize("target", ["", " \t", None], ids=["empty", "blank", "null"])
def test_pairs_with_one_side_are_refused_or_dropped_with_their_count(tmp_path, caplog, target):
    rows = [*ROWS["seq2seq"], {"source": "alone", "target": target}, {"source": None, "target": "x"}]
    words = "2 of 10 train rows have no source or no target (the first is row 9, without target): fill them in, or set "
    refuse(words, with_rows, tmp_path, rows)
    assert len(with_rows(tmp_path, rows, incomplete="drop").encoded["train"]) == 8
    assert "2 of 10 train rows have no source or no target and were left out." in caplog.messages


def test_rows_that_are_all_incomplete_are_refused_either_way(tmp_path):
    rows = [{"source": "alone", "target": ""}] * 3
    for incomplete in ("refuse", "drop"):
        refuse("3 of 3 train rows have no target: no row is left.", with_rows, tmp_path, rows, incomplete=incomplete)


@pytest.mark.parametrize("name", [name for name, kind in OBJECTIVES.items() if not kind.predictions_are_compared])
def test_blank_texts_are_no_mistake_where_nothing_is_compared(tmp_path, caplog, name):
    rows = [*rows_of(name), {"text": ""}]
    task = with_rows(tmp_path, rows, name)
    assert len(task.encoded["train"]) == len(rows) - 1
    assert "1 of 9 train rows have no text and were left out." in caplog.messages
    saved = train_tokenizers(task.recipe, tmp_path / "tokenizer")
    assert saved[tmp_path / "tokenizer"].get_vocab() == task.tokenizer.get_vocab()


@pytest.mark.parametrize(
    ("value", "role", "missing"),
    [
        (None, "text", True), ("", "text", True), ("\n ", "text", True), ("x", "text", False), (0, "label", False),
        (float("nan"), "label", True), ([], "tokens", True), ([], "label", False), (["x"], "tokens", False),
        ({"text": [], "answer_start": []}, "answers", True), ({"text": ["x"], "answer_start": [0]}, "answers", False),
    ],
    ids=[
        "none", "empty", "blank", "text", "zero", "nan", "no-tokens", "no-labels", "tokens", "no-answers", "answer-at-zero",
    ],
)  # fmt: skip
def test_what_counts_as_missing(value, role, missing):
    assert is_missing(value, role) is missing


def changed(task: str, **values) -> list[dict]:
    """The rows of a task, the last of them spoilt."""
    *others, last = rows_of(task)
    return [*others, {**last, **values}]


@pytest.mark.parametrize(
    ("task", "values", "data", "words"),
    [
        ("sequence_classification", {}, {"labels": ["in", "up"]}, "The label 'ut' is not among in, up: correct the row, or name"),
        ("sequence_classification", {"label": None}, {}, "1 of 8 train rows have no label (the first is row 8"),
        ("sequence_classification", {}, {"labels": ["in", "ut", "in"]}, "names a label twice: name each one once."),
        ("regression", {"label": float("nan")}, {}, "1 of 8 train rows have no label"),
        ("multi_label", {"label": ["blue"]}, {"labels": ["lamp", "red"]}, "The label 'blue' is not among lamp, red"),
        ("token_classification", {"tags": ["O"]}, {}, "A row has 5 tokens but 1 tags: they must come in pairs"),
        ("token_classification", {"tokens": [], "tags": []}, {}, "1 of 8 train rows have no tokens or no tags"),
        ("token_classification", {}, {"labels": ["O"]}, "The label 'B-X' is not among O"),
        (
            "question_answering", {"answers": {"text": ["is"], "answer_start": [1]}}, {},
            "The answer 'is' does not stand at character 1 of its context.",
        ),
        ("question_answering", {"answers": {"text": [], "answer_start": []}}, {}, "1 of 8 train rows have no answers"),
        ("question_answering", {"question": " "}, {}, "1 of 8 train rows have no question"),
    ],
    ids=[
        "label", "no-label", "twice", "nan", "several-labels", "tags", "no-tokens", "tag", "offset", "no-answer", "no-question",
    ],
)  # fmt: skip
def test_rows_that_no_objective_can_use_are_refused(tmp_path, task, values, data, words):
    refuse(words, with_rows, tmp_path, changed(task, **values), task, **data)


def test_regression_refuses_labels_that_are_no_numbers(tmp_path):
    rows = [{"text": "a", "label": "1.5"}, {"text": "b", "label": "much"}]
    refuse("The label 'much' is no number, which regression needs.", with_rows, tmp_path, rows, "regression")


def test_one_label_alone_tells_nothing_apart(tmp_path):
    rows = [{"text": "a", "label": "x"}] * 3
    words = "All training rows have the label 'x': there is nothing to tell apart."
    refuse(words, with_rows, tmp_path, rows, "sequence_classification")


@pytest.mark.parametrize(
    ("task", "labels", "names", "encoded"),
    [
        ("sequence_classification", ["b", "a", "b"], ["a", "b"], [1, 0, 1]),
        ("sequence_classification", [10, 9, 10], ["9", "10"], [1, 0, 1]),
        ("sequence_classification", [True, False, True], ["False", "True"], [1, 0, 1]),
        ("sequence_classification", [1.0, 0.0, 1.0], ["0.0", "1.0"], [1, 0, 1]),
        ("multi_label", [["b"], [], ["a", "b"]], ["a", "b"], [[0.0, 1.0], [0.0, 0.0], [1.0, 1.0]]),
        ("multi_label", [[7], [], [5, 7]], ["5", "7"], [[0.0, 1.0], [0.0, 0.0], [1.0, 1.0]]),
        ("regression", [3, -1, 2], None, [3.0, -1.0, 2.0]),
        ("regression", ["3", "-1.5", "2"], None, [3.0, -1.5, 2.0]),
    ],
    ids=["names", "numbers", "truth", "floats", "several", "several-numbers", "whole-numbers", "written-numbers"],
)
def test_labels_of_any_type_are_encoded_as_the_loss_wants_them(tmp_path, task, labels, names, encoded):
    prepared = with_rows(tmp_path, [{"text": "a", "label": label} for label in labels], task)
    assert prepared.objective.labels == names
    found = prepared.encoded["train"]["label"][:]
    assert found == encoded
    assert type(found[0]) is type(encoded[0])


def test_labels_of_a_dataset_that_knows_them_keep_their_order(tmp_path):
    rows = Dataset.from_dict({"text": ["x", "y"], "label": [1, 0]}).cast_column("label", ClassLabel(names=["yes", "no"]))
    rows.save_to_disk(tmp_path / "rows")
    task = prepare(task_recipe(tmp_path, "sequence_classification", {"data": {"source": str(tmp_path / "rows")}}))
    assert task.objective.labels == ["yes", "no"]
    assert task.encoded["train"]["label"][:] == [1, 0]


def test_labels_of_a_stream_must_be_named(tmp_path):
    rows = rows_of("sequence_classification")
    words = "The classes of a stream are not known before it is read: name them in data.labels."
    refuse(words, with_rows, tmp_path, rows, "sequence_classification", streaming=True)
    named = with_rows(tmp_path, rows, "sequence_classification", streaming=True, labels=["in", "ut"])
    assert named.objective.labels == ["in", "ut"]


# Length


def test_long_rows_are_cut_dropped_or_refused_with_their_count(tmp_path, caplog):
    rows = [*ROWS["seq2seq"][:3], {"source": "short", "target": "x"}]
    cut = with_rows(tmp_path, rows, max_length=9).encoded["train"]
    assert cut["length"][:] == [9, 9, 9, 6]
    assert {tokens[-1] for name in ("input_ids", "labels") for tokens in cut[name]} == {2}  # the end mark stays
    assert "3 of 4 train rows are longer than 9 tokens and were cut." in caplog.messages
    dropped = with_rows(tmp_path, rows, max_length=9, too_long="drop").encoded["train"]
    assert dropped["length"][:] == [6]
    assert "3 of 4 train rows are longer than 9 tokens and were left out." in caplog.messages
    words = "3 of 4 train rows are longer than 9 tokens (the first is row 1): set data.too_long=truncate or drop, or raise "
    refuse(words, with_rows, tmp_path, rows, max_length=9, too_long="refuse")
    refuse("No train row is left", with_rows, tmp_path, rows[:3], max_length=9, too_long="drop")


def test_rows_to_evaluate_on_are_cut_and_never_dropped(tmp_path):
    path = str(write_rows(tmp_path / "rows.jsonl", ROWS["seq2seq"]))
    short = str(write_rows(tmp_path / "short.jsonl", [{"source": "a", "target": "b"}]))
    data = {"files": {"train": short, "test": path}, "max_length": 9, "too_long": "refuse"}
    assert len(prepare(tiny_recipe(tmp_path, {"data": data})).encoded["test"]) == 8


def test_rows_are_as_long_as_the_model_allows_or_the_recipe_says(tmp_path):
    path = str(write_rows(tmp_path / "rows.jsonl", [{"source": "a" * 99, "target": "b"}]))
    learned = {"data": {"source": path}, "model.position_encoding": "learned"}
    assert prepare(tiny_recipe(tmp_path, learned)).encoded["train"]["length"][:] == [64]
    assert prepare(tiny_recipe(tmp_path, {"data": {"source": path, "max_length": 80}})).encoded["train"]["length"][:] == [80]
    words = "data.max_length=80 is more than model.max_position_embeddings=64, for which positions are learnt"
    refuse(words, prepare, tiny_recipe(tmp_path, {**learned, "data.max_length": 80}), error=RecipeError)


def test_rows_without_tokens_are_refused_or_dropped_with_their_count(tmp_path, caplog):
    encoded = Dataset.from_dict({"input_ids": [[5], [], [6]], "length": [1, 0, 1], "cut": [False] * 3})
    words = "1 of 3 train rows have no tokens (the first is row 2): fill them in, or set data.incomplete=drop."
    refuse(words, fitting, encoded, "train", "truncate", 9, "refuse")
    assert fitting(encoded, "train", "truncate", 9, "drop")["input_ids"][:] == [[5], [6]]
    assert "1 of 3 train rows have no tokens and were left out." in caplog.messages


def test_larger_vocabulary_than_the_texts_support_is_warned_about(tmp_path):
    with pytest.warns(UserWarning, match="The texts support .* tokens, not vocab_size=40: the smaller vocabulary is used"):
        with_rows(tmp_path, ROWS["seq2seq"])


# Streams


def test_incomplete_rows_of_a_stream_are_refused_by_number_or_dropped(tmp_path):
    whole, half = ROWS["seq2seq"][0], {"source": "alone", "target": None}
    strict = with_rows(tmp_path, [whole, half], streaming=True)
    words = "Row 42 of the stream is incomplete: fill it in, or set data.incomplete=drop."
    refuse(words, strict._encode_window, [whole, half], 40)
    lenient = with_rows(tmp_path, [whole, half], streaming=True, incomplete="drop")
    assert len(lenient._encode_window([half, whole, half], 0)) == 1
    assert len(lenient._encode_window([half, half], 0)) == 0


@pytest.mark.parametrize("name", TASKS)
def test_stream_is_encoded_as_its_rows_would_be(tmp_path, name):
    labels = {"sequence_classification": ["in", "ut"], "multi_label": ["lamp", "red"], "token_classification": ["B-X", "O"]}
    at_once = with_rows(tmp_path, rows_of(name), name)
    stream = with_rows(tmp_path, rows_of(name), name, streaming=True, labels=labels.get(name))
    assert list(stream._encode_window(rows_of(name), 0)) == list(at_once.encoded["train"])


# What was tokenised once


@pytest.fixture
def encoded_counts(monkeypatch):
    """How many rows were encoded, call by call."""
    counts = []

    def counting(rows, encode, key, cache):
        def counted(columns):
            counts.append(len(next(iter(columns.values()))))
            return encode(columns)

        return encode_rows(rows, counted, key, cache)

    monkeypatch.setattr(task_module, "encode_rows", counting)
    return counts


def rows_by_split(task) -> dict[str, list]:
    return {split: list(rows) for split, rows in task.encoded.items()}


@pytest.mark.parametrize("name", TASKS)
def test_second_run_reads_what_the_first_has_tokenised(tmp_path, encoded_counts, name):
    recipe = task_recipe(tmp_path, name, {"data.validation_fraction": 0.3})
    first = rows_by_split(prepare(recipe, tmp_path / "run"))
    assert sum(encoded_counts) == 8
    encoded_counts.clear()
    assert rows_by_split(prepare(recipe, tmp_path / "run")) == first  # which reads the tokenizer from the folder, too
    assert encoded_counts == []


@pytest.mark.parametrize(
    "overrides",
    [
        {"data.max_length": 9},
        {"tokenizer.lowercase": True},
        {"tokenizer.kind": "bpe", "tokenizer.vocab_size": 60},
        {"tokenizer.joint": False},
        {"objective.name": "causal_lm", "data.columns": {"text": "source"}, "model.num_encoder_layers": 0},
    ],
    ids=["max_length", "lowercase", "kind", "joint", "objective"],
)
def test_whatever_changes_tokens_is_tokenised_anew(tmp_path, encoded_counts, overrides):
    shared = {"data.stride": 1}  # which would follow a small max_length
    before = rows_by_split(prepare(task_recipe(tmp_path, "seq2seq", shared)))
    encoded_counts.clear()
    after = rows_by_split(prepare(task_recipe(tmp_path, "seq2seq", {**shared, **overrides})))
    assert sum(encoded_counts) == 8
    assert after != before


def test_changed_row_is_tokenised_anew(tmp_path, encoded_counts):
    before = prepare(task_recipe(tmp_path, "seq2seq"))
    encoded_counts.clear()
    after = with_rows(tmp_path, changed("seq2seq", target="THE LAMP"))
    assert sum(encoded_counts) == 8
    assert after.fingerprints != before.fingerprints


def test_without_a_cache_nothing_is_reused_or_left_behind(tmp_path):
    """Rows that were read from a file have a cache of their own, which must not be used either."""
    rows = load_rows(Data(source=write_table(tmp_path / "a.csv", NUMBERED)), PAIR)["train"]
    assert rows.cache_files
    files = set(tmp_path.rglob("*"))
    for number in (1, 2):
        encoded = encode_rows(rows, lambda columns, n=number: {"input_ids": [[n]] * len(columns["source"])}, "key", cache=None)
        assert encoded["input_ids"][:] == [[number]] * 10
    assert set(tmp_path.rglob("*")) == files


def test_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    prepare(task_recipe(tmp_path, "seq2seq"))
    assert len(list((tmp_path / "caches" / "cache").glob("*.arrow"))) == 1
    monkeypatch.delenv("GLASSFORMER_CACHE")
    assert default_cache() == tmp_path / "caches" / "datasets" / "glassformer"


# Fingerprints


def test_fingerprint_does_not_depend_on_how_rows_are_kept(tmp_path):
    many = [{"source": f"s{i} ü", "target": None if i % 7 == 0 else f"t{i}"} for i in range(2500)]
    rows = Dataset.from_list(many)
    backwards = list(range(2500))[::-1]
    rows.save_to_disk(tmp_path / "saved")
    sources = [write_table(tmp_path / "a.jsonl", many), write_table(tmp_path / "a.parquet", many), str(tmp_path / "saved")]
    others = [
        rows.select(backwards).select(backwards),
        concatenate_datasets([rows.select(range(7)), rows.select(range(7, 2500))]),
        concatenate_datasets([rows, rows]).select(range(2500, 5000)),
        *(load_rows(Data(source=source), {"source": True, "target": False})["train"] for source in sources),
    ]
    assert {fingerprint(other) for other in others} == {fingerprint(rows)}
    assert fingerprint(rows.to_iterable_dataset()) is None


@pytest.mark.parametrize(
    "other",
    [
        NUMBERED[:-1], NUMBERED[::-1], [*NUMBERED, NUMBERED[0]], [{**NUMBERED[0], "target": "t0 "}, *NUMBERED[1:]],
        [{"source": row["target"], "target": row["source"]} for row in NUMBERED],
        [{"source": row["source"], "text": row["target"]} for row in NUMBERED],
        [{**NUMBERED[0], "target": None}, *NUMBERED[1:]],
    ],
    ids=["fewer", "other-order", "more", "space", "swapped", "name", "null"],
)  # fmt: skip
def test_fingerprint_changes_with_the_content(other):
    assert fingerprint(Dataset.from_list(other)) != fingerprint(Dataset.from_list(NUMBERED))


def test_fingerprint_knows_lists_and_where_they_end():
    nested = [{"tokens": ["a", "b"], "tags": [1, 2]}, {"tokens": ["c"], "tags": [3]}]
    moved = [{"tokens": ["a"], "tags": [1]}, {"tokens": ["b", "c"], "tags": [2, 3]}]
    rows = Dataset.from_list(nested * 20)
    assert fingerprint(rows.select(range(4, 10))) == fingerprint(Dataset.from_list(nested * 3))
    assert fingerprint(Dataset.from_list(nested)) != fingerprint(Dataset.from_list(moved))


def test_the_inside_of_a_column_can_play_a_role(tmp_path):
    rows = [{"translation": {"en": f"one {i}", "de": f"eins {i}"}} for i in range(3)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    columns = {"source": "translation.en", "target": "translation.de"}
    for streaming in (False, True):
        data = Data(files={"train": str(path)}, columns=columns, streaming=streaming)
        assert next(iter(load_rows(data, {"source": True, "target": True})["train"])) == {"source": "one 0", "target": "eins 0"}


def test_a_split_can_be_left_out():
    splits = load_rows(Data(source="builtin:copy", size=5, splits={"test": None}), {"source": True, "target": True})
    assert set(splits) == {"train", "validation"}


def test_numbers_of_classes_whose_names_are_digits_stay_what_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache"))
    features = Features({"text": Value("string"), "label": ClassLabel(names=["1", "2", "3"])})
    rows = Dataset.from_dict({"text": ["a b", "b c", "c d"], "label": [0, 1, 2]}, features=features)
    rows.save_to_disk(tmp_path / "saved")
    recipe = tiny_recipe(
        tmp_path / "run",
        {"data": {"source": str(tmp_path / "saved")}, "objective.name": "sequence_classification", "model.num_decoder_layers": 0,
         "evaluation": {}},
    )  # fmt: skip
    task = prepare(recipe)
    assert task.encoded["train"]["label"][:] == [0, 1, 2] and task.config.id2label == {0: "1", 1: "2", 2: "3"}


# Columns


VALUES = {
    "ids": [[7, 8, 9], [], [1], [2, 3], [4, 5, 6, 7], [0]],
    "label": [0, 3, 1, 2, 1, 0],
    "score": [0.5, -1.0, 2.0, 0.0, 1.5, 3.0],
    "classes": [[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]],
    "text": ["a", "", "c", "d e", "f", "g"],
}
ARRANGED = {
    "one chunk": lambda rows: rows,
    "several chunks": lambda rows: concatenate_datasets([rows.select(range(*part)) for part in ((2,), (2, 3), (3, 6))]),
    "a part of a chunk": lambda rows: rows.select(range(2, 6)),
    "another order": lambda rows: rows.select([5, 0, 3, 3, 1]),
    "a file": lambda rows: rows.map(lambda row: row, cache_file_name=str(Path("rows.arrow").absolute()), writer_batch_size=2),
}


@pytest.mark.parametrize("arranged", ARRANGED)
@pytest.mark.parametrize("name", VALUES)
def test_a_column_has_the_values_of_its_rows(name, arranged, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = ARRANGED[arranged](Dataset.from_dict(VALUES))
    wanted = [3, 0, 2, 3]
    for column in (Column(rows, name), pickle.loads(pickle.dumps(Column(rows, name)))):
        found = [value.tolist() if name == "ids" else value for value in column.take(wanted)]
        assert found == rows[wanted][name] and all(type(one) is type(VALUES[name][0]) for one in found)
        assert list(column[1]) == rows[1][name] if name == "ids" else column[1] == rows[1][name]
