"""What the README says is true: its snippets run as pasted, its numbers are counted, its file tree is the tree."""

import re
from pathlib import Path

import pytest
import torch
from models import LANGUAGE_MODELS

import glassformer
from glassformer import GlassformerConfig


ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippets_run_as_pasted_and_print_what_they_say(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(SNIPPETS[number], f"README snippet {number}", "exec"), {})
    promised = re.findall(r"^print\(.*\)  # (.*)$", SNIPPETS[number], re.MULTILINE)
    assert capsys.readouterr().out.splitlines()[: len(promised)] == promised


def test_presets_have_the_sizes_in_the_table():
    rows = re.findall(r"^\| `([\w-]+)` \| .* \| ([\d.]+)M \|$", README, re.MULTILINE)
    assert {name for name, _ in rows} == {path.stem for path in (ROOT / "configuration" / "presets").glob("*.json")}
    counts = []
    for name, millions in rows:
        config = GlassformerConfig.from_preset(name)
        with torch.device("meta"):
            model = getattr(glassformer, LANGUAGE_MODELS[config.shape])(config)
        counts.append(sum(parameter.numel() for parameter in model.parameters()))
        assert f"{counts[-1] / 1e6:.1f}" == millions, name
    assert counts == sorted(counts)


def test_the_file_tree_names_every_file():
    tree = README.split("```\nmodeling/")[1].split("```")[0]
    for folder in ("modeling", "configuration"):
        for path in (ROOT / folder).glob("*.py"):
            assert path.name in tree or path.name == "__init__.py"
    for name in re.findall(r"^ *([\w/]+(?:\.py|/)) ", tree, re.MULTILINE):
        assert list(ROOT.rglob(name.rstrip("/"))), name
