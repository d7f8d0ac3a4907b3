"""The field: for every operator the libraries that were raced on one GPU, with versions and dates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernelderby.catalog import Solution
from kernelderby.catalog.libraries import UNKNOWN, library_of, oldest
from kernelderby.catalog.templates import NotRaced
from kernelderby.roofline import selection
from kernelderby.roofline.selection import CountedRow, Group
from kernelderby.rows.measurement import Measurement, Status
from kernelderby.store.counts import counted


@dataclass(frozen=True, slots=True)
class RacedLibrary:
    """A library at one operator. library: the author of its solutions, as in a lead. version: the oldest version among
    the rows that count; "unknown" if a row does not name it, None without rows of present code. here: the version in a
    constraints file, or the installed one; None without either. passed, workloads: number of workloads with a time of
    present code, and of all. failed, outdated: number of rows of present code that did not pass, and of former code.
    measured_from, measured_to: days."""

    definition: str
    library: str
    solutions: tuple[str, ...]
    version: str | None
    here: str | None
    passed: int
    workloads: int
    failed: int
    outdated: int
    measured_from: str | None
    measured_to: str | None

    @property
    def is_newest(self) -> bool | None:
        """Whether the raced version is the newest; None if unknown."""
        return self.version == self.here if self.here and self.version not in (None, UNKNOWN) else None


@dataclass(frozen=True, slots=True)
class Field:
    """group: the group of the rows, None without rows. importance: definition -> its share of the survey's GPU time.
    raced: sorted by importance, then by name. without: definitions without a solution that calls a library. not_raced:
    libraries without a solution or without a time, and why."""

    group: Group | None
    importance: dict[str, float]
    raced: tuple[RacedLibrary, ...]
    without: tuple[str, ...]
    not_raced: tuple[NotRaced, ...] = ()

    def at_least(self, libraries: int, raced: bool) -> float:
        """Percent of the survey's GPU time whose operators have at least this many libraries. A library counts if it
        has a solution; with `raced`, if it has times of present code on at least half of the shapes."""
        count: Counter[str] = Counter(
            each.definition for each in self.raced if not raced or 0 < each.workloads <= 2 * each.passed
        )
        share = sum(of for name, of in self.importance.items() if count[name] >= libraries)
        return 100 * share / (sum(self.importance.values()) or 1.0)

    def __repr__(self) -> str:
        return (
            f"Field({counted(len(self.raced), 'library', 'libraries')} raced, "
            f"{counted(len(self.without), 'operator')} without one)"
        )


def field(
    measurements: Iterable[Measurement],
    workloads: Mapping[str, Sequence[str]],
    solutions: Mapping[str, Solution],
    importance: Mapping[str, float],
    here: Mapping[str, str],
    gpu: str | None = None,
    not_raced: Iterable[NotRaced] = (),
) -> Field:
    """workloads: definition -> the uuids that count. here: library -> version. gpu: default the GPU with most rows."""
    groups = selection.group_rows(measurements)
    key = selection.choose_group(groups, gpu, None) if groups else None
    chosen = selection.newest_rows(groups[key], solutions) if key else {}
    order = sorted(workloads, key=lambda name: (-importance.get(name, 0.0), name))
    raced: list[RacedLibrary] = []
    without: list[str] = []
    for name in order:
        of_library: dict[tuple[str, str], list[str]] = {}
        for solution in sorted(solutions.values(), key=lambda each: each.name):
            module = library_of(solution)
            if solution.definition == name and module and solution.author != selection.BASELINE_AUTHOR:
                of_library.setdefault((solution.author, module), []).append(solution.name)
        raced += [
            _raced(name, library, module, own, workloads[name], chosen, here)
            for (library, module), own in sorted(of_library.items())
        ]
        if not of_library:
            without.append(name)
    group = selection.describe_group(key, groups[key]) if key else None
    return Field(
        group,
        {name: importance[name] for name in order if name in importance},
        tuple(raced),
        tuple(without),
        tuple(each for each in not_raced if not each.operators or set(each.operators) & set(workloads)),
    )


def _raced(
    definition: str,
    library: str,
    module: str,
    names: Sequence[str],
    uuids: Sequence[str],
    chosen: Mapping[tuple[str, str], CountedRow],
    here: Mapping[str, str],
) -> RacedLibrary:
    rows = [chosen[name, uuid] for name in names for uuid in uuids if (name, uuid) in chosen]
    passed = [each.measurement for each in rows if each.measurement.status is Status.PASSED and not each.outdated]
    days = sorted(row.timestamp[:10] for row in passed)
    return RacedLibrary(
        definition,
        library,
        tuple(names),
        oldest(version_of(row, module) for row in passed) if passed else None,
        here.get(module),
        len({row.uuid for row in passed}),
        len(uuids),
        sum(each.measurement.status is not Status.PASSED and not each.outdated for each in rows),
        sum(each.outdated for each in rows),
        days[0] if days else None,
        days[-1] if days else None,
    )


def version_of(row: Measurement, module: str) -> str:
    """The version of a library (its import name) in a row; "unknown" if the row lacks it."""
    versions = row.environment.get("libs") or {}
    return str(versions.get(module) or UNKNOWN)
