"""Generated corpora: right answers, no question asked twice across splits, the same rows every time."""

import re
import unicodedata
from collections import Counter
from datetime import date, timedelta

import pytest

from glassformer.training.corpora import CORPORA, DATE_FORMATS, SPLITS, generate, write_date


MONTHS = "jan|ene feb|fév mar|mär apr|avr|abr mai|may jun|juin jul|juil aug|aoû|ago sep oct|okt nov dec|dez|dic|déc"
ENGLISH_WEEKDAYS = {"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}


def read_date(text: str) -> str:
    """Reads a date by the rules that the corpus states, from nothing but the text."""
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    words = re.findall(r"[^\W\d_]+", text.lower())
    named = [month for word in words for month, names in enumerate(MONTHS.split(), 1) if re.match(names, word)]
    if len(numbers) == 2:  # day and year, in this order; of "mardi 4 mars" the last word is the month
        return date(numbers[1], named[-1], numbers[0]).isoformat()
    if numbers[0] > 31:
        return date(*numbers).isoformat()
    assert words or "." in text  # otherwise nothing tells day and month apart
    day, month = (numbers[1], numbers[0]) if ENGLISH_WEEKDAYS & set(words) else (numbers[0], numbers[1])
    return date(numbers[2], month, day).isoformat()


def smallest_period(text: str) -> int:
    return next(p for p in range(1, len(text) + 1) if all(text[i] == text[i % p] for i in range(len(text))))


def continue_pattern(source: str) -> str:
    period = smallest_period(source)
    return "".join(source[i % period] for i in range(len(source), len(source) + 8))


ANSWERS = {
    "dates": read_date,
    "copy": lambda source: source,
    "reverse": lambda source: "".join(reversed(source)),
    "sort": lambda source: "".join(symbol * source.count(symbol) for symbol in "0123456789abcdefghijklmnopqrstuvwxyz"),
    "addition": lambda source: str(sum(map(int, source.split("+")))),
    "patterns": continue_pattern,
}


@pytest.mark.parametrize("name", CORPORA)
def test_every_answer_follows_from_its_question(name):
    for row in generate(name, "train", 2000):
        assert row["target"] == ANSWERS[name](row["source"]), row


@pytest.mark.parametrize("name", CORPORA)
def test_splits_share_no_question_whatever_the_seeds(name):
    found = [set(generate(name, split, 1000, seed)["source"]) for seed, split in enumerate(SPLITS)]
    assert len(set.union(*found)) == sum(map(len, found))


def test_no_day_is_in_two_splits():
    days = [set(generate("dates", split, size)["target"]) for split, size in zip(SPLITS, (5000, 1000, 1000))]
    assert len(set.union(*days)) == sum(map(len, days))
    assert {day[:2] for split in days for day in split} == {"19", "20"}


def test_no_sum_is_in_two_splits_the_other_way_round():
    sums = [{tuple(sorted(row.split("+"))) for row in generate("addition", split, 2000)["source"]} for split in SPLITS]
    assert len(set.union(*sums)) == sum(map(len, sums))


def test_held_out_patterns_repeat_new_units_from_whichever_letter():
    def units(split):
        for source in generate("patterns", split, 2000)["source"]:
            period = smallest_period(source)
            assert 2 <= period <= 6
            assert 2 * period <= len(source)
            yield frozenset(source[i : i + period] for i in range(len(source) - period + 1))

    found = [set().union(*units(split)) for split in SPLITS]
    assert len(set.union(*found)) == sum(map(len, found))


@pytest.mark.parametrize("name", CORPORA)
def test_rows_are_the_same_every_time_and_others_with_another_seed(name):
    rows = generate(name, "validation", 50, seed=3)
    assert rows.to_list() == generate(name, "validation", 50, seed=3).to_list()
    assert rows.to_list()[:20] == generate(name, "validation", 20, seed=3).to_list()
    assert rows.to_list() != generate(name, "validation", 50, seed=4).to_list()


def test_rows_are_the_same_in_every_process():
    assert generate("copy", "test", 2)["source"][:] == ["zdjkkhcfah", "tbjizhtkhi"]


@pytest.mark.parametrize("name", CORPORA)
def test_splits_have_their_default_sizes_and_varied_lengths(name):
    test = generate(name, "test")
    assert len(test) == CORPORA[name].sizes["test"] == 2000
    assert test.column_names[:2] == ["source", "target"]
    assert len({len(source) for source in test["source"]}) >= 7


def test_dates_are_written_as_in_each_language():
    def written(day):
        return {(language, write_date(day, language, form)) for language, form in DATE_FORMATS}

    assert {
        ("en", "Sunday, July 4, 1999"), ("en", "the 4th of July 1999"), ("en", "Sun 4 Jul 1999"), ("en", "Sunday 7/4/1999"),
        ("de", "4. Juli 1999"), ("de", "Sonntag, der 4. Juli 1999"), ("de", "04.07.1999"), ("de", "So, 4.7.1999"),
        ("fr", "le dimanche 4 juillet 1999"), ("fr", "dim. 4 juil. 1999"), ("fr", "dimanche 4/7/1999"),
        ("es", "4 de julio de 1999"), ("es", "domingo, 4 de julio de 1999"), ("es", "4-jul-1999"), ("any", "1999-07-04"),
    } <= written(date(1999, 7, 4))  # fmt: skip
    assert {
        ("en", "Wednesday the 1st of March 2000"), ("de", "Mittwoch, 1. März 2000"), ("fr", "mercredi 1er mars 2000"),
        ("es", "1.º de marzo de 2000"), ("es", "mié, 1 de marzo de 2000"),
    } <= written(date(2000, 3, 1))  # fmt: skip


def test_english_ordinals():
    written = [write_date(date(2001, 1, day), "en", "{nth}") for day in range(1, 32)]
    assert Counter(nth.lstrip("0123456789") for nth in written) == {"th": 24, "st": 3, "nd": 2, "rd": 2}
    assert {"1st", "2nd", "3rd", "11th", "12th", "13th", "21st", "22nd", "23rd", "31st"} <= set(written)


def test_no_text_means_two_days():
    """Every format of every day of a leap year and the year after it, in any case."""
    meanings = {}
    for day in (date(2000, 1, 1) + timedelta(days=n) for n in range(731)):
        for language, form in DATE_FORMATS:
            text = write_date(day, language, form)
            for variant in (text, text.lower(), text.upper()):
                assert meanings.setdefault(variant, day) == day, variant


def test_weekdays_are_those_of_the_calendar():
    english = [row for row in generate("dates", "test") if "{weekday}" in row["format"] and row["language"] == "en"]
    assert english
    for row in english:
        assert row["source"].lower().startswith(date.fromisoformat(row["target"]).strftime("%A").lower())


def test_dates_come_in_all_formats_cases_and_with_composed_accents():
    rows = generate("dates", "train", 5000).to_list()
    assert {(row["language"], row["format"]) for row in rows} == set(DATE_FORMATS)
    assert sum(row["source"].isupper() for row in rows) > 500
    assert sum(row["source"].islower() for row in rows) > 500
    assert all(unicodedata.is_normalized("NFC", row["source"]) for row in rows)
    assert set("áéûäºÁÉÛÄ") <= set("".join(row["source"] for row in rows))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("date", "train"), "There is no corpus 'date': did you mean 'dates'?"),
        (("qqq", "train"), "There is no corpus 'qqq': choose one of dates, copy, reverse, sort, addition, patterns."),
        (("dates", "valid"), "There is no split 'valid': did you mean 'validation'?"),
        (("dates", "train", 0), "size=0 is too small: a split has at least 1 example."),
    ],
)
def test_wrong_names_and_sizes_are_refused_in_one_sentence(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        generate(*arguments)
