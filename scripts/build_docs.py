"""docs/ as a site in site/: python scripts/build_docs.py, which is what `make docs` runs.

Pages of docs/ link to the code as files (`../modeling/attention.py`), so that links can be followed where the repository is
browsed. In the site, each linked file becomes a page, and a link whose text is a name in backquotes leads to the definition of
that name. Notebooks become pages too. All of it is put together in build/docs, from where zensical makes the site. A link to a
page, heading, file or name that does not exist is an error.
"""

import ast
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


ROOT = Path(__file__).parents[1]
DOCS, BUILD = ROOT / "docs", ROOT / "build" / "docs"
LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s]+)\)")
FENCE = re.compile(r"^ *(```+).*?^ *\1", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".ini": "ini", ".cfg": "ini"}
UNLISTED = ("results/head.md",)  # what scripts/results.py starts its page with


class BrokenLink(Exception):
    """A page leads to where nothing is."""


def main() -> None:
    assemble(DOCS, BUILD)
    make_site(ROOT)
    print(f"Written: {ROOT / 'site' / 'index.html'}")


def make_site(root: Path) -> None:
    """site/ from build/docs, by zensical.toml, all below `root`."""
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    build = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if build.returncode:
        sys.exit(f"zensical did not build the site:\n{build.stdout}{build.stderr}")


def assemble(docs: Path, build: Path) -> None:
    """Everything that the site is made of, as one folder of Markdown and pictures."""
    shutil.rmtree(build, ignore_errors=True)
    shutil.copytree(docs, build, ignore=shutil.ignore_patterns(*(Path(name).name for name in UNLISTED), "*.json"))
    for notebook in build.rglob("*.ipynb"):
        write_notebook_page(notebook)
    code: set[str] = set()
    for page in build.rglob("*.md"):
        name, text = page.relative_to(build).as_posix(), page.read_text(encoding="utf-8")
        check_links(docs, name, text, build)
        code |= set(linked_code(name, text))
        page.write_text(for_site(name, text), encoding="utf-8")
    for path in code:
        (build / site_path(path)).parent.mkdir(parents=True, exist_ok=True)
        (build / site_path(path)).write_text(code_page(path), encoding="utf-8")


# Links


def links(markdown: str) -> Iterator[re.Match[str]]:
    """Every link and picture of a page, code aside."""
    yield from LINK.finditer(FENCE.sub("", markdown))


def check_links(docs: Path, page: str, markdown: str, build: Path | None = None) -> None:
    """Of a page of docs/: every file, heading and name is there, and an address elsewhere looks like one.

    What is made on the way, such as the pictures of notebooks, is in `build`.
    """
    for link in links(markdown):
        target = link["target"]
        if re.match(r"[a-z]+:", target):
            if not re.fullmatch(r"https?://[\w-]+(\.[\w-]+)+(:\d+)?(/\S*)?", target):
                raise BrokenLink(f"{page} leads to {target}, which is no address.")
            continue
        path, _, heading = target.partition("#")
        place = Path(posixpath.dirname(page), path) if path else Path(page)
        there = next((folder / place for folder in (docs, build or docs) if (folder / place).is_file()), None)
        if there is None:
            raise BrokenLink(f"{page} leads to {target}, but there is no such file.")
        if heading and there.suffix == ".md":
            text = markdown if not path else there.read_text(encoding="utf-8")
            if heading not in headings(text):
                raise BrokenLink(f"{page} leads to {target}, but there is no such heading.")
        if there.suffix == ".py":
            anchor(repository_path(page, target) or "", link["text"])


def headings(markdown: str) -> set[str]:
    """As hosts and site generators name the headings of a page."""
    titles = re.findall(r"^#+ (.+?)(?: \{.*\})?$", FENCE.sub("", markdown), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def for_site(page: str, markdown: str) -> str:
    """A page as zensical wants it: links lead to the site's own pages, and a bar in code within a table is a bar."""
    changed, end = "", 0
    for fence in [*FENCE.finditer(markdown), None]:
        start = len(markdown) if fence is None else fence.start()
        text = LINK.sub(lambda link: led_inside(link, page), markdown[end:start])
        changed += CODE.sub(lambda code: code[0].replace("\\|", "|"), text)
        if fence is not None:
            changed, end = changed + fence[0], fence.end()
    return changed


def repository_path(page: str, target: str) -> str | None:
    """Where a link of a page of docs/ leads within the repository; None: out of it, or to a place on the page."""
    if re.match(r"[a-z]+:", target) or target.startswith("#"):
        return None
    return posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target.partition("#")[0]))


def linked_code(page: str, markdown: str) -> Iterator[str]:
    """Files of the repository outside docs/ that a page links to."""
    for link in links(markdown):
        if (path := repository_path(page, link["target"])) and not path.startswith("docs/"):
            yield path


def led_inside(link: re.Match[str], page: str) -> str:
    """A link to code or to a notebook, as one to the page that the site has of it."""
    text, target = link["text"], link["target"]
    path = repository_path(page, target)
    if path is None or path == f"docs/{Path(page).with_suffix('.ipynb').as_posix()}":
        return link[0]
    if path.endswith(".ipynb"):
        return f"[{text}]({target.replace('.ipynb', '.md')})"
    if path.startswith("docs/"):
        return link[0]
    place = posixpath.relpath(site_path(path), posixpath.dirname(page) or ".")
    return f"[{text}]({place}{anchor(path, text)})"


def anchor(path: str, text: str) -> str:
    """Where in a file of code a link with this text leads: `name` or `name.more` in backquotes to a definition."""
    name = re.fullmatch(r"`(\w+)(?:\.(\w+))?(?:\(\))?`", text)
    if name is None or not path.endswith(".py") or text.strip("`") in path:
        return ""
    source = (ROOT / path).read_text(encoding="utf-8")
    found = {definition.name: ast.unparse(definition) for definition in definitions(source)}
    if name[1] in found and (name[2] is None or re.search(rf"\b{name[2]}\b", found[name[1]])):
        return f"#{name[1]}"
    if name[2] is None and re.search(rf"^{name[1]}\b", source, re.MULTILINE):  # a constant
        return ""
    raise BrokenLink(f"{path} does not define {text}, to which a link leads.")


# Pages of code


def site_path(path: str) -> str:
    return f"code/{path}.md"


def definitions(source: str) -> list[Any]:
    return [node for node in ast.parse(source).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]


def code_page(path: str) -> str:
    """A file as a page, cut at its definitions, each of which can be linked to."""
    source = (ROOT / path).read_text(encoding="utf-8")
    lines, page, start = source.splitlines(), f"# {path}\n\n", 0
    for node in definitions(source) if path.endswith(".py") else []:
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
        page += fenced(lines[start:first], path) + f"## `{node.name}` {{#{node.name}}}\n\n"
        page += fenced(lines[first : node.end_lineno], path)
        start = node.end_lineno
    return page + fenced(lines[start:], path)


def fenced(lines: list[str], path: str) -> str:
    text = "\n".join(lines).strip("\n")
    return f"````{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}\n````\n\n" if text else ""


# Notebooks


def write_notebook_page(notebook: Path) -> None:
    """A notebook as Markdown beside it, with the pictures that are in it."""
    from nbconvert import MarkdownExporter

    names = {"unique_key": notebook.stem, "output_files_dir": f"{notebook.stem}-files"}
    text, resources = MarkdownExporter().from_filename(str(notebook), resources=names)
    title, _, rest = text.lstrip().partition("\n")
    note = f"*This page is [a notebook]({notebook.name}) with its outputs.*"
    notebook.with_suffix(".md").write_text(f"{title}\n\n{note}\n{rest}", encoding="utf-8")
    for name, picture in resources["outputs"].items():
        (notebook.parent / name).parent.mkdir(exist_ok=True)
        (notebook.parent / name).write_bytes(picture)


if __name__ == "__main__":
    main()
