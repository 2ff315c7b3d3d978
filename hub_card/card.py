# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The card of a model: written from the run, and refreshed without touching what a person has written.

A section that we make stands between two marks, `<!-- glassformer:NAME -->` and `<!-- /glassformer:NAME -->`. Refreshing replaces
what is between them, wherever they have been moved to; a section whose marks were removed does not come back. Of the metadata,
the results of the run are replaced and missing keys added. Refreshing twice changes nothing.
"""

import logging
import re
from pathlib import Path

import yaml

from . import metadata, sections
from .facts import Facts, read_facts
from .files import CARD, is_inside
from .pictures import draw_attention


logger = logging.getLogger("glassformer")
TEMPLATE = Path(__file__).with_name("card.md")
FRONT = re.compile(r"\A---\n(.*?)^---(?:\n|\Z)", re.DOTALL | re.MULTILINE)
MARK = re.compile(r"<!-- (/?)glassformer:(\w+) -->")
REPO = re.compile(r'from_pretrained\("([^"]+)"')


class CardError(ValueError):
    """A card that cannot be refreshed; the message says why and what to do."""


def write_card(folder: Path, repo: str | None = None, samples: bool = False, example: str | None = None) -> Path:
    """Make the card of a model, or make it anew.

    Args:
        repo: where the model is on the Hub; what the card says already, or the name of the folder, if None.
        samples: show rows of the data with the model's answers. Rows of generated corpora are shown anyway; once shown, rows
            of other data go on being shown.
        example: a text to draw the attention for, and for the widget of the page; without it, rows of the data if these may be
            shown.
    """
    path = folder / CARD
    facts = read_facts(folder)
    before = read_card(path)
    text = before.replace("\r\n", "\n")
    show_rows = samples or facts.is_generated or "| asked |" in said(text, "samples")
    draw_attention(facts, show_rows, example)
    repo = repo or (found[1] if (found := REPO.search(said(text, "usage"))) else None) or folder.resolve().name
    front, body = split_front(text, path)
    body = fill(body if text else TEMPLATE.read_text(encoding="utf-8"), make_sections(facts, repo, show_rows), path)
    try:
        front = metadata.refresh(front, facts, show_rows, example)
    except (yaml.YAMLError, ValueError, KeyError, TypeError) as error:
        problem = " ".join(str(error).split())
        raise CardError(f"The metadata at the top of {path} cannot be read ({problem}): correct it.") from None
    after = f"---\n{front}---\n{body}"
    if text and not MARK.search(body):
        logger.warning(f"{path} has no marks of glassformer: its text was left as it is. Move it away to have a whole card made.")
    if "\r\n" in before:
        after = after.replace("\n", "\r\n")
    if after != before:
        save_card(path, after)
    return path


def read_card(path: Path) -> str:
    if not path.exists():
        return ""
    if not is_inside(path, path.parent):
        raise CardError(f"{path} is a link that leads out of the folder: put a copy of the file in its place.")
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CardError(f"{path} is not utf-8 (byte 0x{error.object[error.start]:02x}): convert it first.") from None


def save_card(path: Path, text: str) -> None:
    """Whole or not at all."""
    partial = path.with_name(f".{CARD}.partial")
    try:
        partial.write_bytes(text.encode())
        partial.replace(path)
    except OSError as error:
        raise CardError(f"{path} cannot be written ({error.strerror}): make room, or change permissions.") from None


def make_sections(facts: Facts, repo: str, show_rows: bool) -> dict[str, str]:
    return {
        "about": sections.about(facts),
        "usage": sections.usage(facts, repo),
        "limits": sections.limits(facts),
        "results": sections.results(facts),
        "samples": sections.samples(facts, show_rows),
        "training": sections.training(facts),
        "architecture": sections.architecture(facts),
        "citation": sections.citation(facts),
    }


def said(text: str, section: str) -> str:
    """What stands between the marks of a section; empty where there are none."""
    return text.partition(f"<!-- glassformer:{section} -->")[2].partition(f"<!-- /glassformer:{section} -->")[0]


def split_front(text: str, path: Path) -> tuple[str, str]:
    """Metadata and the rest."""
    if not text.startswith("---\n"):
        return "", text if not text or text.startswith("\n") else f"\n{text}"
    if (match := FRONT.match(text)) is None:
        raise CardError(f"The metadata at the top of {path} has no end: put a line of three dashes after it.")
    return match[1], text[match.end() :]


def fill(body: str, made: dict[str, str], path: Path) -> str:
    """The text with the sections that it has marks for; everything outside of them is kept."""
    pieces, end, opened = [], 0, None
    seen: set[str] = set()
    for mark in MARK.finditer(body):
        closes, name = bool(mark[1]), mark[2]
        if name not in made:
            raise CardError(f"{path} has marks for {name!r}, which there is no section for: choose from {', '.join(made)}.")
        if closes != (opened is not None) or (closes and name != opened) or (not closes and name in seen):
            raise CardError(
                f"The marks of the section {name!r} in {path} are not a pair: put back `<!-- glassformer:{name} -->` before and "
                f"`<!-- /glassformer:{name} -->` after it, once, or remove both."
            )
        if closes:
            pieces.append(f"\n{made[name]}\n" if made[name] else "\n")
        else:
            pieces.append(body[end : mark.end()])
        seen.add(name)
        opened = None if closes else name
        end = mark.start() if closes else mark.end()
    if opened is not None:
        raise CardError(f"The section {opened!r} in {path} has no end: put `<!-- /glassformer:{opened} -->` after it.")
    return "".join([*pieces, body[end:]])
