"""Workers that stand still while somebody else is measured."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from kernelderby.measure.fence import processes
from kernelderby.measure.wire.process import WorkerProcess


@contextmanager
def standing_still(workers: Iterable[WorkerProcess]) -> Iterator[None]:
    """Meanwhile no thread of these workers runs, and nothing that they have started; what has left its parent ends. A
    kernel that they have launched goes on: Watch looks for those."""
    processes.end_orphans(WorkerProcess.known())
    stopped = list(workers)
    started = {pid for worker in stopped for pid in processes.descendants(worker.pid)}
    try:
        for worker in stopped:
            worker.stop()
        for pid in started:
            processes.signalled(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in started:
            processes.signalled(pid, signal.SIGCONT)
        for worker in stopped:
            worker.go_on()
