"""SIGTERM, SIGHUP and SIGINT end a command alike: it unwinds, ends what it has started, and exits with 128 + number."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType

_SAME_CAUSE_SECONDS = 1.0  # a closed terminal and a batch system send several at once


class Signalled(SystemExit):
    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name

    def tell(self) -> None:
        print(f"derby: ended by {self.name}; what is written stays", file=sys.stderr)


def unwind_on_signals() -> None:
    """What is ignored (nohup) stays ignored. A second signal, later than a moment, ends the process at once; its
    workers end with it (measure/fence/watcher.py)."""
    first: list[float] = []

    def leave(number: int, frame: FrameType | None) -> None:
        if not first:
            first.append(time.monotonic())
            raise Signalled(number)
        if time.monotonic() > first[0] + _SAME_CAUSE_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)
