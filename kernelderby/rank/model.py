"""The contents of a ranking: every number that a renderer shows, and nothing about its form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kernelderby.rank.lead import Lead
from kernelderby.roofline.selection import CountedRow, Group
from kernelderby.rows.measurement import Measurement
from kernelderby.statistics.ratio import Ratio
from kernelderby.store.counts import counted

NOT_MEASURED = "not measured"
PASSED = "passed"


@dataclass(frozen=True, slots=True)
class Cell:
    """One solution on one workload. status: "passed", "not measured", or the kind of failure in words; "no graph time"
    if it passed but lacks the compared kind of time. eager_us: the eager time, in addition to the compared one."""

    status: str
    latency_us: float | None = None
    eager_us: float | None = None
    ratio: Ratio | None = None  # over the baseline's time; None for the baseline, and if either did not pass
    share_of_floor: float | None = None
    fair_share: float | None = None
    outdated: bool = False  # measured with former sources
    too_good: bool = False  # faster than 0.9 x the floor: the measurement is suspicious
    timestamp: str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One workload: its floor on this GPU and every measured solution's cell. label: its axes, "seq_len=901"."""

    uuid: str
    label: str
    axes: dict[str, int]
    importance: float
    floor_us: float | None
    regime: str | None
    cells: dict[str, Cell]
    fastest: str | None = None
    second: str | None = None
    margin: Ratio | None = None  # time of the second over time of the fastest


@dataclass(frozen=True, slots=True)
class Pair:
    """Two solutions over the workloads that both passed. Ratios are the time of `second` over the time of `first`.
    wins: number of workloads on which `first` is faster, by the interval; losses: on which it is slower.
    """

    first: str
    second: str
    workloads: int
    geomean: Ratio
    total: float
    wins: int
    ties: int
    losses: int

    def swapped(self) -> Pair:
        ratios = self.geomean.inverse(), 1 / self.total
        return Pair(self.second, self.first, self.workloads, *ratios, self.losses, self.ties, self.wins)


@dataclass(frozen=True, slots=True)
class Summary:
    """One solution over all workloads. Comparisons with the baseline cover the workloads that both passed.

    slowdown: geomean over its passed workloads of its time over the fastest solution's time. It determines the order.
    """

    solution: str
    author: str
    place: int | None  # None: never measured, or nothing passed
    passed: int
    workloads: int
    failures: dict[str, int]  # status in words -> workloads, "not measured" included
    outdated: int
    slowdown: float | None
    common: int  # workloads that it and the baseline passed
    geomean: Ratio | None  # over the baseline
    total_us: float | None  # sum over the workloads it passed
    total_ratio: float | None  # over the baseline, common workloads
    wins: int
    ties: int
    losses: int
    win_rate: float | None  # wins / common; None for the baseline
    fastest_on: int  # workloads on which it is faster than every other one, by the interval
    share: float | None  # S: floor / latency, the median over the workloads it passed
    share_total: float | None  # sum of floors / sum of latencies
    fair_geomean: float | None = None  # geomean of S_fair, over the workloads it passed

    @property
    def is_complete(self) -> bool:
        return self.passed == self.workloads


@dataclass(frozen=True, slots=True)
class OrderDependence:
    """`first` comes before `second`, but not if one of these workloads (uuids) is left out."""

    first: str
    second: str
    workloads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Solutions of one definition on one GPU under one protocol. `order` is best first, without solutions that were
    never measured.

    time: the compared kind of time. eager_order: the order by eager time, if it differs. origin: the workloads' origin,
    None if they have none or several. lead: the lead of the first solution's author over the best library
    (rank/lead.py), None without a library."""

    definition: str
    group: Group
    other_groups: tuple[Group, ...]
    measured_from: str
    measured_to: str
    environment: dict[str, tuple[str, ...]]  # driver, commit (short) -> what the rows say, sorted
    baseline: str | None
    is_weighted: bool
    order: tuple[str, ...]
    rows: tuple[WorkloadRow, ...]
    summaries: tuple[Summary, ...]
    pairs: tuple[Pair, ...]
    order_dependences: tuple[OrderDependence, ...]
    not_measured: tuple[str, ...]
    no_floor_reason: str | None
    notes: tuple[str, ...] = ()
    time: str = "eager"
    eager_order: tuple[str, ...] = ()
    origin: str | None = None
    lead: Lead | None = None

    def __repr__(self) -> str:
        parts = f"{counted(len(self.order), 'solution')}, {counted(len(self.rows), 'workload')}"
        return f"Ranking({self.definition!r}, {self.group.gpu}, {self.time}: {parts})"

    def summary(self, solution: str) -> Summary:
        return next(summary for summary in self.summaries if summary.solution == solution)

    def pair(self, first: str, second: str) -> Pair:
        """The comparison of two measured solutions. KeyError if no workload was passed by both."""
        for pair in self.pairs:
            if (pair.first, pair.second) == (first, second):
                return pair
        raise KeyError((first, second))

    def row(self, uuid: str) -> WorkloadRow:
        return next(row for row in self.rows if row.uuid == uuid)


class CallerChoices(NamedTuple):
    """Which choices the caller made. The notes name the others."""

    gpu: bool
    protocol: bool
    baseline: bool
    time: bool = False


# Writes the notes of a ranking: report.ranking.notes.notes.
Noted = Callable[
    [Ranking, Sequence[Measurement], Mapping[tuple[str, str], CountedRow], Mapping[str, Any], CallerChoices],
    tuple[str, ...],
]
