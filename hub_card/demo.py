# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""`glassformer demo`: a model on a page for the browser, with a tab to use it and a tab to look inside.

The same page runs on one's own machine and as a Space (`space/app.py`). It asks no server but its own: no fonts, no statistics.
"""

import functools
import html
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from glassformer.analysis import AttentionVisualizer
from glassformer.analysis.explain import describe, render
from glassformer.analysis.predictions import ANSWERED
from glassformer.cli import is_for_people
from glassformer.training.corpora import generate
from glassformer.training.inference import Trained, load_trained
from glassformer.training.objectives import MaskedLM, SequenceClassification, TokenClassification
from glassformer.training.recipe import BUILT_IN

from .sections import KINDS


os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before Gradio looks
try:
    import gradio as gr
except ImportError as error:
    raise ImportError("The demo needs Gradio: install it with pip install 'glassformer[demo]'.") from error

LONGEST_TEXT = 2000  # characters that are answered
LONGEST_INSIDE = 400  # characters that are looked into, for which the model runs once for each of its heads
MOST_WRITTEN = 256  # tokens
EXAMPLES = 4
# One after the other, for looking inside switches heads off in the model that answers
IN_TURN: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}
LABELS = {"text_pair": "Second text, if the model compares two", "question": "Question", "context": "Context"}
STYLE = "#inside iframe { width: 100%; height: max(640px, 88vh); border: 1px solid var(--border-color-primary); }"


def build_demo(model: str | Path, title: str | None = None) -> gr.Blocks:
    """The page of a saved model: a folder, or a name on the Hub."""
    trained = load_trained(find_folder(model))
    title, examples = title or Path(model).resolve().name, examples_of(trained)
    with gr.Blocks(title=title, analytics_enabled=False) as demo:
        gr.Markdown(f"# {title}\n{describe_model(trained)}")
        with gr.Tab("Use"):
            add_use(trained, examples)
        with gr.Tab("Look inside"):
            add_inside(trained, examples)
    return demo


def describe_model(trained: Trained) -> str:
    kind, size = type(trained.model).__name__, f"{trained.model.num_parameters():,} parameters"
    hidden = f", which stand as `{trained.objective.tokenizer.mask_token}`" if isinstance(trained.objective, MaskedLM) else ""
    return f"It {KINDS[trained.objective.head]}{hidden}. {kind}, {size}."


def launch(demo: gr.Blocks, **options: Any) -> None:
    """Serve the page until somebody stops it."""
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}  # none that are fetched
    theme = gr.themes.Default(primary_hue="blue", **fonts)
    demo.launch(theme=theme, css=STYLE, footer_links=[], ssr_mode=False, **options)


def serve(demo: gr.Blocks, port: int | None = None, share: bool = False) -> None:
    """On this machine, for this machine alone unless it is shared."""
    try:
        launch(demo, server_name="127.0.0.1", server_port=port, share=share, quiet=True, prevent_thread_lock=True)
    except OSError as error:
        raise OSError(f"Port {port or 7860} cannot be listened at: choose another with --port.") from error
    print(f"{demo.share_url or demo.local_url} is ready: open it in a browser, end it with Ctrl-C", flush=True)
    demo.block_thread()


def find_folder(model: str | Path) -> Path:
    """The folder itself, or that of a model which is fetched from the Hub."""
    if Path(model).exists() or str(model).count("/") != 1:
        return Path(model)
    try:
        return Path(snapshot_download(str(model), allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model", "recipe.yaml"]))
    except (OSError, ValueError) as error:
        raise ValueError(f"There is no folder {model}, and no model of this name can be had from the Hub.") from error


def input_roles(trained: Trained) -> list[str]:
    return [role for role in trained.objective.roles if role not in ("target", "label", "tags", "answers")]


def examples_of(trained: Trained) -> list[str]:
    """Inputs that the model has not been trained on, where its corpus is generated: texts of other people are not shown."""
    data, role = trained.recipe.data, input_roles(trained)[0]
    if not data.source.startswith(BUILT_IN):
        return []
    columns = data.columns.get(role, role)
    column = columns if isinstance(columns, str) else columns[0]
    rows = [{role: row[column]} for row in generate(data.source.removeprefix(BUILT_IN), "test", EXAMPLES)]
    return [row[role] for row in trained.objective.sample_prompts(rows)]


# The tabs


def add_use(trained: Trained, examples: list[str]) -> None:
    roles = input_roles(trained)
    with gr.Row():
        with gr.Column():
            texts = [add_text(LABELS.get(role, "Text"), LONGEST_TEXT, examples if role == roles[0] else []) for role in roles]
            options = add_options(trained) if trained.objective.writes_text else []
            button = gr.Button("Answer", variant="primary", elem_id="submit")
        with gr.Column():
            answer = answer_component(trained)

    @told
    def reply(*values: Any) -> Any:
        row = {role: value for role, value in zip(roles, values) if is_given(trained, role, value)}
        return answer_row(trained, row, dict(zip(("num_beams", "max_new_tokens"), values[len(roles) :])))

    gr.on([button.click, texts[0].submit], reply, [*texts, *options], answer, api_name="answer", **IN_TURN)
    add_examples(examples, texts[0])


def add_inside(trained: Trained, examples: list[str]) -> None:
    model, objective = trained.model, trained.objective
    visualizer = AttentionVisualizer(model, objective.tokenizer, objective.target_tokenizer)
    two_stacks, roles = model.config.is_encoder_decoder, input_roles(trained)
    names = [LABELS.get(role, "Text") for role in roles]
    gr.Markdown("Where every head looks, what the model predicts, and what it predicts if a head is missing.")
    with gr.Row():
        texts = [add_text(name, LONGEST_INSIDE, examples if name is names[0] else []) for name in names]
        if two_stacks:
            texts.append(add_text("Answer to look at; the model's own if empty", LONGEST_INSIDE))
    button = gr.Button("Look inside", variant="primary", elem_id="look")
    add_examples(examples, texts[0])
    page = gr.HTML(elem_id="inside")

    @told
    def look(*values: str) -> str:
        for name, value in zip((*names, "The answer"), values):
            check_length(name, value, LONGEST_INSIDE)
        given = [value if value.strip() else None for value in values]
        target = given.pop() if two_stacks else None
        written = min(usual_length(trained), ANSWERED) if two_stacks else None
        return frame(render(describe(visualizer, values[0], target, written, *given[1:])))

    gr.on([button.click, texts[0].submit], look, texts, page, api_name="look_inside", **IN_TURN)


def add_text(label: str, longest: int, examples: list[str] | None = None) -> gr.Textbox:
    first = examples[0] if examples else None
    return gr.Textbox(first, label=label, max_length=longest, lines=2, max_lines=12)


def add_examples(examples: list[str], text: gr.Textbox) -> None:
    if examples:
        gr.Examples([[example] for example in examples], [text], label="Examples that it was not trained on")


def add_options(trained: Trained) -> list[gr.Slider]:
    """How it writes: at first as its generation config says."""
    usual, length = trained.model.generation_config, usual_length(trained)
    with gr.Accordion("Options", open=False):
        return [
            gr.Slider(1, max(8, usual.num_beams or 1), usual.num_beams or 1, step=1, label="Beams"),
            gr.Slider(1, max(MOST_WRITTEN, length), length, step=1, label="Tokens that it may write"),
        ]


def usual_length(trained: Trained) -> int:
    return trained.model.generation_config.max_new_tokens or ANSWERED


def answer_component(trained: Trained) -> Any:
    objective = trained.objective
    if isinstance(objective, SequenceClassification) and objective.labels:
        has_one = objective.kind != "multi_label_classification"
        return gr.Label(label="Answer", num_top_classes=10, show_heading=has_one, elem_id="answer")
    if isinstance(objective, TokenClassification):
        return gr.HighlightedText(label="Answer", elem_id="answer", show_legend=True)
    return gr.Textbox(label="Answer", lines=2, max_lines=30, interactive=False, elem_id="answer", buttons=["copy"])


# Answers


def answer_row(trained: Trained, row: dict[str, str], generation: dict[str, int]) -> Any:
    """As `answer_component` shows it: a text, the words with their labels, or the probabilities of classes."""
    objective = trained.objective
    if isinstance(objective, SequenceClassification) and objective.labels:
        return trained.probabilities([row])[0]
    if isinstance(objective, MaskedLM) and str(mask := objective.tokenizer.mask_token) not in row["text"]:
        raise ValueError(f"Nothing is hidden in this text: write {mask} in the place of a word.")
    [answer] = trained.predict([row], **generation)
    if isinstance(objective, TokenClassification):
        return [(word + " ", None if tag == "O" else tag) for word, tag in zip(row["tokens"].split(), answer)]
    return f"{answer:.4f}" if isinstance(answer, float) else answer


def is_given(trained: Trained, role: str, text: str) -> bool:
    name = LABELS.get(role, "Text")
    check_length(name, text, LONGEST_TEXT)
    if trained.objective.roles[role] and not text.strip():
        raise ValueError(f"{name} is empty: write something first.")
    return bool(text.strip())


def check_length(name: str, text: str, longest: int) -> None:
    if len(text) > longest:
        raise ValueError(f"{name} has {len(text)} characters, more than {longest}: shorten it.")


def frame(page: str) -> str:
    """A page inside the page, whose scripts reach nothing outside of it."""
    return f'<iframe title="Inside the model" sandbox="allow-scripts" srcdoc="{html.escape(page)}"></iframe>'


def told(function: Callable[..., Any]) -> Callable[..., Any]:
    """With mistakes of the user as a sentence on the page."""

    @functools.wraps(function)
    def run(*values: Any) -> Any:
        try:
            return function(*values)
        except Exception as error:
            if not is_for_people(error):
                raise
            raise gr.Error(html.escape(str(error)), print_exception=False) from error

    return run
