"""Which NVTX ranges were open where a GPU operation was launched.

A kernel carries the correlation id of the API call that launched it; the call has a thread and a time, and the ranges
open then on that thread are the operation's. Times of the kernel itself say nothing: it runs later.

Held in memory: 12 bytes a CUDA API call that has a correlation id, 12 bytes a start or end of a range, and one tuple a
distinct nesting of names. Rows themselves stream.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import itemgetter

import numpy as np

from kernelderby.profile.sources.ranges import NEVER, OpenRanges, Paths, RangeTimeline
from kernelderby.profile.sources.sqlite.schema import NVTX, RUNTIME, Schema

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
    process = process_of("globalTid") if with_processes else "0"
    end = ""
    if times and "end" in table.columns:
        end = """, CASE WHEN typeof("end") = 'integer' AND "end" >= start THEN "end" ELSE start END"""
    times = bool(end)
    rows = connection.execute(
        f"SELECT {key_of(process, 'correlationId')}, start, globalTid{end} FROM {table.name} "
        "WHERE correlationId > 0 AND typeof(correlationId) = 'integer' AND typeof(start) = 'integer' "
        "AND typeof(globalTid) = 'integer'"
    )
    calls = integers(rows, 4 if times else 3)
    order = np.lexsort((calls[:, 1], calls[:, 0]))
    keys = calls[order, 0]
    first = np.ones(len(keys), dtype=bool)
    first[1:] = keys[1:] != keys[:-1]
    order, keys = order[first], keys[first]
    starts, threads = calls[order, 1], calls[order, 2]
    ends = calls[order, 3] if times else starts
    del calls, order
    nesting = np.zeros(len(keys), dtype=np.int32)
    paths: list[tuple[str, ...]] = [()]
    if ranges:
        timelines, paths = read_timelines(connection, schema)
        for thread, timeline in timelines.items():
            mine = np.flatnonzero(threads == thread)
            nesting[mine] = timeline.at(starts[mine])
    found = Launches(keys, nesting, paths)
    if times:
        found.starts, found.ends = starts, ends
    return found


def integers(rows: Iterable[tuple[int, ...]], width: int) -> np.ndarray:
    """Rows of integers as an array [rows, width] without a list of them between."""
    return np.fromiter(chain.from_iterable(rows), dtype=np.int64).reshape(-1, width)


def read_timelines(
    connection: sqlite3.Connection, schema: Schema
) -> tuple[dict[int, RangeTimeline], list[tuple[str, ...]]]:
    """Thread -> its timeline, and the names of every nesting by number."""
    timelines: dict[int, RangeTimeline] = {}
    paths = Paths()
    for thread, rows in groupby(range_rows(connection, schema), key=itemgetter(0)):
        active = OpenRanges(paths)
        for _, start, end, name in rows:
            active.push(start, end, name)
        timelines[thread] = active.finish()
    return timelines, paths.names


def range_rows(connection: sqlite3.Connection, schema: Schema) -> Iterator[tuple[int, int, int, str]]:
    """(thread, start, end, name) by thread and start, outer before inner. An open range ends never."""
    table = schema.table(NVTX)
    if table is None or not {"start", "end", "globalTid"} <= table.columns:
        return
    inline = "n.text" if "text" in table.columns else "NULL"
    join = ""
    if "textId" in table.columns and schema.table("StringIds"):
        inline = f"coalesce({inline}, s.value)"
        join = f'LEFT JOIN {schema.tables["StringIds"].name} AS s ON s.id = n."textId"'
    # Old exports have no NULL in `end`: an open range ends before it starts there (0 or -1).
    end = f'CASE WHEN n."end" IS NULL OR n."end" < n.start THEN {NEVER} ELSE n."end" END'
    kinds = f'n."eventType" IN ({_PUSH_POP}, {_START_END})' if "eventType" in table.columns else 'n."end" IS NOT NULL'
    yield from connection.execute(
        f"SELECT n.globalTid, n.start, {end} AS stop, CAST(coalesce({inline}, '(unnamed range)') AS TEXT) "
        f"FROM {table.name} AS n {join} WHERE {kinds} AND typeof(n.globalTid) = 'integer' AND stop > n.start "
        "AND typeof(n.start) = 'integer' AND typeof(stop) = 'integer' "
        "ORDER BY 1, 2, 3 DESC"
    )
