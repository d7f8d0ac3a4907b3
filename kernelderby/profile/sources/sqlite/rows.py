"""SQL for the rows of GPU work in an nsys export, and what their packed columns stand for."""

from __future__ import annotations

import sqlite3
from typing import Any

from kernelderby.profile.sources.operations import MEMSET as MEMSET_NAME
from kernelderby.profile.sources.operations import copy_name
from kernelderby.profile.sources.sqlite.launches import key_of, process_of
from kernelderby.profile.sources.sqlite.schema import KERNEL, MEMCPY, MEMSET, EventTable, Schema, as_text
from kernelderby.profile.spans import SpanKind

KINDS = (SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET)
TABLES = (KERNEL, MEMCPY, MEMSET)
_NO_ID = -(1 << 62)  # and below: numbers for names that have none


class Names(dict[Any, str]):
    """What a row of one kind holds for a name (an id, or in exports of other tools a text) -> the name, looked up once
    each."""

    def __init__(self, connection: sqlite3.Connection, schema: Schema, kind: int):
        self.connection, self.strings, self.kind = connection, schema.table("StringIds"), kind
        self._numbers: dict[Any, int] = {}

    def number(self, value: object) -> int:
        """Of a row's value: itself where it is an id; the name is found under it either way."""
        if isinstance(value, int):
            return value
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = _NO_ID - len(self._numbers)
            self[found] = self[value]
        return found

    def __missing__(self, value: int | str | None) -> str:
        if self.kind:
            name = copy_name(value if isinstance(value, int) else None) if self.kind == 1 else MEMSET_NAME
        elif isinstance(value, int):
            query = f"SELECT value FROM {self.strings.name} WHERE id = ?" if self.strings else "SELECT NULL WHERE 0 = ?"
            row = self.connection.execute(query, (value,)).fetchone()
            name = as_text(row[0]) if row and row[0] else "(unnamed kernel)"
        else:
            name = as_text(value) or "(unnamed kernel)"
        self[value] = name
        return name


class Places(dict[int, tuple[SpanKind, int, int, Names]]):
    """The packed `place` of select_spans -> (kind, device, stream, names of that kind)."""

    def __init__(self, connection: sqlite3.Connection, schema: Schema):
        self.names = [Names(connection, schema, kind) for kind in range(3)]

    def __missing__(self, place: int) -> tuple[SpanKind, int, int, Names]:
        kind = place & 3
        self[place] = KINDS[kind], place >> 2 & 0xFFFF, place >> 18, self.names[kind]
        return self[place]


def select_spans(table: EventTable, kind: int, with_processes: bool) -> str:
    """SQL of start, stop, name, place, bytes, key. place packs kind, device and stream: few columns sort faster."""
    place = f"({_packable(table, 'streamId')} << 18) | (({_packable(table, 'deviceId')} & 0xFFFF) << 2) | {kind}"
    size = or_zero(table, "bytes") if kind else "0"
    process = process_of(_packable(table, "globalPid")) if with_processes else "0"
    key = key_of(process, _packable(table, "correlationId"))
    return (
        f'SELECT start, "end" AS stop, {name_of(table, kind)} AS name, {place} AS place, {size} AS bytes, {key} AS key '
        f"FROM {table.name} WHERE {table.valid}"
    )


def name_of(table: EventTable, kind: int) -> str:
    """SQL for what names a row: an id in StringIds (or a text, in exports of other tools), or the kind of copy."""
    if kind == 2:
        return "0"
    wanted = ("copyKind",) if kind else ("demangledName", "shortName", "mangledName", "name")
    columns = [f'"{name}"' for name in wanted if name in table.columns]
    return f"coalesce({', '.join(columns)})" if len(columns) > 1 else columns[0] if columns else "NULL"


def _packable(table: EventTable, column: str) -> str:
    """For << and &, which take a whole number out of anything but NULL."""
    return f'IFNULL("{column}", 0)' if column in table.columns else "0"


def or_zero(table: EventTable, column: str) -> str:
    """The column's whole number, 0 for anything else that a broken export holds there."""
    return f'CASE WHEN typeof("{column}") = \'integer\' THEN "{column}" ELSE 0 END' if column in table.columns else "0"


def has_repeated_names(connection: sqlite3.Connection, schema: Schema, table: EventTable) -> bool:
    """Whether two ids that kernels use stand for the same text; then sums must go by the text."""
    strings = schema.table("StringIds")
    return (
        strings is not None
        and connection.execute(
            f"SELECT 1 FROM (SELECT DISTINCT {name_of(table, 0)} AS id FROM {table.name}) AS used "
            f"JOIN {strings.name} AS s ON s.id = used.id GROUP BY s.value HAVING count(*) > 1 LIMIT 1"
        ).fetchone()
        is not None
    )
