"""The recorded times of all definitions on one GPU, timed in one way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kernelderby.catalog import Solution
from kernelderby.errors import DerbyError
from kernelderby.roofline import selection
from kernelderby.roofline.selection import Chosen, Group
from kernelderby.trace import Measurement, Status


@dataclass(frozen=True, slots=True)
class Time:
    """A passed row. outdated: measured with sources that the solution has no more. kind: of trace.TIME_KINDS.
    empty_kernel_us: of its session, where known; in_place: the solution writes into its inputs' memory."""

    solution: str | None  # None where nobody says which
    latency_us: float
    outdated: bool = False
    kind: str = "eager"
    empty_kernel_us: float | None = None
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Recorded:
    """times: definition -> solution -> uuid -> its time; every solution with a row is there, maybe without a time."""

    group: Group
    other_groups: tuple[Group, ...]
    times: dict[str, dict[str, dict[str, Time]]]

    def fastest(self, definition: str) -> dict[str, Time]:
        """uuid -> the shortest time of any solution; of equal ones the solution that comes first by name."""
        best: dict[str, Time] = {}
        for _, own in sorted(self.times.get(definition, {}).items()):
            for uuid, time in own.items():
                if uuid not in best or time.latency_us < best[uuid].latency_us:
                    best[uuid] = time
        return best


def recorded(measurements: Iterable[Measurement], solutions: Mapping[str, Solution], gpu: str | None = None,
             protocol: str | None = None, kind: str | None = None) -> Recorded:
    """The rows that count (selection.newest_rows), of one group over all definitions (selection.choose_group), each
    definition's by one kind of time (selection.time_kind); rows without one of the asked kind have no time.

    solutions: those of the set that take part; rows of others are passed over. DerbyError where there are no rows.
    """
    groups = selection.group_rows(measurements)
    if not groups:
        raise DerbyError("traces/: no recorded rows; measure with `derby bench`")
    key = selection.choose_group(groups, gpu, protocol)
    chosen = selection.newest_rows(groups[key], {name: solution.hash for name, solution in solutions.items()})
    times: dict[str, dict[str, dict[str, Time]]] = {}
    rows: dict[str, list[Measurement]] = {}
    for each in chosen.values():
        rows.setdefault(each.measurement.definition, []).append(each.measurement)
    kinds = {definition: selection.time_kind(own, kind) for definition, own in rows.items()}
    for (solution, uuid), each in chosen.items():
        row = each.measurement
        own = times.setdefault(row.definition, {}).setdefault(solution, {})
        passed = row.status is Status.PASSED
        if passed and (kinds[row.definition] == "eager" or row.time(kinds[row.definition])):
            own[uuid] = _time(each, kinds[row.definition], bool(solutions[solution].in_place))
    return Recorded(
        selection.describe_group(key, groups[key]),
        tuple(selection.describe_group(other, groups[other]) for other in sorted(groups) if other != key), times)


def _time(chosen: Chosen, kind: str, in_place: bool) -> Time:
    row = selection.timed_by(chosen.measurement, kind)
    return Time(row.solution, selection.latency_us(row), chosen.outdated, kind, selection.empty_kernel_us(row, kind),
                in_place)
