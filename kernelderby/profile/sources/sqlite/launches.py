"""Which NVTX ranges were open where a GPU operation was launched.

A kernel carries the correlation id of the API call that launched it; the call has a thread and a time, and the ranges
open then on that thread are the operation's. Times of the kernel itself say nothing: it runs later.

Held in memory: 12 bytes a CUDA API call that has a correlation id, 12 bytes a start or end of a range, and one tuple a
distinct nesting of names. Rows themselves stream.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from kernelderby.profile.sources.ranges import NEVER, Paths, RangeTimeline, nested_timeline, swept_timeline
from kernelderby.profile.sources.sqlite.schema import NVTX, RUNTIME, EventTable, Schema, as_text

UNNAMED = "(unnamed range)"
_PUSH_POP, _START_END = 59, 60  # NVTX_EVENTS.eventType; marks (34) and names of domains (75) are no ranges


def process_of(identifier: str) -> str:
    """SQL for the process of a globalPid or globalTid, which is (VM << 48) | (process << 24) | thread."""
    return f"((({identifier}) >> 24) & 0xFFFFFF)"


def key_of(process: str, correlation: str) -> str:
    """SQL for one integer that names a launch: the process above 32 bits of correlation id, which starts at 1 in every
    process; 0 is no id."""
    return f"({process} << 32) | (({correlation}) & 0xFFFFFFFF)"


class Launches:
    """Launch key -> nesting of ranges. keys: sorted, unique; nesting: index into `paths` of each. starts, ends: of the
    calls, only where they were asked for."""

    def __init__(self, keys: np.ndarray, nesting: np.ndarray, paths: list[tuple[str, ...]]):
        self.keys, self.nesting, self.paths = keys, nesting, paths
        self.starts = self.ends = np.empty(0, np.int64)

    def times(self, keys: np.ndarray) -> list[tuple[int, int] | tuple[None, None]]:
        """Start and end of the call of each key."""
        if not len(self.starts):
            return [(None, None)] * len(keys)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        linked = (self.keys[places] == keys).tolist()
        starts, ends = self.starts[places].tolist(), self.ends[places].tolist()
        return [(start, end) if known else (None, None) for start, end, known in zip(starts, ends, linked, strict=True)]

    def find(self, keys: np.ndarray) -> tuple[list[tuple[str, ...]], np.ndarray]:
        """For each key its ranges, and whether it has a launch at all."""
        if not len(self.keys):
            return [()] * len(keys), np.zeros(len(keys), dtype=bool)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        linked = self.keys[places] == keys
        paths = self.paths
        return [paths[index] for index in np.where(linked, self.nesting[places], 0).tolist()], linked


def read_launches(
    connection: sqlite3.Connection, schema: Schema, with_processes: bool, ranges: bool, times: bool = False
) -> Launches:
    """with_processes: whether GPU rows tell their process; without it ids are all that can be joined on.

    Where an id has two calls (old exports have cudaLaunchKernel around its own versioned row), the outermost counts:
    the one that starts first. times: keep starts and ends, 16 bytes a call more.
    """
    table = schema.table(RUNTIME)
    if table is None or not {"correlationId", "globalTid", "start"} <= table.columns:
        return Launches(np.empty(0, np.int64), np.empty(0, np.int32), [()])
    times = times and "end" in table.columns
    timelines, paths = read_timelines(connection, schema) if ranges else ({}, [()])  # first: it takes most memory
    calls = _calls(connection, table, times)
    keys = calls[:, 0] & 0xFFFFFFFF
    if with_processes:
        keys |= (calls[:, 2] >> 24 & 0xFFFFFF) << 32
    order = np.lexsort((calls[:, 1], keys))
    keys = keys[order]
    first = np.ones(len(keys), dtype=bool)
    first[1:] = keys[1:] != keys[:-1]
    order, keys = order[first], keys[first]
    starts, threads = calls[order, 1], calls[order, 2]
    ends = calls[order, 3] if times else starts
    del calls, order
    nesting = np.zeros(len(keys), dtype=np.int32)
    for thread, timeline in timelines.items():
        mine = np.flatnonzero(threads == thread)
        nesting[mine] = timeline.at(starts[mine])
    found = Launches(keys, nesting, paths)
    if times:
        found.starts, found.ends = starts, ends
    return found


def _calls(connection: sqlite3.Connection, table: EventTable, times: bool) -> np.ndarray:
    """[calls, 3 or 4]: correlation id, start, thread, and the end where it is asked for."""
    columns = 'correlationId, start, globalTid, "end"' if times else "correlationId, start, globalTid"
    whole = " AND ".join(f"typeof({name}) = 'integer'" for name in ("correlationId", "start", "globalTid"))
    wanted = f"FROM {table.name} WHERE correlationId > 0"
    plain = f"SELECT {columns} {wanted}"
    ended = """CASE WHEN typeof("end") = 'integer' THEN "end" ELSE start END"""
    careful = f"""SELECT {columns.replace('"end"', ended)} {wanted} AND {whole}"""
    count = connection.execute(f"SELECT count(*) {wanted}").fetchone()[0]
    try:
        found = integers(connection.execute(plain), 4 if times else 3, count)
    except (TypeError, ValueError, OverflowError):  # something is missing, or no number
        found = integers(connection.execute(careful), 4 if times else 3)
    if times:
        found[:, 3] = np.maximum(found[:, 3], found[:, 1])
    return found


def integers(rows: Iterable[Iterable[int]], width: int, count: int | None = None) -> np.ndarray:
    """Rows of integers as an array [rows, width] without a list of them between. count: of the rows, where it is known:
    an array that need not grow leaves no holes behind. TypeError, ValueError, OverflowError: not all are integers."""
    wanted = -1 if count is None else count * width
    return np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=wanted).reshape(-1, width)


def read_timelines(
    connection: sqlite3.Connection, schema: Schema
) -> tuple[dict[int, RangeTimeline], list[tuple[str, ...]]]:
    """Thread -> its timeline, and the names of every nesting by number."""
    rows, texts = _ranges(connection, schema)
    timelines: dict[int, RangeTimeline] = {}
    paths = Paths()
    for thread in np.unique(rows[:, 0]).tolist():
        mine = rows[rows[:, 0] == thread]
        mine = mine[np.lexsort((-mine[:, 2], mine[:, 1]))]
        starts, ends, names = mine[:, 1], mine[:, 2], mine[:, 3]
        timelines[thread] = nested_timeline(starts, ends, names, texts, paths) or swept_timeline(
            zip(starts.tolist(), ends.tolist(), (texts[name] for name in names.tolist()), strict=True), paths
        )
    return timelines, paths.names


def _ranges(connection: sqlite3.Connection, schema: Schema) -> tuple[np.ndarray, list[str]]:
    """[ranges, 4]: thread, start, end, place of its name among the texts."""
    source = _range_source(schema)
    if source is None:
        return np.empty((0, 4), np.int64), []
    name, rest = source
    plain = connection.execute(f'SELECT n.globalTid, n.start, IFNULL(n."end", -1), {name} {rest}')
    decoded, connection.text_factory = connection.text_factory, bytes  # each text once, below
    try:
        places: dict[object, int] = {}
        rows = integers(((*row[:3], places.setdefault(row[3], len(places))) for row in plain), 4)
        rows[rows[:, 2] < rows[:, 1], 2] = NEVER
        return rows[rows[:, 2] > rows[:, 1]], [UNNAMED if key is None else as_text(key) for key in places]
    except (TypeError, ValueError, OverflowError):  # something is missing, or no number
        connection.text_factory = decoded
        texts: dict[str, int] = {}
        numbered = ((*row[:3], texts.setdefault(row[3], len(texts))) for row in range_rows(connection, schema))
        return integers(numbered, 4), list(texts)
    finally:
        connection.text_factory = decoded


def range_rows(connection: sqlite3.Connection, schema: Schema) -> Iterator[tuple[int, int, int, str]]:
    """(thread, start, end, name) by thread and start, outer before inner. An open range ends never."""
    source = _range_source(schema)
    if source is None:
        return
    name, rest = source
    # Old exports have no NULL in `end`: an open range ends before it starts there (0 or -1).
    end = f'CASE WHEN n."end" IS NULL OR n."end" < n.start THEN {NEVER} ELSE n."end" END'
    yield from connection.execute(
        f"SELECT n.globalTid, n.start, {end} AS stop, CAST(coalesce({name}, '{UNNAMED}') AS TEXT) {rest} "
        "AND typeof(n.globalTid) = 'integer' AND stop > n.start "
        "AND typeof(n.start) = 'integer' AND typeof(stop) = 'integer' ORDER BY 1, 2, 3 DESC"
    )


def _range_source(schema: Schema) -> tuple[str, str] | None:
    """SQL for a range's name, and FROM and WHERE of all ranges; None where the export has none."""
    table = schema.table(NVTX)
    if table is None or not {"start", "end", "globalTid"} <= table.columns:
        return None
    name = "n.text" if "text" in table.columns else "NULL"
    join = ""
    if "textId" in table.columns and schema.table("StringIds"):
        name = f"coalesce({name}, s.value)"
        join = f'LEFT JOIN {schema.tables["StringIds"].name} AS s ON s.id = n."textId"'
    kinds = f'n."eventType" IN ({_PUSH_POP}, {_START_END})' if "eventType" in table.columns else 'n."end" IS NOT NULL'
    return name, f"FROM {table.name} AS n {join} WHERE {kinds}"
