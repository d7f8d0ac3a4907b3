"""SIGTERM, SIGHUP and SIGINT end a command alike: it unwinds, ends its processes, and exits with 128 + number."""

from __future__ import annotations

import os
import signal
import sys
import time
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

_GRACE_SECONDS = 20.0  # for unwinding: workers end, folders of theirs are removed
_SAME_CAUSE_SECONDS = 1.0  # a closed terminal and a batch system send several at once


class Signalled(SystemExit):
    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__(self.exit_code)
        self.name = signal.Signals(number).name
        self._is_told = False

    def tell(self) -> None:
        self._is_told = True
        print(self.line, file=sys.stderr)

    @property
    def line(self) -> str:
        return f"derby: ended by {self.name}; what is written stays"

    def end_late(self) -> None:
        """Ends the process if it does not unwind: a callback or a destructor swallowed the exception, or what unwinds
        waits for what does not come. Without threading's locks: the interrupted code may hold them."""
        start_new_thread(self._end_after, (_GRACE_SECONDS,))

    def _end_after(self, seconds: float) -> None:
        time.sleep(seconds)
        if not self._is_told:
            os.write(2, f"{self.line}\n".encode())
        os._exit(self.exit_code)


def unwind_on_signals() -> None:
    """What is ignored (nohup) stays ignored. A second signal, later than a moment, ends the process at once, and so
    does the first one after a while; its workers end with it (measure/fence/watcher.py)."""
    first: list[float] = []

    def leave(number: int, frame: FrameType | None) -> None:
        if not first:
            first.append(time.monotonic())
            ended = Signalled(number)
            ended.end_late()
            raise ended
        if time.monotonic() > first[0] + _SAME_CAUSE_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    _handle(leave)


def finish() -> None:
    """From here on the first signal waits for the end of the process, which only cleans up: what is raised there would
    be a traceback. It ends the process if that end does not come, and so does a second one, at once."""

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        with suppress(RuntimeError):  # Python starts no more threads
            Signalled(number).end_late()

    _handle(leave)


def end_at_once_on_signals(before: Callable[[], None]) -> None:
    """For a server, which holds nothing that needs unwinding. before: ends the processes that it started."""

    def leave(number: int, frame: FrameType | None) -> None:
        before()
        ended = Signalled(number)
        os.write(2, f"{ended.line}\n".encode())
        os._exit(ended.exit_code)

    _handle(leave)


def _handle(leave: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)
