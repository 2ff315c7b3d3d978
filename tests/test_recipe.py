"""Recipes: read as they were meant, or refused before anything is loaded, with the name that was meant."""

import copy
import dataclasses
import typing
from pathlib import Path
from typing import Any

import pytest
import yaml

from glassformer.training.recipe import (
    FRACTIONS,
    NOT_NEGATIVE,
    POSITIVE,
    RECIPES,
    Recipe,
    RecipeError,
    apply_override,
    expand_path,
    find_recipe,
    get_key,
    load_recipe,
    parse_recipe,
    recipe_names,
)


MINIMAL = {"name": "small", "data": {"source": "builtin:copy"}, "batching": {"tokens": 100}, "training": {"steps": 5}}
SECTIONS = {name: kind for name, kind in typing.get_type_hints(Recipe).items() if dataclasses.is_dataclass(kind)}


def changed(*overrides: str) -> Recipe:
    content = copy.deepcopy(MINIMAL)
    for override in overrides:
        apply_override(content, override)
    return parse_recipe(content)


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def refused():
    """Asserts that something is refused, in one sentence that has these words."""

    def check(words: str, act, *arguments):
        with pytest.raises(RecipeError) as caught:
            act(*arguments)
        message = str(caught.value)
        assert words in message
        assert "\n" not in message
        assert message.endswith((".", "?"))

    return check


# Names and files


def test_recipe_of_the_package_is_found_by_its_name():
    assert find_recipe("dates") == RECIPES / "dates.yaml"
    assert "dates" in recipe_names()
    assert load_recipe("dates").name == "dates"


def test_file_goes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, yaml.safe_dump({**MINIMAL, "name": "other"}), "dates")
    assert load_recipe("dates").name == "other"


def test_name_is_that_of_the_file_unless_the_file_says_another(tmp_path):
    unnamed = {key: value for key, value in MINIMAL.items() if key != "name"}
    assert load_recipe(write(tmp_path, yaml.safe_dump(unnamed))).name == "mine"
    assert load_recipe(str(write(tmp_path, yaml.safe_dump(MINIMAL)))).name == "small"


def test_runs_are_kept_below_runs_or_where_the_recipe_says(monkeypatch):
    assert changed().folder == Path("runs/small")
    assert changed("output=/somewhere/else").folder == Path("/somewhere/else")
    monkeypatch.setenv("GLASS_PLACE", "/scratch")
    assert changed("output=$GLASS_PLACE/run").folder == Path("/scratch/run")


def test_missing_recipe_is_named_with_the_nearest_there_is(tmp_path, refused, monkeypatch):
    refused("There is no recipe 'date', neither as a file nor by name: did you mean 'dates'?", load_recipe, "date")
    refused("There is no recipe 'xyz.yaml', neither as a file nor by name: choose one of", load_recipe, "xyz.yaml")
    refused("is a folder: give the YAML file of a recipe.", load_recipe, tmp_path)
    (tmp_path / "copy").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_recipe("copy").name == "copy"  # whose run may have the same name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no sections: a recipe is made of data:, model:, training: and the like."),
        ("# nothing but a remark\n", "has no sections"),
        ("just words", "has no sections"),
        ("- data\n- model\n", "has no sections"),
        ("data: [1, 2\n", "cannot be read as YAML: while parsing a flow sequence at line 1, column 7"),
        ("data: a: b\n", "cannot be read as YAML: mapping values are not allowed here at line 1, column 8"),
        ("\tdata: 1\n", "cannot be read as YAML: while scanning for the next token found character '\\t'"),
        ("seed: 1\n---\nseed: 2\n", "cannot be read as YAML: expected a single document"),
        ("seed: 1\ndata:\n  size: 1\n  size: 2\n", "cannot be read as YAML: the key 'size' stands twice at line 4, column 3"),
        ("data: !!python/object/apply:os.getcwd []\n", "cannot be read as YAML: could not determine a constructor"),
    ],
    ids=["empty", "remark", "scalar", "list", "open-list", "two-colons", "tab", "two-documents", "twice", "python-object"],
)
def test_ill_formed_files_are_refused(tmp_path, refused, text, words):
    refused(words, load_recipe, write(tmp_path, text))


def test_files_that_cannot_be_read_are_refused(tmp_path, monkeypatch, refused):
    path = tmp_path / "latin.yaml"
    path.write_bytes("description: für\n".encode("latin-1"))
    refused("cannot be read as YAML: 'utf-8' codec can't decode byte 0xfc", load_recipe, path)

    def forbid(self, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", forbid)
    refused("cannot be read (Permission denied): change its permissions.", load_recipe, path)


# Overrides


VALUES: dict[str, Any] = {
    "training.steps=7": 7,
    "training.steps=1e3": 1000,
    "training.steps=2.5E+2": 250,
    "training.epochs=3": 3.0,
    "optimizer.lr=1e-3": 1e-3,
    "optimizer.lr=.5": 0.5,
    "optimizer.clip_norm=null": None,
    "optimizer.betas=[0.9, 0.95]": [0.9, 0.95],
    "evaluation.metrics=[bleu, chrf]": ["bleu", "chrf"],
    "data.streaming=false": False,
    "data.columns={source: de, target: en}": {"source": "de", "target": "en"},
    "data.columns.source=de": "de",
    "data.splits.validation=train[90%:]": "train[90%:]",
    "evaluation.generation.num_beams=4": 4,
    "evaluation.generation.length_penalty=5e-1": 0.5,
    "model.norm_eps=1e-5": 1e-5,
    "description=a=b=c": "a=b=c",
    "description='5'": "5",
    "seed=-0": 0,
}


@pytest.mark.parametrize("override", VALUES)
def test_overrides_reach_their_field_as_what_they_look_like(override):
    found = get_key(changed(override), override.partition("=")[0])
    assert found == VALUES[override]
    assert type(found) is type(VALUES[override])


def test_overrides_go_before_the_file_and_the_last_one_before_others(tmp_path):
    path = write(tmp_path, yaml.safe_dump({**MINIMAL, "model": None}))
    recipe = load_recipe(path, ["training.steps=6", "training.steps=7", "model.d_model=32", "name=new"])
    assert (recipe.training.steps, recipe.model, recipe.name) == (7, {"d_model": 32}, "new")
    assert load_recipe(path).training.steps == 5


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.steps", "'training.steps' is not of the form section.key=value."),
        ("=5", "'=5' is not of the form section.key=value."),
        ("training.steps=[1", "The value of 'training.steps=[1' is not YAML: put quotes around it."),
        ("name.first=x", "'name.first=x' goes into 'name', which holds no further keys."),
        ("training.steps.more=1", "goes into 'steps', which holds no further keys."),
    ],
    ids=["no-value", "no-key", "no-yaml", "into-a-text", "into-a-number"],
)
def test_overrides_that_make_no_sense_are_refused(refused, override, words):
    refused(words, changed, override)


# Names and types


@pytest.mark.parametrize("section", SECTIONS)
def test_unknown_key_of_a_section_is_told_the_nearest(refused, section):
    for field in dataclasses.fields(SECTIONS[section]):
        words = f"There is no key '{field.name}s' in the section '{section}': did you mean '{field.name}'?"
        refused(words, changed, f"{section}.{field.name}s=1")
    first = dataclasses.fields(SECTIONS[section])[0].name
    refused(f"There is no key '~' in the section '{section}': choose one of {first}, ", changed, f"{section}.~=1")


def test_unknown_key_of_the_recipe_is_told_the_nearest(refused):
    refused("There is no key 'trainng' in the recipe: did you mean 'training'?", changed, "trainng.steps=1")
    refused("There is no key 5 in the recipe: choose one of name, description", parse_recipe, {**MINIMAL, 5: 6})


@pytest.mark.parametrize("section", SECTIONS)
def test_section_is_no_single_value(refused, section):
    refused(f"{section}=5 is a section: write its keys below it, or {section}.KEY=VALUE.", changed, f"{section}=5")
    refused(f"{section}=['a'] is a section", changed, f"{section}=[a]")


def test_section_may_be_left_empty():
    content = {**MINIMAL, "model": None, "optimizer": None, "tokenizer": {}}
    assert parse_recipe(content) == parse_recipe(MINIMAL)


WRONG_TYPES = {
    "training.steps=many": "training.steps='many' is of type str: give a value of type int.",
    "training.steps=1.5": "training.steps=1.5 is of type float: give a value of type int.",
    "training.steps='5'": "training.steps='5' is of type str: give a value of type int.",
    "seed=true": "seed=True is of type bool: give a value of type int.",
    "seed=null": "seed=None is of type NoneType: give a value of type int.",
    "optimizer.lr=fast": "optimizer.lr='fast' is of type str: give a value of type float.",
    "optimizer.lr=true": "optimizer.lr=True is of type bool: give a value of type float.",
    "optimizer.lr=.nan": "optimizer.lr=nan is not finite: give a number.",
    "training.minutes=.inf": "training.minutes=inf is not finite: give a number.",
    "optimizer.betas=0.9": "optimizer.betas=0.9 is of type float: give a value of type list.",
    "optimizer.betas=[0.9, high]": "optimizer.betas[1]='high' is of type str: give a value of type float.",
    "data.labels=[yes, no]": "data.labels[0]=True is of type bool: give a value of type str, in quotes.",
    "name=5": "name=5 is of type int: give a value of type str, in quotes.",
    "data.streaming=1": "data.streaming=1 is of type int: give a value of type bool.",
    "data.files.train=5": "data.files.train=5 is of type int: give a value of type list.",
    "data.columns=[a]": "data.columns=['a'] is of type list: give a value of type dict.",
    "model=tiny": "model='tiny' is of type str: give a value of type dict.",
    "data.columns.source={a: b}": "data.columns.source={'a': 'b'} is of type dict: give a value of type list.",
    "objective.name=seq2sec": "objective.name='seq2sec' is unknown: did you mean 'seq2seq'?",
    "optimizer.name=5": "optimizer.name=5 is unknown: choose one of adamw, adafactor, muon, lamb, sophia.",
    "training.precision=bf17": "training.precision='bf17' is unknown: did you mean 'bf16'?",
}


@pytest.mark.parametrize("override", WRONG_TYPES)
def test_wrong_types_and_choices_are_refused_with_the_key(refused, override):
    refused(WRONG_TYPES[override], changed, override)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.d_modle=64", "There is no key 'd_modle' in the section 'model': did you mean 'd_model'?"),
        ("model.presets=tiny", "There is no key 'presets' in the section 'model': did you mean 'preset'?"),
        ("model.d_model=wide", "model: d_model='wide' is of type str: pass a value of type int."),
        ("model.hidden_size=wide", "model: d_model='wide' is of type str"),
        ("model.d_model=30", "model: d_model=30 is not divisible by num_heads=8"),
        ("model.dropout=1", "model: dropout=1 is not a probability"),
        ("model.norm=batchnorm", "model: norm='batchnorm' is unknown: choose one of layernorm, rmsnorm, rmsnorm1p."),
        ("model.preset=tinny", "model: There is no preset 'tinny': choose one of"),
        ("model.preset=[tiny]", "model: There is no preset \"['tiny']\": choose one of"),
    ],
    ids=["name", "preset-name", "type", "type-by-other-name", "sizes", "probability", "choice", "preset", "preset-type"],
)
def test_model_section_is_checked_before_anything_is_loaded(refused, override, words):
    refused(words, changed, override)


def test_model_section_takes_either_name_of_a_field_and_small_vocabularies():
    changed("model.hidden_size=64", "model.num_attention_heads=4", "model.vocab_size=3", "model.preset=bert-base")
    changed("model.path=elsewhere", "model.d_model=wide")  # what fits there is not known yet


# Values that must fit each other


@pytest.mark.parametrize("key", POSITIVE)
@pytest.mark.parametrize("value", [0, -2])
def test_sizes_are_positive(refused, key, value):
    refused("must be positive.", changed, f"{key}={value}")


@pytest.mark.parametrize("key", NOT_NEGATIVE)
def test_counts_that_may_be_zero_are_not_negative(refused, key):
    assert get_key(changed(f"{key}=0"), key) == 0
    refused("must not be negative.", changed, f"{key}=-1")


@pytest.mark.parametrize("key", FRACTIONS)
def test_shares_are_less_than_one(refused, key):
    assert get_key(changed(f"{key}=0.25"), key) == 0.25
    refused("is not a share: choose a value in [0, 1).", changed, f"{key}=1")


def test_every_number_of_a_recipe_has_its_range_checked():
    numbers = [
        f"{section}.{field.name}"
        for section, kind in SECTIONS.items()
        for field in dataclasses.fields(kind)
        if {int, float} & {field.type, *typing.get_args(field.type)}
    ]
    assert set(numbers) - {*POSITIVE, *NOT_NEGATIVE, *FRACTIONS} == {"optimizer.betas"}  # for which see below


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.source=null"], "data.source=None is of type NoneType"),
        (["data.source=''"], "A recipe names its data once: set data.source, or data.files with one file or list of files"),
        (["data.files.train=a.csv"], "A recipe names its data once"),
        (["data.streaming=true"], "data.streaming=true has no use for a builtin corpus, which is made in memory: drop it."),
        (["batching.examples=8"], "The size of a batch is given once: set batching.tokens or batching.examples."),
        (["batching.tokens=null"], "The size of a batch is given once"),
        (["batching.packing=true"], "batching.packing fills rows for causal_lm and masked_lm, not for seq2seq: drop it."),
        (["training.steps=null"], "The run has no end: set training.steps, training.epochs or training.minutes."),
        (["data={source: a.csv, streaming: true}", "training={epochs: 1}"], "A stream has no known length: set training.steps."),
        (
            ["data={source: a.csv, streaming: true, validation_fraction: 0.1}"],
            "No validation rows can be cut from a stream: name a validation split or file.",
        ),
        (["optimizer.lr=1e3"], "optimizer.lr=1000 would throw the weights away in one update: try 1e-3 (noam: 1)."),
        (["optimizer.betas=[0.9]"], "optimizer.betas=[0.9] must be two numbers in [0, 1)."),
        (["optimizer.betas=[0.9, 1]"], "optimizer.betas=[0.9, 1.0] must be two numbers in [0, 1)."),
        (
            ["checkpoints.final=average", "checkpoints.keep=4"],
            "checkpoints.average=5 checkpoints are to be averaged, but checkpoints.keep=4: keep at least as many.",
        ),
        (["name=a/b"], "name='a/b' does not make a folder below runs/: use letters, digits, dots and dashes."),
        (["name=..", "output=null"], "name='..' does not make a folder below runs/"),
        (["name=''"], "name='' does not make a folder below runs/"),
    ],
    ids=[
        "no-source", "empty-source", "two-sources", "builtin-stream", "two-sizes", "no-size", "packing", "no-end", "stream-end",
        "stream-cut", "lr", "one-beta", "beta-range", "average", "name", "dots", "no-name",
    ],
)  # fmt: skip
def test_values_that_do_not_fit_each_other_are_refused(refused, overrides, words):
    refused(words, changed, *overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["batching.packing=true", "objective.name=causal_lm"],
        ["training={epochs: 0.5}"],
        ["training={minutes: 2}"],
        ["optimizer.lr=10"],
        ["checkpoints={final: average, keep: 5}"],
        ["name='two words'", "output=there"],
        ["data={source: '', files: {train: a.csv, test: [b.csv, c.csv]}}"],
    ],
    ids=["packing", "epochs", "minutes", "lr", "average", "name", "files"],
)
def test_values_that_do_fit_each_other_are_taken(overrides):
    changed(*overrides)


# Writing


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_of_the_package_parses_and_says_what_it_is(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.description
    assert parse_recipe(yaml.safe_load(recipe.to_yaml())) == recipe


def test_written_recipe_reads_back_as_the_same():
    recipe = changed(
        "name='1e5'", "output=null", "optimizer.eps=1e-9", "model={norm_eps: 1e-6, preset: tiny}", "data.labels=['no', '1']",
        "description='a: b # ü\n\"c\"'", "evaluation.generation={num_beams: 2, early_stopping: never}",
    )  # fmt: skip
    assert recipe.data.labels == ["no", "1"]
    assert parse_recipe(yaml.safe_load(recipe.to_yaml())) == recipe
    assert set(yaml.safe_load(recipe.to_yaml())) == {field.name for field in dataclasses.fields(Recipe)}


def test_parsing_leaves_the_content_alone_and_shares_nothing_with_it():
    content = copy.deepcopy(MINIMAL) | {"model": {"d_model": 64}}
    recipe = parse_recipe(content)
    recipe.model["d_model"] = 32
    recipe.data.columns["source"] = "x"
    assert content == {**MINIMAL, "model": {"d_model": 64}}
    assert parse_recipe(content).data.columns == {}


# Environment


def test_environment_variables_and_the_home_are_replaced_in_paths(monkeypatch):
    monkeypatch.setenv("GLASS_DATA", "/big/disk")
    monkeypatch.setenv("HOME", "/home/reader")
    assert expand_path("$GLASS_DATA/a.csv") == expand_path("${GLASS_DATA}/a.csv") == "/big/disk/a.csv"
    assert expand_path("~/a.csv") == "/home/reader/a.csv"
    assert expand_path("user/dataset") == "user/dataset"


@pytest.mark.parametrize("path", ["$GLASS_NOWHERE/a.csv", "${GLASS_NOWHERE}/a.csv", "a/$GLASS_NOWHERE"])
def test_environment_variable_that_is_not_set_is_named(monkeypatch, refused, path):
    monkeypatch.delenv("GLASS_NOWHERE", raising=False)
    refused(f"{path} needs the environment variable GLASS_NOWHERE, which is not set.", expand_path, path)
