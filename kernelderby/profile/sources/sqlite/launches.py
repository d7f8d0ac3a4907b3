"""The NVTX ranges that were open at the launch of a GPU operation.

A kernel carries the correlation id of the API call that launched it. The call has a thread and a time; the ranges open
on that thread at that time belong to the operation. The kernel's own times do not help, because it runs later.

Memory: 12 bytes for each CUDA API call with a correlation id, 12 bytes for each start or end of a range, and one tuple
for each distinct nesting of names. Rows themselves stream.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from kernelderby.profile.sources.ranges import NEVER, Paths, RangeTimeline, nested_timeline, swept_timeline
from kernelderby.profile.sources.sqlite.schema import NVTX, RUNTIME, EventTable, Schema, as_text

UNNAMED = "(unnamed range)"
_PUSH_POP, _START_END = 59, 60  # NVTX_EVENTS.eventType; marks (34) and names of domains (75) are not ranges


def process_of(identifier: str) -> str:
    """SQL for the process of a globalPid or globalTid, which is (VM << 48) | (process << 24) | thread."""
    return f"((({identifier}) >> 24) & 0xFFFFFF)"


def key_of(process: str, correlation: str) -> str:
    """SQL for one integer that identifies a launch: the process above 32 bits of correlation id. The id starts at 1 in
    every process; 0 means no id."""
    return f"({process} << 32) | (({correlation}) & 0xFFFFFFFF)"


class Launches:
    """Launch key -> nesting of ranges. keys: sorted. nesting: for each key an index into `paths`. starts, ends: of the
    calls, if requested. began: starts of the calls, if a key comes again later."""

    def __init__(self, keys: np.ndarray, nesting: np.ndarray, paths: list[tuple[str, ...]]):
        self.keys, self.nesting, self.paths = keys, nesting, paths
        self.starts = self.ends = self.began = np.empty(0, np.int64)

    def _places(self, keys: np.ndarray, before: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """For each key the place of its call, and whether it has one. Of several calls with one key, the last that
        began before the work did."""
        first = np.searchsorted(self.keys, keys)
        places = np.minimum(first, len(self.keys) - 1)
        if before is not None and len(self.began):
            beyond = np.searchsorted(self.keys, keys, side="right")
            for work in np.flatnonzero(beyond - first > 1).tolist():
                calls = self.began[first[work] : beyond[work]]
                places[work] += max(int(np.searchsorted(calls, before[work], side="right")) - 1, 0)
        return places, self.keys[places] == keys

    def times(self, keys: np.ndarray, before: np.ndarray) -> list[tuple[int, int] | tuple[None, None]]:
        """Start and end of the call of each key. before: the starts of the work."""
        if not len(self.starts):
            return [(None, None)] * len(keys)
        places, known = self._places(keys, before)
        linked = known.tolist()
        starts, ends = self.starts[places].tolist(), self.ends[places].tolist()
        return [(start, end) if known else (None, None) for start, end, known in zip(starts, ends, linked, strict=True)]

    def find(self, keys: np.ndarray, before: np.ndarray | None = None) -> tuple[list[tuple[str, ...]], np.ndarray]:
        """For each key its ranges, and whether it has a launch. before: the starts of the work."""
        if not len(self.keys):
            return [()] * len(keys), np.zeros(len(keys), dtype=bool)
        places, linked = self._places(keys, before)
        paths = self.paths
        return [paths[index] for index in np.where(linked, self.nesting[places], 0).tolist()], linked


def read_launches(
    connection: sqlite3.Connection, schema: Schema, with_processes: bool, ranges: bool, times: bool = False
) -> Launches:
    """with_processes: whether GPU rows have their process; otherwise only ids can be joined. If an id has two calls
    (old exports have cudaLaunchKernel around its own versioned row), the outermost counts: the one that starts first.
    Ids can come again, after 2^32 of them; then each call counts that began after the one before had ended. times: keep
    starts and ends, 16 bytes more per call.
    """
    table = schema.table(RUNTIME)
    if table is None or not {"correlationId", "globalTid", "start"} <= table.columns:
        return Launches(np.empty(0, np.int64), np.empty(0, np.int32), [()])
    ended = "end" in table.columns
    times = times and ended
    timelines, paths = read_timelines(connection, schema) if ranges else ({}, [()])  # first, since it takes most memory
    calls = _calls(connection, table, ended)
    keys = calls[:, 0] & 0xFFFFFFFF
    if with_processes:
        keys |= (calls[:, 2] >> 24 & 0xFFFFFF) << 32
    order = np.lexsort((calls[:, 1], keys))
    keys = keys[order]
    first = np.ones(len(keys), dtype=bool)
    first[1:] = keys[1:] != keys[:-1]
    if ended and not first.all():
        _keep_later(first, calls[order, 1], calls[order, 3])
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
    if len(keys) > 1 and (keys[1:] == keys[:-1]).any():
        found.began = starts
    return found


def _keep_later(first: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> None:
    """Marks in `first` also the calls that begin after all earlier ones with their key have ended. Sorted by key, then
    start; first: the first call of each key."""
    several = ~first
    several[:-1] |= ~first[1:]
    mine = np.flatnonzero(several)
    begins, starts, ends = first[mine], starts[mine], ends[mine]
    ordered = np.sort(ends)
    group = np.cumsum(begins) * len(mine)
    latest = ordered[np.maximum.accumulate(group + np.searchsorted(ordered, ends)) - group]  # of a key up to here
    first[mine[1:][starts[1:] >= latest[:-1]]] = True


def _calls(connection: sqlite3.Connection, table: EventTable, times: bool) -> np.ndarray:
    """[calls, 3 or 4]: correlation id, start, thread, and the end if requested."""
    columns = 'correlationId, start, globalTid, "end"' if times else "correlationId, start, globalTid"
    whole = " AND ".join(f"typeof({name}) = 'integer'" for name in ("correlationId", "start", "globalTid"))
    wanted = f"FROM {table.name} WHERE correlationId > 0"
    plain = f"SELECT {columns} {wanted}"
    ended = """CASE WHEN typeof("end") = 'integer' THEN "end" ELSE start END"""
    careful = f"""SELECT {columns.replace('"end"', ended)} {wanted} AND {whole}"""
    count = connection.execute(f"SELECT count(*) {wanted}").fetchone()[0]
    try:
        found = integers(connection.execute(plain), 4 if times else 3, count)
    except (TypeError, ValueError, OverflowError):  # a value is missing or not a number
        found = integers(connection.execute(careful), 4 if times else 3)
    if times:
        found[:, 3] = np.maximum(found[:, 3], found[:, 1])
    return found


def integers(rows: Iterable[Iterable[int]], width: int, count: int | None = None) -> np.ndarray:
    """Rows of integers as an array [rows, width], without a list in between. count: number of rows, if known: an array
    that does not grow leaves no holes in memory. TypeError, ValueError, OverflowError: not all values are integers."""
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
    except (TypeError, ValueError, OverflowError):  # a value is missing or not a number
        connection.text_factory = decoded
        texts: dict[str, int] = {}
        numbered = ((*row[:3], texts.setdefault(row[3], len(texts))) for row in range_rows(connection, schema))
        return integers(numbered, 4), list(texts)
    finally:
        connection.text_factory = decoded


def range_rows(connection: sqlite3.Connection, schema: Schema) -> Iterator[tuple[int, int, int, str]]:
    """(thread, start, end, name), sorted by thread and start, outer before inner. An open range never ends."""
    source = _range_source(schema)
    if source is None:
        return
    name, rest = source
    # Old exports have no NULL in `end`: there an open range ends before it starts (0 or -1).
    end = f'CASE WHEN n."end" IS NULL OR n."end" < n.start THEN {NEVER} ELSE n."end" END'
    yield from connection.execute(
        f"SELECT n.globalTid, n.start, {end} AS stop, CAST(coalesce({name}, '{UNNAMED}') AS TEXT) {rest} "
        "AND typeof(n.globalTid) = 'integer' AND stop > n.start "
        "AND typeof(n.start) = 'integer' AND typeof(stop) = 'integer' ORDER BY 1, 2, 3 DESC"
    )


def _range_source(schema: Schema) -> tuple[str, str] | None:
    """SQL for a range's name, and FROM and WHERE for all ranges; None if the export has none."""
    table = schema.table(NVTX)
    if table is None or not {"start", "end", "globalTid"} <= table.columns:
        return None
    name = "nullif(n.text, '')" if "text" in table.columns else "NULL"
    join = ""
    if "textId" in table.columns and schema.table("StringIds"):
        name = f"coalesce({name}, s.value)"
        join = f'LEFT JOIN {schema.tables["StringIds"].name} AS s ON s.id = n."textId"'
    kinds = f'n."eventType" IN ({_PUSH_POP}, {_START_END})' if "eventType" in table.columns else 'n."end" IS NOT NULL'
    return name, f"FROM {table.name} AS n {join} WHERE {kinds}"
