"""The rows that count: one GPU, one protocol, and for each solution and workload the newest row of its present sources.
And the kind of time that is compared."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from kernelderby.catalog import Solution
from kernelderby.catalog.groups import RowGroup
from kernelderby.errors import DerbyError
from kernelderby.hardware import gpu_id
from kernelderby.rows.measurement import FLASHINFER_BENCH_CUPTI, FLASHINFER_BENCH_PROTOCOLS, Measurement, Status, newest
from kernelderby.rows.samples import LEAST_US, MOST_US, Samples
from kernelderby.store.fields import suggestion

BASELINE_AUTHOR = "baseline"  # plain torch, as flashinfer-bench calls it: a time to beat, not a library


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that may be compared with each other."""

    gpu: str
    protocol: str
    rows: int


@dataclass(frozen=True, slots=True)
class CountedRow:
    """The row that counts for one solution on one workload. outdated: it is of former sources. host_changed: it is of
    the present kernels but of other host code, so only its graph times count."""

    measurement: Measurement
    outdated: bool
    host_changed: bool = False


class GroupKey(NamedTuple):
    gpu: str  # hardware.gpu_id of the GPU's name in the rows
    protocol: str


class RowCount(NamedTuple):
    """The number of rows of a solution on one GPU under one protocol. choose_group() needs no more."""

    definition: str
    gpu: str
    protocol: str
    solution: str
    rows: int


def tallies(rows: Iterable[Measurement]) -> list[RowCount]:
    counts = Counter((row.definition, row.gpu, row.protocol, row.solution) for row in rows)
    return [RowCount(*key, count) for key, count in counts.items()]


def row_counts(groups: Iterable[RowGroup]) -> list[RowCount]:
    """tallies() of the rows in these groups."""
    return [
        RowCount(group.definition, group.gpu, group.protocol, solution, count)
        for group in groups
        for solution, count in group.solutions.items()
    ]


Grouped = TypeVar("Grouped", Measurement, RowCount)


def _size(rows: Sequence[Measurement] | Sequence[RowCount]) -> int:
    return sum(row.rows for row in rows if isinstance(row, RowCount)) if isinstance(rows[0], RowCount) else len(rows)


def group_rows(measurements: Iterable[Grouped]) -> dict[GroupKey, list[Grouped]]:
    """Rows by GPU and protocol. Several names of one GPU form one group."""
    groups: dict[GroupKey, list[Grouped]] = {}
    named: dict[tuple[str, str], list[Grouped]] = {}  # by the name in the rows: the same lists
    for measurement in measurements:
        name = measurement.gpu, measurement.protocol
        if (own := named.get(name)) is None:
            own = named[name] = groups.setdefault(GroupKey(gpu_id(name[0]), name[1]), [])
        own.append(measurement)
    return groups


def choose_group(groups: Mapping[GroupKey, list[Grouped]], gpu: str | None, protocol: str | None) -> GroupKey:
    """The group of the named GPU and protocol. If several remain: the newest protocol, ours before flashinfer-bench's;
    then the largest group; then the GPU with most rows in all. All tables choose alike. DerbyError if no row has that
    GPU or protocol; it lists or suggests the existing ones.
    """
    candidates = dict(groups)
    if gpu is not None:
        wanted = _match_gpu(groups, gpu)
        candidates = {key: rows for key, rows in candidates.items() if key.gpu == wanted}
    if protocol is not None:
        protocols = sorted({key.protocol for key in candidates})
        if protocol not in protocols:
            where = f" of GPU {gpu}" if gpu else ""
            near = suggestion(protocol, protocols)
            raise DerbyError(f"--protocol: no row{where} was measured with {protocol!r}; {near}")
        candidates = {key: rows for key, rows in candidates.items() if key.protocol == protocol}
    return max(
        sorted(candidates),
        key=lambda key: (
            key.protocol not in FLASHINFER_BENCH_PROTOCOLS,
            _version(key.protocol),
            key.protocol == FLASHINFER_BENCH_CUPTI,
            _size(candidates[key]),
            sum(_size(rows) for other, rows in candidates.items() if other.gpu == key.gpu),
        ),
    )


def _version(protocol: str) -> int:
    """2 for "cupti-graph-eager-2"; 0 without a version."""
    found = re.search(r"-(\d+)$", protocol)
    return int(found[1]) if found else 0


def plain_torch(solutions: Mapping[str, Solution]) -> set[str]:
    return {name for name, solution in solutions.items() if solution.author == BASELINE_AUTHOR}


def time_kind(rows: Iterable[Measurement], asked: str | None = None, plain: Collection[str] = ()) -> str:
    """The kind of time by which these rows are compared: the wanted one; otherwise graph if a solution has it on more
    than half of its passed workloads; otherwise eager, which all have. So a solution that cannot be captured does not
    make the others compete by a time that serving does not see; it is ranked after them. plain: solutions that do not
    decide the kind if there are others."""
    if asked is not None:
        return asked
    graphs: dict[str | None, list[bool]] = {}
    for row in rows:
        if row.status is Status.PASSED:
            graphs.setdefault(row.solution, []).append(row.time("graph") is not None)
    deciding = [found for name, found in graphs.items() if name not in plain] or list(graphs.values())
    return "graph" if any(2 * sum(found) > len(found) for found in deciding) else "eager"


def empty_kernel_us(row: Measurement, kind: str) -> float | None:
    """The time of the empty kernel in the row's session, of the same kind."""
    times = row.environment.get("empty_kernel_us") or {}
    return times.get("graph" if kind == "graph" else "eager")


def definitions_with_rows(
    measurements: Iterable[Grouped], gpu: str | None, protocol: str | None, solutions: int = 1
) -> set[str]:
    """Definitions with rows of at least this number of solutions on one GPU under one protocol (the named GPU and
    protocol, if named). DerbyError as in choose_group if none has rows."""
    groups = group_rows(measurements)
    chosen = choose_group(groups, gpu, protocol)
    found: dict[tuple[GroupKey, str], set[str | None]] = {}
    for key, rows in groups.items():
        if (gpu is None or key.gpu == chosen.gpu) and (protocol is None or key.protocol == chosen.protocol):
            for row in rows:
                found.setdefault((key, row.definition), set()).add(row.solution)
    return {definition for (_, definition), names in found.items() if len(names) >= solutions}


def describe_group(key: GroupKey, rows: list[Measurement]) -> Group:
    return Group(gpu=max(rows, key=lambda row: row.moment).gpu, protocol=key.protocol, rows=len(rows))


def _match_gpu(groups: Mapping[GroupKey, list[Grouped]], name: str) -> str:
    known: dict[str, str] = {}
    for key, rows in groups.items():
        known[key.gpu] = key.gpu
        for row_name in {row.gpu for row in rows}:
            known[row_name] = key.gpu
    folded = {each.casefold(): identity for each, identity in known.items()}
    for candidate in (name.casefold(), gpu_id(name)):
        if candidate in folded:
            return folded[candidate]
    raise DerbyError(f"--gpu: no row was measured on {name!r}; {suggestion(name, known)}")


def newest_rows(rows: Iterable[Measurement], solutions: Mapping[str, Solution]) -> dict[tuple[str, str], CountedRow]:
    """(solution, uuid) -> the row that counts, for these solutions by name.

    Rows of the present code come first, then rows of the present kernels with other host code, then rows without a hash
    (flashinfer-bench's), then outdated rows; among equals the newest (measurement.newest).
    """
    preferences: dict[int, list[Measurement]] = {0: [], 1: [], 2: [], 3: []}
    order: dict[tuple[str, str], None] = {}
    present: dict[tuple[str, str], bool] = {}  # most rows of a solution have the same hash
    for row in rows:
        solution, recorded = solutions.get(row.solution), row.solution_hash
        if solution is not None:
            order[row.solution, row.uuid] = None
            if recorded is None:
                preferences[1].append(row)
                continue
            code = row.solution, recorded
            if (is_present := present.get(code)) is None:
                is_present = present[code] = solution.has_code(recorded)
            if is_present:
                preferences[3].append(row)
            elif row.time("graph") and solution.has_kernels(recorded, row.uuid):
                preferences[2].append(_of_the_graph(row))
            else:
                preferences[0].append(row)
    found: dict[tuple[str, str], CountedRow] = {}
    for preference in (3, 2, 1, 0):
        for key, row in newest(preferences[preference], lambda row: (row.solution, row.uuid)).items():
            found.setdefault(key, CountedRow(row, preference == 0, preference == 2))
    return {key: found[key] for key in order}


def _of_the_graph(row: Measurement) -> Measurement:
    """The row with its graph time only, because the host code between two launches has changed."""
    return replace(row, latency_us=None, samples_us=(), times={"graph": row.times["graph"]}, host_us=None, wall_us=None)


def latency_us(row: Measurement, kind: str = "eager") -> float | None:
    """The time of that kind of a passed row, None without one. DerbyError if the time or a sample is out of the range
    of times, and if the row has no time at all."""
    time = row.time(kind)
    if time is None and (kind != "eager" or row.times):
        return None
    where = f"traces/: {row.solution} on workload {row.uuid} at {row.timestamp}"
    if time is None or not LEAST_US <= time.median_us <= MOST_US:
        found = None if time is None else time.median_us
        raise DerbyError(f"{where}: latency_us: a passed row needs a positive time, not {found}; delete it")
    try:
        Samples.of(time.samples_us)
    except ValueError as error:
        raise DerbyError(f"{where}: samples_us: {error}; delete the row") from None
    return time.median_us
