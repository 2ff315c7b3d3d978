# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What is asked of the model: rows to answer, and a stream for who wants to read along."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from transformers import AsyncTextIteratorStreamer


class Stream(AsyncTextIteratorStreamer):
    """Text as it is written. After its end, `error` is what ended it too early, if anything did."""

    error: Exception | None = None
    has_ended = False

    def end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            super().end()


@dataclass(eq=False)
class Job:
    """Rows to be answered in one way. To be made within a running event loop."""

    rows: list[dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)  # for `generate`
    stream: Stream | None = None
    future: asyncio.Future = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    arrived: float = field(default_factory=time.monotonic)

    @property
    def kind(self) -> tuple:
        """Jobs of one kind can share a batch."""
        return self.stream is not None, sorted(self.options.items()), sorted(self.rows[0])

    @property
    def is_abandoned(self) -> bool:
        """Nobody waits for it any more."""
        return self.future.cancelled()
