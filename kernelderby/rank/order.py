"""The order of solutions, and the workloads without which it would be another one."""

from __future__ import annotations

import math

import numpy as np

from kernelderby.rank.model import OrderDependence
from kernelderby.rank.resampling import geometric_mean

Times = dict[str, dict[str, float]]  # solution -> uuid -> latency in us, passed rows only


def slowdowns(times: Times, importance: dict[str, float]) -> dict[str, float]:
    """Per solution the geomean of its time over the fastest time of any solution, on the workloads it passed.

    Among solutions that passed every workload this orders as the geomean of their times does.
    """
    best = _best(times)
    return {
        solution: geometric_mean([own[uuid] / best[uuid] for uuid in own], [importance[uuid] for uuid in own])
        for solution, own in times.items() if own
    }


def order(times: Times, importance: dict[str, float]) -> tuple[str, ...]:
    """Best first: those that passed every workload, then those that passed some, then none; by slowdown in each."""
    slowdown = slowdowns(times, importance)

    def key(solution: str) -> tuple[int, float, str]:
        return coverage_class(len(times[solution]), len(importance)), slowdown.get(solution, math.inf), solution

    return tuple(sorted(times, key=key))


def coverage_class(passed: int, workloads: int) -> int:
    """0: all workloads passed, 1: some, 2: none."""
    if passed == 0:
        return 2
    return 0 if passed == workloads else 1


def order_dependences(times: Times, importance: dict[str, float]) -> tuple[OrderDependence, ...]:
    """Pairs of one coverage class that change places when one workload is left out, with those workloads.

    The coverage class stays what it is over all workloads, so a failure is not forgiven by leaving its workload out.
    """
    ordered, uuids, best = order(times, importance), list(importance), _best(times)
    weights = np.array([importance[uuid] for uuid in uuids])
    without = {}
    for solution in ordered:
        own = times[solution]
        logs = np.array([math.log(own[uuid] / best[uuid]) if uuid in own else 0.0 for uuid in uuids])
        counted = weights * np.array([uuid in own for uuid in uuids])
        with np.errstate(invalid="ignore", divide="ignore"):
            without[solution] = ((counted @ logs) - counted * logs) / (counted.sum() - counted)
    classes = {solution: coverage_class(len(times[solution]), len(uuids)) for solution in ordered}
    found = []
    for index, first in enumerate(ordered):
        for second in ordered[index + 1 :]:
            if classes[first] != classes[second] or classes[first] == 2:
                continue
            # Rounding must not turn equal solutions around; NaN (no workload left) compares false.
            flips = without[first] > without[second] + 1e-9
            if flips.any():
                found.append(OrderDependence(first, second, tuple(np.array(uuids)[flips].tolist())))
    return tuple(found)


def _best(times: Times) -> dict[str, float]:
    """uuid -> the shortest time of any solution."""
    best: dict[str, float] = {}
    for own in times.values():
        for uuid, latency_us in own.items():
            best[uuid] = min(latency_us, best.get(uuid, math.inf))
    return best
