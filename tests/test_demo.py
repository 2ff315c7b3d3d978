"""The demo: its answers are those of the model, its Space runs by itself, and in a browser it does what it says."""

import html
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from configparser import ConfigParser
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from huggingface_hub import SpaceCard
from loopback_hub import LoopbackHub
from processes import run_python
from recipes import rows_of, trained_runs
from test_cli import call

from glassformer import cli
from glassformer.training.inference import load_trained


ROOT = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TASKS = {
    "seq2seq": "textbox",
    "causal_lm": "textbox",
    "masked_lm": "textbox",
    "sequence_classification": "label",
    "multi_label": "label",
    "regression": "textbox",
    "token_classification": "highlightedtext",
    "question_answering": "textbox",
}
needs_gradio = pytest.mark.skipif(find_spec("gradio") is None, reason="Gradio is not installed: pip install 'glassformer[demo]'")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    quick = {"training.steps": 1, "schedule.warmup_steps": 0, "evaluation": {"every": 1, "generation": {"max_new_tokens": 6}}}
    with trained_runs(tmp_path_factory.mktemp("runs"), quick) as folder_of:
        yield folder_of


def functions_of(demo) -> dict:
    return {function.api_name: function for function in demo.fns.values()}


def ask(demo, name: str, *values):
    return functions_of(demo)[name].fn(*values)


# What it answers


@needs_gradio
@pytest.mark.parametrize("task", TASKS)
def test_the_answer_is_that_of_the_model_in_a_form_that_fits_it(runs, task):
    from glassformer.hub_card.demo import build_demo, input_roles

    demo, trained = build_demo(runs(task)), load_trained(runs(task))
    function, roles = functions_of(demo)["answer"], input_roles(trained)
    assert [output.get_block_name() for output in function.outputs] == [TASKS[task]]
    row = {role: value for role, value in rows_of(task)[0].items() if role in roles}
    if task == "token_classification":
        row["tokens"] = " ".join(row["tokens"])
    if task == "masked_lm":
        row["text"] += trained.objective.tokenizer.mask_token
    options = [2, 4] if trained.objective.writes_text else []
    answer = ask(demo, "answer", *(row.get(role, "") for role in roles), *options)
    [expected] = trained.predict([row], **dict(zip(("num_beams", "max_new_tokens"), options)))
    if task == "sequence_classification":
        assert max(answer, key=answer.get) == expected and sum(answer.values()) == pytest.approx(1)
    elif task == "multi_label":
        assert [label for label, share in answer.items() if share > 0.5] == expected
    elif task == "token_classification":
        assert [tag or "O" for _, tag in answer] == expected
    elif task == "regression":
        assert float(answer) == pytest.approx(expected, abs=1e-4)
    else:
        assert answer == expected


@needs_gradio
def test_mistakes_are_told_in_a_sentence(runs):
    import gradio

    from glassformer.hub_card.demo import LONGEST_INSIDE, LONGEST_TEXT, build_demo

    demo, masked = build_demo(runs("copy")), build_demo(runs("masked_lm"))
    for blocks, name, values, sentence in (
        (demo, "answer", (" ", 1, 5), "Text is empty: write something first."),
        (demo, "answer", ("a" * (LONGEST_TEXT + 1), 1, 5), f"has {LONGEST_TEXT + 1} characters, more than {LONGEST_TEXT}"),
        (demo, "look_inside", ("", ""), "The text is empty"),
        (demo, "look_inside", ("a" * (LONGEST_INSIDE + 1), ""), f"Text has {LONGEST_INSIDE + 1} characters"),
        (demo, "look_inside", ("a", "b" * (LONGEST_INSIDE + 1)), f"The answer has {LONGEST_INSIDE + 1} characters"),
        (masked, "answer", ("abc",), "Nothing is hidden in this text"),
    ):
        with pytest.raises(gradio.Error, match=re.escape(sentence)):
            ask(blocks, name, *values)


@needs_gradio
def test_question_and_context_are_looked_at_together(runs):
    from glassformer.hub_card.demo import build_demo

    row = rows_of("question_answering")[0]
    shown = ask(build_demo(runs("question_answering")), "look_inside", row["question"], row["context"])
    page = json.loads(re.search(r'id="data">(.*?)</script>', html.unescape(shown), re.DOTALL)[1])
    objective = load_trained(runs("question_answering")).objective
    [window] = objective.windows(row["question"], row["context"])
    assert len(page["stacks"][0]["queries"]) == len(window["input_ids"])
    assert page["text"] == f"{row['question']}\n{row['context']}"


def test_only_classes_have_probabilities(runs):
    with pytest.raises(ValueError, match="does not choose between classes"):
        load_trained(runs("copy")).probabilities([{"source": "abc"}])


@needs_gradio
def test_nothing_answers_while_a_head_is_switched_off(runs):
    from glassformer.hub_card.demo import build_demo

    functions = functions_of(build_demo(runs("copy")))
    queues = {(functions[name].concurrency_id, functions[name].concurrency_limit) for name in ("answer", "look_inside")}
    assert queues == {("model", 1)}


@needs_gradio
def test_examples_are_generated_ones_alone(runs):
    from glassformer.hub_card.demo import examples_of

    assert len(set(examples_of(load_trained(runs("copy"))))) == 4
    assert examples_of(load_trained(runs("causal_lm"))) == []


# The command and the Space


def test_without_gradio_a_sentence_says_how_to_get_it(runs, monkeypatch, capsys):
    for name in ("glassformer.hub_card.demo", "gradio"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.setattr(sys, "argv", ["glassformer", "demo", str(runs("copy"))])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == "glassformer: The demo needs Gradio: install it with pip install 'glassformer[demo]'.\n"


@needs_gradio
@pytest.mark.parametrize(
    "name, sentence", {"nowhere": "holds no model", "some/where": "no model of this name can be had"}.items()
)
def test_a_model_that_is_not_there_is_told(name, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["glassformer", "demo", name, "--space", "space"])
    with pytest.raises(SystemExit):
        cli.main()
    assert sentence in capsys.readouterr().err and not list(tmp_path.iterdir())


@needs_gradio
def test_a_port_that_is_taken_is_told(runs):
    from glassformer.hub_card.demo import build_demo, serve

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"Port {port} cannot be listened at: choose another with --port."):
            serve(build_demo(runs("copy")), port)


@needs_gradio
def test_a_space_holds_the_model_and_the_package_and_nothing_private(runs, tmp_path):
    from glassformer.hub_card.spaces import write_space

    space = write_space(runs("causal_lm"), tmp_path / "space")
    assert {path.name for path in space.iterdir()} == {"app.py", "requirements.txt", "README.md", "glassformer", "model"}
    card = SpaceCard.load(space / "README.md").data
    assert card.sdk == "gradio" and card.app_file == "app.py" and not card.models
    assert card.sdk_version == version("gradio")
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in (space / "model").rglob("*") if path.is_file()]
    assert not any(str(runs("causal_lm").parent) in text for text in texts)
    assert yaml.safe_load((space / "model" / "recipe.yaml").read_text())["data"]["source"] == "unknown"
    with pytest.raises(ValueError, match="is there already"):
        write_space(runs("causal_lm"), space)


@needs_gradio
def test_the_command_that_is_told_pushes_the_space(runs, tmp_path, capsys):
    assert call("demo", runs("copy"), "--space", tmp_path / "space") == 0
    program, *words = shlex.split(capsys.readouterr().out.partition(": ")[2].replace("USER/NAME", "ada/page"))
    with LoopbackHub({"hf_ada": "ada"}) as hub:
        online = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "hf_ada", "HF_HUB_OFFLINE": "0"}
        run_python("from huggingface_hub.cli.hf import app; app()", tmp_path, words, **online)
    repo, folder = hub.repos["ada/page"], tmp_path / "space"
    pushed = {name: file.content for name, file in repo.at("main").files.items() if name != ".gitattributes"}
    assert program == "hf" and repo.sdk == "gradio" and hub.seen("POST", "/api/spaces/ada/page/commit/main")
    assert pushed == {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@needs_gradio
def test_the_space_of_a_model_on_the_hub_names_it(runs, tmp_path, monkeypatch):
    from glassformer.hub_card import spaces

    monkeypatch.setattr(spaces, "find_folder", lambda name: runs("copy"))
    space = spaces.write_space("some/where", tmp_path / "space")
    card = SpaceCard.load(space / "README.md").data
    assert card.models == ["some/where"] and card.title == "where" and not (space / "model").exists()


@needs_gradio
def test_a_space_that_cannot_be_finished_is_not_begun(runs, tmp_path, monkeypatch):
    from glassformer.hub_card import spaces

    monkeypatch.setattr(spaces, "copy_model", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        spaces.write_space(runs("copy"), tmp_path / "space")
    assert not list(tmp_path.iterdir())


@needs_gradio
@pytest.mark.slow
def test_a_space_runs_on_what_it_holds(runs, tmp_path):
    from glassformer.hub_card.spaces import write_space

    space = write_space(runs("copy"), tmp_path / "space")
    code = "import app, glassformer, json; print(json.dumps([glassformer.__file__, app.demo.title, app.demo.analytics_enabled]))"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=space, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == [str(space / "glassformer" / "__init__.py"), "copy", False]


def test_the_space_requires_what_the_package_requires():
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg")
    lines = (ROOT / "hub_card" / "space" / "requirements.txt").read_text().splitlines()
    assert [line for line in lines if line[0] not in "#-"] == settings["options"]["install_requires"].split("\n")[1:]
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    assert SpaceCard.load(ROOT / "hub_card" / "space" / "README.md").data.sdk_version == pins["gradio"]


# In a browser


@pytest.fixture
def address(runs):
    """Of a demo in a process of its own, on any free port."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "glassformer.cli", "demo", str(runs("copy"))]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().split()[0]
    finally:
        process.terminate()
        process.wait(timeout=30)
        process.stdout.close()


@pytest.fixture
def page(address):
    """Finds fault with every error, and with every request that goes elsewhere."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install glassformer[browser]")
    faults = []
    with playwright.sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.set_default_timeout(60_000)
        opened.on("console", lambda message: message.type == "error" and faults.append(message.text))
        opened.on("pageerror", lambda error: faults.append(str(error)))
        own = (address, "data:", "blob:", "about:")
        opened.on("request", lambda request: request.url.startswith(own) or faults.append(request.url))
        opened.goto(address)
        yield opened
        browser.close()
    assert faults == []


@needs_gradio
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: on Debian and Ubuntu, apt install chromium")
def test_a_text_is_answered_and_its_attention_is_shown(page, runs):
    trained = load_trained(runs("copy"))
    [expected] = trained.predict([{"source": "abcab"}])
    page.get_by_label("Text").first.fill("abcab")
    page.click("#submit")
    page.wait_for_function("text => document.querySelector('#answer textarea').value === text", arg=expected)

    page.get_by_label("Text").first.fill(" ")
    page.click("#submit")
    page.get_by_text("Text is empty: write something first.").wait_for()

    page.get_by_role("tab", name="Look inside").click()
    text = "a ${b} {{c}} </iframe><b>"
    page.locator("textarea:visible").first.fill(text)
    page.click("#look")
    inside = page.frame_locator("#inside iframe")
    inside.locator("html[data-ready=true]").wait_for(state="attached")
    assert inside.locator("#text").inner_text() == text
    inside.locator("#pick-stack label", has_text="Cross").click()
    inside.locator("#heads button").nth(1).click()
    assert "cross-attention layer 0, head 1" in inside.locator("#head-title").inner_text()
    inside.locator("#head .tokens button").nth(1).hover()
    assert "%" in inside.locator("#head .said").inner_text()
