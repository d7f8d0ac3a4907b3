"""The order of solutions, and the workloads without which it would be another one."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from kernelderby.rank.model import OrderDependence
from kernelderby.statistics.means import geometric_mean

NEAR = 128  # pairs that are looked at in a field, but never less than one a solution

Times = dict[str, dict[str, float]]  # solution -> uuid -> latency in us, passed rows only


def reach(solutions: int) -> int:
    """How many places apart two solutions of a field may stand to be held against each other: everybody up to eleven
    solutions, fewer the more there are, so that the work grows with their number and not with its square."""
    return max(1, NEAR // max(solutions, 1))


def slowdowns(times: Times, importance: dict[str, float]) -> dict[str, float]:
    """Per solution the geomean of its time over the fastest time of any solution, on the workloads it passed.

    Among solutions that passed every workload this orders as the geomean of their times does.
    """
    best = _best(times)
    return {
        solution: geometric_mean([own[uuid] / best[uuid] for uuid in own], [importance[uuid] for uuid in own])
        for solution, own in times.items()
        if own
    }


def order(
    times: Times,
    importance: dict[str, float],
    slowdown: Mapping[str, float] | None = None,
    asked: Mapping[str, Collection[str]] | None = None,
    otherwise: Mapping[str, float] | None = None,
) -> tuple[str, ...]:
    """Best first: those that passed every workload, then those that passed some, then none; by slowdown in each.

    slowdown: that of slowdowns(), where it is known already. asked: solution -> the workloads (uuids) that
    "every" means, all of importance without it. otherwise: slowdowns by another kind of time, which order those that
    have none of this one."""
    slowdown = slowdowns(times, importance) if slowdown is None else slowdown
    otherwise = otherwise or {}

    def key(solution: str) -> tuple[int, float, float, str]:
        return (
            coverage_class(times[solution], asked[solution] if asked else importance),
            slowdown.get(solution, math.inf),
            otherwise.get(solution, math.inf),
            solution,
        )

    return tuple(sorted(times, key=key))


def coverage_class(passed: Mapping[str, float], asked: Collection[str]) -> int:
    """0: all of these workloads passed, 1: any passed, 2: none."""
    if not passed:
        return 2
    return 0 if all(uuid in passed for uuid in asked) else 1


def order_dependences(
    times: Times,
    importance: dict[str, float],
    ordered: Sequence[str],
    asked: Mapping[str, Collection[str]] | None = None,
) -> tuple[OrderDependence, ...]:
    """Pairs of one coverage class that change places when one workload is left out, with those workloads; of those
    near each other in the order (reach), which up to eleven solutions is every pair. ordered: by order(),
    with the same asked.

    The coverage class stays what it is over all workloads, so a failure is not forgiven by leaving its workload out.
    """
    uuids, best = list(importance), _best(times)
    if not uuids:  # the definition's workloads were left out
        return ()
    weights = np.array([importance[uuid] for uuid in uuids])
    passed = np.array([[uuid in times[solution] for uuid in uuids] for solution in ordered]).reshape(-1, len(uuids))
    logs = np.array(
        [
            [math.log(times[solution][uuid] / best[uuid]) if uuid in times[solution] else 0.0 for uuid in uuids]
            for solution in ordered
        ]
    ).reshape(-1, len(uuids))
    counted = weights * passed
    weighted = counted * logs
    with np.errstate(invalid="ignore", divide="ignore"):
        without = (weighted.sum(axis=1, keepdims=True) - weighted) / (counted.sum(axis=1, keepdims=True) - counted)
    classes = np.array([coverage_class(times[solution], asked[solution] if asked else uuids) for solution in ordered])
    found = []
    for apart in range(1, min(len(ordered), reach(len(ordered)) + 1)):
        # Rounding must not turn equal solutions around; NaN (no workload left) compares false.
        flips = without[:-apart] > without[apart:] + 1e-9
        same = (classes[:-apart] == classes[apart:]) & (classes[apart:] != 2)
        found += [
            (place, place + apart, np.flatnonzero(flips[place]))
            for place in np.flatnonzero(same & flips.any(axis=1)).tolist()
        ]
    found.sort(key=lambda each: each[:2])
    return tuple(
        OrderDependence(ordered[first], ordered[second], tuple(uuids[place] for place in places))
        for first, second, places in found
    )


def _best(times: Times) -> dict[str, float]:
    """uuid -> the shortest time of any solution."""
    best: dict[str, float] = {}
    for own in times.values():
        for uuid, latency_us in own.items():
            if uuid not in best or latency_us < best[uuid]:
                best[uuid] = latency_us
    return best
