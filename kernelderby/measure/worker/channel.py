"""The worker's end of the pipes to the judge."""

from __future__ import annotations

import json
import os
from typing import IO, Any

import msgspec

from kernelderby.measure.wire.replies import Stop


class Channel:
    """The pipes to the judge, for what stops in the middle of a command."""

    def __init__(self, requests: IO[str], replies: int) -> None:
        self._requests, self._replies = requests, replies

    def write(self, reply: dict[str, Any]) -> None:
        data = (json.dumps(reply) + "\n").encode()
        while data:
            data = data[os.write(self._replies, data) :]

    def meet(self, stop: Stop) -> None:
        """Says where the worker stands, and waits until the judge lets it go on."""
        self.write(msgspec.to_builtins(stop))
        if not self._requests.readline():
            raise SystemExit("the judge is gone")
