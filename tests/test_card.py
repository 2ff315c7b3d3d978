"""Model cards: valid for the Hub, true to the run, and careful with what people have written into them."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, ModelCardData
from models import tiny_language_model
from recipes import TASKS, trained_runs
from tokenizer import word_tokenizer

from glassformer.hub_card import card, metadata
from glassformer.hub_card.again import public, recipe_text, training_command
from glassformer.hub_card.card import CardError, write_card
from glassformer.hub_card.facts import TASKS as PIPELINES
from glassformer.hub_card.facts import read_facts
from glassformer.hub_card.files import FolderError
from glassformer.training.recipe import load_recipe, parse_recipe, scaled, starting_from


pytestmark = pytest.mark.filterwarnings("ignore:The texts support")
SHORT = {
    "training.steps": 2,
    "schedule.warmup_steps": 1,
    "checkpoints.every": 2,
    "data.validation_fraction": 0.25,
    "evaluation": {"every": 2, "generation": {"max_new_tokens": 4}},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    with trained_runs(tmp_path_factory.mktemp("cards"), SHORT) as folder_of:
        yield folder_of


@pytest.fixture
def copied(runs, tmp_path):
    """A run whose card may be spoilt."""

    def copy(task: str = "copy") -> Path:
        return Path(shutil.copytree(runs(task), tmp_path / task, ignore=shutil.ignore_patterns("checkpoints")))

    return copy


def text_of(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def sections_of(text: str) -> dict[str, str]:
    found = re.findall(r"<!-- glassformer:(\w+) -->\n(.*?)<!-- /glassformer:\1 -->", text, re.DOTALL)
    return dict(found)


# What it says


def test_metadata_is_what_the_hub_reads(copied):
    folder = copied()
    data = ModelCard.load(write_card(folder)).data
    assert isinstance(data, ModelCardData)
    assert (data.license, data.library_name, data.pipeline_tag) == ("apache-2.0", "transformers", "text2text-generation")
    assert data.tags == ["glassformer", "seq2seq"] and data.model_name == "tiny"
    assert [set(example) for example in data.widget] == [{"text"}] * 3
    assert yaml.safe_load(data.to_yaml()) == yaml.safe_load(text_of(folder).split("---\n")[1])


def test_results_come_back_as_they_are_in_the_run(copied):
    folder = copied()
    measured = json.loads((folder / "metrics.json").read_text())
    results = ModelCard.load(write_card(folder)).data.eval_results
    found = {split: {one.metric_type: one.metric_value for one in results if one.dataset_split == split} for split in measured}
    assert found == measured
    assert all(one.task_type == "text2text-generation" and one.metric_args["seed"] == 0 for one in results)
    assert results[0].metric_args["generation"] == {"max_new_tokens": 6}


def test_a_result_is_told_with_its_protocol_and_figures_that_are_no_numbers_are_not_told(copied):
    folder = copied()
    run = json.loads((folder / "run.json").read_text())
    run["recipe"]["reference"] |= {"result": "test.exact_match", "protocol": "Letter by letter."}
    (folder / "run.json").write_text(json.dumps(run))
    measured = {"test": {"exact_match": 0.5, "bleu": 12.3, "bleu_signature": "case:mixed", "perplexity": float("nan")}}
    (folder / "metrics.json").write_text(json.dumps(measured))
    results = {one.metric_type: one for one in ModelCard.load(write_card(folder)).data.eval_results}
    assert set(results) == {"exact_match", "bleu"}
    assert results["exact_match"].metric_args["protocol"] == "Letter by letter." and "protocol" not in results["bleu"].metric_args
    assert results["bleu"].metric_args["signature"] == "case:mixed"
    section = sections_of(text_of(folder))["results"]
    assert "Letter by letter." in section and "case:mixed" in section and "| test | bleu | 12.30 |" in section


def numbers(text: str) -> set[float]:
    return {float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?", text)}


def test_no_number_is_told_that_is_not_in_the_run(copied):
    folder = copied()
    write_card(folder)
    facts, made = read_facts(folder), sections_of(text_of(folder))
    known = numbers(" ".join(file.read_text() for file in folder.glob("*.json"))) | {float(v) for v in facts.parameters.values()}
    known |= {round(number, digits) for number in known for digits in (1, 2, 4)} | {float(facts.run["parameters"])}
    for name in ("about", "limits", "results", "training", "architecture"):
        told = re.sub(r"https?://\S+|step-0*|!\[.*", "", made[name])
        assert numbers(told) <= known, name
    assert sum(facts.parameters.values()) == facts.run["parameters"]


@pytest.mark.parametrize("shape", ["encoder-decoder", "encoder", "decoder"])
@pytest.mark.parametrize("positions", ["learned", "relative"])
def test_parameters_are_counted_in_the_parts_that_they_belong_to(tmp_path, shape, positions):
    model = tiny_language_model(shape, position_encoding=positions)
    model.save_pretrained(tmp_path)
    counted = read_facts(tmp_path).parameters
    assert sum(counted.values()) == model.num_parameters()
    base = model.model
    stacks = {"encoder": getattr(base, "encoder", None), "decoder": getattr(base, "decoder", None)}
    for side, stack in stacks.items():
        layers = 0 if stack is None else sum(p.numel() for part in (stack.layers, stack.norm) for p in part.parameters())
        assert counted.get(side, 0) == layers


def test_the_command_makes_the_same_run_again(copied):
    """Of a recipe that comes with the package, whatever was changed in it."""
    folder = copied()
    run = json.loads((folder / "run.json").read_text())
    run["recipe"]["name"] = "copy"
    for positions in ("alibi", None):
        if positions is None:
            del run["recipe"]["model"]["position_encoding"]  # which the package's recipe has: no override takes it away
        else:
            run["recipe"]["model"]["position_encoding"] = positions
        (folder / "run.json").write_text(json.dumps(run))
        write_card(folder)
        training = sections_of(text_of(folder))["training"]
        [command] = re.findall(r"The command: `glassformer train (.*)`", training)
        assert ("<details>" in training) == (positions is None) == (command == "copy.yaml") and "output" not in command
        if positions:
            again = load_recipe("copy", shlex.split(command)[1:]).to_dict()
            assert again["training"]["steps"] == 6 and public(again) == public(run["recipe"])


@pytest.mark.parametrize("changes", [[], ["training.steps=777", "data.size=301"]], ids=["as it is", "changed"])
def test_the_command_of_a_part_of_a_recipe_makes_the_same_part_again(changes):
    """A run notes its numbers after `scale`: they are not scaled twice."""
    run = scaled(load_recipe("copy", ["scale=0.03", *changes])).to_dict()
    command = training_command(run)
    again = scaled(load_recipe("copy", shlex.split(command)[3:]))
    assert public(again.to_dict()) == public(run) and "scale=0.03" in command
    mine = {**run, "name": "mine"}
    again = scaled(parse_recipe({"name": "mine", **yaml.safe_load(recipe_text(mine))}))
    assert public(again.to_dict()) == public(mine)


def test_what_came_first_is_named_and_not_where_it_lay():
    first = starting_from(Path("/home/ada/runs/copy-pretraining"), load_recipe("copy", ["pretraining=reverse"]))
    assert training_command(first.to_dict()) == "glassformer train copy pretraining=reverse"


def test_a_part_of_the_rows_is_not_called_all_of_them(copied):
    folder = copied()
    write_card(folder)
    assert "All rows of a split" in text_of(folder) and "; again with `glassformer evaluate" in text_of(folder)
    run = json.loads((folder / "run.json").read_text())
    run["recipe"]["scale"] = 0.5
    (folder / "run.json").write_text(json.dumps(run))
    write_card(folder)
    assert "The first rows (a part of 0.5) of a split" in text_of(folder) and "; on all rows with `glassformer" in text_of(folder)


def test_another_recipe_is_told_whole_and_without_paths(copied):
    folder = copied("sequence_classification")
    write_card(folder)
    training = sections_of(text_of(folder))["training"]
    written = yaml.safe_load(re.search(r"```yaml\n(.*?)```", training, re.DOTALL)[1])
    assert written["training"] == {"steps": 2} and written["data"]["source"] == "sequence_classification.jsonl"
    assert "local files: `sequence_classification.jsonl`" in training
    run = json.loads((folder / "run.json").read_text())
    assert str(Path(run["recipe"]["output"]).parent) not in text_of(folder)


def test_a_model_without_a_run_has_a_card_without_results(tmp_path):
    tiny_language_model("decoder").save_pretrained(tmp_path / "saved")
    found = ModelCard.load(write_card(tmp_path / "saved"))
    assert found.data.pipeline_tag == "text-generation" and found.data.eval_results is None
    made = sections_of(found.content)
    assert not any(made[name].strip() for name in ("results", "training", "samples"))
    assert "saved" in made["about"] and "AutoModelForCausalLM" in made["usage"]


def test_a_folder_without_a_model_of_ours_has_no_card(tmp_path):
    """What `glassformer export` makes, and a config alone."""
    tiny_language_model("decoder").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "model.safetensors").unlink()
    changes = {"has no weights that a card could tell of": {}, "names no code for its model": {"architectures": None}}
    changes |= {"`hf upload USER/NAME .*` pushes it as it is": {"model_type": "llama"}, "names no code": {"auto_map": {}}}
    for words, changed in changes.items():
        (tmp_path / "config.json").write_text(json.dumps({**config, **changed}))
        with pytest.raises(FolderError, match=words):
            write_card(tmp_path)
    assert not (tmp_path / "README.md").exists()


@pytest.mark.parametrize("task", ["copy", "sequence_classification"])
def test_the_lines_that_load_it_work_as_pasted(copied, task, capsys):
    folder = copied(task)
    write_card(folder, repo=str(folder))
    blocks = re.findall(r"```python\n(.*?)```", text_of(folder), re.DOTALL)
    assert len(blocks) == (2 if task == "copy" else 3) and all(len(block.splitlines()) <= 3 for block in blocks)
    for block in blocks:
        exec(block, {})
    assert ("generated_text" if task == "copy" else "score") in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_every_objective_has_a_valid_card(copied, task):
    folder = copied(task)
    found = ModelCard.load(write_card(folder, samples=True))
    assert found.data.pipeline_tag == PIPELINES[read_facts(folder).head]
    assert found.data.eval_results and (folder / "attention.png").exists()
    assert ("Generation:" in found.text) == (found.data.pipeline_tag == "text2text-generation")
    before = found.content
    assert ModelCard.load(write_card(folder)).content == before
    write_card(folder, repo=str(folder))
    for block in re.findall(r"```python\n(.*?)```", text_of(folder), re.DOTALL):
        exec(block, {})


# Whose rows are shown


def test_rows_of_foreign_data_are_shown_when_asked_for_and_from_then_on(copied):
    folder = copied("sequence_classification")
    rows = [json.loads(line)["text"] for line in (folder / "predictions.jsonl").read_text().splitlines()]
    write_card(folder)
    assert not any(row in text_of(folder) for row in rows) and not (folder / "attention.png").exists()
    assert yaml.safe_load(text_of(folder).split("---\n")[1])["license"] == "unknown"
    write_card(folder, samples=True)
    shown = text_of(folder)
    assert rows[0] in sections_of(shown)["samples"] and (folder / "attention.png").exists()
    assert ModelCard(shown).data.widget[0] == {"text": rows[0]}
    write_card(folder)
    assert text_of(folder) == shown


def test_a_text_of_ones_own_is_drawn_without_showing_rows(copied):
    folder = copied("sequence_classification")
    write_card(folder, example="the red pane")
    assert (folder / "attention.png").stat().st_size > 5000
    assert "![attention](attention.png)" in text_of(folder) and "| asked |" not in text_of(folder)
    assert ModelCard(text_of(folder)).data.widget == [{"text": "the red pane"}]


def test_a_model_of_two_vocabularies_is_drawn_with_both(tmp_path):
    tiny_language_model("encoder-decoder", vocab_size=len(word_tokenizer())).save_pretrained(tmp_path)
    for folder in (tmp_path, tmp_path / "target_tokenizer"):
        word_tokenizer().save_pretrained(folder)
    write_card(tmp_path, example="the lamp")
    assert "![attention](attention.png)" in text_of(tmp_path) and (tmp_path / "attention.png").stat().st_size > 5000


# What people have written


def test_refreshing_changes_nothing(copied):
    folder = copied()
    write_card(folder, repo="ada/copy")
    before, times = text_of(folder), {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    write_card(folder)
    assert text_of(folder) == before and 'from_pretrained("ada/copy"' in before
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == times


def test_names_and_tables_in_what_people_have_written_are_theirs(copied):
    folder = copied("sequence_classification")
    path = write_card(folder, repo="ada/mine")
    own = 'As in `AutoModel.from_pretrained("google/bert")`:\n\n| asked | by whom |\n| --- | --- |\n'
    path.write_text(text_of(folder).replace("<!-- glassformer:about -->", f"{own}\n<!-- glassformer:about -->"))
    before = text_of(folder)
    write_card(folder)
    assert text_of(folder) == before and 'from_pretrained("ada/mine"' in before and own in before


def test_a_line_anywhere_outside_the_sections_survives(copied):
    folder = copied()
    write_card(folder)
    _, body = card.split_front(text_of(folder), folder)
    made = card.make_sections(read_facts(folder), "ada/copy", True)
    stale = card.fill(body, dict.fromkeys(made, "old"), folder)
    lines, tried, inside = stale.split("\n"), 0, False
    for number, line in enumerate(lines):
        if not inside:
            mine = "\n".join([*lines[:number], r"mine: \1 **x** -->", *lines[number:]])
            filled = card.fill(mine, made, folder)
            assert r"mine: \1 **x** -->" in filled.split("\n")
            assert filled.replace(r"mine: \1 **x** -->" + "\n", "") == card.fill(stale, made, folder)
            tried += 1
        inside = line.startswith("<!-- glassformer:") or (inside and not line.startswith("<!-- /glassformer:"))
    assert tried > 20


def test_sections_may_be_moved_and_removed(copied):
    folder = copied()
    write_card(folder)
    text = text_of(folder)
    marks = r"<!-- glassformer:{0} -->.*?<!-- /glassformer:{0} -->\n"
    citation = re.search(marks.format("citation"), text, re.DOTALL)[0]
    text = re.sub(marks.format("limits"), "", text.replace(citation, ""), flags=re.DOTALL)
    text = text.replace("<!-- glassformer:about -->", f"{citation}\nMy own words.\n\n<!-- glassformer:about -->")
    (folder / "README.md").write_text(text)
    (folder / "metrics.json").write_text('{"test": {"exact_match": 0.125}}')
    write_card(folder)
    after = text_of(folder)
    assert after.index("## Citation") < after.index("My own words.") < after.index("# tiny")
    assert "## Limits" not in after and "| test | exact_match | 0.1250 |" in after
    assert [one.metric_value for one in ModelCard(after).data.eval_results] == [0.125]


def test_metadata_that_people_have_set_is_kept_to_the_letter(copied):
    folder = copied()
    write_card(folder)
    mine = """\
# a comment of mine
license: mit   # after some thought
language:
- la
thumbnail: "x.png"
model-index:
- name: my name
  results:
  - task: {type: text2text-generation}
    dataset: {name: theirs, type: theirs}
    metrics:
    - {type: bleu, value: 33.0}
extra: [1, 2]
"""
    (folder / "README.md").write_text(f"---\n{mine}---\nText.\n<!-- glassformer:about -->\n<!-- /glassformer:about -->\n")
    write_card(folder)
    first = text_of(folder)
    assert (
        first.startswith(f"---\n{mine.partition('model-index')[0]}model-index:\n- name: my name\n") and "extra: [1, 2]\n" in first
    )
    data = ModelCard(first).data
    assert (data.license, data.language, data.library_name, data.extra) == ("mit", ["la"], "transformers", [1, 2])
    values = [one.metric_value for one in data.eval_results]
    assert values[-1] == 33.0 and len(values) == 1 + sum(map(len, json.loads((folder / "metrics.json").read_text()).values()))
    write_card(folder)
    assert text_of(folder) == first


def test_a_card_without_our_marks_keeps_its_text(copied, caplog):
    folder = copied()
    (folder / "README.md").write_text("# Mine\n\nAll of it.\n")
    write_card(folder)
    assert text_of(folder).endswith("---\n\n# Mine\n\nAll of it.\n") and "has no marks of glassformer" in caplog.text
    assert ModelCard(text_of(folder)).data.eval_results


def test_metadata_alone_is_a_card_too(copied):
    folder = copied()
    (folder / "README.md").write_text("---\nlicense: mit\n---")
    write_card(folder)
    assert ModelCard(text_of(folder)).data.license == "mit"


def test_line_ends_stay_those_of_the_person(copied):
    folder = copied()
    write_card(folder)
    path = folder / "README.md"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (folder / "metrics.json").write_text('{"test": {"exact_match": 0.125}}')
    write_card(folder)
    assert b"0.1250" in path.read_bytes() and path.read_bytes().count(b"\n") == path.read_bytes().count(b"\r\n")


OPEN, CLOSE = "<!-- glassformer:about -->", "<!-- /glassformer:about -->"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (OPEN, "has no end: put `<!-- /glassformer:about -->` after it."),
        (CLOSE, "are not a pair"),
        (f"{OPEN}{CLOSE}{OPEN}{CLOSE}", "are not a pair"),
        (f"{OPEN}<!-- glassformer:usage -->", "are not a pair"),
        ("<!-- glassformer:poem -->", "which there is no section for: choose from about"),
        ("---\nlicense: mit\n", "has no end: put a line of three dashes after it."),
        ("---\nlicense: [\n---\n", "cannot be read"),
        ("---\n- license\n---\n", "it is no list of `key: value`"),
        ("---\nmodel-index: nonsense\n---\n", "cannot be read"),
    ],
)
def test_a_card_that_cannot_be_read_is_refused_and_left_alone(copied, body, words):
    folder = copied()
    (folder / "README.md").write_text(body)
    with pytest.raises(CardError, match=re.escape(words)):
        write_card(folder)
    assert text_of(folder) == body


DAMAGE = {
    "README.md": (b"caf\xe9", "is not utf-8 (byte 0xe9): convert it first."),
    "run.json": (b"{", "run.json is no JSON"),
    "metrics.json": (b"[1", "metrics.json is no JSON"),
    "predictions.jsonl": (b'{"source": "a"}\nhalf a li', "predictions.jsonl is no JSON"),
    "model.safetensors": (b"short", "damaged or cut off"),
    "config.json": (b"", "config.json cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_files_are_named(copied, name):
    folder, (content, words) = copied(), DAMAGE[name]
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(words)):
        write_card(folder)
    assert (folder / "README.md").exists() == (name == "README.md")


def test_a_card_tells_nothing_from_outside_the_folder(copied, tmp_path):
    folder = copied()
    (tmp_path / "secret").write_text('{"source": "secret", "prediction": "secret", "test": {"secret": 1.0}}')
    for name in ("predictions.jsonl", "metrics.json"):
        (folder / name).unlink()
        (folder / name).symlink_to(tmp_path / "secret")
    write_card(folder)
    assert "secret" not in text_of(folder)
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(tmp_path / "secret")
    with pytest.raises(CardError, match="is a link that leads out of the folder"):
        write_card(folder)


def test_a_card_that_cannot_be_written_is_told(copied, monkeypatch):
    folder = copied()

    def full(self, *content, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CardError, match=r"README.md cannot be written \(No space left on device\): make room"):
        write_card(folder)
    (folder / "attention.png").unlink()
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(FolderError, match=r"attention.png cannot be written \(No space left on device\): make room"):
        write_card(folder)


def test_languages_and_datasets_are_those_of_the_recipe(copied):
    folder = copied()
    run = json.loads((folder / "run.json").read_text())
    run["recipe"]["data"] |= {"source": "", "files": {"train": "/home/ada/pairs.csv"}}
    run["recipe"]["data"]["columns"] = {"source": "translation.en", "target": "de", "label": "kind"}
    run["recipe"]["card"] = {"datasets": ["ada/pairs"], "task": "translation", "license": "cc0-1.0"}
    (folder / "run.json").write_text(json.dumps(run))
    data = metadata.metadata(read_facts(folder), show_rows=False)
    assert (data.language, data.datasets, data.pipeline_tag, data.license) == (
        ["en", "de"],
        ["ada/pairs"],
        "translation",
        "cc0-1.0",
    )
    assert data.eval_results[0].dataset_type == "ada/pairs" and data.widget is None
