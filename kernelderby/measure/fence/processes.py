"""The descendants of a worker: their resources, and their end."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

from kernelderby.measure.fence import marks
from kernelderby.measure.fence.folders import OF_GPUS
from kernelderby.store import allowed

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
_OF_GPUS = tuple(os.fsencode(f"/dev/{name}") for name in OF_GPUS)


def memory_limit() -> int:
    """Bytes of the memory of the machine, or of the container, that a worker and everything that it started may
    hold."""
    return int(0.8 * allowed.memory_bytes())


def fitting(most: int) -> int:
    """This number of processes or threads, but at most half of what the container may have, since the run needs some
    too."""
    return int(min(most, allowed.processes() / 2))


# proc_pid_status(5), in kB; includes page tables of zero pages, and what a process has sent to the swap (MADV_PAGEOUT).
_HELD = (b"VmRSS:", b"VmSwap:", b"VmPTE:", b"HugetlbPages:")


def held(pids: Collection[int]) -> int:
    """Bytes of memory that these processes hold; shared memory counts for each."""
    found = 0
    for place in _places(pids):
        with contextlib.suppress(OSError, ValueError, IndexError):
            lines = Path(f"{place}/status").read_bytes().splitlines()
            found += sum(int(line.split()[1]) for line in lines if line.startswith(_HELD))
    return found * 1024


_PF_EXITING = 4  # <linux/sched.h>


def _places(pids: Collection[int]) -> Iterator[str]:
    """Where /proc shows the memory and the files of each process: with one of its threads that has not ended. The first
    thread may end before the others, and /proc/<pid> is then empty."""
    for pid in pids:
        if not _is_ending(f"/proc/{pid}"):
            yield f"/proc/{pid}"
            continue
        with contextlib.suppress(OSError):  # it has ended
            threads = (f"/proc/{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task"))
            yield from itertools.islice((each for each in threads if not _is_ending(each)), 1)


def _is_ending(place: str) -> bool:
    """Whether the thread has ended, or is just giving back what it held."""
    try:
        with open(f"{place}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
        return words[0] in (b"Z", b"X") or bool(int(words[6]) & _PF_EXITING)
    except (OSError, ValueError, IndexError):
        return True


_PIPE_BYTES = 1 << 16  # a pipe's usual size, which a worker cannot raise
_SOCKET_BYTES = 2 * 212_992  # net.core.wmem_default, for both sides


def threads(pids: Collection[int]) -> int:
    found = 0
    for pid in pids:
        try:
            found += int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[17])
        except (OSError, ValueError, IndexError):
            continue
    return found


def worked(pids: Collection[int]) -> float:
    """Seconds of processors that these processes have taken so far."""
    found = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
            found += sum(map(int, file.read().rpartition(b")")[2].split()[11:13]))
    return found / os.sysconf("SC_CLK_TCK")


def are_working(pids: Collection[int]) -> bool:
    """Whether a thread of these processes runs or waits for a processor, other than to end."""
    for pid in pids:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                    words = file.read().rpartition(b")")[2].split()
                if words[0] == b"R" and not int(words[6]) & _PF_EXITING:
                    return True
        except (OSError, ValueError, IndexError):  # it has ended
            continue
    return False


def hide_files(pids: Collection[int]) -> bool:
    """Whether one of these processes keeps its open files, and the memory behind them, from its own user. So does who
    runs a program that the user may not read. Nothing is listed: a thousand processes may have a million each."""
    for place in _places(pids):
        try:
            os.close(os.open(f"{place}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except PermissionError:
            if not _is_ending(place):
                return True
        except OSError:  # it has ended
            continue
    return False


def held_by_files(pids: Collection[int], most: int) -> tuple[int, int]:
    """The number of files that these processes have open (counted up to `most`), and the bytes of memory behind files
    without a disk: nameless files (memfd_create), pipes and pairs of sockets, each counted once."""
    count, found = 0, dict[str, int]()
    for place in _places(pids):
        try:
            names = os.listdir(f"{place}/fd")
        except OSError:
            continue
        count += len(names)
        if count > most:
            break
        for name in names:
            path = f"{place}/fd/{name}"
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


_SHARED = (b"/dev/zero (deleted)", b"/memfd:", b"/dev/shm/")
_LEAST_SHARED = 1 << 30  # less is not looked for
_MOST_OF_MAPS, _MOST_OF_ONE = 64 << 20, 8 << 20  # bytes; a process with torch has half a megabyte


def shared_memory() -> int:
    """Bytes of shared memory on this machine; 0 if unknown."""
    try:
        with open("/proc/meminfo", "rb") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(b"Shmem:"))
    except (OSError, ValueError, StopIteration):
        return 0


def forgotten(pids: Collection[int], before: int) -> int:
    """Bytes of shared memory that these processes have mapped but that held() lacks, since they have given back the
    pages and not the memory (MADV_DONTNEED). At most by how much the machine's has grown: before, it had so much. All
    of that where they have mapped too much to be looked at."""
    grown = shared_memory() - before
    if grown < _LEAST_SHARED:
        return 0
    mapped, resident, left = dict[bytes, int](), 0, _MOST_OF_MAPS
    for process in _places(pids):
        try:
            maps = _maps_of(process, left)
            with open(f"{process}/status", "rb") as file:
                resident += sum(int(line.split()[1]) * 1024 for line in file if line.startswith(b"RssShmem:"))
        except (OSError, ValueError, IndexError):  # it has ended
            continue
        left -= len(maps)
        for line in maps.splitlines() if left > 0 else ():
            if len(words := line.split(None, 5)) == 6 and words[5].startswith(_SHARED):
                start, end = (int(each, 16) for each in words[0].split(b"-"))
                which = words[3] + words[4]
                mapped[which] = max(mapped.get(which, 0), int(words[2], 16) + end - start)
    return max(0, min(sum(mapped.values()) if left > 0 else grown, grown) - resident)


def _maps_of(place: str, most: int) -> bytes:
    """What a process has mapped. A kernel takes seconds to tell of tens of thousands of long names, and a thousand
    processes can have as many: what reaches `most` bytes is cut off there."""
    with open(f"{place}/maps", "rb", buffering=0) as file:
        found = bytearray()
        while len(found) < most and (data := file.read(min(1 << 16, most - len(found)))):
            found += data
        return bytes(found)


def orphans(mark: int, known: Collection[int]) -> list[int]:
    """The children of this process with that mark that are not in `known`, because their parents have ended; with all
    their descendants. Ended ones are reaped."""
    found = []
    for pid in children(os.getpid()):
        if pid in known or marks.of(pid) != mark:
            continue
        found += [pid, *descendants(pid)]
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return found


def adopt_orphans() -> bool:
    """From now on the descendants of our children become our children when their parents end. False if the kernel
    cannot do it."""
    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def end_orphans(known: Collection[int]) -> list[int]:
    """Kills the children of this process that came from a worker, with all their descendants. They are in another
    session than we are. known: children that live on. Returns the killed ids."""
    ended = []
    for _ in range(8):  # a killed process hands its own children on
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


def has_gpu(pid: int) -> bool:
    """Whether the process has a device of a GPU open or mapped: who closes it may still use what is mapped. So has who
    has mapped too much to be looked at."""
    for place in _places([pid]):
        with contextlib.suppress(OSError):
            maps = _maps_of(place, _MOST_OF_ONE)
            names = (line.split(None, 5)[-1] for line in maps.splitlines())
            if len(maps) >= _MOST_OF_ONE or any(name.startswith(_OF_GPUS) for name in names):
                return True
        with contextlib.suppress(OSError):
            for each in os.listdir(f"{place}/fd"):
                with contextlib.suppress(OSError):
                    if os.fsencode(os.readlink(f"{place}/fd/{each}")).startswith(_OF_GPUS):
                        return True
    return False


def has_open(pid: int, file: os.stat_result) -> bool:
    for place in _places([pid]):
        try:
            descriptors = os.listdir(f"{place}/fd")
        except OSError:  # it has ended
            return False
        for each in descriptors:
            try:
                found = os.stat(f"{place}/fd/{each}")
            except OSError:
                continue
            if (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino):
                return True
    return False


def children(pid: int) -> list[int]:
    """The children of all threads of a process. It uses plain calls, because it runs for a hundred threads per process
    before every turn."""
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
    """All descendants at any depth, the deepest first."""
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
