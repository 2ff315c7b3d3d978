"""What the README says is true: its snippets run as pasted, its numbers are counted, its file tree is the tree."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
FOLDERS = ("modeling", "configuration", "hub_card", "scripts")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippets_run_as_pasted_and_print_what_they_say(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(SNIPPETS[number], f"README snippet {number}", "exec"), {})
    promised = re.findall(r"^print\(.*\)  # (.*)$", SNIPPETS[number], re.MULTILINE)
    assert capsys.readouterr().out.splitlines()[: len(promised)] == promised


def test_the_table_of_presets_is_what_the_script_prints():
    printed = subprocess.run([sys.executable, ROOT / "scripts" / "presets.py"], capture_output=True, text=True, check=True)
    assert printed.stdout in README
    assert printed.stdout.count("\n") == 2 + len(list((ROOT / "configuration" / "presets").glob("*.json")))


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
