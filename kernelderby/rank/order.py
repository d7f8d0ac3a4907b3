"""The order of solutions, and the workloads that decide it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from kernelderby.rank.model import OrderDependence
from kernelderby.statistics.means import geometric_mean

NEAR = 128  # pairs that are compared in a field, but at least one for each solution

Times = dict[str, dict[str, float]]  # solution -> uuid -> latency in us, for passed rows


def max_distance(solutions: int) -> int:
    """The maximum distance, in places, of two solutions that are compared. Up to eleven solutions all pairs are
    compared. With more solutions the distance shrinks, so that the work grows with their number and not with its
    square."""
    return max(1, NEAR // max(solutions, 1))


def slowdowns(times: Times, importance: dict[str, float]) -> dict[str, float]:
    """For each solution the geomean of its time over the fastest time of any solution, on the workloads it passed. For
    solutions that passed every workload this gives the same order as the geomean of their times.
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
    """Best first: solutions that passed every workload, then those that passed some, then those that passed none; by
    slowdown in each class.

    slowdown: the result of slowdowns(), if it is known already. asked: solution -> the workloads (uuids) that count as
    "every workload"; without it all in importance. otherwise: slowdowns by another kind of time; they order the
    solutions without the compared kind."""
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
    """0: all of these workloads passed, 1: some passed, 2: none passed."""
    if not passed:
        return 2
    return 0 if all(uuid in passed for uuid in asked) else 1


def order_dependences(
    times: Times,
    importance: dict[str, float],
    ordered: Sequence[str],
    asked: Mapping[str, Collection[str]] | None = None,
) -> tuple[OrderDependence, ...]:
    """Pairs of one coverage class that change places when one workload is left out, with those workloads. Only pairs
    within reach() are compared; up to eleven solutions that is every pair. ordered: the result of order() with the same
    `asked`.

    The coverage class is always that of all workloads, so leaving out a workload does not forgive a failure on it.
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
    for apart in range(1, min(len(ordered), max_distance(len(ordered)) + 1)):
        # Rounding must not swap equal solutions; NaN (no workload left) compares false.
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
