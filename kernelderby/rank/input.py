"""The input of one ranking: the rows that count, their times of the compared kind, and the floors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kernelderby.catalog import Solution, Workload
from kernelderby.hardware import Gpu
from kernelderby.rank.order import Times
from kernelderby.roofline import selection
from kernelderby.roofline.floors import Floors, fair_floor_us, floors
from kernelderby.roofline.selection import CountedRow
from kernelderby.rows.measurement import Measurement, Status


@dataclass(frozen=True, slots=True)
class RankingInput:
    """chosen: (solution, uuid) -> the row that counts. times, eager: the times of passed rows, by `kind` and eager;
    every solution with a row has an entry. in_place: solutions that write into their inputs' memory. asked: solution ->
    the workloads (uuids) that it must have passed to be complete: those that an author other than the baseline passed
    (all, if there are none), and those that it failed."""

    workloads: tuple[Workload, ...]
    importance: dict[str, float]
    chosen: dict[tuple[str, str], CountedRow]
    times: Times
    gpu: Gpu | None
    kind: str
    eager: Times
    in_place: frozenset[str]
    asked: dict[str, frozenset[str]]
    _floors: dict[tuple[str, bool], Floors | None] = field(default_factory=dict)
    _fair: dict[tuple[str, float | None, bool], float | None] = field(default_factory=dict)

    def floors(self, workload: Workload, solution: str | None) -> Floors | None:
        """The floors for the way in which the solution writes its outputs (in place or not); without a solution, not in
        place. None if unknown."""
        key = workload.uuid, solution in self.in_place
        if key not in self._floors:
            self._floors[key] = floors(workload.cost, self.gpu, key[1]) if workload.cost and self.gpu else None
        return self._floors[key]

    def fair_floor_us(self, workload: Workload, empty_kernel_us: float | None, in_place: bool) -> float | None:
        """See floors.fair_floor_us. Computed once for each workload and session."""
        key = workload.uuid, empty_kernel_us, in_place
        if key not in self._fair:
            self._fair[key] = fair_floor_us(self.gpu, workload.cost, empty_kernel_us, in_place)
        return self._fair[key]


def ranking_input(
    rows: Sequence[Measurement],
    workloads: Sequence[Workload],
    contenders: Mapping[str, Solution],
    gpu: Gpu | None,
    asked_time: str | None,
    importance: dict[str, float],
) -> RankingInput:
    """rows: the rows of one GPU and protocol. asked_time: see selection.time_kind. DerbyError: a passed row has no
    time."""
    known = {workload.uuid for workload in workloads}
    chosen = {key: each for key, each in selection.newest_rows(rows, contenders).items() if key[1] in known}
    plain = selection.plain_torch(contenders)
    kind = selection.time_kind((each.measurement for each in chosen.values()), asked_time, plain)
    times: Times = {solution: {} for solution, _ in sorted(chosen)}
    eager: Times = {solution: {} for solution in times}
    for (solution, uuid), each in chosen.items():
        if each.measurement.status is not Status.PASSED:
            continue
        for own, wanted in ((eager, "eager"), (times, kind)):
            latency_us = selection.latency_us(each.measurement, wanted)
            if latency_us is not None:
                own[solution][uuid] = latency_us
    in_place = frozenset(name for name, solution in contenders.items() if solution.in_place)
    asked = _asked(chosen, plain, known, times)
    return RankingInput(tuple(workloads), importance, chosen, times, gpu, kind, eager, in_place, asked)


def _asked(
    chosen: Mapping[tuple[str, str], CountedRow],
    plain: Collection[str],
    known: Collection[str],
    solutions: Iterable[str],
) -> dict[str, frozenset[str]]:
    passed, failed = set(), defaultdict(set)
    for (solution, uuid), each in chosen.items():
        row = each.measurement
        if row.status is not Status.PASSED:
            if not row.is_unjudged:
                failed[solution].add(uuid)
        elif solution not in plain:
            passed.add(uuid)
    raced = passed or set(known)
    return {solution: frozenset(raced | failed[solution]) for solution in solutions}
