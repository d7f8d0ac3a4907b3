"""Finds hidden work on the GPU: processes that a solution has started, and kernels that its process launches during its
rivals' turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from kernelderby.measure.fence import processes
from kernelderby.measure.judge.relay import is_busy
from kernelderby.measure.machine.environment import GpuSensors
from kernelderby.measure.wire.process import WorkerProcess

_GONE_SECONDS = 5  # the driver still lists a process for a moment after its end
_LOOK_SECONDS = 0.1
_QUIET_LOOKS, _QUIET_SECONDS = 40, 0.5
_RUNS_OUT_SECONDS = 2  # for work that a process launched before it was stopped
_PAUSE_SECONDS = 60

HELPER = "a process that it started computed on the GPU, outside the solution's own spans"
OUT_OF_TURN = "it kept the GPU busy while it had no turn"


def helper_of(workers: Mapping[str, WorkerProcess], sensors: GpuSensors, beside: int = 1) -> str | None:
    """The solution whose helpers the driver lists, in addition to the workers and this number of the run's processes.
    The helpers are ended. None if there are none, or if the additional processes belong to somebody else. Helpers that
    have no device of a GPU are left alone: at the end of a rival's, the guilty one could end too."""
    own = len(workers) + beside
    listed = sensors.processes()
    if listed is None or len(listed) <= own:
        return None
    for name, worker in workers.items():
        started = [pid for pid in processes.descendants(worker.pid) if processes.has_gpu(pid)]
        for pid in started:
            processes.end(pid)
        if started and _within(_GONE_SECONDS, lambda: len(sensors.processes() or ()) <= own):
            return name
    processes.end_orphans(WorkerProcess.known())
    return None


class Watch:
    """Watches the GPU between turns."""

    def __init__(self) -> None:
        self._again_at = 0.0  # time.monotonic(): a search without result is not repeated at once

    def out_of_turn(self, workers: Mapping[str, WorkerProcess], device: torch.device) -> str | None:
        """The solution whose process keeps the GPU busy although no solution has a task: the GPU comes to rest if and
        only if that process is stopped, and is busy while it runs alone. It stays stopped. None if the GPU is at rest,
        or busy with somebody else's work."""
        if time.monotonic() < self._again_at or not is_busy(device):
            return None
        for name, worker in workers.items():
            worker.stop()
            if _comes_to_rest(device):
                worker.go_on()
                if _within(_RUNS_OUT_SECONDS, lambda: is_busy(device)) and _keeps_busy_alone(name, workers, device):
                    worker.stop()
                    if _comes_to_rest(device):
                        return name
            worker.go_on()
        self._again_at = time.monotonic() + _PAUSE_SECONDS
        return None


def _keeps_busy_alone(name: str, workers: Mapping[str, WorkerProcess], device: torch.device) -> bool:
    """Whether the GPU is busy while all others stand still: one of them could have worked only as long as it did not
    see this process stopped, so that this one would be accused."""
    others = [worker for other, worker in workers.items() if other != name]
    for worker in others:
        worker.stop()
    try:  # what the others have launched runs out first
        return not _comes_to_rest(device) or _within(_RUNS_OUT_SECONDS, lambda: is_busy(device))
    finally:
        for worker in others:
            worker.go_on()


def _comes_to_rest(device: torch.device) -> bool:
    """Whether the GPU stays at rest for a while, and not just between two kernels of somebody else."""

    def is_quiet() -> bool:
        for _ in range(_QUIET_LOOKS):
            if is_busy(device):
                return False
            time.sleep(_QUIET_SECONDS / _QUIET_LOOKS)
        return True

    return _within(_RUNS_OUT_SECONDS, is_quiet)


def _within(seconds: float, is_so: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
