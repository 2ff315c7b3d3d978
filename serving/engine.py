# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What the model does with a batch of jobs: answers at the end, or text as it is written."""

from itertools import islice
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from glassformer.training.data import DataError
from glassformer.training.inference import Trained

from .jobs import Job, Stream


class Engine:
    """Answers jobs of one kind; a job that fails does not spoil the others."""

    def __init__(self, trained: Trained):
        self.trained = trained

    def answer(self, jobs: list[Job]) -> list[Any]:
        """For each job its answers, or the exception that came instead."""
        return self.predict(jobs) if jobs[0].stream is None else self.stream(jobs)

    def predict(self, jobs: list[Job]) -> list[Any]:
        rows = [row for job in jobs for row in job.rows]
        try:
            answers = iter(self.trained.predict(rows, **jobs[0].options))
        except Exception as error:
            return [error] if len(jobs) == 1 else [outcome for job in jobs for outcome in self.predict([job])]
        return [list(islice(answers, len(job.rows))) for job in jobs]

    def stream(self, jobs: list[Job]) -> list[Any]:
        outcomes: dict[Job, Any] = {}
        prompts: dict[Job, dict[str, Any]] = {}
        for job in jobs:
            try:
                prompts[job] = self.prompt(job.rows[0])
            except Exception as error:
                outcomes[job] = error
        if prompts:
            outcomes |= dict.fromkeys(prompts, self.write(prompts))
        for job, stream in streams_of(jobs).items():
            stream.error = outcomes[job]
            stream.end()
        return [outcomes[job] for job in jobs]

    def prompt(self, row: dict[str, Any]) -> dict[str, Any]:
        (prompt,) = self.trained.objective.prompts([row])
        if not len(prompt["input_ids"]):
            raise DataError("The input has no tokens: give it a text.")
        return prompt

    def write(self, prompts: dict[Job, dict[str, Any]]) -> Exception | None:
        """Write to all streams at once, until each has its end or no reader."""
        jobs, features = list(prompts), list(prompts.values())
        ends = self.trained.model.generation_config.eos_token_id
        rows = Rows(list(streams_of(jobs).values()), [len(f["input_ids"]) for f in features], ends)
        options = {
            **jobs[0].options,
            "num_beams": 1,
            "streamer": rows,
            "stopping_criteria": StoppingCriteriaList([NobodyReads(jobs)]),
        }
        try:
            self.trained.objective.predict(self.trained.model, features, options)
        except Exception as error:
            return error
        return None


def streams_of(jobs: list[Job]) -> dict[Job, Stream]:
    return {job: job.stream for job in jobs if job.stream is not None}


class Rows(BaseStreamer):
    """Gives each row of a batch to a stream of its own, which ends with the row."""

    def __init__(self, streams: list[Stream], lengths: list[int], ends: int | list[int] | None):
        self.streams, self.lengths = streams, lengths
        self.ends = {ends} if isinstance(ends, int) else set(ends or ())

    def put(self, value: Tensor) -> None:
        """The prompts [B, T] at first, padded on the left; then a token for each row [B]."""
        for stream, length, tokens in zip(self.streams, self.lengths, value):
            if not stream.has_ended:
                stream.put(tokens[-length:] if tokens.dim() else tokens[None])
                if not tokens.dim() and int(tokens) in self.ends:
                    stream.end()

    def end(self) -> None:
        """The engine ends those that are left, when it knows whether all went well."""


class NobodyReads(StoppingCriteria):
    """Stops the rows whose reader has gone."""

    def __init__(self, jobs: list[Job]):
        self.jobs = jobs

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.tensor([job.is_abandoned for job in self.jobs], device=input_ids.device)
