"""The guides can be followed: their snippets, recipes and commands run one after the other, as they stand on the page."""

import logging
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from recipes import keep_caches_in

from glassformer import cli


pytestmark = pytest.mark.filterwarnings("ignore:The texts support")
ROOT = Path(__file__).parents[1]
GUIDES = {path.stem: path for path in (ROOT / "docs" / "guides").glob("*.md")}
BLOCK = re.compile(r"^```(python|yaml|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SMALL = ["scale=0.05", "evaluation.samples=2"]


def follow(guide: str, overrides: list[str]) -> list[str]:
    """Do what a guide says in the current folder, with overrides for everything that trains -> the commands."""
    session, commands = {}, []
    for kind, block in BLOCK.findall(GUIDES[guide].read_text(encoding="utf-8")):
        if kind == "python":
            exec(compile(block, f"{guide}.md", "exec"), session)
        elif kind == "yaml":
            Path(re.match(r"# (\S+)\n", block)[1]).write_text(block, encoding="utf-8")
        else:
            for command in block.replace("\\\n", " ").splitlines():
                words = shlex.split(command)
                run([*words, *overrides] if words[1] == "train" and "--dry-run" not in words else words)
                commands.append(command)
    return commands


def run(words: list[str]) -> None:
    """`glassformer` in this process, which has imported everything already; `accelerate` in one of its own."""
    if words[0] == "accelerate":
        subprocess.run([sys.executable, "-m", "accelerate.commands.accelerate_cli", *words[1:]], check=True)
        return
    with pytest.MonkeyPatch.context() as patch:  # which takes back what `main` sets up
        patch.setattr(sys, "argv", words)
        patch.setattr(warnings, "formatwarning", warnings.formatwarning)
        patch.setattr(logging.getLogger("glassformer"), "handlers", [])
        try:
            cli.main()
        except SystemExit as end:
            assert not end.code, f"{shlex.join(words)} ended with {end.code}"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder that looks like a clone to those who start scripts from it."""
    keep_caches_in(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    for name in ("configuration", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def test_a_guide_can_be_followed(here, capsys):
    assert [command.split()[1] for command in follow("classify", SMALL)] == ["train", "evaluate", "predict"]
    printed = capsys.readouterr().out
    assert "accuracy" in printed and '"prediction": ' in printed
    assert printed.splitlines()[-1] in ("billing", "delivery", "account")


@pytest.mark.slow
@pytest.mark.parametrize("guide", sorted(GUIDES))
def test_every_guide_can_be_followed_to_its_end(guide, here):
    assert follow(guide, [])
