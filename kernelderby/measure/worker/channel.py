"""The worker's end of the connection to the judge: a socket of requests, a pipe of replies."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import msgspec

from kernelderby.measure.wire.replies import Stop

_BYTES, _MOST_DESCRIPTORS = 1 << 16, 253  # the kernel's limit for one message


class Channel:
    """Receives requests, and stops in the middle of commands. descriptors: those received since taken()."""

    def __init__(self, requests: int, replies: int) -> None:
        self._requests, self._replies = socket.socket(fileno=requests), replies
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
