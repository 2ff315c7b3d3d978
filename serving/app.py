# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The HTTP side: `/predict` and `/generate`, `/health` and `/metrics`, limits, and errors of one sentence."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field

from glassformer.cli import is_for_people
from glassformer.training.inference import Trained, load_trained

from .batching import Batcher, Busy
from .engine import Engine
from .jobs import Job, Stream


logger = logging.getLogger("glassformer.serving")
PATHS = ("/predict", "/generate", "/health", "/metrics")


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may ask for."""

    max_batch: int = 32  # rows that are answered together
    wait_ms: float = 5.0  # for company
    max_waiting: int = 256  # requests in the queue
    max_inputs: int = 128  # of one request
    max_characters: int = 20_000  # of one input
    max_bytes: int = 1_000_000  # of a request's body
    max_new_tokens: int = 512
    max_beams: int = 8
    timeout: float = 60.0  # seconds from a request to the end of its answer


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_new_tokens: int | None = Field(None, ge=1, description="How long a written answer may be.")
    num_beams: int | None = Field(None, ge=1, description="Beam width of models that write.")
    context: str | None = Field(None, description="The text that questions are about.")


class Prediction(Options):
    inputs: list[Any] = Field(min_length=1, description="Texts, or objects with a key for each column.")


class Generation(Options):
    input: Any = Field(description="A text, or an object with a key for each column.")
    stream: bool = Field(False, description="Send the text as server-sent events while it is written.")


def serve(folder: Path, host: str, port: int, limits: Limits, int8: bool = False) -> None:
    """Answer requests until a signal comes; then end what was accepted."""
    app = make_app(load_trained(folder, int8=int8), limits)
    uvicorn.run(app, host=host, port=port, access_log=False, timeout_graceful_shutdown=int(limits.timeout) + 5)


def make_app(trained: Trained, limits: Limits) -> FastAPI:
    desk = Desk(trained, limits)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with desk.open():
            yield

    app = FastAPI(title="glassformer", lifespan=lifespan)
    app.add_middleware(Gate, limits=limits, metrics=desk.metrics)
    app.add_exception_handler(RequestValidationError, say_what_is_wrong)

    @app.post("/predict")
    async def predict(asked: Prediction) -> dict[str, Any]:
        """Translate, continue, classify, tag, fill masks or find answers."""
        return {"predictions": await desk.answers(desk.job(asked.inputs, asked))}

    @app.post("/generate")
    async def generate(asked: Generation) -> Any:
        """One text, at once or as events: `token` with each piece, then `end` with the whole, or `error`."""
        if not trained.objective.writes_text:
            raise HTTPException(400, "This model does not write text: ask /predict.")
        if not asked.stream:
            (text,) = await desk.answers(desk.job([asked.input], asked))
            return {"text": text}
        if (asked.num_beams or 1) > 1:
            raise HTTPException(400, "Beams are compared at the end, so there is no stream of them: leave num_beams out.")
        pieces = desk.pieces(desk.job([asked.input], asked, stream=True))
        first = await anext(pieces, None)  # what goes wrong before it has a status of its own
        return StreamingResponse(events(first, pieces), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    @app.get("/health")
    async def health() -> dict[str, Any]:
        if not desk.is_open:
            raise HTTPException(503, "The model does not answer: start the server again.")
        return {"status": "ok", "objective": trained.recipe.objective.name, "waiting": len(desk.batcher.waiting)}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(desk.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


async def events(first: str | None, pieces: AsyncIterator[str]) -> AsyncIterator[str]:
    """Server-sent events. The status is sent already: what goes wrong now is an event too."""
    written = first or ""
    if first:
        yield event("token", text=first)
    try:
        async for piece in pieces:
            written += piece
            yield event("token", text=piece)
    except HTTPException as error:
        yield event("error", detail=error.detail)
    else:
        yield event("end", text=written)


def event(name: str, **data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


async def say_what_is_wrong(request: Request, error: Exception) -> JSONResponse:
    """The first thing that is wrong, as a sentence."""
    assert isinstance(error, RequestValidationError)
    wrong = error.errors()[0]
    names = ".".join(str(part) for part in wrong["loc"][1:] if isinstance(part, str))
    if wrong["type"] == "json_invalid":
        said = f"The body is not JSON ({wrong['ctx']['error']})"
    elif wrong["type"] == "extra_forbidden":
        said = f"There is no field {names}"
    elif not names:
        said = "The body is no JSON object: send one with the header Content-Type: application/json"
    else:
        said = f"The field {names} is wrong: {wrong['msg'][0].lower()}{wrong['msg'][1:]}"
    return JSONResponse({"detail": f"{said}."}, status_code=400)


class Desk:
    """Makes jobs of requests, and waits for their answers."""

    def __init__(self, trained: Trained, limits: Limits):
        self.trained, self.limits = trained, limits
        self.metrics = Metrics()
        self.is_open = False

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        limits, engine = self.limits, Engine(self.trained)

        def answer(jobs: list[Job]) -> list[Any]:
            self.metrics.batches.observe(sum(len(job.rows) for job in jobs))
            return engine.answer(jobs)

        self.batcher = Batcher(answer, limits.max_batch, limits.wait_ms / 1000, limits.max_waiting)
        self.metrics.waiting.set_function(lambda: len(self.batcher.waiting))
        running = asyncio.create_task(self.batcher.run())
        running.add_done_callback(lambda task: setattr(self, "is_open", False))
        self.is_open = True
        try:
            yield
        finally:
            self.batcher.close()
            await running

    def job(self, inputs: list[Any], asked: Options, stream: bool = False) -> Job:
        """A job that is in the queue, or the reason why not."""
        if len(inputs) > self.limits.max_inputs:
            raise HTTPException(413, f"{len(inputs)} inputs are more than {self.limits.max_inputs}: send them in parts.")
        try:
            rows = self.trained.rows(inputs, asked.context)
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        longest = max(sum(len(str(value)) for value in row.values()) for row in rows)
        if longest > self.limits.max_characters:
            raise HTTPException(413, f"An input has {longest} characters, more than {self.limits.max_characters}: shorten it.")
        tokenizer = self.trained.objective.target_tokenizer
        job = Job(rows, self.options(asked), Stream(tokenizer) if stream else None)
        try:
            self.batcher.submit(job)
        except Busy as error:
            raise HTTPException(503, str(error), headers={"Retry-After": "1"}) from None
        return job

    def options(self, asked: Options) -> dict[str, Any]:
        """How `generate` is called: as asked, or as the model's own config says, within the limits."""
        most = {"max_new_tokens": self.limits.max_new_tokens, "num_beams": self.limits.max_beams}
        given = {name: value for name in most if (value := getattr(asked, name)) is not None}
        if not self.trained.objective.writes_text:
            if given:
                raise HTTPException(400, f"This model does not write text: leave {' and '.join(given)} out.")
            return {}
        for name, value in given.items():
            if value > most[name]:
                raise HTTPException(400, f"{name}={value} is more than this server allows: ask for {most[name]} at most.")
        own = self.trained.model.generation_config
        if "max_new_tokens" not in given and (own.max_new_tokens or own.max_length or 0) > self.limits.max_new_tokens:
            given["max_new_tokens"] = self.limits.max_new_tokens
        return given

    async def answers(self, job: Job) -> list[Any]:
        try:
            return await asyncio.wait_for(job.future, self.limits.timeout)
        except asyncio.TimeoutError:
            raise self.too_late() from None
        except Exception as error:
            raise as_response(error) from error

    async def pieces(self, job: Job) -> AsyncIterator[str]:
        """What is written, as it is written; a reader that goes before the end stops the writing."""
        assert job.stream is not None
        end = job.arrived + self.limits.timeout
        try:
            while (piece := await asyncio.wait_for(anext(job.stream, None), end - time.monotonic())) is not None:
                if piece:
                    yield piece
        except asyncio.TimeoutError:
            raise self.too_late() from None
        finally:
            job.future.cancel()
        if job.stream.error is not None:
            raise as_response(job.stream.error) from job.stream.error

    def too_late(self) -> HTTPException:
        return HTTPException(504, f"There is no answer after {self.limits.timeout:g} seconds: ask for less, or try again later.")


def as_response(error: Exception) -> HTTPException:
    """Errors that our own code raises tell what is wrong with the input; others are nothing that a client can mend."""
    if is_for_people(error):
        return HTTPException(400, str(error))
    logger.error("The model failed on a request.", exc_info=error)
    return HTTPException(500, "The model failed on this request: the server's log has the reason.")


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        common: dict[str, Any] = {"namespace": "glassformer", "registry": self.registry}
        self.requests = Counter("requests", "Requests by path and status", ["path", "status"], **common)
        self.seconds = Histogram("request_seconds", "From a request to the end of its answer", ["path"], **common)
        self.batches = Histogram("batch_rows", "Rows that were answered together", buckets=[2**n for n in range(11)], **common)
        self.waiting = Gauge("waiting_requests", "Requests in the queue", **common)


class Gate:
    """Around all requests: counts them, and lets no body in that is too large or too slow."""

    def __init__(self, app: Any, limits: Limits, metrics: Metrics):
        self.app, self.limits, self.metrics = app, limits, metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path = scope["path"] if scope["path"] in PATHS else "other"
        status, begin = 500, time.monotonic()

        async def watched_send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, self.limited(receive, begin), watched_send)
        finally:
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.monotonic() - begin)

    def limited(self, receive: Any, begin: float) -> Any:
        size, is_whole = 0, False

        async def limited_receive() -> Any:
            nonlocal size, is_whole
            if is_whole:  # what may still come is that the client leaves
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), begin + self.limits.timeout - time.monotonic())
            except asyncio.TimeoutError:
                raise HTTPException(408, "The body did not come in time: send it faster.") from None
            size += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            if size > self.limits.max_bytes:
                raise HTTPException(413, f"The body has more than {self.limits.max_bytes} bytes: send less at a time.")
            return message

        return limited_receive
