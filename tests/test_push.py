"""To the Hub and back: what is uploaded and what never is, all or nothing, and a model that loads where the package is absent.

The Hub is one on 127.0.0.1; everything that speaks to it is the real client.
"""

import json
import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from loopback_hub import LoopbackHub
from models import tiny_language_model
from processes import run_python
from recipes import keep_caches_in, task_recipe, tiny_recipe
from test_cli import call
from transformers import AutoTokenizer, pipeline

from glassformer import GlassformerForConditionalGeneration
from glassformer.hub_card.card import write_card
from glassformer.hub_card.files import FolderError, contents
from glassformer.hub_card.push import HubError, describe_push, push
from glassformer.training.loop import train


ADA, BOB, READER = "hf_ada", "hf_bob", "hf_reader"
SHORT = {"training.steps": 2, "schedule.warmup_steps": 1, "evaluation": {"every": 2}, "data.validation_fraction": 0.25}
pytestmark = pytest.mark.filterwarnings("ignore:The texts support")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run with a card, and everything that a run leaves beside its model."""
    folder = tmp_path_factory.mktemp("push")
    with pytest.MonkeyPatch.context() as patch:
        keep_caches_in(folder, patch)
        run = train(tiny_recipe(folder / "run", {"logging.tensorboard": True}))
        write_card(run)
        yield run


@pytest.fixture
def folder(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def hub(monkeypatch):
    """With the client of this process pointed at it, as Ada."""
    with LoopbackHub({ADA: "ada", BOB: "bob", READER: "ada"}, read_only=(READER,)) as hub:
        use(hub, monkeypatch)
        yield hub


def use(hub: LoopbackHub, monkeypatch) -> None:
    for name, value in {"ENDPOINT": hub.url, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", "/nonexistent")
    monkeypatch.setenv("HF_TOKEN", ADA)


def yes(question: str) -> bool:
    return True


def files_of(hub: LoopbackHub, repo: str, revision: str = "main") -> dict[str, bytes]:
    return {path: file.content for path, file in hub.repos[repo].at(revision).files.items() if path != ".gitattributes"}


# What goes


def test_the_model_goes_and_everything_else_stays_with_a_reason(folder):
    (folder / "notes.txt").write_text("mine")
    (folder / "train_it.py").write_text("print('not part of the model')")
    (folder / "data.csv").write_text("a,b")
    found = contents(folder)
    assert {path for path in found.upload if not path.endswith(".py")} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "curves.png",
        "attention.png", "README.md",
    }  # fmt: skip
    saved = {path.name for path in folder.glob("*.py")} - {"train_it.py"}
    assert {path for path in found.upload if path.endswith(".py")} == saved and "modeling_glassformer.py" in saved
    assert set(found.upload) | {path.rstrip("/") for path in found.left_out} == {path.name for path in folder.iterdir()}
    assert found.left_out["checkpoints/"].startswith("optimiser") and found.left_out["tensorboard/"] == "logs"
    assert found.left_out["predictions.jsonl"] == "rows of the data" and found.left_out["data.csv"] == "not part of a model"


def test_a_dry_run_lists_both_and_touches_nothing(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    told = describe_push(folder, "ada/copy")
    assert f"model.safetensors {(folder / 'model.safetensors').stat().st_size:,}" in " ".join(told.split())
    assert "log.jsonl" in told.partition("Left out:")[2] and "log.jsonl" not in told.partition("Left out:")[0]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    with pytest.raises(HubError, match="'a/b/c' is no name of a repository"):
        describe_push(folder, "a/b/c")


def test_pictures_that_the_card_shows_go_along(folder):
    (folder / "mine.png").write_bytes(b"picture")
    (folder / "other.png").write_bytes(b"picture")
    (folder / "drawn").mkdir()
    for name in ("in.png", "html.jpg", "not shown.png"):
        (folder / "drawn" / name).write_bytes(b"picture")
    (folder.parent / "run.png").write_bytes(b"picture")
    (folder / "README.md").write_text(
        '![mine](mine.png) ![gone](https://example.org/x.png) ![outside](../run.png "title") ![data](log.jsonl) '
        '![in a folder](./drawn/in.png) <p align="center"><img width="400" src="drawn/html.jpg"></p> ![absent](drawn/none.png)'
    )
    found = contents(folder)
    assert "mine.png" in found.upload and "other.png" in found.left_out and "log.jsonl" in found.left_out
    shown = {"mine.png", "drawn/in.png", "drawn/html.jpg", "curves.png", "attention.png"}
    assert {name for name in found.upload if name.endswith(("png", "jpg"))} == shown


def test_links_out_of_the_folder_are_not_followed(folder, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "vocab.txt").write_text("secret")
    (folder / "vocab.txt").symlink_to(secret / "vocab.txt")
    (folder / "target_tokenizer").symlink_to(secret, target_is_directory=True)
    (folder / "LICENSE").symlink_to("config.json")
    found = contents(folder)
    assert found.left_out["vocab.txt"] == found.left_out["target_tokenizer/vocab.txt"] == "a link that leads out of the folder"
    assert "LICENSE" in found.upload and not any("secret" in str(path.resolve()) for path in found.upload.values())
    for name in ("config.json", "model.safetensors", "attention.py"):
        (folder / name).rename(secret / name)
        (folder / name).symlink_to(secret / name)
        with pytest.raises(FolderError, match=f"{name} is a link that leads out of the folder: put a copy"):
            contents(folder)
        (folder / name).unlink()
        (secret / name).rename(folder / name)


def test_both_vocabularies_go(tmp_path):
    tiny_language_model().save_pretrained(tmp_path)
    (tmp_path / "target_tokenizer").mkdir()
    for name in ("tokenizer.json", "log.txt"):
        (tmp_path / "target_tokenizer" / name).write_text("{}")
    found = contents(tmp_path)
    assert "target_tokenizer/tokenizer.json" in found.upload and "target_tokenizer/log.txt" in found.left_out


def test_a_folder_that_nobody_could_load_is_refused(folder, tmp_path):
    def refused(words: str, place: Path = folder) -> None:
        with pytest.raises(FolderError, match=words):
            contents(place)

    (folder / "README.md").write_text(f"My token is hf_{'x' * 34}.")
    refused("README.md has something in it that looks like a token of the Hub")
    (folder / "README.md").unlink()
    (folder / "attention.py").rename(tmp_path / "attention.py")
    refused("lacks attention.py, without which nobody can load the model")
    (tmp_path / "attention.py").rename(folder / "attention.py")
    (folder / "model.safetensors").unlink()
    refused("has no weights to push: save the model again.")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": {}}))
    refused("names no code for its model")
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "marian"}))
    refused("holds a model of type 'marian'")
    (folder / "config.json").unlink()
    refused("its training has not ended")
    refused("give a folder that training has made", tmp_path)


# Pushing


def test_a_push_is_one_commit_with_everything(hub, folder):
    (folder / "README.md").unlink()  # it is made on the way
    assert push(folder, "copy", agree=yes) == f"{hub.url}/ada/copy"
    repo = hub.repos["ada/copy"]
    assert len(repo.commits) == 2 and not repo.private
    assert files_of(hub, "ada/copy") == {name: path.read_bytes() for name, path in contents(folder).upload.items()}
    assert {"README.md", "attention.png", "curves.png"} <= files_of(hub, "ada/copy").keys()
    assert 'from_pretrained("ada/copy"' in (folder / "README.md").read_text() and not hub.leaks


def test_a_second_push_sends_what_has_changed_and_an_equal_one_nothing(hub, folder, caplog):
    caplog.set_level("INFO", "glassformer")
    push(folder, "ada/copy", agree=yes)
    first = hub.repos["ada/copy"].branches["main"]
    hub.requests.clear()
    push(folder, "ada/copy")
    assert hub.repos["ada/copy"].branches["main"] == first and "Nothing has changed since the last push." in caplog.text
    assert not hub.seen("PUT", "") and not hub.seen("POST", "/commit/")
    readme = folder / "README.md"
    readme.write_text(readme.read_text() + "\nMore of mine.\n")
    push(folder, "ada/copy")
    assert b"More of mine." in files_of(hub, "ada/copy")["README.md"]
    assert not hub.seen("PUT", "") and len(hub.repos["ada/copy"].commits) == 3


def test_weights_in_other_files_replace_those_of_an_earlier_push(hub, folder):
    push(folder, "ada/copy", agree=yes)
    model = GlassformerForConditionalGeneration.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="10KB")
    push(folder, "ada/copy")
    there = [path for path in files_of(hub, "ada/copy") if "safetensors" in path]
    assert len(there) > 2 and "model.safetensors.index.json" in there and "model.safetensors" not in there


@pytest.mark.parametrize("broken", ["the second large file", "the commit"])
def test_an_upload_that_breaks_off_changes_nothing_and_goes_on_where_it_was(hub, folder, broken):
    def fail(method: str, path: str) -> int | None:
        if broken == "the commit":
            return 507 if "/commit/" in path else None
        return 507 if method == "PUT" and len(hub.seen("PUT", "")) > 1 else None

    hub.fail = fail
    with pytest.raises(HubError, match=r"nothing was committed: the Hub answered 507 .* Start the same command again"):
        push(folder, "ada/copy", agree=yes)
    repo = hub.repos["ada/copy"]
    assert list(repo.at("main").files) == [".gitattributes"] and len(repo.commits) == 1
    arrived = set(repo.large)
    assert arrived
    hub.fail = lambda method, path: None
    hub.requests.clear()
    push(folder, "ada/copy")  # without being asked again: the repository is there
    sent = {path.rpartition("/")[2] for path in hub.seen("PUT", "")}
    assert not sent & arrived and len(sent | arrived) == 3 and len(repo.commits) == 2
    assert files_of(hub, "ada/copy") == {name: path.read_bytes() for name, path in contents(folder).upload.items()}


def test_a_revision_is_a_branch_of_its_own(hub, folder):
    push(folder, "ada/copy", agree=yes)
    main = hub.repos["ada/copy"].branches["main"]
    readme = folder / "README.md"
    readme.write_text(readme.read_text() + "\nSecond.\n")
    assert push(folder, "ada/copy", revision="v2") == f"{hub.url}/ada/copy/tree/v2"
    assert b"Second." in files_of(hub, "ada/copy", "v2")["README.md"] and hub.repos["ada/copy"].branches["main"] == main


def test_nothing_becomes_public_unasked(hub, folder):
    asked = []
    with pytest.raises(HubError, match=r"Nothing was pushed: pass --yes to make ada/copy for everybody to see"):
        push(folder, "copy", agree=lambda question: bool(asked.append(question)))
    assert asked == ["ada/copy does not exist yet. Make it, for everybody to see?"] and not hub.repos
    push(folder, "copy", private=True)
    assert hub.repos["ada/copy"].private
    push(folder, "copy")  # stays what it is, and nobody need be asked
    assert hub.repos["ada/copy"].private
    push(folder, "open", agree=yes)
    with pytest.raises(HubError, match="ada/open is there already and public"):
        push(folder, "open", private=True)


# What can go wrong


def test_errors_of_the_hub_are_told_in_a_sentence(hub, folder, monkeypatch):
    def refused(words: str, repo: str = "ada/copy", token: str | None = ADA) -> None:
        monkeypatch.setenv("HF_TOKEN", token) if token else monkeypatch.delenv("HF_TOKEN")
        with pytest.raises(HubError) as caught:
            push(folder, repo, agree=yes)
        assert words in str(caught.value) and "\n" not in str(caught.value)

    refused("is no name of a repository", repo="a/b/c")
    refused("you are not logged in. Run `hf auth login`, or set HF_TOKEN", token=None)
    refused("your token is not accepted. Make a new one at", token="hf_wrong")
    refused("your token may not write to ada/copy", token=READER)
    refused("your token may not write to bob/copy", repo="bob/copy")
    assert not hub.repos
    monkeypatch.setenv("HF_TOKEN", BOB)
    push(folder, "bob/copy", private=True)
    refused("the name bob/copy is taken by something that you may not see or change", repo="bob/copy")
    hub.repos["bob/copy"].private = False
    refused("nothing was committed: your token may not write to bob/copy", repo="bob/copy")
    hub.fail = lambda method, path: 418 if "/api/models/" in path else None
    refused("Nothing was pushed: the Hub answered 418 (out of order).")
    hub.fail = lambda method, path: None
    readme = folder / "README.md"
    readme.write_text(readme.read_text().replace("license: apache-2.0", "license: 2.0"))
    refused('Nothing was pushed: Invalid metadata in README.md. - "license" must be a string.')
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    refused("HF_HUB_OFFLINE is set. Unset it.")


def test_a_hub_that_is_not_there_is_told_in_a_sentence(folder, monkeypatch):
    with LoopbackHub({}) as hub:
        use(hub, monkeypatch)
    with pytest.raises(HubError, match=rf"{hub.url} cannot be reached \(.*\). Check the network."):
        push(folder, "ada/copy", agree=yes)


def test_the_command_asks_where_somebody_can_answer(hub, folder, monkeypatch, capsys):
    assert call("push", folder, "copy") == 1
    assert "pass --yes to make ada/copy for everybody to see" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda question: "ada/copy" in question)
    assert call("push", folder, "copy") == 0
    assert capsys.readouterr().out == f"{hub.url}/ada/copy\n"
    assert call(folder, "copy", "--dry-run", command="push") == 0
    assert "Would be uploaded" in capsys.readouterr().out


# The whole circle

LOAD = """
import json, sys, torch
sys.modules["glassformer"] = None  # importing it now fails
from huggingface_hub import ModelCard
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

trust, found = {"trust_remote_code": True}, {}
for revision in ("main", "v2"):
    if revision == "main":  # as the card says
        exec(ModelCard.load("ada/copy").text.split("```python\\n")[1].split("```")[0])
    else:
        tokenizer = AutoTokenizer.from_pretrained("ada/copy", revision=revision, **trust)
        model = AutoModelForSeq2SeqLM.from_pretrained("ada/copy", revision=revision, **trust)
    inputs = tokenizer("abc", return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=inputs["input_ids"]).logits
    found[revision] = {"ids": inputs["input_ids"], "logits": logits, "module": type(model).__module__}
found["generated"] = tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True)
found["pipeline"] = pipeline("text-classification", model="ada/classifier", **trust)("the red lamp")
refused = {"private": "ada/classifier", "gated": "bob/gated", "missing": "ada/nothing", "not admitted": "bob/gated"}
for name, repo in refused.items():
    try:  # as nobody, and once as Ada
        AutoTokenizer.from_pretrained(repo, token=name == "not admitted", cache_dir="nothing_yet")
    except OSError as error:
        found[name] = str(error)
torch.save(found, "found.pt")
"""


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    place = tmp_path_factory.mktemp("classifier")
    with pytest.MonkeyPatch.context() as patch:
        keep_caches_in(place, patch)
        yield train(task_recipe(place, "sequence_classification", SHORT))


def test_what_was_pushed_loads_where_the_package_is_absent(hub, folder, classifier, tmp_path, monkeypatch):
    online = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": ADA, "HF_HUB_OFFLINE": "0"}
    code = "import glassformer.cli as cli; cli.main('push')"
    assert run_python(code, tmp_path, [str(folder), "copy", "--yes"], **online) == f"{hub.url}/ada/copy\n"
    torch.manual_seed(1)
    models = {"main": GlassformerForConditionalGeneration.from_pretrained(folder).eval()}
    models["v2"] = GlassformerForConditionalGeneration(models["main"].config).eval()
    models["v2"].save_pretrained(folder)
    push(folder, "ada/copy", revision="v2")
    push(Path(shutil.copytree(classifier, tmp_path / "classifier")), "ada/classifier", private=True)
    monkeypatch.setenv("HF_TOKEN", BOB)
    push(folder, "bob/gated", agree=yes)
    hub.repos["bob/gated"].gated = True

    run_python(LOAD, tmp_path, **online)
    found = torch.load(tmp_path / "found.pt")
    for revision, model in models.items():
        assert found[revision]["module"].startswith("transformers_modules.ada.copy.")
        with torch.no_grad():
            ids = found[revision]["ids"]
            torch.testing.assert_close(found[revision]["logits"], model(ids, decoder_input_ids=ids).logits, rtol=0, atol=0)
    assert not torch.equal(found["main"]["logits"], found["v2"]["logits"])
    expected = models["v2"].generate(ids)
    assert found["generated"] == AutoTokenizer.from_pretrained(folder).decode(expected[0], skip_special_tokens=True)
    assert found["pipeline"] == pipeline("text-classification", model=str(tmp_path / "classifier"))("the red lamp")
    assert "private repository" in found["private"] and "gated repo" in found["gated"] and "ada/nothing" in found["missing"]
    assert "401 Client Error" in found["gated"] and "403 Client Error" in found["not admitted"]
    assert not hub.leaks
