"""The documentation: links lead somewhere, the reference is what the code says, snippets and notebooks run, a site is made."""

import dataclasses
import json
import re
import runpy
import shutil
import typing
from pathlib import Path

import pytest
import tomllib

from glassformer.configuration import GlassformerConfig
from glassformer.training.recipe import Recipe


ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
build = runpy.run_path(str(ROOT / "scripts" / "build_docs.py"))
reference = runpy.run_path(str(ROOT / "scripts" / "reference.py"))


def snippets(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


# Links


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    build["check_links"](DOCS, page, (DOCS / page).read_text(encoding="utf-8"))


def test_the_index_leads_to_every_page():
    targets = {link["target"] for link in build["links"]((DOCS / "index.md").read_text(encoding="utf-8"))}
    notebooks = {path.relative_to(DOCS).as_posix() for path in NOTEBOOKS}
    assert (set(PAGES) | notebooks) - targets == {"index.md", *build["UNLISTED"]}


def test_links_of_the_readme_lead_somewhere():
    build["check_links"](ROOT, "README.md", (ROOT / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "link",
    [
        "[a](nowhere.md)",
        "[a](scale.md#nothing)",
        "[a](#nothing)",
        "![a](pictures/none.png)",
        "[a](../modeling/poetry.py)",
        "[`Poetry`](../modeling/attention.py)",
        "[`MultiHeadAttention.recite`](../modeling/attention.py)",
        "[a](http:/example.com)",
    ],
)
def test_a_link_that_leads_nowhere_is_told(link):
    with pytest.raises(build["BrokenLink"]):
        build["check_links"](DOCS, "index.md", f"# Title\n\n{link}\n")


@pytest.mark.parametrize(
    "link, inside",
    [
        ("[`EncoderLayer`](../modeling/encoder.py)", "[`EncoderLayer`](code/modeling/encoder.py.md#EncoderLayer)"),
        ("[`RESIDUALS`](../modeling/stack.py)", "[`RESIDUALS`](code/modeling/stack.py.md)"),
        ("[the file](../modeling/stack.py)", "[the file](code/modeling/stack.py.md)"),
        ("[n](notebooks/encoder.ipynb)", "[n](notebooks/encoder.md)"),
        ("[s](scale.md#will-it-fit)", "[s](scale.md#will-it-fit)"),
        ("`int \\| None` \\| `a`", "`int | None` \\| `a`"),
        ("```\n[s](../modeling/stack.py)\n```", "```\n[s](../modeling/stack.py)\n```"),
    ],
)
def test_links_to_code_lead_to_pages_of_the_site(link, inside):
    build["check_links"](DOCS, "index.md", link)
    assert build["for_site"]("index.md", link) == inside


def test_a_page_of_code_holds_every_line_once():
    path = "modeling/decoder.py"
    code = "\n".join(re.findall(r"^````python\n(.*?)^````", build["code_page"](path), re.DOTALL | re.MULTILINE))
    lines = [line for line in (ROOT / path).read_text().splitlines() if line.strip()]
    assert [line for line in code.splitlines() if line.strip()] == lines


# The reference


@pytest.mark.parametrize("name", ["config", "recipe", "command-line"])
def test_the_reference_is_what_the_code_says(name):
    written = (DOCS / "reference" / f"{name}.md").read_text(encoding="utf-8")
    assert written == reference[name.replace("-", "_") + "_page"](), "stale: run scripts/reference.py"


@pytest.mark.parametrize(
    "kind", [GlassformerConfig, Recipe, *(k for k in typing.get_type_hints(Recipe).values() if dataclasses.is_dataclass(k))]
)
def test_every_field_is_found_with_its_default(kind):
    found = {field.name: field for field in reference["fields_of"](kind)}
    own = {field.name: field for field in dataclasses.fields(kind) if field.name in kind.__annotations__}
    assert list(found) == list(own)
    for name, field in own.items():
        if field.default is not dataclasses.MISSING:
            assert eval(found[name].default) == field.default


def test_meanings_are_the_comments_of_the_code():
    fields = {field.name: field for field in reference["fields_of"](GlassformerConfig)}
    assert fields["d_model"].meaning == "width of every layer" and fields["d_model"].heading == "Sizes"
    columns = {field.name: field for field in reference["fields_of"](typing.get_type_hints(Recipe)["data"])}["columns"]
    assert columns.meaning.startswith("role: column")  # a comment below its field


# Snippets


def test_the_guided_reading_is_true():
    session: dict[str, typing.Any] = {}
    for number, snippet in enumerate(snippets("how-it-works.md")):
        exec(compile(snippet, f"how-it-works.md, snippet {number}", "exec"), session)
    assert all("assert " in snippet or number == 0 for number, snippet in enumerate(snippets("how-it-works.md")))


def test_the_snippets_to_get_started_print_what_they_say(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    session: dict[str, typing.Any] = {}
    for snippet in snippets("get-started.md"):
        exec(compile(snippet, "get-started.md", "exec"), session)
    promised = re.findall(r"^print\(.*\)  # (.*)$", "\n".join(snippets("get-started.md")), re.MULTILINE)
    assert promised and capsys.readouterr().out.splitlines() == promised


# Notebooks


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_has_its_outputs(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert path.stat().st_size < 400_000
    assert not re.search(r"/tmp/|site-packages", path.read_text(encoding="utf-8"))  # of the machine that has run it


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="comes with the extra `docs`")
    client = pytest.importorskip("nbclient", reason="comes with the extra `docs`").NotebookClient
    pytest.importorskip("ipykernel", reason="comes with the extra `docs`")
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    client(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()  # raises where a cell does


# The site


def test_all_of_it_becomes_a_site_without_a_warning(tmp_path):
    pytest.importorskip("zensical", reason="comes with the extra `docs`")
    pytest.importorskip("nbconvert", reason="comes with the extra `docs`")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    build["assemble"](DOCS, tmp_path / "build" / "docs")
    build["make_site"](tmp_path)
    listed = pages_in(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])
    made = {path.relative_to(DOCS).with_suffix(".md").as_posix() for path in (*DOCS.rglob("*.md"), *NOTEBOOKS)}
    assert sorted(listed) == sorted(made - set(build["UNLISTED"]))
    for page in listed:
        folder = tmp_path / "site" / page.removesuffix(".md").removesuffix("index")
        assert (folder / "index.html").exists()


def pages_in(nav) -> list[str]:
    return [
        page for entry in nav for value in entry.values() for page in ([value] if isinstance(value, str) else pages_in(value))
    ]
