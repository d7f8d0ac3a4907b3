"""GPU work of an nsys export: SQL for its rows, and all of it as arrays, in one pass over its tables.

The arrays suffice for sums and timelines, and are much faster than spans. They hold 40 bytes per operation during a
computation, and 48 during a walk in order.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kernelderby.profile.sources.operations import MEMSET, copy_name
from kernelderby.profile.sources.sqlite.launches import integers, key_of, process_of
from kernelderby.profile.sources.sqlite.schema import KERNEL, EventTable, Schema, as_text
from kernelderby.profile.spans import KernelSum, Profile, SpanKind
from kernelderby.profile.timeline import Timeline, timelines_from

_ROWS = 4096  # of a walk, processed at a time
KINDS = (SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET)
_NO_ID = -(1 << 62)  # and below: numbers for names without an id


class Names(dict[Any, str]):
    """A row's value for the name (an id, or a text in exports of other tools) -> the name, each looked up once."""

    def __init__(self, connection: sqlite3.Connection, schema: Schema, kind: int):
        self.connection, self.strings, self.kind = connection, schema.table("StringIds"), kind
        self._numbers: dict[Any, int] = {}
        self._kernels = schema.table(KERNEL)
        self._other: dict[Any, str] | None = None

    def number(self, value: object) -> int:
        """The number of a row's value: an id itself, or a new number for a text. Either way it leads to the name."""
        if isinstance(value, int):
            return value
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = _NO_ID - len(self._numbers)
            self[found] = self[value]
        return found

    def __missing__(self, value: int | str | None) -> str:
        if self.kind:
            name = copy_name(value if isinstance(value, int) else None) if self.kind == 1 else MEMSET
        elif isinstance(value, int):
            query = f"SELECT value FROM {self.strings.name} WHERE id = ?" if self.strings else "SELECT NULL WHERE 0 = ?"
            row = self.connection.execute(query, (value,)).fetchone()
            name = as_text(row[0]) if row and row[0] else self._other_names().get(value, "(unnamed kernel)")
        else:
            name = as_text(value) or "(unnamed kernel)"
        self[value] = name
        return name

    def _other_names(self) -> dict[Any, str]:
        """The short or mangled names of kernels whose demangled name is an id without a text."""
        if self._other is None:
            self._other, table, strings = {}, self._kernels, self.strings
            columns = table.columns if table else frozenset[str]()
            for column in ("mangledName", "shortName"):
                if table and strings and {"demangledName", column} <= columns:
                    rows = self.connection.execute(
                        f'SELECT DISTINCT k."demangledName", s.value FROM {table.name} AS k JOIN {strings.name} AS s '
                        f'ON s.id = k."{column}" WHERE k."demangledName" NOT IN (SELECT id FROM {strings.name})'
                    )
                    self._other.update((number, as_text(name)) for number, name in rows.fetchall() if name)
        return self._other


class Places(dict[int, tuple[SpanKind, int, int, Names]]):
    """The packed `place` of select_spans -> (kind, device, stream, names of that kind)."""

    def __init__(self, connection: sqlite3.Connection, schema: Schema):
        self.names = [Names(connection, schema, kind) for kind in range(3)]

    def __missing__(self, place: int) -> tuple[SpanKind, int, int, Names]:
        kind = place & 3
        self[place] = KINDS[kind], place >> 2 & 0xFFFF, place >> 18, self.names[kind]
        return self[place]


def select_spans(table: EventTable, kind: int, with_processes: bool) -> str:
    """SQL for start, stop, name, place, bytes, key. place packs kind, device and stream, since few columns sort
    faster."""
    place = f"({_packable(table, 'streamId')} << 18) | (({_packable(table, 'deviceId')} & 0xFFFF) << 2) | {kind}"
    size = or_zero(table, "bytes") if kind else "0"
    process = process_of(_packable(table, "globalPid")) if with_processes else "0"
    key = key_of(process, _packable(table, "correlationId"))
    return (
        f'SELECT start, "end" AS stop, {name_of(table, kind)} AS name, {place} AS place, {size} AS bytes, {key} AS key '
        f"FROM {table.name} WHERE {table.valid}"
    )


def name_of(table: EventTable, kind: int) -> str:
    """SQL for the name of a row: an id in StringIds (or a text, in exports of other tools), or the kind of copy."""
    if kind == 2:
        return "0"
    wanted = ("copyKind",) if kind else ("demangledName", "shortName", "mangledName", "name")
    columns = [f'"{name}"' for name in wanted if name in table.columns]
    return f"coalesce({', '.join(columns)})" if len(columns) > 1 else columns[0] if columns else "NULL"


def _packable(table: EventTable, column: str) -> str:
    """SQL for a value that << and & can use: they make an integer of anything but NULL."""
    return f'IFNULL("{column}", 0)' if column in table.columns else "0"


def or_zero(table: EventTable, column: str) -> str:
    """The column's integer; 0 for anything else in a broken export."""
    return f'CASE WHEN typeof("{column}") = \'integer\' THEN "{column}" ELSE 0 END' if column in table.columns else "0"


def rows_in_order(connection: sqlite3.Connection, selects: Sequence[str], places: Places) -> Iterator[np.ndarray]:
    """Rows [operations, 6] of rows.select_spans by start, then end, some thousands at a time. Holds 48 bytes per
    operation. SQLite's own sorting takes as much memory and more time."""
    union = " UNION ALL ".join(selects)
    count = sum(connection.execute(f"SELECT count(*) FROM ({select})").fetchone()[0] for select in selects)
    try:
        work = integers(connection.execute(union), 6, count)
    except (TypeError, ValueError, OverflowError):  # some names are texts or missing
        numbered = (
            (start, stop, places[place][3].number(name), place, *rest)
            for start, stop, name, place, *rest in connection.execute(union)
        )
        work = integers(numbered, 6)
    order = np.lexsort((work[:, 3], work[:, 1], work[:, 0]))
    for first in range(0, len(order), _ROWS):
        yield work[order[first : first + _ROWS]]


def sums_and_timelines(
    connection: sqlite3.Connection, schema: Schema, with_processes: bool, profile: Profile
) -> tuple[list[KernelSum], tuple[Timeline, ...]]:
    """Sums by kind and name, largest first, and the timeline of every GPU."""
    sums: list[KernelSum] = []
    work = []
    for kind, _, table in schema.work():
        names, groups = _names(connection, schema, table, kind)
        rows = _read(connection, table, kind, groups, with_processes)
        if len(rows):
            sums += _sums(KINDS[kind], names, rows)
            work.append(rows[:, 1:4])
    timelines: tuple[Timeline, ...] = ()
    if work:
        rows = np.concatenate(work) if len(work) > 1 else work[0]
        places = np.unique(rows[:, 2]).tolist()
        own = {place: rows[rows[:, 2] == place, :2] if len(places) > 1 else rows[:, :2] for place in places}
        timelines = timelines_from({(place >> 16, place & 0xFFFF): times for place, times in own.items()}, profile)
    return sorted(sums, key=lambda each: (-each.total_ns, each.instances, each.name)), timelines


def _names(
    connection: sqlite3.Connection, schema: Schema, table: EventTable, kind: int
) -> tuple[list[str], dict[int | str | None, int]]:
    """The distinct texts, and the text of each value in the name's column."""
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
    """[operations, 5]: name, start, end, process and device in one, bytes. Kernels have no bytes."""
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
