"""The worker's end of the connection to the judge: a socket of requests, a pipe of replies."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from kernelderby.measure.wire.replies import Stop

_BYTES, _MOST_DESCRIPTORS = 1 << 16, 253  # the kernel's limit for one message
# A thread that has slept launches more slowly: calls of two kernels took 5 to 10 % longer (H200, 2026-11-29).
_AWAKE_SECONDS = 0.02


class Channel:
    """Receives requests, and stops in the middle of commands. descriptors: those received since taken(). stays_awake:
    it does not sleep while the judge does its part of a timed call."""

    def __init__(self, requests: int, replies: int, stays_awake: bool = False) -> None:
        self._requests, self._replies = socket.socket(fileno=requests), replies
        self._stays_awake = stays_awake
        self._unread = b""
        self._descriptors: list[int] = []

    def requests(self) -> Iterator[str]:
        """The requests, one per line, until the judge is gone."""
        while line := self._line():
            yield line

    def taken(self) -> list[int]:
        """The descriptors that came with a request; the caller must close them."""
        held, self._descriptors = self._descriptors, []
        return held

    def write(self, reply: dict[str, Any]) -> None:
        data = (json.dumps(reply) + "\n").encode()
        while data:
            data = data[os.write(self._replies, data) :]

    def meet(self, stop: Stop) -> None:
        """Reports the worker's position, and waits until the judge lets it continue."""
        self.write(msgspec.to_builtins(stop))
        if self._stays_awake:
            until = time.monotonic() + _AWAKE_SECONDS
            while not select.select([self._requests], (), (), 0)[0] and time.monotonic() < until:
                pass
        if not self._line():
            raise SystemExit("the judge is gone")

    def _line(self) -> str:
        while b"\n" not in self._unread:
            data, descriptors, _, _ = socket.recv_fds(
                self._requests, _BYTES, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
            self._descriptors += descriptors
            if not data:
                return ""
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()
