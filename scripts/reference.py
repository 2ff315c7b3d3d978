"""Writes docs/reference/ from the code: python scripts/reference.py

Fields of a config, keys of a recipe and the command line, with the types, defaults and comments that stand in the code itself, so
that there is one place to write them. A test fails where a page is not what the code says.
"""

import ast
import dataclasses
import inspect
import tokenize
import typing
from io import StringIO
from pathlib import Path
from typing import Any

import typer

from glassformer import cli
from glassformer.configuration import GlassformerConfig
from glassformer.configuration.configuration_glassformer import CHOICES
from glassformer.training import recipe
from glassformer.training.catalog import describe_presets


FOLDER = Path(__file__).parents[1] / "docs" / "reference"
NOTE = "<!-- Written by scripts/reference.py from the code: change it there. -->\n\n"


def main() -> None:
    for name, text in {"config": config_page(), "recipe": recipe_page(), "command-line": command_line_page()}.items():
        (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")
    print(f"Written: {FOLDER}")


# Fields of a class, as they stand in its source


@dataclasses.dataclass
class Field:
    name: str
    kind: str
    default: str
    meaning: str
    heading: str  # the comment above the group of fields that it belongs to


def fields_of(kind: Any) -> list[Field]:
    """Fields in order. A comment behind a field, or on the line right below it, is its meaning; one above a group, a heading."""
    source = inspect.cleandoc("\n" + inspect.getsource(kind))
    comments = {
        token.start[0]: (token.string.lstrip("# "), token.line.strip().startswith("#"))
        for token in tokenize.generate_tokens(StringIO(source).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith("# fmt")
    }
    body = [node for node in ast.parse(source).body[0].body if isinstance(node, ast.AnnAssign)]  # type: ignore[attr-defined]
    lines, heading, fields = source.splitlines(), "", []
    for node in body:
        above = comments.get(node.lineno - 1)
        if above and above[1] and not lines[node.lineno - 3].strip():
            heading = above[0]
        meaning = [text for line, (text, _) in comments.items() if node.lineno <= line <= node.end_lineno]
        below = comments.get(node.end_lineno + 1)
        if below and below[1]:
            meaning.append(below[0])
        fields.append(Field(node.target.id, unparsed(node.annotation), default_of(node.value), " ".join(meaning), heading))
    return fields


def unparsed(node: ast.expr) -> str:
    return ast.unparse(node).replace("'", '"').replace("float | int", "float")


def default_of(node: ast.expr | None) -> str:
    """As a person would write it: a factory by what it makes."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "field":
        [factory] = [keyword.value for keyword in node.keywords if keyword.arg == "default_factory"]
        return (
            unparsed(factory.body)
            if isinstance(factory, ast.Lambda)
            else {"dict": "{}", "list": "[]"}.get(ast.unparse(factory), "")
        )
    return "" if node is None else unparsed(node)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    rule = " | ".join("---" for _ in head)
    body = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {row} |" for row in [" | ".join(head), rule, *body]) + "\n\n"


def coded(text: str) -> str:
    return f"`{text}`" if text else ""


# Pages


def config_page() -> str:
    page = NOTE + "# Fields of a config\n\n"
    page += (
        "All fields of [`GlassformerConfig`](../../configuration/configuration_glassformer.py), which is also what "
        "stands under `model:` in a [recipe](recipe.md), with their defaults; the sizes are those of the paper's base "
        "model. What is wrong is refused at construction, in one sentence.\n\n"
    )
    fields, names = fields_of(GlassformerConfig), {}
    for other, name in GlassformerConfig.attribute_map.items():
        names.setdefault(name, []).append(other)
    for heading in dict.fromkeys(field.heading for field in fields):
        rows = [
            (coded(field.name), coded(field.kind), coded(field.default), meaning_of(field))
            for field in fields
            if field.heading == heading
        ]
        title, _, remark = heading.partition("; ")
        page += f"## {title}\n\n" + (f"{remark}\n\n" if remark else "")
        page += table(("field", "type", "default", "meaning"), rows)
    page += (
        "With `position_encoding: rope`, `rope_parameters` takes transformers' own (`rope_theta`, `rope_type`, `factor`, "
        "...); of an encoder, `layer_types` names what each layer sees, `sliding_attention` for the tokens within "
        "`attention_window` or `full_attention` for all, and `rope_parameters` may then hold one set for each of the two; "
        "with a classification head, `num_labels` is the number of classes, or 1 for a number.\n\n"
    )
    rows = [(coded(name), ", ".join(map(coded, others))) for name, others in names.items()]
    page += "## Other names\n\nNames of transformers that mean the same, to be used instead or beside:\n\n"
    page += table(("ours", "transformers'"), rows)
    page += "## Presets\n\nNamed sizes, for `GlassformerConfig.from_preset` and `model.preset` of a recipe:\n\n"
    return page + describe_presets() + "\n"


def meaning_of(field: Field) -> str:
    if field.name == "activation":
        return "any of transformers' activations, by name"
    choices = ", ".join(f"`{choice}`" for choice in CHOICES.get(field.name, ()))
    return "; ".join(part for part in (choices, field.meaning) if part)


def recipe_page() -> str:
    page = NOTE + "# Keys of a recipe\n\n"
    page += (
        "A recipe is a YAML file with these keys, read by [`load_recipe`](../../training/recipe.py). Every key can be "
        "replaced on the command line, with dots: `glassformer train RECIPE training.steps=1000 model.d_model=384`. A "
        "key that does not exist is refused, and the nearest one is named.\n\n"
    )
    sections = {name: kind for name, kind in typing.get_type_hints(recipe.Recipe).items() if dataclasses.is_dataclass(kind)}
    page += "## At the top\n\n" + recipe_table(recipe.Recipe, leave_out=sections)
    page += "`model` takes `preset` (see `glassformer presets`), `path` (a folder to start from) and the "
    page += "[fields of a config](config.md).\n\n"
    for name, kind in sections.items():
        page += f"## {name}\n\n" + (f"{inspect.cleandoc(kind.__doc__)}\n\n" if name == "reference" else "")
        page += recipe_table(kind)
    page += "## Recipes that come along\n\nUsed by name. `glassformer recipes` lists them with their sizes and what they reach, "
    page += "as [Results](../results.md) does.\n\n"
    names = {name: recipe.load_recipe(name).description for name in recipe.recipe_names()}
    rows = [(f"[`{name}`](../../configuration/recipes/{name}.yaml)", trains) for name, trains in names.items()]
    return page + table(("recipe", "trains"), rows).rstrip("\n") + "\n"


def recipe_table(kind: Any, leave_out: typing.Container[str] = ()) -> str:
    rows = []
    for field in fields_of(kind):
        if field.name not in leave_out:
            is_choice = field.kind.startswith("Literal[")
            values = field.kind.removeprefix("Literal[").replace("]", "").replace('"', "")
            shown = ", ".join(map(coded, values.replace(" | ", ", ").split(", "))) if is_choice else coded(field.kind)
            rows.append(
                (coded(field.name), shown, coded(field.default.replace('"', "") if is_choice else field.default), field.meaning)
            )
    return table(("key", "type or values", "default", "meaning"), rows)


def command_line_page() -> str:
    page = NOTE + "# The command line\n\n"
    page += (
        "`glassformer COMMAND --help` says the same. What a person can mend is told in one sentence and ends with exit "
        "status 1, without a traceback.\n\n"
    )
    commands: dict[str, Any] = typer.main.get_group(cli.app).commands
    for name, command in commands.items():
        context = command.make_context(name, [], resilient_parsing=True)
        usage = " ".join(command.collect_usage_pieces(context))
        page += f"## {name}\n\n```\nglassformer {name} {usage}\n```\n\n{command.help}\n\n"
        rows = [row for parameter in command.params if (row := parameter.get_help_record(context)) and "--help" not in row[0]]
        rows = [(coded(left), right) for left, right in rows]
        page += table(("argument or option", "meaning"), rows) if rows else ""
    return page.rstrip("\n") + "\n"


if __name__ == "__main__":
    main()
