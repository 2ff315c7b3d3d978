# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Corpora that are generated instead of downloaded, each a small task with one right answer. A recipe calls them `builtin:NAME`.

Every corpus is an endless stream of examples from which each split takes its own. Which split an example belongs to is
settled by a hash of what it asks (its key), whatever the seed, so that no test set ever shares a question with a training set.
"""

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import date, timedelta
from string import ascii_lowercase, digits
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from datasets import Dataset


SPLITS = ("train", "validation", "test")
Row = dict[str, str]


def generate(name: str, split: str, size: int | None = None, seed: int = 0) -> "Dataset":
    """The first `size` examples of a split, with the columns `source` and `target`; the same ones at every call."""
    from datasets import Dataset

    check_name("corpus", name, CORPORA)
    check_name("split", split, SPLITS)
    corpus = CORPORA[name]
    size = corpus.sizes[split] if size is None else size
    if size < 1:
        raise ValueError(f"size={size} is too small: a split has at least 1 example.")
    rng = random.Random(f"{name} {split} {seed}")
    rows: list[Row] = []
    while len(rows) < size:
        row, key = corpus.draw(rng)
        if split_of(key) == split:
            rows.append(row)
    return Dataset.from_list(rows)


def split_of(key: str) -> str:
    """Eight tenths of all keys are for training, a tenth each for validation and test."""
    tenth = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") % 10
    return {8: "validation", 9: "test"}.get(tenth, "train")


def check_name(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        from .recipe import nearest  # brings torch along, which nothing else here needs

        raise ValueError(f"There is no {what} {name!r}{nearest(name, known)}")


# Dates


@dataclass(frozen=True)
class Language:
    """How a language names and writes dates. Names are those in running text; `ordinal` is a day with its ending, such as 4th."""

    months: list[str]
    short_months: list[str]
    weekdays: list[str]
    short_weekdays: list[str]
    ordinal: Callable[[int], str]
    formats: list[str]


def english_ordinal(day: int) -> str:
    ending = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"


words = str.split  # lists of names are easier to read, and to check, as one string

# fmt: off
LANGUAGES = {
    "en": Language(
        months=words("January February March April May June July August September October November December"),
        short_months=words("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"),
        weekdays=words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
        short_weekdays=words("Mon Tue Wed Thu Fri Sat Sun"),
        ordinal=english_ordinal,
        formats=[
            "{month} {d}, {y}", "{month} {d} {y}", "{month} {nth}, {y}", "{month} the {nth}, {y}", "{d} {month} {y}",
            "{nth} {month} {y}", "the {nth} of {month} {y}", "the {nth} of {month}, {y}", "{weekday}, {month} {d}, {y}",
            "{weekday} the {nth} of {month} {y}", "{weekday}, {d} {month} {y}", "{mon} {d}, {y}", "{mon} {d} {y}",
            "{d} {mon} {y}", "{d}-{mon}-{y}", "{wd}, {mon} {d}, {y}", "{wd} {d} {mon} {y}",
            "{weekday} {m}/{d}/{y}", "{weekday}, {mm}/{dd}/{y}",
        ],
    ),
    "de": Language(
        months=words("Januar Februar März April Mai Juni Juli August September Oktober November Dezember"),
        short_months=words("Jan. Feb. März Apr. Mai Juni Juli Aug. Sept. Okt. Nov. Dez."),
        weekdays=words("Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag"),
        short_weekdays=words("Mo Di Mi Do Fr Sa So"),
        ordinal="{}.".format,
        formats=[
            "{nth} {month} {y}", "den {nth} {month} {y}", "am {nth} {month} {y}", "{weekday}, {nth} {month} {y}",
            "{weekday}, der {nth} {month} {y}", "{wd}, {nth} {month} {y}", "{nth} {mon} {y}", "{wd} {nth} {mon} {y}",
            "{d}.{m}.{y}", "{dd}.{mm}.{y}", "{d}. {m}. {y}", "{weekday}, {dd}.{mm}.{y}", "{wd}, {d}.{m}.{y}",
        ],
    ),
    "fr": Language(
        months=words("janvier février mars avril mai juin juillet août septembre octobre novembre décembre"),
        short_months=words("janv. févr. mars avr. mai juin juil. août sept. oct. nov. déc."),
        weekdays=words("lundi mardi mercredi jeudi vendredi samedi dimanche"),
        short_weekdays=words("lun. mar. mer. jeu. ven. sam. dim."),
        ordinal=lambda day: "1er" if day == 1 else str(day),
        formats=[
            "{nth} {month} {y}", "le {nth} {month} {y}", "{weekday} {nth} {month} {y}", "le {weekday} {nth} {month} {y}",
            "{nth} {mon} {y}", "le {nth} {mon} {y}", "{wd} {nth} {mon} {y}", "{weekday} {nth} {mon} {y}",
            "{weekday} {d}/{m}/{y}", "le {weekday} {dd}/{mm}/{y}",
        ],
    ),
    "es": Language(
        months=words("enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre"),
        short_months=words("ene feb mar abr may jun jul ago sep oct nov dic"),
        weekdays=words("lunes martes miércoles jueves viernes sábado domingo"),
        short_weekdays=words("lun mar mié jue vie sáb dom"),
        ordinal=lambda day: "1.º" if day == 1 else str(day),
        formats=[
            "{d} de {month} de {y}", "el {d} de {month} de {y}", "{nth} de {month} de {y}", "{d} de {month}, {y}",
            "{weekday}, {d} de {month} de {y}", "el {weekday} {nth} de {month} de {y}", "{wd}, {d} de {month} de {y}",
            "{d} {mon} {y}", "{d}-{mon}-{y}", "{wd} {d} {mon} {y}", "{weekday} {d}/{m}/{y}", "{weekday}, {dd}/{mm}/{y}",
        ],
    ),
}
# fmt: on
YEAR_FIRST = ["{y}-{mm}-{dd}", "{y}/{mm}/{dd}", "{y}/{m}/{d}", "{y}.{mm}.{dd}"]  # in any language
DATE_FORMATS = [(code, form) for code, language in LANGUAGES.items() for form in language.formats]
DATE_FORMATS += [("any", form) for form in YEAR_FIRST]
FIRST_DAY, LAST_DAY = date(1900, 1, 1), date(2099, 12, 31)


def draw_date(rng: random.Random) -> tuple[Row, str]:
    """A date as people write it in English, German, French or Spanish -> YYYY-MM-DD, from 1900 to 2099. The key is the day.

    The text alone settles what is day and what is month. With the year first, the month follows. With dots and the year last,
    the day comes first, as in German. Slashes with the year last follow the name of a weekday, whose language decides: the
    month comes first in English, the day in French and Spanish. Years have four digits.
    """
    day = FIRST_DAY + timedelta(days=rng.randrange((LAST_DAY - FIRST_DAY).days + 1))
    language, form = rng.choice(DATE_FORMATS)
    change_case = rng.choice((str, str, str, str.lower, str.upper))
    source = change_case(write_date(day, language, form))
    return {"source": source, "target": day.isoformat(), "language": language, "format": form}, day.isoformat()


def write_date(day: date, language: str, form: str) -> str:
    names = LANGUAGES["en" if language == "any" else language]
    month, weekday = day.month - 1, day.weekday()
    return form.format(
        y=day.year, m=day.month, mm=f"{day.month:02}", d=day.day, dd=f"{day.day:02}", nth=names.ordinal(day.day),
        month=names.months[month], mon=names.short_months[month],
        weekday=names.weekdays[weekday], wd=names.short_weekdays[weekday],
    )  # fmt: skip


# Strings


def draw_string(rng: random.Random, symbols: str) -> str:
    return "".join(rng.choice(symbols) for _ in range(rng.randint(3, 16)))


def draw_copy(rng: random.Random) -> tuple[Row, str]:
    """3 to 16 letters -> the same."""
    source = draw_string(rng, ascii_lowercase)
    return {"source": source, "target": source}, source


def draw_reverse(rng: random.Random) -> tuple[Row, str]:
    """3 to 16 letters -> the last one first."""
    source = draw_string(rng, ascii_lowercase)
    return {"source": source, "target": source[::-1]}, source


def draw_sort(rng: random.Random) -> tuple[Row, str]:
    """3 to 16 digits and letters -> digits first, then letters, each in order. The key is the answer: no split has another's."""
    source = draw_string(rng, digits + ascii_lowercase)
    target = "".join(sorted(source))
    return {"source": source, "target": target}, target


def draw_addition(rng: random.Random) -> tuple[Row, str]:
    """Two numbers of 1 to 4 digits -> their sum. The key has the smaller number first: a+b and b+a are the same question.

    Digits stand as people write them, the highest first, so that answers can be read. A model that writes them the other way
    round would have it easier, as every carry comes from digits it has already added: here it has to look ahead.
    """
    a, b = (rng.randrange(10 ** rng.randint(1, 4)) for _ in range(2))
    return {"source": f"{a}+{b}", "target": str(a + b)}, f"{min(a, b)}+{max(a, b)}"


def draw_pattern(rng: random.Random) -> tuple[Row, str]:
    """A unit of 2 to 6 letters again and again, at least twice (abcabcab) -> the next 8 letters (cabcabca).

    The key is the unit, by its first rotation in the alphabet: held-out splits repeat units that training has never seen, from
    whichever letter one starts to read, so that knowing units by heart does not help.
    """
    unit = draw_unit(rng)
    length = rng.randint(2 * len(unit), 24)
    endless = unit * 24
    row = {"source": endless[:length], "target": endless[length : length + 8]}
    return row, min(unit[i:] + unit[:i] for i in range(len(unit)))


def draw_unit(rng: random.Random) -> str:
    """Letters that do not themselves repeat a shorter unit."""
    unit = "".join(rng.choice(ascii_lowercase) for _ in range(rng.randint(2, 6)))
    return draw_unit(rng) if unit in (unit + unit)[1:-1] else unit


@dataclass(frozen=True)
class Corpus:
    description: str
    draw: Callable[[random.Random], tuple[Row, str]]  # an example and its key
    sizes: dict[str, int] = field(default_factory=lambda: {"train": 30_000, "validation": 1_000, "test": 2_000})


CORPORA = {
    "dates": Corpus("dates as people write them in four languages -> YYYY-MM-DD", draw_date),
    "copy": Corpus("letters -> the same letters", draw_copy),
    "reverse": Corpus("letters -> the same letters, last one first", draw_reverse),
    "sort": Corpus("digits and letters -> the same in order", draw_sort),
    "addition": Corpus("the sum of two numbers of up to four digits", draw_addition),
    "patterns": Corpus("a repeated unit -> how it goes on, for units never seen in training", draw_pattern),
}
