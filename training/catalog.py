# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What comes with the package, listed at once: presets with their sizes, recipes with sizes, results and goals.

The numbers are in `configuration/catalog.json`, which scripts/catalog.py counts and collects: nothing heavy is imported here.
"""

import json
from pathlib import Path
from typing import Any

import yaml


CONFIGURATION = Path(__file__).parents[1] / "configuration"
CATALOG, PRESETS, RECIPES = (CONFIGURATION / name for name in ("catalog.json", "presets", "recipes"))


def describe_presets() -> str:
    """The named sizes, smallest first, as a Markdown table."""
    columns = ("shape", "layers", "width", "positions")
    rows = [
        [f"`{name}`", *(str(facts[column]) for column in columns), millions(facts["parameters"])]
        for name, facts in read_catalog()["presets"].items()
    ]
    return table([["preset", *columns, "parameters"], *rows])


def describe_recipes() -> str:
    """The recipes by name, as a Markdown table: what they train, what was measured, what is to be reached."""
    head = ["recipe", "trains", "parameters", "result", "reached", "goal"]
    return table([head, *(recipe_row(name, facts) for name, facts in read_catalog()["recipes"].items())])


def recipe_row(name: str, facts: dict[str, Any]) -> list[str]:
    recipe = yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
    reference = recipe.get("reference", {})
    goal = reference.get("goal")
    return [
        f"`{name}`", recipe["description"], millions(facts["parameters"]), reference.get("result") or "", reached(facts),
        "" if goal is None else f"{goal:g}",
    ]  # fmt: skip


def table(rows: list[list[str]]) -> str:
    """In columns that a terminal shows straight."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    rows = [rows[0], ["-" * max(width, 3) for width in widths], *rows[1:]]
    return "\n".join(f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths))} |" for row in rows)


def reached(facts: dict[str, Any]) -> str:
    """What has been measured, with the time that it took on two CPU cores."""
    if "result" not in facts:
        return ""
    mean = f", mean of {facts['seeds']}" if facts["seeds"] > 1 else ""
    digits = 4 if abs(facts["result"]) < 10 else 2
    return f"{facts['result']:.{digits}f}{mean}, {facts['seconds'] / 60:.0f} min"


def millions(count: int) -> str:
    return f"{count / 1e6:.1f}M"


def read_catalog() -> dict[str, Any]:
    return json.loads(CATALOG.read_text(encoding="utf-8"))
