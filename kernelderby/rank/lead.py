"""A lead: one author against the best library on each workload. Rank, page, summary and README use this definition.

Every author except the leading one and plain torch is a library. The best library may differ from workload to workload,
so a workload that one library cannot run puts nobody ahead. A workload on which the operator's strongest library was
not measured does not count: otherwise who asks fewer rivals would lead by more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np

from kernelderby.catalog import Solution
from kernelderby.roofline.selection import BASELINE_AUTHOR, CountedRow
from kernelderby.rows.measurement import Measurement, Status
from kernelderby.statistics.bootstrap import ResampledRows, Scratch, bounds, widening
from kernelderby.statistics.ratio import Ratio

Best = Mapping[str, Mapping[str, Measurement]]  # uuid -> author -> the row with the author's shortest time


@dataclass(frozen=True, slots=True)
class Lead:
    """ratio: geomean over the workloads of the best library's time over the author's best time. Over several operators
    it has no interval. least, most: the smallest and largest ratio of a workload. wins, ties, losses: by each
    workload's 95 % interval. unpaired: number of ratios whose two rows did not take turns in one session. libraries:
    library -> number of workloads on which it is the best one, largest first. It has the libraries that were raced:
    with a time on half of the workloads, or the best time on one."""

    workloads: int
    wins: int
    ties: int
    losses: int
    unpaired: int
    ratio: Ratio
    least: float
    most: float
    libraries: dict[str, int]


def lead_of(author: str, best: Best, kind: str, weights: Mapping[str, float] | None = None) -> Lead | None:
    """kind: the kind of time; every row has it. weights: weights of the workloads, 1 by default. None if no library has
    a time on a workload of the author."""
    scratch, one, two = Scratch(), np.array([0]), np.array([1])
    deviations, logs, total, freedom = np.zeros(0), 0.0, 0.0, 0
    ratios: list[Ratio] = []
    libraries: Counter[str] = Counter()
    timed: Counter[str] = Counter()
    for uuid, rows in best.items():
        who = best_library(author, rows, kind)
        if who is None or author not in rows:
            continue
        found = ResampledRows([rows[who], rows[author]], kind, scratch).differences(one, two)
        value, weight = _us(rows[who], kind) / _us(rows[author], kind), (weights or {}).get(uuid, 1.0)
        deviations = (deviations if len(deviations) else np.zeros_like(found.values)) + weight * found.values
        ratios.append(_interval(value, found.values, int(found.freedom[0]), bool(found.paired[0])))
        logs, total, freedom = logs + weight * float(np.log(value)), total + weight, freedom + int(found.freedom[0])
        libraries[who] += 1
        timed.update(_libraries(author, rows))
    if not ratios:
        return None
    is_known = all(each.low is not None for each in ratios)
    is_paired = all(each.interval == "paired" for each in ratios)
    geomean = float(np.exp(logs / total))
    return Lead(
        len(ratios),
        wins=sum(each.verdict == "slower" for each in ratios),
        ties=sum(each.is_tie for each in ratios),
        losses=sum(each.verdict == "faster" for each in ratios),
        unpaired=sum(each.interval != "paired" for each in ratios),
        ratio=_interval(geomean, deviations / total, freedom, is_paired) if is_known else Ratio(geomean),
        least=min(each.value for each in ratios),
        most=max(each.value for each in ratios),
        libraries=dict(libraries.most_common())
        | {who: libraries[who] for who in sorted(timed) if 2 * timed[who] >= len(ratios)},
    )


def best_library(author: str, rows: Mapping[str, Measurement], kind: str) -> str | None:
    """The library with the shortest time; of two equal ones the first by name."""
    return min(_libraries(author, rows), key=lambda each: _us(rows[each], kind), default=None)


def strongest_library(
    author: str, counted: Mapping[tuple[str, str], CountedRow], solutions: Mapping[str, Solution]
) -> str | None:
    """The library that is the best one on most of the author's workloads, by graph times of present code. counted: the
    rows that count of one operator, on workloads of all origins."""
    best: dict[str, dict[str, Measurement]] = {}
    for (name, uuid), each in counted.items():
        row = each.measurement
        if not each.outdated and row.status is Status.PASSED and row.time("graph"):
            of_workload, who = best.setdefault(uuid, {}), solutions[name].author
            of_workload[who] = min(of_workload.get(who, row), row, key=lambda own: _us(own, "graph"))
    firsts = (best_library(author, rows, "graph") for rows in best.values() if author in rows)
    found = Counter(who for who in firsts if who is not None)
    return min(found, key=lambda who: (-found[who], who), default=None)


def of_present_code(
    author: str, rows: Mapping[str, Measurement], kind: str, former: Set[str | None]
) -> dict[str, Measurement]:
    """The rows of one workload without the authors in `former`, whose rows are of former code. Empty if the author or
    the best library is one of these, so that nobody leads because a rival is absent."""
    if not former.isdisjoint((author, best_library(author, rows, kind))):
        return {}
    return {who: row for who, row in rows.items() if who not in former}


def _libraries(author: str, rows: Mapping[str, Measurement]) -> list[str]:
    return sorted(each for each in rows if each not in (author, BASELINE_AUTHOR))


def _us(row: Measurement, kind: str) -> float:
    time = row.time(kind)
    assert time is not None
    return time.median_us


def _interval(value: float, deviations: np.ndarray, freedom: int, is_paired: bool) -> Ratio:
    """deviations: [1, RESAMPLES]; the call overwrites them."""
    if not freedom:
        return Ratio(value)
    [low], [high] = bounds(deviations.copy())
    [wider] = widening(np.array([freedom]))
    ends = value * float(np.exp(wider * low)), value * float(np.exp(wider * high))
    return Ratio(value, *ends, "paired" if is_paired else "unpaired")
