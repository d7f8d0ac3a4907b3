"""Workers that stand still while the judge or a rival has its turn."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelderby.measure.fence import processes
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.store import allowed

_NOTHING_SECONDS = 0.05  # of processors, until the signal has come


@contextmanager
def standing_still(workers: Iterable[WorkerProcess]) -> Iterator[None]:
    """In this context no thread of these workers runs, and none of the processes that they started; processes that have
    left their parent are ended. Kernels that they have launched continue, and Watch looks for those."""
    stopped, started = list(workers), set[int]()
    rooms, memory = list[tuple[WorkerProcess, dict[Path, int]]](), 0.0
    worked: list[tuple[WorkerProcess, list[int], float]] = []  # with what it has started, and how long that has worked
    try:
        for worker in stopped:  # with their groups, which nothing that they start can leave
            worker.tell_to_stop()
        processes.end_orphans(WorkerProcess.known())
        started_by = [(worker, processes.descendants(worker.pid)) for worker in stopped]
        started = {pid for _, pids in started_by for pid in pids}
        for pid in started:
            processes.signalled(pid, signal.SIGSTOP)
        for worker in stopped:  # they stop in parallel
            worker.wait_until_stopped()
        worked = [(worker, pids, processes.worked(pids)) for worker, pids in started_by if pids]
        rooms, memory = [(worker, worker.room()) for worker in stopped], allowed.free_bytes() if stopped else 0.0
        yield
    finally:
        more_memory = allowed.free_bytes() - memory if rooms and math.isfinite(memory) else 0.0
        for worker, room in rooms:
            worker.excuse(more_memory, {place: free - room.get(place, free) for place, free in worker.room().items()})
        for worker, pids, before in worked:
            if (more := processes.worked(pids) - before) > _NOTHING_SECONDS:
                worker.has_worked(more)
        for pid in started:
            processes.signalled(pid, signal.SIGCONT)
        for worker in stopped:
            worker.go_on()
