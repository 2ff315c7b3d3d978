# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Who waits together is answered together: jobs that arrive within some milliseconds of each other share a batch."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .jobs import Job


class Busy(Exception):
    """No further job is taken."""


class Batcher:
    """Hands jobs to `answer`, a batch at a time, in a thread of its own, while the event loop takes further ones.

    Args:
        answer: jobs of one kind -> for each its answer, or the exception that came instead.
        max_rows: of a batch; a larger job is a batch by itself.
        patience: how many seconds the first job of a batch waits for company.
        max_waiting: jobs in the queue; who comes then is refused.
    """

    def __init__(self, answer: Callable[[list[Job]], list[Any]], max_rows: int, patience: float, max_waiting: int):
        self.answer, self.max_rows, self.patience, self.max_waiting = answer, max_rows, patience, max_waiting
        self.waiting: list[Job] = []
        self.changed = asyncio.Event()
        self.is_closed = False

    def submit(self, job: Job) -> None:
        if self.is_closed:
            raise Busy("The server is shutting down: ask another one.")
        self.waiting = [waiting for waiting in self.waiting if not waiting.is_abandoned]
        if len(self.waiting) >= self.max_waiting:
            raise Busy(f"{self.max_waiting} requests are waiting already: try again later.")
        self.waiting.append(job)
        self.changed.set()

    def close(self) -> None:
        """Take no further job; `run` ends when those that were taken are answered."""
        self.is_closed = True
        self.changed.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="model") as thread:
            while await self.has_company():
                if batch := self.take_batch():
                    try:
                        outcomes = await loop.run_in_executor(thread, self.answer, batch)
                    except Exception as error:  # these jobs fail, and others must not wait for ever
                        outcomes = [error] * len(batch)
                    settle(batch, outcomes)

    async def has_company(self) -> bool:
        """Wait until there is a batch to run -> whether there will ever be one."""
        while not self.is_closed or self.waiting:
            left = None
            if self.waiting:
                left = self.waiting[0].arrived + self.patience - time.monotonic()
                if left <= 0 or self.is_closed or sum(len(job.rows) for job in self.waiting) >= self.max_rows:
                    return True
            self.changed.clear()
            try:
                await asyncio.wait_for(self.changed.wait(), left)
            except asyncio.TimeoutError:
                return True
        return False

    def take_batch(self) -> list[Job]:
        """The first job and others of its kind, in their order."""
        batch: list[Job] = []
        others: list[Job] = []
        room = self.max_rows
        for job in self.waiting:
            if job.is_abandoned:
                continue
            if not batch or (job.kind == batch[0].kind and len(job.rows) <= room):
                batch.append(job)
                room -= len(job.rows)
            else:
                others.append(job)
        self.waiting = others
        return batch


def settle(jobs: list[Job], outcomes: list[Any]) -> None:
    for job, outcome in zip(jobs, outcomes):
        if job.future.done():
            continue
        if isinstance(outcome, Exception):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)
