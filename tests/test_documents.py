"""Documents beside the README: what they name exists, and what they repeat is the same."""

import re
from pathlib import Path

import pytest
import yaml

import glassformer
from glassformer import registration
from glassformer.hub_card import facts, sections


ROOT = Path(__file__).parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
NAMES = sorted(set(re.findall(r"`([^`\n]+)`", CONTRIBUTING)))
FOLDERS = ("modeling", "configuration", "training", "analysis", "exchange", "hub_card", "tests", "scripts")
CODE = "\n".join(path.read_text() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("name", [name for name in NAMES if "/" in name and " " not in name])
def test_files_that_contributors_are_sent_to_exist(name):
    assert (ROOT / name).exists()


@pytest.mark.parametrize("name", [name for name in NAMES if re.fullmatch(r"[\w.]+", name) and not name.endswith((".md", ".py"))])
def test_names_that_contributors_are_told_occur_in_the_code(name):
    known = {"AttentionInterface": "transformers", "slow": "pytest"}
    assert name in known or all(re.search(rf"\b{part}\b", CODE) for part in name.split("."))


@pytest.mark.parametrize(
    ("name", "file"), re.findall(r"`(\w+)`(?: and `\w+`)? (?:in|of) `([\w/]+\.py)`", CONTRIBUTING), ids=lambda value: value
)
def test_names_are_in_the_files_where_they_are_said_to_be(name, file):
    assert re.search(rf"\b{name}\b", (ROOT / file).read_text())


def test_every_head_has_a_task_and_a_sentence_on_cards():
    assert set(facts.TASKS) == set(sections.KINDS) == set(registration.HEADS.values())


def test_the_version_is_that_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == glassformer.__version__
    assert re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == glassformer.__version__


def test_the_workflow_runs_what_every_change_has_to_pass():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    [job] = workflow["jobs"].values()
    assert ".ci/run" in [step.get("run") for step in job["steps"]]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100
