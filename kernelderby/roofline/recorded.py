"""The recorded times of all definitions on one GPU under one protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kernelderby.catalog import Solution, Workload
from kernelderby.errors import DerbyError
from kernelderby.hardware import Gpu
from kernelderby.roofline import selection
from kernelderby.roofline.floors import share_on
from kernelderby.roofline.selection import CountedRow, Group
from kernelderby.rows.measurement import Cost, Measurement, Status


@dataclass(frozen=True, slots=True)
class RecordedTime:
    """A time on one workload. share: S. share_of_ceilings: S against the GPU's measured ceilings instead of the
    vendor's peaks. Both are None before against(), and if unknown. solution: None for a published time. outdated:
    measured with former sources. kind: one of measurement.TIME_KINDS. empty_kernel_us: the time of the session's empty
    kernel, if known. in_place: the solution writes into its inputs' memory."""

    latency_us: float
    share: float | None = None
    share_of_ceilings: float | None = None
    solution: str | None = None
    outdated: bool = False
    kind: str = "eager"
    empty_kernel_us: float | None = None
    in_place: bool = False

    def against(self, gpu: Gpu | None, cost: Cost | None) -> RecordedTime:
        """The time with both shares, if the GPU is known and the work was counted."""
        return replace(
            self,
            share=share_on(gpu, cost, self.latency_us, self.in_place),
            share_of_ceilings=share_on(gpu and gpu.at_ceilings(), cost, self.latency_us, self.in_place),
        )


@dataclass(frozen=True, slots=True)
class RecordedTimes:
    """times: definition -> solution -> uuid -> its time. Every solution with a row has an entry, possibly without
    times. rows: (solution, uuid) -> the row that counts."""

    group: Group
    other_groups: tuple[Group, ...]
    times: dict[str, dict[str, dict[str, RecordedTime]]]
    rows: dict[tuple[str, str], Measurement]

    def fastest(self, definition: str) -> dict[str, RecordedTime]:
        """uuid -> the shortest time of any solution; of equal times the one of the first solution by name."""
        best: dict[str, RecordedTime] = {}
        for _, own in sorted(self.times.get(definition, {}).items()):
            for uuid, time in own.items():
                if uuid not in best or time.latency_us < best[uuid].latency_us:
                    best[uuid] = time
        return best


def recorded(
    measurements: Iterable[Measurement],
    solutions: Mapping[str, Solution],
    gpu: str | None = None,
    protocol: str | None = None,
    kind: str | None = None,
) -> RecordedTimes:
    """The rows that count (selection.newest_rows), all of one group (selection.choose_group), and for each definition
    one kind of time (selection.time_kind). Rows without the wanted kind have no time.

    solutions: the solutions that take part; rows of others are skipped. DerbyError without rows.
    """
    groups = selection.group_rows(measurements)
    if not groups:
        raise DerbyError("traces/: no recorded rows; measure with `derby bench`")
    key = selection.choose_group(groups, gpu, protocol)
    chosen = selection.newest_rows(groups[key], solutions)
    times: dict[str, dict[str, dict[str, RecordedTime]]] = {}
    rows: dict[str, list[Measurement]] = {}
    for each in chosen.values():
        rows.setdefault(each.measurement.definition, []).append(each.measurement)
    plain = selection.plain_torch(solutions)
    kinds = {definition: selection.time_kind(own, kind, plain) for definition, own in rows.items()}
    for (solution, uuid), each in chosen.items():
        row = each.measurement
        own = times.setdefault(row.definition, {}).setdefault(solution, {})
        if row.status is Status.PASSED:
            reached = _reached(each, kinds[row.definition], bool(solutions[solution].in_place))
            if reached is not None:
                own[uuid] = reached
    return RecordedTimes(
        selection.describe_group(key, groups[key]),
        tuple(selection.describe_group(other, groups[other]) for other in sorted(groups) if other != key),
        times,
        {place: each.measurement for place, each in chosen.items()},
    )


def _reached(chosen: CountedRow, kind: str, in_place: bool) -> RecordedTime | None:
    row = chosen.measurement
    latency_us = selection.latency_us(row, kind)
    if latency_us is None:
        return None
    return RecordedTime(
        latency_us,
        solution=row.solution,
        outdated=chosen.outdated,
        kind=kind,
        empty_kernel_us=selection.empty_kernel_us(row, kind),
        in_place=in_place,
    )


def with_shares(
    gpu: Gpu | None, workloads: Iterable[Workload], times: Mapping[str, RecordedTime]
) -> dict[str, RecordedTime]:
    """uuid -> its time with both shares, for the workloads with a time."""
    return {
        workload.uuid: times[workload.uuid].against(gpu, workload.cost)
        for workload in workloads
        if workload.uuid in times
    }
