"""Solutions in pairs: the faster one on each workload, and the ratio over all workloads.

Work and memory grow with the number of solutions, not with its square: a solution is compared with its neighbours in
the order, the first solution and the baseline. Up to eleven solutions that is every pair (order.reach). Workloads are
processed one by one, each with arrays over all pairs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from kernelderby.rank.input import RankingInput
from kernelderby.rank.model import Pair
from kernelderby.rank.order import max_distance
from kernelderby.statistics.bootstrap import (
    CHUNK,
    RESAMPLES,
    Differences,
    Floats,
    Integers,
    Intervals,
    ResampledRows,
    Scratch,
    bounds,
    widening,
)
from kernelderby.statistics.ratio import Ratio

_THREADS = 4  # numpy's sums and sorts release the interpreter's lock; more threads would wait for the rest


@dataclass(frozen=True, slots=True)
class PairComparisons:
    """pairs: by (first, second); the first precedes the second in the order. over_baseline: (solution, uuid) -> its
    time over the baseline's, if both passed. margins: uuid -> time of the second fastest over time of the fastest."""

    pairs: dict[tuple[str, str], Pair]
    over_baseline: dict[tuple[str, str], Ratio]
    margins: dict[str, Ratio]


class _Tally:
    """Sums over the workloads that both solutions of a pair passed. Each field is an array over pairs."""

    def __init__(self, pairs: int) -> None:
        self.deviations = np.zeros((pairs, RESAMPLES))  # weighted, of log(time of second / time of first)
        self.logs, self.weights = np.zeros(pairs), np.zeros(pairs)
        self.first_us, self.second_us = np.zeros(pairs), np.zeros(pairs)
        self.common, self.wins, self.ties = (np.zeros(pairs, dtype=np.int64) for _ in range(3))
        self.freedom = np.zeros(pairs, dtype=np.int64)
        self.known, self.paired = np.ones(pairs, dtype=bool), np.ones(pairs, dtype=bool)

    def add(
        self, which: slice | Integers, first_us: Floats, second_us: Floats, found: Differences, weight: float
    ) -> Intervals:
        """Returns the second's times over the first's."""
        ratios = second_us / first_us
        self.deviations[which] += found.values if weight == 1 else found.values * weight
        over = Intervals.of(ratios, found)
        ties = (over.low <= 1) & (over.high >= 1)  # both ends equal the ratio if nothing is known
        self.logs[which] += np.log(ratios) * weight
        self.weights[which] += weight
        self.first_us[which] += first_us
        self.second_us[which] += second_us
        self.common[which] += 1
        self.ties[which] += ties
        self.wins[which] += ~ties & (ratios > 1)
        self.freedom[which] += found.freedom
        self.known[which] &= found.freedom.astype(bool)
        self.paired[which] &= found.paired
        return over

    def pair(self, at: int, first: str, second: str, low: float, high: float) -> Pair:
        """low, high: the ends of the geomean's interval, as factors of the geomean."""
        value = float(np.exp(self.logs[at] / self.weights[at]))
        geomean = Ratio(value)
        if self.known[at]:
            geomean = Ratio(value, value * low, value * high, "paired" if self.paired[at] else "unpaired")
        common, wins, ties = (int(each[at]) for each in (self.common, self.wins, self.ties))
        return Pair(
            first,
            second,
            common,
            geomean,
            float(self.second_us[at] / self.first_us[at]),
            wins,
            ties,
            common - wins - ties,
        )


@dataclass(frozen=True, slots=True)
class _Field:
    """One workload. names: the solutions that passed it, best first. times: their times. places: for each solution of
    the order its index in names, or -1."""

    uuid: str
    weight: float
    names: list[str]
    times: Floats
    places: Integers
    resampled: ResampledRows


def compare(data: RankingInput, ordered: Sequence[str], baseline: str | None) -> PairComparisons:
    """ordered: every solution with a row, best first. baseline: a solution that passed something."""
    base = ordered.index(baseline) if baseline is not None else None
    first, second = wanted(len(ordered), base)
    tally, scratch = _Tally(len(first)), Scratch()
    over_baseline: dict[tuple[str, str], Ratio] = {}
    margins: dict[str, Ratio] = {}
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        for workload in data.workloads:
            field = _field(data, workload.uuid, ordered, scratch)
            names, uuid = field.names, field.uuid
            chunks = list(_chunks(np.flatnonzero((field.places[first] >= 0) & (field.places[second] >= 0))))
            add = partial(_add, tally, field, first, second, base)
            # No two chunks hold the same pair. One chunk alone needs no thread.
            for found in pool.map(add, chunks) if len(chunks) > 1 else map(add, chunks):
                over_baseline |= {(names[place], uuid): ratio for place, ratio in found}
            if baseline is not None and baseline in names:
                ahead = names[: names.index(baseline)]
                ratios = field.resampled.ratios(field.times, np.arange(len(ahead)), len(ahead))
                over_baseline |= {(name, uuid): ratio for name, ratio in zip(ahead, ratios, strict=True)}
            if len(names) > 1:
                fastest, runner_up = np.argsort(field.times, kind="stable")[:2].tolist()
                [margins[uuid]] = field.resampled.ratios(field.times, np.array([runner_up]), fastest)
    return PairComparisons(_pairs(tally, ordered, first, second), over_baseline, margins)


def _field(data: RankingInput, uuid: str, ordered: Sequence[str], scratch: Scratch) -> _Field:
    names = [name for name in ordered if uuid in data.times[name]]
    at = {name: place for place, name in enumerate(names)}
    return _Field(
        uuid,
        data.importance[uuid],
        names,
        np.array([data.times[name][uuid] for name in names]),
        np.array([at.get(name, -1) for name in ordered], dtype=np.int64),
        ResampledRows([data.chosen[name, uuid].measurement for name in names], data.kind, scratch),
    )


def _add(
    tally: _Tally, field: _Field, first: Integers, second: Integers, base: int | None, which: Integers
) -> list[tuple[int, Ratio]]:
    """Adds a workload's times of some pairs to the tally. Returns the places of the solutions after the baseline, whose
    ratios to it are known by now."""
    one, two = field.places[first[which]], field.places[second[which]]
    found = field.resampled.differences(two, one)
    over = tally.add(_slice(which), field.times[one], field.times[two], found, field.weight)
    behind = np.flatnonzero(first[which] == base)
    return list(zip(two[behind].tolist(), over.ratios(behind), strict=True))


def wanted(solutions: int, baseline: int | None) -> tuple[Integers, Integers]:
    """For each pair the places of both in the order, the first before the second; sorted."""
    found: set[tuple[int, int]] = set()
    near = max_distance(solutions)
    for place in range(solutions):
        found.update((place, other) for other in range(place + 1, min(place + near + 1, solutions)))
        found.update(
            (min(place, other), max(place, other)) for other in (0, baseline) if other is not None and other != place
        )
    ordered = np.array(sorted(found), dtype=np.int64).reshape(-1, 2)
    return ordered[:, 0], ordered[:, 1]


def _chunks(which: Integers) -> Iterator[Integers]:
    for start in range(0, len(which), CHUNK):
        yield which[start : start + CHUNK]


def _slice(which: Integers) -> slice | Integers:
    """The same places, as a slice if they are consecutive: adding to a slice copies nothing."""
    first, last = int(which[0]), int(which[-1])
    return slice(first, last + 1) if last - first + 1 == len(which) else which


def _pairs(tally: _Tally, ordered: Sequence[str], first: Integers, second: Integers) -> dict[tuple[str, str], Pair]:
    """The pairs that have a workload in common."""
    pairs = {}
    for which in _chunks(np.flatnonzero(tally.common)):
        low, high = bounds(tally.deviations[which] / tally.weights[which, None])
        wider = widening(tally.freedom[which])
        lows, highs = np.exp(wider * low), np.exp(wider * high)
        for at, least, most in zip(which.tolist(), lows.tolist(), highs.tolist(), strict=True):
            one, two = ordered[first[at]], ordered[second[at]]
            pairs[one, two] = tally.pair(at, one, two, least, most)
    return pairs
