"""Labels in any script: fonts are found for them, or named where they lack; right-to-left words are drawn from right to left."""

import warnings

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from glassformer.analysis import fonts
from glassformer.analysis.fonts import USUAL, characters_of, font_families, system_fonts


def drawn(text: str, **options) -> np.ndarray:
    """The picture of a word."""
    figure = Figure(figsize=(2, 1))
    figure.text(0.5, 0.5, text, ha="center", fontsize=30, **options)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba()).copy()


def test_latin_needs_one_font_and_no_search(monkeypatch):
    monkeypatch.setattr(fonts, "system_fonts", lambda: pytest.fail("was searched"))
    assert font_families(["lamp", "</s>", "שלום", "·"]) == [USUAL]


def test_a_script_that_no_font_has_is_told_with_a_cure(monkeypatch):
    monkeypatch.setattr(fonts, "system_fonts", list)
    with pytest.warns(UserWarning, match="No installed font has 世 界: boxes are drawn instead. Install Noto .*fonts-noto-cjk"):
        assert font_families(["lamp", "世界"]) == [USUAL]


@pytest.mark.parametrize("word", ["你好世界", "東京タワー", "العالم", "שלום", "नमस्ते"])
def test_labels_are_drawn_without_boxes(word):
    if not any(fonts.visible([word]) <= characters_of(path) for path in system_fonts()):
        pytest.skip(f"no font for {word} is installed: on Debian and Ubuntu, apt install fonts-noto-core fonts-noto-cjk")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of every character that it has no glyph for
        picture = drawn(word, fontfamily=font_families([word]))
    assert (picture < 128).any()


def test_right_to_left_words_are_drawn_from_right_to_left():
    """As the same letters in the order of their places, told to stay as they are."""
    assert np.array_equal(drawn("אבג"), drawn("\u202dגבא\u202c"))
    assert not np.array_equal(drawn("אבג"), drawn("גבא"))
