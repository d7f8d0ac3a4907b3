"""All GPU work of an export as arrays, one pass over its tables: enough for sums and timelines, and much faster than
spans. 40 bytes an operation are held while they are computed, 48 while they are walked in order."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from kernelderby.profile.sources.sqlite.launches import integers, process_of
from kernelderby.profile.sources.sqlite.rows import KINDS, TABLES, Names, Places, name_of, or_zero
from kernelderby.profile.sources.sqlite.schema import EventTable, Schema
from kernelderby.profile.spans import KernelSum, SpanKind
from kernelderby.profile.timeline import Timeline, gpu_label, timeline_of

_ROWS = 4096  # of a walk, taken at a time


def in_order(connection: sqlite3.Connection, selects: Sequence[str], places: Places) -> Iterator[np.ndarray]:
    """Rows [operations, 6] of rows.select_spans by start, then end, some thousands at a time.

    48 bytes an operation are held; SQLite's own sorting takes longer and as much."""
    union = " UNION ALL ".join(selects)
    count = sum(connection.execute(f"SELECT count(*) FROM ({select})").fetchone()[0] for select in selects)
    try:
        work = integers(connection.execute(union), 6, count)
    except (TypeError, ValueError, OverflowError):  # names are texts, or some are missing
        numbered = (
            (start, stop, places[place][3].number(name), place, *rest)
            for start, stop, name, place, *rest in connection.execute(union)
        )
        work = integers(numbered, 6)
    order = np.lexsort((work[:, 3], work[:, 1], work[:, 0]))
    for first in range(0, len(order), _ROWS):
        yield work[order[first : first + _ROWS]]


def measure(
    connection: sqlite3.Connection, schema: Schema, with_processes: bool, gpu_of: Callable[[int, int], str]
) -> tuple[list[KernelSum], tuple[Timeline, ...]]:
    """Sums by kind and name, largest first, and a timeline for every GPU."""
    sums: list[KernelSum] = []
    work = []
    for kind, name in enumerate(TABLES):
        table = schema.table(name)
        if table is None:
            continue
        names, groups = _names(connection, schema, table, kind)
        rows = _read(connection, table, kind, groups, with_processes)
        if len(rows):
            sums += _sums(KINDS[kind], names, rows)
            work.append(rows[:, 1:4])
    return (
        sorted(sums, key=lambda each: (-each.total_ns, each.instances, each.name)),
        _timelines(np.concatenate(work) if len(work) > 1 else work[0], gpu_of) if work else (),
    )


def _names(
    connection: sqlite3.Connection, schema: Schema, table: EventTable, kind: int
) -> tuple[list[str], dict[int | str | None, int]]:
    """The distinct texts, and which of them each value of the name's column stands for."""
    known = Names(connection, schema, kind)
    values = [row[0] for row in connection.execute(f"SELECT DISTINCT {name_of(table, kind)} FROM {table.name}")]
    texts: dict[str, int] = {}
    groups = {value: texts.setdefault(known[value], len(texts)) for value in values}
    return list(texts), groups


def _read(
    connection: sqlite3.Connection,
    table: EventTable,
    kind: int,
    groups: dict[int | str | None, int],
    with_processes: bool,
) -> np.ndarray:
    """[operations, 5]: name, start, end, process and device in one, bytes; of kernels without the last."""
    process = process_of(or_zero(table, "globalPid")) if with_processes else "0"
    place = f"({process} << 16) | ({or_zero(table, 'deviceId')} & 0xFFFF)"
    size = f", {or_zero(table, 'bytes')}" if kind else ""
    width = 5 if kind else 4
    cursor = connection.execute(
        f'SELECT {name_of(table, kind)}, start, "end", {place}{size} FROM {table.name} WHERE {table.valid}'
    )
    if all(isinstance(value, int) for value in groups):
        rows = integers(cursor, width)
        values = np.array(sorted(groups), dtype=np.int64)  # type: ignore[type-var]
        numbers = np.array([groups[value] for value in values.tolist()], dtype=np.int64)
        rows[:, 0] = numbers[np.searchsorted(values, rows[:, 0])]
        return rows
    numbered = ((groups[name], *rest) for name, *rest in cursor)
    return integers(numbered, width)


def _sums(kind: SpanKind, names: list[str], rows: np.ndarray) -> Iterator[KernelSum]:
    durations = rows[:, 2] - rows[:, 1]
    order = np.lexsort((durations, rows[:, 0]))
    groups, durations = rows[order, 0], durations[order]
    sizes = None if kind is SpanKind.KERNEL else rows[order, 4]
    first = np.flatnonzero(np.diff(groups, prepend=-1))
    for start, end in zip(first.tolist(), np.append(first[1:], len(groups)).tolist(), strict=True):
        values = durations[start:end]
        count, middle = end - start, (end - start) // 2
        median = int(values[middle]) if count % 2 else (int(values[middle - 1]) + int(values[middle])) / 2
        yield KernelSum(
            kind,
            names[int(groups[start])],
            count,
            int(values.sum()),
            float(median),
            int(values[0]),
            int(values[-1]),
            float(np.std(values, ddof=1)) if count > 1 else 0.0,
            None if sizes is None else int(sizes[start:end].sum()),
        )


def _timelines(work: np.ndarray, gpu_of: Callable[[int, int], str]) -> tuple[Timeline, ...]:
    """work: [operations, 3], start, end, place. A GPU is what gpu_of says is one, by its first process and number."""
    gpus: dict[str, list[int]] = {}
    for place in np.unique(work[:, 2]).tolist():
        gpus.setdefault(gpu_of(place >> 16, place & 0xFFFF), []).append(place)
    several = len({places[0] >> 16 for places in gpus.values()}) > 1
    found = []
    for places in gpus.values():
        mine = work[np.isin(work[:, 2], places)] if len(gpus) > 1 else work
        order = np.argsort(mine[:, 0], kind="stable")
        process, device = places[0] >> 16, places[0] & 0xFFFF
        label = gpu_label(process, device, several)
        found.append(timeline_of(mine[order, 0], mine[order, 1], process, device, label))
    return tuple(sorted(found, key=lambda each: (each.process, each.device)))
