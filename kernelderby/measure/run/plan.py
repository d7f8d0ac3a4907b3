"""The plan of a run: its jobs, their order, the expected time, and the jobs that fit into a time limit."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelderby.catalog import Catalog, Definition, Solution, Workload
from kernelderby.catalog.selection import of_origin, select_in_each
from kernelderby.catalog.traces import load_rows
from kernelderby.errors import DerbyError
from kernelderby.measure.judge.secret import drawn
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.machine.requirements import try_modules, why_not
from kernelderby.measure.run.rows import TRIES, RowKey, last_line, settled_keys, tries_of
from kernelderby.rows.measurement import Measurement

# Estimates without a comparable recorded row: seconds for one solution on one workload, on an H200 between 0.3 (small
# operators) and 6 (MoE); and seconds for a definition's processes to start, load and compile.
_UNKNOWN_SECONDS = 2.0
_START_SECONDS = 10.0
_EVENLY = 0.5  # share of the time that is divided evenly; the rest goes by importance


@dataclass(frozen=True, slots=True)
class Settings:
    """rounds: turns of each solution. most_rounds: maximum for the two fastest of a workload, which go on until the
    interval of their ratio is narrow. timeout_seconds: for each step of a solution (check with compilation, one round).
    again: measure even with an existing row. this_gpu: only rows from this very GPU count, not from another of its
    kind. together: if one chosen solution lacks a row on a workload, measure all of them, so that they pair. secret: of
    the session. is_secret_given: on the command line, where others may have read it. budget_seconds: of the whole run,
    see in_time(). sealed: see seal.py."""

    rounds: int = 5
    iterations: int = 10
    timeout_seconds: float = 300
    again: bool = False
    together: bool = False
    most_rounds: int = 10
    this_gpu: bool = False
    secret: str = field(default_factory=drawn)
    is_secret_given: bool = False
    budget_seconds: float | None = None
    sealed: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """One workload and the solutions to measure on it in turn. apart: why this solution does not take turns with the
    others."""

    definition: Definition
    workload: Workload
    solutions: tuple[Solution, ...]
    apart: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """skipped: solution -> reason. settled: number of (solution, workload) pairs that have their row already. seconds:
    expected time. measured_like: number of pairs whose time comes from a recorded row; the others are guessed. lines:
    definition -> number of lines in this machine's traces file; later rows come from simultaneous runs. tries: number
    of tries of a pair without a final row (rows.TRIES)."""

    jobs: tuple[Job, ...]
    skipped: dict[str, str]
    settled: int
    lines: dict[str, int]
    seconds: float = 0.0
    measured_like: int = 0
    tries: dict[RowKey, int] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        return sum(len(job.solutions) for job in self.jobs)

    @property
    def known_seconds(self) -> float:
        """The expected seconds; 0 if all of them are guessed."""
        return self.seconds if self.measured_like else 0.0


def solutions_of_each(
    catalog: Catalog, solutions: Iterable[str] = (), definitions: Iterable[str] = ()
) -> dict[str, list[Solution]]:
    """The named definitions (default: all) with the named solutions (default: all) for each; definitions without one
    are left out. DerbyError for a name that does not exist."""
    chosen = catalog.solutions_named(solutions) or list(catalog.solutions.values())
    wanted = [catalog.definition(name).name for name in definitions] or list(catalog.definitions)
    found = {name: [one for one in chosen if one.definition == name] for name in wanted}
    return {name: some for name, some in found.items() if some}


def workloads_of_each(
    catalog: Catalog, definitions: Iterable[str], words: Iterable[str], origins: Collection[str]
) -> dict[str, list[Workload]]:
    """The workloads of these origins that one of the words names; without words all. DerbyError for a word that names
    none."""
    catalog.check_origins(origins)
    found = {name: of_origin(catalog.workloads(name), origins) for name in definitions}
    return select_in_each({name: some for name, some in found.items() if some or not origins}, list(words))


def make_plan(
    catalog: Catalog,
    machine: Machine,
    settings: Settings,
    solutions: Iterable[str] = (),
    definitions: Iterable[str] = (),
    workloads: Iterable[str] = (),
    origins: Collection[str] = (),
    fresh: Mapping[str, Sequence[Workload]] | None = None,
    skipped: Mapping[str, str] | None = None,
) -> Plan:
    """The plan for these names; without names for everything. skipped: solution -> why another machine cannot run it;
    without it, this machine is examined. fresh: definition -> fresh shapes, which replace the listed ones, or are added
    to those of the origins. DerbyError for a name that does not exist."""
    if fresh is not None and (workloads := list(workloads)):
        raise DerbyError("--fresh: draws shapes that no file holds; leave out --workloads")
    raced = solutions_of_each(catalog, solutions, definitions)
    listed = workloads_of_each(catalog, raced if fresh is None or origins else (), workloads, origins)
    chosen = [one for each in raced.values() for one in each]
    jobs: list[Job] = []
    took: dict[tuple[str, str], float] = {}
    lines: dict[str, int] = {}
    tries: dict[RowKey, int] = {}
    settled = 0
    if skipped is None:
        if machine.gpu is not None:
            try_modules(chosen)
        skipped = {one.name: reason for one in chosen if (reason := why_not(one, machine))}
    skipped = {one.name: skipped[one.name] for one in chosen if one.name in skipped}
    for name, each in raced.items():
        racers = [one for one in each if one.name not in skipped]
        if not racers:
            continue
        lines[name] = last_line(catalog.traces_path(machine.id, name))
        rows = catalog.traces(name)
        took |= _recorded_seconds(rows, machine)
        of_rows = tries_of((row for row in rows if not settings.this_gpu or _is_of(row, machine)), racers)
        known = {key for key, tried in of_rows.items() if tried is None or tried >= TRIES}
        tries |= {key: tried for key, tried in of_rows.items() if tried is not None}
        raced_on = [*listed.get(name, ()), *(fresh or {}).get(name, ())]
        for workload in sorted(raced_on, key=work_of):  # so a stopped run has measured as many shapes as possible
            place = workload.uuid, machine.name, machine.protocol
            missing = [one for one in racers if settings.again or (one.name, *place) not in known]
            measured = racers if settings.together and missing else missing
            settled += len(racers) - len(measured)
            if measured:
                jobs.append(Job(catalog.definition(name), workload, tuple(measured)))
    return Plan(tuple(jobs), skipped, settled, lines, *_seconds(jobs, took), tries)


def without_others_rows(
    job: Job, path: Path, line: int, sessions: Collection[str], machine: Machine, together: bool
) -> Job | None:
    """The job without the solutions that have got a row since, None if all have: rows after this line of the file that
    runs of other sessions wrote. together: as in Settings."""
    known = {job.workload.uuid: job.workload}
    rows = load_rows(path, known, _said_already, _said_already) if path.is_file() else []
    later = (row for row in rows if row.session not in sessions and row.place and row.place.line > line)
    done, place = settled_keys(later, job.solutions), (job.workload.uuid, machine.name, machine.protocol)
    missing = tuple(one for one in job.solutions if (one.name, *place) not in done)
    return (job if together else replace(job, solutions=missing)) if missing else None


def _said_already(problem: str) -> None:
    """The catalog of the plan has given these warnings."""


def work_of(workload: Workload) -> float:
    """Roughly the seconds of the work on a large GPU, with 1e15 flops or 4e12 bytes per second."""
    cost = workload.cost
    return 0.0 if cost is None else max(sum(cost.flops.values()) / 1e15, cost.needed() / 4e12)


def _is_of(row: Measurement, machine: Machine) -> bool:
    return machine.gpu is not None and row.environment.get("gpu_uuid") == machine.gpu.uuid


def _recorded_seconds(rows: Iterable[Measurement], machine: Machine) -> dict[tuple[str, str], float]:
    """(solution, uuid) -> its seconds in the newest row from this kind of machine."""
    return {
        (row.solution, row.uuid): row.environment["seconds"]
        for row in rows
        if row.gpu == machine.name and isinstance(row.environment.get("seconds"), (int, float))
    }


def _seconds(jobs: list[Job], took: dict[tuple[str, str], float]) -> tuple[float, int]:
    pairs = [(solution.name, job.workload.uuid) for job in jobs for solution in job.solutions]
    known = [took[pair] for pair in pairs if pair in took]
    each = statistics.median(known) if known else _UNKNOWN_SECONDS
    starts = len({job.definition.name for job in jobs})
    return sum(known) + each * (len(pairs) - len(known)) + _START_SECONDS * starts, len(known)


def in_time(
    jobs: Sequence[Job], seconds: float, importance: Mapping[str, float], now: Callable[[], float] = time.monotonic
) -> Iterator[Job]:
    """The jobs that fit into the seconds, one by one; the last one may end later. Each operator gets a part of the
    remaining time, half of it evenly and half by importance (an operator without a published importance counts with the
    mean). Unused time goes to the following operators, and in the end to the remaining jobs. An operator's shapes come
    in the order of a hash of their uuids, so the measured ones are a fair sample and not the smallest ones."""
    end = now() + seconds
    left: dict[str, list[Job]] = {}
    for job in sorted(jobs, key=lambda job: hashlib.sha256(job.workload.uuid.encode()).digest(), reverse=True):
        left.setdefault(job.definition.name, []).append(job)
    weights = _weights(left, importance)
    order = by_weight(left, importance)
    while any(left.values()) and now() < end:
        waiting = [name for name in order if left[name]]
        while waiting and now() < end:
            name = waiting[0]
            part = _EVENLY / len(waiting) + (1 - _EVENLY) * weights[name] / sum(weights[each] for each in waiting)
            until = now() + part * (end - now())
            yield left[name].pop()
            while left[name] and now() < until:
                yield left[name].pop()
            waiting.pop(0)


def by_weight(names: Collection[str], importance: Mapping[str, float]) -> list[str]:
    """The most important operator first; equally important ones keep their order."""
    weights = _weights(names, importance)
    return sorted(names, key=lambda name: -weights[name])


def _weights(names: Collection[str], importance: Mapping[str, float]) -> dict[str, float]:
    usual = statistics.fmean(importance.values()) if importance else 1.0
    return {name: importance.get(name, usual) for name in names}
