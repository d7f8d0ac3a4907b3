"""Processes that a solution has started and that compute on the GPU: no window of its worker holds their work, and
they disturb its rivals."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from kernelderby.measure import fence
from kernelderby.measure.machine.environment import GpuSensors
from kernelderby.measure.process import WorkerProcess

_GONE_SECONDS = 5  # the driver lists a process that has just ended a little longer


def ended_on_the_gpu(workers: Mapping[str, WorkerProcess], sensors: GpuSensors, own_processes: int) -> str | None:
    """The solution whose helpers the driver listed beside own_processes: they are ended. None where what is too many
    does not go with any of them, and so is somebody else's. A helper that uses no GPU ends with those that do: nobody
    but the driver knows one from the other."""
    listed = sensors.processes()
    if listed is None or len(listed) <= own_processes:
        return None
    for name, worker in workers.items():
        started = fence.descendants(worker.pid)
        if not started:
            continue
        for pid in started:
            fence.end(pid)
        if _fewer(sensors, own_processes):
            return name
    fence.end_orphans({os.getpid(), *(worker.pid for worker in workers.values()), *WorkerProcess.known()})
    return None


def _fewer(sensors: GpuSensors, own_processes: int) -> bool:
    until = time.monotonic() + _GONE_SECONDS
    while True:
        listed = sensors.processes()
        if listed is not None and len(listed) <= own_processes:
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
