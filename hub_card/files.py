# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Which files of a folder make up a model for the Hub: a list of what goes, so that nothing else can go by mistake."""

import json
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_relative_import_files


CARD = "README.md"
PICTURES = ("curves.png", "attention.png")
PICTURE = re.compile(r"""(?:!\[[^\]]*\]\(\s*<?|<img\b[^>]*\bsrc=["'])([^)\s>"']+)""")  # what a Markdown text shows
PICTURE_KINDS = (".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp")
WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
TOKENIZER = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
}  # fmt: skip
OTHERS = {"config.json", "generation_config.json", "preprocessor_config.json", "LICENSE", CARD}
TARGET = "target_tokenizer"  # of models that read one vocabulary and write another

LEFT_OUT = {  # why, for what a run leaves beside its model
    "checkpoints": "optimiser and loop state, to go on with training",
    "tokenizer": "a copy from which training goes on",
    "tensorboard": "logs",
    "wandb": "logs",
    "log.jsonl": "logs",
    "predictions.jsonl": "rows of the data",
    "recipe.yaml": "has paths of this machine; the card tells what matters",
    "run.json": "has paths of this machine; the card tells what matters",
    "metrics.json": "is on the card",
}
SECRET = re.compile(rb"\bhf_[A-Za-z0-9]{30,}\b")
TEXT = (".json", ".md", ".py", ".txt", ".jinja")


class FolderError(ValueError):
    """A folder that cannot go to the Hub; the message says why and what to do."""


@dataclass
class Contents:
    """Files by their place in the repository, and what stays here with the reason."""

    upload: dict[str, Path]
    left_out: dict[str, str]


def contents(folder: Path) -> Contents:
    """What goes and what stays. A folder that lacks something that a loader needs is refused."""
    config = read_config(folder)
    code = code_files(folder, config)
    shown = shown_pictures(folder)
    wanted = OTHERS | code | set(PICTURES) | shown
    found = Contents({}, {})
    for path in sorted({*folder.iterdir(), *(folder / TARGET).glob("*"), *(folder / name for name in shown)}):
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            if name != TARGET:
                found.left_out[f"{name}/"] = reason(path)
        elif not (path.name in TOKENIZER or name in wanted or WEIGHTS.fullmatch(name)):
            found.left_out[name] = reason(path)
        elif not is_inside(path, folder):
            found.left_out[name] = "a link that leads out of the folder"
        else:
            found.upload[name] = path
    check(folder, found, code)
    return found


def reason(path: Path) -> str:
    if path.name.startswith("."):
        return "hidden"
    return LEFT_OUT.get(path.name, "not part of a model" if path.suffix != ".py" else "code that the model does not use")


def is_inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a finished model."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        unfinished = (folder / "checkpoints").exists()
        cure = "its training has not ended: start it again to go on" if unfinished else "give a folder that training has made"
        raise FolderError(f"{folder} holds no model: {cure}.") from None
    except (OSError, ValueError) as error:
        raise FolderError(f"{folder / 'config.json'} cannot be read ({error}): save the model again.") from None
    if config.get("model_type") != "glassformer":
        raise FolderError(
            f"{folder} holds a model of type {config.get('model_type')!r}, not of glassformer: "
            f"`hf upload USER/NAME {folder}` pushes it as it is, without a card of ours."
        )
    coded = {target.rpartition(".")[2] for target in config.get("auto_map", {}).values()}
    if not coded & set(config.get("architectures") or []):
        problem = "names no code for its model (auto_map, architectures): save the model again with save_pretrained"
        raise FolderError(f"{folder / 'config.json'} {problem}.")
    return config


def code_files(folder: Path, config: dict[str, Any]) -> set[str]:
    """The modules that `auto_map` names and those that they import from beside them: what a loader will ask for."""
    named = {folder / f"{target.partition('.')[0]}.py" for target in config["auto_map"].values()}
    try:
        return {Path(file).name for module in named for file in (module, *get_relative_import_files(module))}
    except FileNotFoundError as error:
        lacking = Path(error.filename).name
        raise FolderError(f"{folder} lacks {lacking}, without which nobody can load the model: save it again.") from None


def shown_pictures(folder: Path) -> set[str]:
    """Pictures in the folder that the card shows."""
    card = folder / CARD
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    names = {posixpath.normpath(name) for name in PICTURE.findall(text) if name.lower().endswith(PICTURE_KINDS)}
    return {name for name in names if (folder / name).is_file() and is_inside(folder / name, folder)}


def check(folder: Path, found: Contents, code: set[str]) -> None:
    for name in ("config.json", *sorted(code)):
        if name not in found.upload:
            raise FolderError(f"{folder / name} is {found.left_out[name]}: put a copy of the file in its place.")
    weights = [name for name in found.upload if name.endswith(".safetensors")]
    if not weights:
        linked = next((name for name in found.left_out if WEIGHTS.fullmatch(name)), None)
        problem = f"{linked} is {found.left_out[linked]}: put a copy of it there" if linked else "save the model again"
        raise FolderError(f"{folder} has no weights to push: {problem}.")
    for path in found.upload.values():
        if path.suffix in TEXT and SECRET.search(path.read_bytes()):
            raise FolderError(f"{path} has something in it that looks like a token of the Hub: take it out first.")
