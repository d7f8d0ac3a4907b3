"""A mark that a process and everything that it starts carry for life: an upper limit on real-time CPU time that nobody
reaches (RLIMIT_RTTIME, centuries in microseconds). A process without privileges can only lower such a limit, and a
worker's filter refuses even that. So a process that left its parent, group, session or environment still shows which
worker started it. Needs no privilege (setrlimit(2), prlimit(2); Linux)."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress

RUN_BITS = 16  # numbers below a run's own number, one for each of its workers
_LEAST = 1 << 55  # microseconds: over a thousand years
_LINE = b"Max realtime timeout"


def new_run() -> int:
    """A number for a run; run + 1, run + 2, ... are its workers' marks."""
    return _LEAST + (secrets.randbits(38) << RUN_BITS)


def last_of(run: int) -> int:
    """The mark of the run's own process. It is the highest, since processes can only lower their limit."""
    return run + (1 << RUN_BITS) - 1


def mark(number: int, pid: int = 0) -> bool:
    """Marks a process. False if the kernel cannot do it, the process has ended, or its limit is lower already."""
    try:
        resource.prlimit(pid, resource.RLIMIT_RTTIME, (number, number))
    except (OSError, ValueError, AttributeError):
        return False
    return True


def marked(number: int, words: list[str]) -> list[str]:
    """A command line that marks itself and then becomes the command, before it can start any process."""
    return [sys.executable, "-I", "-S", __file__, str(number), *words]


def of(pid: int) -> int:
    """The mark of a process or thread; 0 without one."""
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            for line in file:
                if line.startswith(_LINE):
                    most = line.split()[-2]
                    return int(most) if most.isdigit() and int(most) >= _LEAST else 0
    except OSError:
        pass
    return 0


def carrying(number: int) -> list[int]:
    """Ids of all living processes with that mark, except this process. The number of a run stands for all of its
    marks."""
    bits = 0 if number % (1 << RUN_BITS) else RUN_BITS
    return [
        pid for pid in _processes() if pid != os.getpid() and of(pid) >> bits == number >> bits and not is_dead(pid)
    ]


def end(number: int, passes: int = 200) -> bool:
    """Kills all processes with that mark, or with any mark of that run. It stops them first, so that none can start
    another. Returns whether nobody is left."""
    for _ in range(passes):
        stopped: set[int] = set()
        while new := set(carrying(number)) - stopped:
            stopped |= new
            _signal(new, signal.SIGSTOP)
        if not stopped:
            return True
        _signal(stopped, signal.SIGKILL)
    return not carrying(number)


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _processes() -> Iterator[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    yield from (int(name) for name in names if name.isdigit())


def is_dead(pid: int) -> bool:
    """Whether the process or thread is gone, or a zombie. A process whose first thread alone has ended looks like one,
    and lives on."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
        return words[0] in (b"Z", b"X") and int(words[17]) <= 1
    except (OSError, ValueError, IndexError):
        return True


if __name__ == "__main__":
    mark(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
