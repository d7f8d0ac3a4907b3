"""Workers that stand still while the judge or a rival has its turn."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from kernelderby.measure.fence import processes
from kernelderby.measure.wire.process import WorkerProcess

_NOTHING_SECONDS = 0.05  # of processors, until the signal has come


@contextmanager
def standing_still(workers: Iterable[WorkerProcess]) -> Iterator[None]:
    """In this context no thread of these workers runs, and none of the processes that they started; processes that have
    left their parent are ended. Kernels that they have launched continue, and Watch looks for those."""
    stopped, started = list(workers), set[int]()
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
        yield
    finally:
        for worker, pids, before in worked:
            if (more := processes.worked(pids) - before) > _NOTHING_SECONDS:
                worker.has_worked(more)
        for pid in started:
            processes.signalled(pid, signal.SIGCONT)
        for worker in stopped:
            worker.go_on()
