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

from torch import Tensor
from transformers import AsyncTextIteratorStreamer, PreTrainedTokenizerBase


INCOMPLETE = "\ufffd"  # what the bytes of half a character are decoded to


class Stream(AsyncTextIteratorStreamer):
    """Text as it is written. After its end, `error` is what ended it too early, if anything did.

    transformers' streamer waits for the end of a word, which a model that writes characters may never reach; here a piece goes
    out as soon as it is certain.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        super().__init__(tokenizer, skip_special_tokens=True)
        self.sent = ""
        self.has_ended = False
        self.error: Exception | None = None

    def put(self, value: Tensor) -> None:
        """Tokens [T]"""
        self.token_cache += value.tolist()
        text = self.tokenizer.decode(self.token_cache, **self.decode_kwargs)
        if text.startswith(self.sent) and not text.endswith(INCOMPLETE):
            self.on_finalized_text(text[len(self.sent) :])
            self.sent = text

    def end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            text = self.tokenizer.decode(self.token_cache, **self.decode_kwargs)
            self.on_finalized_text(text[len(self.sent) :], stream_end=True)


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
