"""A process beside a run that outlives it by a moment: python -S -P -m kernelderby.measure.fence.watcher RUN PARENT.

When the run has ended, however that was (SIGKILL too), it kills all that carries a mark of it (marks.py). Until then it
answers for the kernel which thread a worker may signal or move to other processors: those of its own mark
(seccomp.watched()). It has a session of its own, so a signal to the run's terminal or group does not reach it.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path

from kernelderby.measure.fence import marks, notices

_POLL_MS = 200  # where the kernel has no descriptor of a process
_lock = threading.Lock()
_watchers: dict[int, tuple[int, count[int], int]] = {}  # this process's id -> run, marks, the watcher's id


def next_mark() -> int:
    """A number for marks.mark(), with a watcher that lives: one more worker of this process. It starts the watcher."""
    with _lock:
        held = _watchers.get(os.getpid())
        if held is None or not _lives(held[2]):
            run = marks.new_run()
            held = _watchers[os.getpid()] = (run, count(run + 1), _started(run))
        return next(held[1])


def pids() -> set[int]:
    """Of the watcher of this process, which no worker may signal."""
    held = _watchers.get(os.getpid())
    return {held[2]} if held else set()


def can_watch() -> bool:
    """Whether processes of this machine can carry a mark: tried on one of ours."""
    with subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL) as process:
        run = marks.new_run()
        found = marks.mark(run, process.pid) and marks.carrying(run) == [process.pid]
        process.kill()
    return found


def _started(run: int) -> int:
    package = str(Path(__file__).resolve().parents[3])
    told, tell = os.pipe()
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-S", "-P", "-m", __name__, str(run), str(os.getpid())],
            {**os.environ, "PYTHONPATH": package, "PYTHONDONTWRITEBYTECODE": "1"},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, tell, 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setsid=True,
        )
    finally:
        os.close(tell)
    os.read(told, 1)  # it listens, or has ended
    os.close(told)
    return pid


def _lives(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False


def main() -> None:
    run, parent = int(sys.argv[1]), int(sys.argv[2])
    os.chdir("/")
    poll = select.poll()
    try:
        parent_ends = os.pidfd_open(parent)
        poll.register(parent_ends, select.POLLIN)
    except (OSError, AttributeError):
        parent_ends = -1
    listening = notices.listening(run)
    if listening is not None:
        poll.register(listening, select.POLLIN)
    os.write(1, b"ready\n")
    while os.getppid() == parent:
        for descriptor, event in poll.poll(None if parent_ends >= 0 else _POLL_MS):
            if listening is not None and descriptor == listening.fileno():
                for each in notices.received(listening):
                    poll.register(each, select.POLLIN)
            elif descriptor != parent_ends and not (event & select.POLLIN and notices.answer(descriptor)):
                poll.unregister(descriptor)
                os.close(descriptor)
    marks.end(run)


if __name__ == "__main__":
    main()
