"""An exception of a solution as a status and a line of text for the log."""

from __future__ import annotations

import errno
import re
import subprocess
import traceback
from pathlib import Path

from kernelderby.measure.wire import memory
from kernelderby.measure.wire.replies import UNHEARD, errors_of
from kernelderby.rows.measurement import Status


class NotLoaded(Exception):
    """A solution that does not load, with status and message for its row."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


_NO_ROOM = "No space left on device"  # the disk, which a rival may have filled


def status_of(error: BaseException, otherwise: Status) -> Status:
    has_no_room = getattr(error, "errno", 0) == errno.ENOSPC or _NO_ROOM in str(error)
    return Status.OUT_OF_MEMORY if has_no_room or memory.ran_out(error) else otherwise


_FRAMES = 200
_CALLERS = re.compile(r"/kernelderby/measure/|/triton/runtime/")  # frames that explain nothing
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/|/kernelderby/measure/|^<")


def told(error: BaseException) -> str:
    """Type, message and the innermost lines of code, those of the solution first, since exceptions in Triton's
    interpreter end in its own code."""
    every, cause = list(traceback.extract_tb(error.__traceback__)), error.__cause__
    while cause is not None and len(every) < _FRAMES:
        every += traceback.extract_tb(cause.__traceback__)
        cause = cause.__cause__
    own = [frame for frame in every if not _LIBRARY.search(frame.filename)]
    inner = [frame for frame in every[-2:] if frame not in own[-1:] and not frame.filename.startswith("<frozen")]
    frames = own[-1:] + [frame for frame in inner[-1:] if not (own and _CALLERS.search(frame.filename))]
    where = ", ".join(f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames)
    return f"{type(error).__name__}: {_words(error)}" + (f" ({where})" if where else "")


def _words(error: BaseException) -> str:
    """The compiler's errors instead of its command line."""
    if not isinstance(error, subprocess.CalledProcessError):
        return str(error)
    command = error.cmd if isinstance(error.cmd, str) else " ".join(map(str, error.cmd))
    said = [
        each if isinstance(each, str) else each.decode(errors="replace")
        for each in (error.stderr, error.stdout)
        if each
    ]
    ended = f"{Path(command.split(maxsplit=1)[0]).name if command.strip() else command} ended with {error.returncode}"
    return f"{ended}: {errors_of(said[0])}" if said else f"{ended}{UNHEARD}"
