"""All that takes part in one ranking: the rows that count, their times by the compared kind, and the floors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernelderby.catalog import Solution, Workload
from kernelderby.hardware import Gpu
from kernelderby.rank.leads import BASELINE_AUTHOR
from kernelderby.rank.order import Times
from kernelderby.roofline import selection
from kernelderby.roofline.floors import fair_floor_us, floors
from kernelderby.roofline.selection import Chosen
from kernelderby.trace import Measurement, Status


@dataclass(frozen=True, slots=True)
class Arena:
    """chosen: (solution, uuid) -> the row that counts. times: by `kind`; they and the eager ones are of passed rows,
    every solution with a row is there. floors: uuid -> floor in us and regime, empty when unknown. in_place:
    solutions that write into their inputs' memory. raced: the workloads (uuids) that a solution has to have passed to
    be complete: those with a row, of any status, of another author than the baseline's, where they are at least half
    of all; otherwise all."""

    workloads: tuple[Workload, ...]
    importance: dict[str, float]
    chosen: dict[tuple[str, str], Chosen]
    times: Times
    floors: dict[str, tuple[float, str]]
    gpu: Gpu | None
    kind: str
    eager: Times
    in_place: frozenset[str]
    raced: frozenset[str]
    _fair: dict[tuple[str, float | None, bool], float | None] = field(default_factory=dict)

    def fair_floor_us(self, workload: Workload, empty_kernel_us: float | None, in_place: bool) -> float | None:
        """See floors.fair_floor_us; worked out once a workload and session."""
        key = workload.uuid, empty_kernel_us, in_place
        if key not in self._fair:
            self._fair[key] = fair_floor_us(self.gpu, workload.cost, empty_kernel_us, in_place)
        return self._fair[key]


def arena_of(
    rows: Sequence[Measurement],
    workloads: Sequence[Workload],
    contenders: Mapping[str, Solution],
    gpu: Gpu | None,
    asked_time: str | None,
    importance: dict[str, float],
) -> Arena:
    """rows: of one GPU and protocol. asked_time: see selection.time_kind. DerbyError: a passed row without a time."""
    known = {workload.uuid for workload in workloads}
    hashes = {name: solution.hash for name, solution in contenders.items()}
    chosen = {key: each for key, each in selection.newest_rows(rows, hashes).items() if key[1] in known}
    kind = selection.time_kind((each.measurement for each in chosen.values()), asked_time)
    times: Times = {solution: {} for solution, _ in sorted(chosen)}
    eager: Times = {solution: {} for solution in times}
    for (solution, uuid), each in chosen.items():
        if each.measurement.status is not Status.PASSED:
            continue
        for own, wanted in ((eager, "eager"), (times, kind)):
            latency_us = selection.latency_us(each.measurement, wanted)
            if latency_us is not None:
                own[solution][uuid] = latency_us
    floor = {}
    for workload in workloads:
        found = floors(workload.cost, gpu) if gpu is not None and workload.cost is not None else None
        if found is not None:
            floor[workload.uuid] = (found.floor_us, found.regime)
    in_place = frozenset(name for name, solution in contenders.items() if solution.in_place)
    raced = frozenset(uuid for solution, uuid in chosen if contenders[solution].author != BASELINE_AUTHOR)
    raced = raced if 2 * len(raced) >= len(known) else frozenset(known)
    return Arena(tuple(workloads), importance, chosen, times, floor, gpu, kind, eager, in_place, raced)
