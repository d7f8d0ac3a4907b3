"""A process that runs one solution: python -m kernelderby.measure.worker.serve REQUESTS REPLIES CHANNEL BEGINNING

Three descriptors, and the JSON of a start.Beginning.

Requests and replies are JSON objects, one a line. The replies have a separate pipe, so that no output of a solution can
be taken for a reply. Each request names a `command` (a method of commands.Worker) and its arguments; each reply has
`ok`, and either the result or a `status` (measurement.Status) with a `message`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from kernelderby.errors import DerbyError
from kernelderby.measure.fence import marks
from kernelderby.measure.fence.confine import confine
from kernelderby.measure.wire.replies import Wrong, sent, sent_failure
from kernelderby.measure.worker.channel import Channel
from kernelderby.measure.worker.failures import NotLoaded, status_of, told
from kernelderby.rows.measurement import Status
from kernelderby.store.appended import LOCK_FOLDER

if TYPE_CHECKING:  # it imports torch; if that fails, the error is the answer to the first command
    from kernelderby.measure.worker.commands import Worker

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_LIMITS = {
    "RLIMIT_CORE": 1,  # core(5): a program that collects cores ignores a limit of 0, but not of 1
    "RLIMIT_FSIZE": 16 << 30,  # the largest file that a solution may write
    # Linux: some users may have processors before all others of the machine, the run included.
    **{"RLIMIT_RTPRIO": 0, "RLIMIT_NICE": 0},
}


def answer(command: Callable[..., Struct], arguments: dict[str, Any]) -> dict[str, Any]:
    """The reply to one request. An exception of the solution becomes its status; the traceback goes to the log."""
    process = os.getpid()
    try:
        return sent(command(**arguments))
    except DerbyError as error:
        return {"ok": False, "error": str(error)}
    except NotLoaded as error:
        return sent_failure(error.status, str(error))
    except Wrong as wrong:
        return {"ok": True, "wrong": {"status": wrong.verdict.status, "message": wrong.verdict.message}}
    except BaseException as error:
        if os.getpid() != process:  # a child that the solution has forked ends by it, and answers nothing
            raise
        traceback.print_exc()
        return sent_failure(status_of(error, Status.RAISED), told(error))


def main() -> None:
    requests, replies, channel = map(int, sys.argv[1:4])
    serve(requests, replies, **json.loads(sys.argv[4]), channel=channel)


def serve(
    requests: int,
    replies: int,
    root: str,
    device: str,
    writable: Collection[str],
    hidden: Collection[str],
    judge: int,
    guarded: Collection[int],
    mark: int,
    channel: int = -1,
) -> None:
    """Answers requests until their pipe ends; see start.Beginning. channel: to the run's watcher."""
    # The worker must not outlive a killed runner. Linux only; elsewhere the closed pipe ends it when it is idle.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != judge:  # it was killed before that
        os._exit(1)
    for limit, value in (
        (getattr(resource, name), value) for name, value in _LIMITS.items() if hasattr(resource, name)
    ):
        most = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (value if most < 0 else min(value, most),) * 2)
    marks.mark(mark)  # before it runs any code of a solution
    confine(writable, guarded, channel, [LOCK_FOLDER, *map(Path, hidden)])
    for descriptor in (requests, replies):
        os.set_inheritable(descriptor, False)  # a solution's own subprocesses must not hold the pipes open
    asked = Channel(requests, replies)

    @functools.cache
    def worker() -> Worker:
        from kernelderby.measure.worker.commands import Worker

        made = Worker(root, device)
        made.channel = asked
        return made

    def called(command: str, **arguments: Any) -> Struct:
        return worker().command(command)(**arguments)

    for line in asked.requests():
        request = json.loads(line)
        asked.write(answer(called, request))


if __name__ == "__main__":
    main()
