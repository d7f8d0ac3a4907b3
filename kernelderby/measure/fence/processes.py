"""The descendants of a worker: their resources, and their end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection
from pathlib import Path

from kernelderby.measure.fence import marks
from kernelderby.store import allowed

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


def memory_limit() -> int:
    """Bytes of the machine's memory, or of the container's, that a worker and all that it started may hold."""
    return int(0.8 * allowed.memory_bytes())


def fitting(most: int) -> int:
    """So many processes or threads, but no more than half of what the container may have: the run needs some, too."""
    return int(min(most, allowed.processes() / 2))


_HELD = (b"VmRSS:", b"VmPTE:", b"HugetlbPages:")  # proc_pid_status(5), in kB; tables of pages that are all zeros, too


def held(pids: Collection[int]) -> int:
    """Bytes of memory that these processes hold; what they share counts for each."""
    found = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
            found += sum(int(line.split()[1]) for line in lines if line.startswith(_HELD))
    return found * 1024


_PIPE_BYTES = 1 << 16  # a pipe's usual size, which a worker cannot raise
_SOCKET_BYTES = 2 * 212_992  # net.core.wmem_default, and the other side's


def threads(pids: Collection[int]) -> int:
    found = 0
    for pid in pids:
        try:
            found += int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[17])
        except (OSError, ValueError, IndexError):
            continue
    return found


def held_by_files(pids: Collection[int], most: int) -> tuple[int, int]:
    """How many files these processes have open (counted no further than most), and bytes of memory behind those that
    lie on no disk: files without a name (memfd_create), pipes and pairs of sockets, each once."""
    count, found = 0, dict[str, int]()
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        count += len(names)
        if count > most:
            break
        for name in names:
            path = f"/proc/{pid}/fd/{name}"
            try:
                target = os.readlink(path)
                if target.startswith("pipe:"):
                    found[target] = _PIPE_BYTES
                elif target.startswith("socket:"):
                    found[target] = _SOCKET_BYTES
                elif target.startswith("/memfd:"):
                    status = os.stat(path)
                    found[f"{status.st_dev} {status.st_ino}"] = status.st_blocks * 512
            except OSError:
                continue
    return count, sum(found.values())


def orphans(mark: int, known: Collection[int]) -> list[int]:
    """Of the children of this process those with that mark that are none of the known: their parents have ended. With
    all that they started; whoever of them has ended goes."""
    found = []
    for pid in children(os.getpid()):
        if pid in known or marks.of(pid) != mark:
            continue
        found += [pid, *descendants(pid)]
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return found


def adopt_orphans() -> bool:
    """From now on the descendants of our children become ours when their parents end. False where the kernel cannot."""
    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def end_orphans(known: Collection[int]) -> list[int]:
    """Kills, with all that they started, the children of this process that came from a worker: they stand in another
    session than we do. known: those that are to live. Gives the process ids."""
    ended = []
    for _ in range(8):  # who is killed hands its own children on
        orphans = [pid for pid in children(os.getpid()) if pid not in known and _session(pid) != os.getsid(0)]
        if not orphans:
            break
        for pid in orphans:
            for each in (*descendants(pid), pid):
                end(each)
                ended.append(each)
        for pid in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    return ended


def end(pid: int) -> None:
    signalled(pid, signal.SIGKILL)


def signalled(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def has_open(pid: int, file: os.stat_result) -> bool:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:  # it has ended
        return False
    for each in descriptors:
        try:
            found = os.stat(f"/proc/{pid}/fd/{each}")
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino):
            return True
    return False


def children(pid: int) -> list[int]:
    """Of all its threads. Plain calls: it is asked of a hundred threads a process, before every turn."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it has ended
        return found
    for thread in threads:
        try:
            descriptor = os.open(f"/proc/{pid}/task/{thread}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            while data := os.read(descriptor, 1 << 16):
                found += [int(child) for child in data.split()]
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return found


def descendants(pid: int) -> list[int]:
    """The deepest first. However deep: a process may start one that starts one."""
    found, generation = [], children(pid)
    while generation:
        found += generation
        generation = [each for parent in generation for each in children(parent)]
    return found[::-1]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None
