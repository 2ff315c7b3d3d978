"""The page of `glassformer explain` in a real browser: pointing, keys, a head switched off, dark and light, and no request."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from models import tiny_config
from tokenizer import word_tokenizer

import glassformer
from glassformer.analysis import AttentionVisualizer
from glassformer.analysis.explain import describe


playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install glassformer[browser]")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: on Debian and Ubuntu, apt install chromium"),
]

TEXT = "the lamp shines through the window </script> <b>"
HEADS = {
    "encoder-decoder": "GlassformerForConditionalGeneration",
    "decoder": "GlassformerForCausalLM",
    "encoder": "GlassformerForSequenceClassification",
}


def visualizer_of(shape: str) -> AttentionVisualizer:
    """Its weights are so large that heads matter."""
    torch.manual_seed(0)
    model = getattr(glassformer, HEADS[shape])(tiny_config(shape, vocab_size=len(word_tokenizer()))).eval()
    with torch.no_grad():
        for matrix in (parameter for parameter in model.parameters() if parameter.dim() == 2):
            matrix.normal_(std=0.3)
    return AttentionVisualizer(model, word_tokenizer())


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as tool:
        opened = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {shape: visualizer_of(shape).explain(TEXT, folder / f"{shape}.html", max_new_tokens=6) for shape in HEADS}


@pytest.fixture
def visit(browser, pages):
    """Opens a page from disk, and finds fault with every message and every request for more than the file."""
    faults, contexts = [], []

    def opened(shape: str, colours: str = "light"):
        contexts.append(browser.new_context(color_scheme=colours, viewport={"width": 1280, "height": 900}))
        page, address = contexts[-1].new_page(), pages[shape].as_uri()
        page.on("console", lambda message: faults.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: request.url == address or faults.append(request.url))
        page.goto(address)
        page.wait_for_selector("html[data-ready=true]", timeout=30_000)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert faults == []


def said(page, part: str = "#head") -> str:
    """Without the marks that keep the direction of words to themselves."""
    return page.locator(f"{part} .said").inner_text().replace("\u2068", "").replace("\u2069", "")


def looking(page, part: str = "#head") -> int:
    return page.locator(f"{part} .tokens button").evaluate_all("all => all.findIndex((one) => one.classList.contains('looking'))")


@pytest.mark.parametrize("shape", HEADS)
def test_a_token_that_is_pointed_at_says_where_it_looks(visit, shape):
    page, visualizer = visit(shape), visualizer_of(shape)
    stack = describe(visualizer, TEXT, max_new_tokens=6).stacks[0]
    page.hover("#head .tokens button:nth-child(4)")
    assert looking(page) == looking(page, "#rollout") == 3
    assert said(page).startswith(f"“{stack.queries[3]}”")
    ids = page.evaluate("JSON.stringify(stack().queries)")
    assert all(label in ids for label in stack.queries)
    weights = page.evaluate("stack().keys.map((_, key) => views.head.source.weight(3, key))")
    assert abs(sum(weights) - 1) < 0.03
    best = max(range(len(weights)), key=weights.__getitem__)
    share = page.locator(f"#head .tokens button:nth-child({best + 1}) small").inner_text()
    assert abs(float(share.rstrip(" %")) / 100 - weights[best]) < 0.01
    assert f"“{stack.keys[best]}” {share}" in said(page)


def test_layers_heads_and_tokens_are_chosen_with_the_mouse_and_with_keys(visit):
    page = visit("encoder-decoder")
    title = page.locator("#head-title")
    page.click("#pick-stack label:has-text('Cross')")
    assert "cross-attention layer 0, head 0" in title.inner_text() and page.locator("#rollout").is_hidden()
    page.click("#pick-layer label:has-text('1')")
    page.click("#heads button >> nth=6")  # 4 heads a row
    assert "layer 1, head 2" in title.inner_text()
    page.keyboard.press("ArrowDown")
    assert "layer 2, head 2" in title.inner_text()
    page.keyboard.press("ArrowLeft")
    assert "layer 2, head 1" in title.inner_text()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Layer 2, head 1: ")

    page.focus("#pick-head input:checked")
    page.keyboard.press("ArrowRight")
    assert "layer 2, head 2" in title.inner_text() and page.evaluate("document.activeElement.value") == "2"

    page.focus("#head .tokens button[tabindex='0']")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert looking(page) == 1 and said(page).startswith("“")
    page.keyboard.press("End")
    assert looking(page) == page.locator("#head .tokens >> nth=0").locator("button").count() - 1
    page.focus("#head canvas[role=application]")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    assert "gives" in said(page) and looking(page) == page.locator("#head .tokens >> nth=0").locator("button").count() - 2


def test_everything_can_be_reached_with_tab_and_shows_the_focus(visit):
    page, reached = visit("encoder"), set()
    for _ in range(60):
        page.keyboard.press("Tab")
        part, ring = page.evaluate("""() => {
            const at = document.activeElement, shown = at.matches("label.pick input") ? at.nextElementSibling : at;
            return [at.closest("section, header")?.id || at.id, getComputedStyle(shown).outlineStyle];
        }""")
        if part:
            reached.add(part)
            assert ring == "solid", part
    assert {"theme", "prediction", "choice", "head", "grid", "rollout", "entropy"} <= reached
    unnamed = page.locator("button, input, canvas[tabindex]").evaluate_all(
        "all => all.filter((one) => !(one.getAttribute('aria-label') || one.textContent.trim())).length"
    )
    assert unnamed == 0


@pytest.mark.parametrize("shape", HEADS)
def test_a_head_that_is_off_changes_the_prediction(visit, shape):
    page = visit(shape)
    assert page.locator("#bars .without").count() == 0 and page.locator("#verdict").inner_text() == ""
    before = page.locator("#bars").inner_text()
    page.click("#ranking button >> nth=0")
    assert page.locator("#off").get_attribute("aria-pressed") == "true"
    assert page.locator("#bars .bar.without").count() > 0 and page.locator("#bars").inner_text() != before
    assert "→" in page.locator("#verdict").inner_text()
    row = page.evaluate("rowOf(state.stack, state.layer, state.head)")
    texts = page.evaluate("predictions.texts")
    if shape != "encoder":
        assert page.locator("#written").inner_text() == ((texts[row] if texts[row] is not None else texts[0]) or "(nothing)")
    page.focus("#off")
    page.keyboard.press("Space")
    assert page.locator("#off").get_attribute("aria-pressed") == "false" and page.locator("#bars .without").count() == 0


def test_generation_is_shown_step_by_step(visit):
    page = visit("decoder")
    assert page.locator("#back").is_disabled() and "Step 1 of 6" in page.locator("#bars-title").inner_text()
    first = looking(page)
    page.click("#next")
    assert "Step 2 of 6" in page.locator("#bars-title").inner_text() and looking(page) == first + 1
    page.keyboard.press("Tab")  # to Play
    page.keyboard.press("Enter")
    page.wait_for_selector("#next:disabled", timeout=20_000)
    assert page.locator("#next").is_disabled() and page.locator("#play").get_attribute("aria-pressed") == "false"
    page.focus("#steps input:checked")
    page.keyboard.press("ArrowLeft")
    assert "Step 5 of 6" in page.locator("#bars-title").inner_text()


def test_colours_follow_the_system_and_the_button(visit):
    def brightness(page) -> float:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3

    light, dark = visit("encoder"), visit("encoder", "dark")
    assert brightness(light) > 200 > 60 > brightness(dark)
    light.click("#theme")
    dark.click("#theme")
    assert brightness(dark) > 200 > 60 > brightness(light)


@pytest.mark.parametrize("shape", HEADS)
def test_texts_are_shown_as_they_are_and_nothing_lies_outside_the_page(visit, shape):
    page = visit(shape)
    assert page.locator("#text").inner_text() == TEXT and page.locator("#text b").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.set_viewport_size({"width": 380, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
