# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Fonts that have the characters of a picture's labels, among those that are installed.

matplotlib orders and joins the letters of right-to-left and Indic scripts itself (it lays text out with libraqm from version 3.11
on), but takes glyphs from the fonts it is told to use, and draws empty boxes for what these lack.
"""

import unicodedata
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path


USUAL = "DejaVu Sans"  # comes with matplotlib
OTHERS = ("bold", "italic", "oblique", "light", "thin", "black", "medium", "condensed", "mono")
PACKAGE = "Noto (on Debian and Ubuntu: apt install fonts-noto-core fonts-noto-cjk)"


def font_families(labels: Iterable[str]) -> list[str]:
    """Names of fonts for `labels`, to be tried in this order for each character; warns of characters that no font has."""
    from matplotlib import font_manager

    usual = font_manager.findfont(USUAL)
    families, missing = [USUAL], visible(labels) - characters_of(usual)
    fonts = system_fonts() if missing else []
    while missing and (best := max(fonts, key=lambda path: len(missing & characters_of(path)), default=None)):
        if not missing & characters_of(best):
            break
        missing -= characters_of(best)
        families.append(family_of(best))
    if missing:
        some = " ".join(sorted(missing)[:5])
        warnings.warn(f"No installed font has {some}: boxes are drawn instead. Install {PACKAGE}.", stacklevel=2)
    return families


def visible(labels: Iterable[str]) -> set[str]:
    """The characters that are drawn, without spaces, joiners and marks of direction."""
    return {letter for label in labels for letter in label if unicodedata.category(letter) not in ("Cf", "Cc", "Zs", "Mn", "Me")}


@cache
def system_fonts() -> list[str]:
    """Files of upright fonts of normal weight, those without serifs first, by what their names say.

    Looked for anew: matplotlib's own list is as old as its cache.
    """
    from matplotlib import font_manager

    names = {path: Path(path).stem.lower() for path in font_manager.findSystemFonts()}
    plain = [path for path, name in names.items() if not any(word in name for word in OTHERS)]
    return sorted(plain, key=lambda path: ("sans" not in names[path], names[path]))


@cache
def characters_of(path: str) -> frozenset[str]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (RuntimeError, OSError):  # a format that matplotlib cannot draw from
        return frozenset()


@cache
def family_of(path: str) -> str:
    """Its name, under which matplotlib finds it from now on."""
    from matplotlib import font_manager

    font_manager.fontManager.addfont(path)
    return font_manager.FontProperties(fname=path).get_name()
