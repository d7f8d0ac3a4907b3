"""A process beside a run that outlives it by a moment: python -S -P -m kernelderby.measure.fence.watcher RUN PARENT.

When the run has ended in any way, even by SIGKILL, it kills all processes with a mark of the run (marks.py), and
removes the run's temporary folders. Until then it answers the kernel's questions: a worker may signal and move to other
processors only threads with its own mark (seccomp.watched()). It has its own session, so a signal to the run's terminal
or group does not reach it.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from kernelderby.measure.fence import marks, notices
from kernelderby.measure.fence.folders import remove_tree

_POLL_MS = 200  # if the kernel has no process descriptors
_SCRATCH = "kernelderby-"
OF_JUDGE = "kernelderby-judge-"  # the folder for temporary files of a command that judges
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Watcher:
    """channel: on which workers hand in their filters (notices.handed_in)."""

    run: int
    numbers: count[int]
    pid: int
    channel: int


_watchers: dict[int, _Watcher] = {}  # this process's id


def next_mark() -> int:
    """A number for marks.mark(), for one more worker of this process. Starts the watcher if none lives."""
    with _lock:
        return next(_own().numbers)


def scratch() -> Path:
    """A new folder for a worker's temporary files, which is removed at the end of the run at the latest."""
    with _lock:
        return Path(tempfile.mkdtemp(prefix=f"{_SCRATCH}{_own().run}-"))


def mark_this() -> None:
    """Marks this process and everything that it starts from now on, so that remaining processes end with it. Its
    workers have lower marks."""
    with _lock:
        marks.mark(marks.last_of(_own().run))


def pids() -> set[int]:
    """The process ids of this process's watcher, which no worker may signal."""
    held = _watchers.get(os.getpid())
    return {held.pid} if held else set()


def channel() -> int:
    """The channel to this process's watcher, which a worker inherits; -1 without one."""
    held = _watchers.get(os.getpid())
    return held.channel if held else -1


def _own() -> _Watcher:
    held = _watchers.get(os.getpid())
    if held is None or not _lives(held.pid):
        if held is not None:
            os.close(held.channel)
        run = marks.new_run()
        held = _watchers[os.getpid()] = _Watcher(run, count(run + 1), *_started(run))
    return held


def can_watch() -> bool:
    """Whether processes of this machine can carry a mark. It tries one."""
    with subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL) as process:
        run = marks.new_run()
        found = marks.mark(run, process.pid) and marks.carrying(run) == [process.pid]
        process.kill()
    return found


def _started(run: int) -> tuple[int, int]:
    """The watcher's process id, and our end of the channel."""
    package = str(Path(__file__).resolve().parents[3])
    told, tell = os.pipe()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-S", "-P", "-m", __name__, str(run), str(os.getpid())],
            {**os.environ, "PYTHONPATH": package, "PYTHONDONTWRITEBYTECODE": "1"},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                (os.POSIX_SPAWN_DUP2, tell, 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setsid=True,
        )
    finally:
        os.close(tell)
        theirs.close()
    os.read(told, 1)  # it listens, or has ended
    os.close(told)
    return pid, ours.detach()


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
    channel = socket.socket(fileno=0)
    poll.register(channel, select.POLLIN)
    os.write(1, b"ready\n")
    while os.getppid() == parent:
        for descriptor, event in poll.poll(None if parent_ends >= 0 else _POLL_MS):
            if descriptor == channel.fileno():
                filter_of_one = notices.received(channel)
                if filter_of_one is None:
                    poll.unregister(channel)
                elif filter_of_one >= 0:
                    poll.register(filter_of_one, select.POLLIN)
            elif descriptor != parent_ends and not (event & select.POLLIN and notices.answer(descriptor)):
                poll.unregister(descriptor)
                os.close(descriptor)
    marks.end(run)
    temporary = Path(tempfile.gettempdir())
    for folder in [
        *temporary.glob(f"{_SCRATCH}{run}-*"),
        *([temporary] if temporary.name.startswith(OF_JUDGE) else []),
    ]:
        remove_tree(folder)


if __name__ == "__main__":
    main()
