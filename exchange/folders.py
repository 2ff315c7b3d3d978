# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Folders that are written whole or not at all, and what travels along: tokenizers, or what prepares pictures."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from transformers import AutoImageProcessor, AutoTokenizer
from transformers.utils import cached_file


TARGET_TOKENIZER = "target_tokenizer"  # where training keeps the second one of a pair


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """A folder beside `place` that takes its name when all has gone well, and is gone if not."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise FileExistsError(f"{place} exists and is not empty: name another folder, or remove it first.")
    if place.resolve() == Path.cwd():
        raise FileExistsError(f"{place} is the folder that you are in, and would be replaced: name a new one.")
    draft = place.absolute().with_name(f".{place.name}.{os.getpid()}.unfinished")
    above = [parent for parent in draft.parents if not parent.exists()]
    try:
        draft.mkdir(parents=True)
    except OSError as error:
        raise OSError(f"{place} cannot be written ({error.strerror}): name another folder.") from error
    try:
        yield draft
        draft.replace(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        with suppress(OSError):  # which says that there is something in it now
            for parent in above:
                parent.rmdir()


# What there is to copy: the class that loads it, the file that tells of it, and its name in a sentence.
READERS = (
    (AutoTokenizer, "tokenizer_config.json", "tokenizer"),
    (AutoImageProcessor, "preprocessor_config.json", "image processor"),
)


def load_reader(auto_class: Any, name: str, source: str | Path) -> Any:
    try:
        return auto_class.from_pretrained(source)
    except (ImportError, OSError, ValueError) as error:
        raise ValueError(f"The {name} of {source} cannot be loaded: {reason_of(error)}.") from error


def reason_of(error: Exception) -> str:
    """What others say in many lines, in one and without a full stop."""
    return " ".join(str(error.args[0] if error.args else error).split()).rstrip(".")


def copy_readers(source: str | Path, place: Path) -> None:
    """Tokenizer and image processor of a folder or Hub name, where it has one."""
    for auto_class, file, name in READERS:
        if cached_file(source, file, _raise_exceptions_for_missing_entries=False):
            load_reader(auto_class, name, source).save_pretrained(place)
    if (second := Path(source) / TARGET_TOKENIZER).is_dir():
        shutil.copytree(second, place / TARGET_TOKENIZER)
