"""What the README says is true: its snippets run as pasted, its numbers are counted, its file tree is the tree."""

import re
from pathlib import Path

import pytest
from models import tiny_language_model
from tokenizer import word_tokenizer

from glassformer.training.inference import load_trained
from glassformer.training.loop import train
from glassformer.training.plan import describe_presets
from glassformer.training.recipe import load_recipe


ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
FOLDERS = ("modeling", "configuration", "training", "analysis", "benchmarks", "exchange", "hub_card", "serving", "scripts")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippets_run_as_pasted_and_print_what_they_say(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if "runs/writer" in SNIPPETS[number]:  # somebody's language model
        for package in ("transformer_lens", "bertviz"):
            pytest.importorskip(package, reason=f"{package} is not installed: pip install 'glassformer[lens]'")
        tiny_language_model("decoder").save_pretrained("runs/writer")
        word_tokenizer().save_pretrained("runs/writer")
    exec(compile(SNIPPETS[number], f"README snippet {number}", "exec"), {})
    promised = re.findall(r"^print\(.*\)  # (.*)$", SNIPPETS[number], re.MULTILINE)
    assert capsys.readouterr().out.splitlines()[: len(promised)] == promised


def test_the_table_of_presets_is_what_the_command_prints():
    table = describe_presets()
    assert table in README
    assert table.count("\n") == 1 + len(list((ROOT / "configuration" / "presets").glob("*.json")))


def test_the_file_tree_names_every_file():
    tree = README.split("```\nmodeling/")[1].split("```")[0]
    for folder in FOLDERS:
        for path in (ROOT / folder).glob("*.py"):
            assert path.name in tree or path.name == "__init__.py"
    tracked = {
        part for folder in (*FOLDERS, "tests") for path in (ROOT / folder).rglob("*") for part in (path.name, path.parent.name)
    }
    for name in re.findall(r"^ *([\w/]+(?:\.py|/)) ", tree, re.MULTILINE):
        assert name.rstrip("/") in tracked, name


def test_the_recipe_for_ones_own_data_trains_a_model_that_predicts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache"))
    rows = [f"number {i},Zahl {i}" for i in range(60)]
    Path("pairs.csv").write_text("\n".join(["english,german", *rows]))
    [written] = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    Path("mine.yaml").write_text(written)
    quick = ["model.preset=tiny", "training.steps=3", "schedule.warmup_steps=1", "tokenizer.vocab_size=60"]
    folder = train(load_recipe("mine.yaml", quick))
    assert folder == Path("runs/mine") and "bleu" in (folder / "metrics.json").read_text()
    trained = load_trained(folder)
    assert len(trained.predict(trained.rows(["number 7"]))) == 1
