"""Serving: who waits together is answered together, streams, limits, and errors of one sentence."""

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from recipes import keep_caches_in, task_recipe
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from glassformer.training import report
from glassformer.training.inference import load_trained
from glassformer.training.loop import train


pytest.importorskip("fastapi", reason="serving needs glassformer[serve]")
pytest.importorskip("prometheus_client", reason="serving needs glassformer[serve]")
httpx = pytest.importorskip("httpx", reason="the requests of these tests are httpx's")

from fastapi.testclient import TestClient  # noqa: E402

from glassformer.serving.app import Limits, make_app  # noqa: E402
from glassformer.serving.batching import Batcher, Busy  # noqa: E402
from glassformer.serving.jobs import Job, Stream  # noqa: E402


pytestmark = pytest.mark.filterwarnings("ignore:The texts support")
SHORT = {"training.steps": 3, "evaluation": {"every": 3, "limit": 2, "generation": {"max_new_tokens": 6}}}
TEXTS = ["the red lamp is in", "the pane", "green", "a lamp is out of the red pane", "in"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving")
    with pytest.MonkeyPatch.context() as patch:
        keep_caches_in(folder, patch)
        patch.setattr(report, "draw_curves", lambda *arguments: None)
        yield folder


@pytest.fixture(scope="module")
def folder_of(place):
    """The folder of a model for one of `TASKS`, trained when a test first asks for it."""

    def folder_of(task: str) -> Path:
        recipe = task_recipe(place / task, task, {**SHORT, "data.validation_fraction": 0.25})
        if not recipe.folder.exists():
            train(recipe)
        return recipe.folder

    return folder_of


@pytest.fixture
def serving(folder_of):
    """A client of a model for a task, and the model."""
    clients = []

    def serving(task="seq2seq", **limits):
        trained = load_trained(folder_of(task))
        clients.append(TestClient(make_app(trained, Limits(**limits))).__enter__())
        return clients[-1], trained

    yield serving
    for client in clients:
        client.__exit__(None, None, None)


def refused(response, status: int, words: str) -> None:
    assert response.status_code == status, response.text
    assert list(response.json()) == ["detail"]
    assert words in response.json()["detail"]


def read_events(response) -> list[tuple[str, dict]]:
    assert response.status_code == 200, response.text
    blocks = [block.split("\n") for block in response.text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


# The batcher alone


def answered_by(answer, batches: list):
    def run(jobs):
        batches.append([row["text"] for job in jobs for row in job.rows])
        return [answer(job) for job in jobs]

    return run


def batches_of(jobs: list[tuple[list[str], dict]], max_rows: int = 8, patience: float = 0.02) -> list[list[str]]:
    """The batches that are made of jobs, which all arrive at once."""
    batches: list[list[str]] = []

    async def main():
        batcher = Batcher(answered_by(lambda job: [row["text"].upper() for row in job.rows], batches), max_rows, patience, 100)
        made = [Job([{"text": text} for text in texts], options) for texts, options in jobs]
        for job in made:
            batcher.submit(job)
        batcher.close()
        await batcher.run()
        assert [job.future.result() for job in made] == [[text.upper() for text in texts] for texts, _ in jobs]

    asyncio.run(main())
    return batches


def test_jobs_that_wait_share_a_batch_as_far_as_there_is_room():
    assert batches_of([(["a"], {}), (["b", "c"], {}), (["d"], {})]) == [["a", "b", "c", "d"]]
    assert batches_of([(["a"], {}), (["b", "c"], {}), (["d"], {})], max_rows=2) == [["a", "d"], ["b", "c"]]
    assert batches_of([(["a", "b", "c"], {}), (["d"], {})], max_rows=2) == [["a", "b", "c"], ["d"]]


def test_only_jobs_of_one_kind_share_a_batch():
    beams = {"num_beams": 2}
    assert batches_of([(["a"], {}), (["b"], beams), (["c"], {}), (["d"], beams)]) == [["a", "c"], ["b", "d"]]


def test_a_job_waits_for_company_but_not_for_long():
    batches: list[list[str]] = []

    async def main():
        batcher = Batcher(answered_by(lambda job: None, batches), max_rows=8, patience=0.3, max_waiting=9)
        running = asyncio.create_task(batcher.run())
        for text in "ab":
            batcher.submit(Job([{"text": text}]))
            await asyncio.sleep(0.01)
        assert batches == []
        await asyncio.sleep(0.6)
        assert batches == [["a", "b"]]
        batcher.close()
        await running

    asyncio.run(main())


def test_the_queue_is_bounded_and_forgets_who_has_left():
    async def main():
        batcher = Batcher(lambda jobs: [None for _ in jobs], max_rows=8, patience=9, max_waiting=2)
        first, second = Job([{"text": "a"}]), Job([{"text": "b"}])
        batcher.submit(first)
        batcher.submit(second)
        with pytest.raises(Busy, match="2 requests are waiting already"):
            batcher.submit(Job([{"text": "c"}]))
        first.future.cancel()
        batcher.submit(Job([{"text": "d"}]))
        assert [job.rows[0]["text"] for job in batcher.take_batch()] == ["b", "d"]
        batcher.close()
        with pytest.raises(Busy, match="shutting down"):
            batcher.submit(Job([{"text": "e"}]))

    asyncio.run(main())


def test_a_batch_that_breaks_does_not_end_the_serving():
    async def main():
        batcher = Batcher(lambda jobs: [1 / jobs[0].rows[0]["number"]], max_rows=1, patience=0, max_waiting=9)
        broken, whole = Job([{"number": 0}]), Job([{"number": 2}])
        batcher.submit(broken)
        batcher.submit(whole)
        batcher.close()
        await batcher.run()
        assert isinstance(broken.future.exception(), ZeroDivisionError)
        assert whole.future.result() == 0.5

    asyncio.run(main())


# Answers


@pytest.mark.parametrize("task", ["seq2seq", "causal_lm", "masked_lm", "multi_label", "token_classification"])
def test_predictions_are_those_of_the_model_one_by_one(serving, task):
    client, trained = serving(task)
    alone = [trained.predict(trained.rows([text]))[0] for text in TEXTS]
    assert client.post("/predict", json={"inputs": TEXTS}).json() == {"predictions": alone}


def test_questions_are_answered_from_a_context_for_all_or_one_each(serving):
    client, _ = serving("question_answering")
    asked = [{"question": "where", "context": "the lamp is in"}, {"question": "what", "context": "the lamp is in"}]
    each = client.post("/predict", json={"inputs": asked})
    together = client.post("/predict", json={"inputs": ["where", "what"], "context": "the lamp is in"})
    assert each.status_code == 200 and len(each.json()["predictions"]) == 2
    assert together.json() == each.json()
    refused(client.post("/predict", json={"inputs": ["where"]}), 400, "Input 1 has no context: pass one")


def test_requests_at_the_same_time_share_a_batch_and_one_that_fails_spoils_no_other(serving):
    client, trained = serving("question_answering", wait_ms=400)
    context = "the lamp is in"
    bodies = [{"inputs": [question], "context": context} for question in ("where", "w" * 100, "what", "in")]
    with ThreadPoolExecutor(4) as threads:
        responses = list(threads.map(lambda body: client.post("/predict", json=body), bodies))
    assert [response.status_code for response in responses] == [200, 400, 200, 200]
    refused(responses[1], 400, "leaves no room for its context")
    for body, response in zip(bodies, responses):
        if response.status_code == 200:
            assert response.json()["predictions"] == trained.predict(trained.rows(body["inputs"], context))
    metrics = client.get("/metrics").text
    assert "glassformer_batch_rows_sum 4.0" in metrics and "glassformer_batch_rows_count 1.0" in metrics


def test_options_reach_the_model(serving):
    client, trained = serving()
    for options in ({"max_new_tokens": 2}, {"num_beams": 3}):
        expected = trained.predict(trained.rows(TEXTS), **options)
        assert client.post("/predict", json={"inputs": TEXTS, **options}).json()["predictions"] == expected
    short = client.post("/generate", json={"input": TEXTS[0], "max_new_tokens": 2}).json()
    assert short == {"text": trained.predict(trained.rows(TEXTS[:1]), max_new_tokens=2)[0]}


@pytest.mark.parametrize("task", ["seq2seq", "causal_lm", "prefix_lm"])
def test_streams_that_share_a_batch_are_what_the_model_writes_for_each_alone(serving, task):
    client, trained = serving(task, wait_ms=400)
    with ThreadPoolExecutor(len(TEXTS)) as threads:
        asked = [{"input": text, "stream": True} for text in TEXTS]
        streams = [read_events(response) for response in threads.map(lambda body: client.post("/generate", json=body), asked)]
    for text, stream in zip(TEXTS, streams):
        *tokens, (last, whole) = stream
        assert last == "end" and {name for name, _ in tokens} <= {"token"}
        assert "".join(data["text"] for _, data in tokens) == whole["text"]
        assert whole["text"] == trained.predict(trained.rows([text]), num_beams=1)[0]
    assert "glassformer_batch_rows_count 1.0" in client.get("/metrics").text


def test_a_stream_shows_each_character_once_it_is_whole():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), eos_token="<end>")

    async def pieces_of(text: str) -> list[str]:
        stream = Stream(tokenizer)
        for token in tokenizer(text).input_ids:
            stream.put(torch.tensor([token]))
        stream.end()
        return [piece async for piece in stream if piece]

    assert asyncio.run(pieces_of("né\n 光")) == ["n", "é", "\n", " ", "光"]


def byte_tokenizer() -> Tokenizer:
    """A token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: number for number, token in enumerate([*alphabet, "<end>"])}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return backend


# What is refused


@pytest.mark.parametrize(
    "body, status, words",
    [
        ({"inputs": []}, 400, "The field inputs is wrong"),
        ({}, 400, "The field inputs is wrong: field required."),
        ({"inputs": ["a"], "beams": 2}, 400, "There is no field beams."),
        ({"inputs": ["a"], "num_beams": 0}, 400, "The field num_beams is wrong"),
        ({"inputs": ["a"], "num_beams": 99}, 400, "num_beams=99 is more than this server allows: ask for 8 at most."),
        ({"inputs": ["a"], "max_new_tokens": 17}, 400, "ask for 16 at most"),
        ({"inputs": ["a", 5]}, 400, "Input 2 is of type int: give a text"),
        ({"inputs": [{"source": 5}]}, 400, "Input 1 has a source of type int"),
        ({"inputs": [{"text": "a"}]}, 400, "Input 1 has no source"),
        ({"inputs": [""]}, 400, "Input 1 has no source"),
        ({"inputs": ["half \ud800"]}, 400, "half a character"),
        ({"inputs": ["a"], "context": "b"}, 400, "This model reads no context beside its inputs: leave it out."),
        ({"inputs": ["a"] * 4}, 413, "4 inputs are more than 3"),
        ({"inputs": ["a" * 51]}, 413, "An input has 51 characters, more than 50"),
        ({"inputs": ["a" * 1000]}, 413, "The body has more than 500 bytes"),
        ([1], 400, "The body is no JSON object"),
    ],
)  # fmt: skip
def test_bad_input_gets_a_sentence(serving, body, status, words):
    client, _ = serving(max_inputs=3, max_characters=50, max_bytes=500, max_new_tokens=16)
    headers = {"Content-Type": "application/json"}
    refused(client.post("/predict", content=json.dumps(body), headers=headers), status, words)


def test_a_text_like_json_without_end_is_a_text(serving):
    client, trained = serving()
    for text in ('{"source": ' * 1500, '{"source": ' + "[" * 5000 + "]" * 5000 + "}"):
        assert client.post("/predict", json={"inputs": [text]}).json() == {"predictions": trained.predict([{"source": text}])}


def test_what_is_no_json_or_not_possible_gets_a_sentence(serving):
    client, _ = serving()
    refused(client.post("/predict", content="{", headers={"Content-Type": "application/json"}), 400, "The body is not JSON")
    refused(client.post("/generate", json={"input": "a", "stream": True, "num_beams": 2}), 400, "leave num_beams out")
    refused(client.post("/generate", json={"input": "", "stream": True}), 400, "Input 1 has no source")
    client, _ = serving("multi_label")
    refused(client.post("/generate", json={"input": "a"}), 400, "This model does not write text: ask /predict.")
    refused(client.post("/predict", json={"inputs": ["a"], "num_beams": 2}), 400, "leave num_beams out")


def test_who_waits_too_long_and_who_comes_too_late_are_told(serving):
    client, _ = serving(max_waiting=1, wait_ms=2000, timeout=0.4)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(client.post, "/predict", json={"inputs": ["a"]})
        time.sleep(0.2)
        second = client.post("/predict", json={"inputs": ["b"]})
        refused(second, 503, "1 requests are waiting already")
        assert second.headers["retry-after"] == "1"
        refused(first.result(), 504, "There is no answer after 0.4 seconds")
    refused(client.post("/generate", json={"input": "a", "stream": True}), 504, "There is no answer")


def test_a_failure_of_the_model_is_no_fault_of_the_client(serving, monkeypatch):
    client, trained = serving()

    def fail(*arguments, **options):
        raise RuntimeError("out of memory at 0xdeadbeef")

    monkeypatch.setattr(trained.model, "generate", fail)
    refused(client.post("/predict", json={"inputs": ["a"]}), 500, "the server's log has the reason")
    refused(client.post("/generate", json={"input": "a", "stream": True}), 500, "the server's log has the reason")
    assert client.get("/health").status_code == 200


def test_health_and_metrics(serving):
    client, _ = serving()
    assert client.get("/health").json() == {"status": "ok", "objective": "seq2seq", "waiting": 0}
    client.post("/predict", json={"inputs": ["a"]})
    client.post("/predict", json={"inputs": []})
    client.get("/nowhere")
    lines = client.get("/metrics").text.split("\n")
    for labels in ('path="/predict",status="200"', 'path="/predict",status="400"', 'path="other",status="404"'):
        assert f"glassformer_requests_total{{{labels}}} 1.0" in lines
    assert "glassformer_waiting_requests 0.0" in lines


# A server in another process


@pytest.fixture
def server(folder_of):
    """A server of a task's model -> its process and address."""
    processes = []

    def start(task: str, *options: str) -> tuple[subprocess.Popen, str]:
        command = [sys.executable, "-m", "glassformer.cli", "serve", str(folder_of(task)), "--port", "0", *options]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        processes.append(process)
        for line in process.stderr:
            if "running on" in line:
                return process, line.split("running on ")[1].split(" ")[0]
        raise AssertionError("The server did not start.")

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.slow
def test_under_load_batches_form_and_answers_are_those_of_the_model_one_by_one(server, folder_of):
    trained = load_trained(folder_of("seq2seq"))
    texts = [f"{text} {word}" for text in TEXTS for word in ("lamp", "red", "pane", "out")]
    expected = {text: trained.predict(trained.rows([text]))[0] for text in texts}
    _, address = server("seq2seq", "--wait-ms", "50", "--max-batch", "16")
    with httpx.Client(base_url=address, timeout=60) as client, ThreadPoolExecutor(12) as threads:

        def ask(text: str) -> httpx.Response:
            return client.post("/predict", json={"inputs": [text]})

        for text, response in zip(texts * 3, threads.map(ask, texts * 3)):
            assert response.json() == {"predictions": [expected[text]]}
        metrics = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.split("\n") if line and line[0] != "#")
        assert float(metrics["glassformer_batch_rows_sum"]) == 60
        assert float(metrics["glassformer_batch_rows_count"]) < 30, "requests at the same time were answered one by one"


@pytest.mark.slow
def test_a_shutdown_answers_what_was_accepted_and_refuses_the_rest(server, folder_of):
    trained = load_trained(folder_of("seq2seq"))
    process, address = server("seq2seq", "--wait-ms", "1500")
    with httpx.Client(base_url=address, timeout=60) as client, ThreadPoolExecutor(6) as threads:
        accepted = [threads.submit(client.post, "/predict", json={"inputs": [text]}) for text in TEXTS]
        stream = threads.submit(client.post, "/generate", json={"input": TEXTS[0], "stream": True})
        while httpx.get(f"{address}/health").json()["waiting"] < len(TEXTS) + 1:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        for text, response in zip(TEXTS, accepted):
            assert response.result().json() == {"predictions": trained.predict(trained.rows([text]))}
        assert read_events(stream.result())[-1] == ("end", {"text": trained.predict(trained.rows(TEXTS[:1]))[0]})
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{address}/health")
    assert process.wait(30) == -signal.SIGTERM
    assert "Traceback" not in process.stderr.read()


@pytest.mark.slow
def test_a_body_that_does_not_come_is_not_waited_for(server):
    _, address = server("seq2seq", "--timeout", "1")
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n{")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 408 and b"The body did not come in time: send it faster." in answer.read()
    assert httpx.get(f"{address}/health").status_code == 200


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_writing(server):
    _, address = server("seq2seq", "--max-new-tokens", "1000000", "--timeout", "1000")
    body = {"input": TEXTS[0], "stream": True, "max_new_tokens": 1_000_000}
    with httpx.Client(base_url=address, timeout=60) as client:
        with client.stream("POST", "/generate", json=body) as response:
            assert next(response.iter_lines()) == "event: token"
        assert client.post("/predict", json={"inputs": ["a"]}).status_code == 200  # or else it would wait for hours
