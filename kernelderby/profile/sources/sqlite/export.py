"""The SQLite export of NVIDIA Nsight Systems, of any version, and the files of `derby profile run`.

Spans stream in order of start; launches.py says what stays in memory. SQLite computes the sums. They equal those of
NVIDIA's cuda_gpu_kern_sum, cuda_gpu_mem_time_sum, cuda_gpu_mem_size_sum and cuda_api_sum for the same file, to the
nanosecond.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from copy import copy
from dataclasses import replace
from itertools import repeat
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.profile.names import fits
from kernelderby.profile.operators import LaunchOrigin
from kernelderby.profile.sources.in_memory import expect_time
from kernelderby.profile.sources.ranges import NEVER
from kernelderby.profile.sources.sqlite.graphs import replayed_work
from kernelderby.profile.sources.sqlite.launches import Launches, integers, process_of, range_rows, read_launches
from kernelderby.profile.sources.sqlite.rows import (
    Names,
    Places,
    name_of,
    or_zero,
    rows_in_order,
    select_spans,
    sums_and_timelines,
)
from kernelderby.profile.sources.sqlite.schema import (
    GRAPH_TRACE,
    KERNEL,
    NVTX,
    RUNTIME,
    Schema,
    as_text,
    check_whole,
    connect,
    explained,
    read_schema,
    with_validity,
)
from kernelderby.profile.spans import ApiSum, KernelSum, Launched, LaunchShape, Profile, RangeInstance, Span, is_waiting
from kernelderby.profile.timeline import Timeline
from kernelderby.store.counts import counted

_Batch = tuple[
    Iterable[tuple[int, ...]], Places, Iterable[tuple[str, ...]], Iterable[tuple[int, int] | tuple[None, None]]
]
_ROWS = 2048  # fetched at a time
_DIAGNOSTICS_SHOWN = 5


class SqliteProfile(Profile):
    has_events = True

    def __init__(self, path: Path, gpu: str | None, schema: Schema, database: Path) -> None:
        """path: the path to show. database: the file itself."""
        super().__init__(path, f"nsys SQLite, schema {schema.version}", gpu)
        self.schema, self.database = schema, database
        self._launches: Launches | None = None
        self._unlinked: int | None = None
        self._measured: tuple[list[KernelSum], tuple[Timeline, ...]] | None = None
        self._uuids: dict[tuple[int, int], str] | None = None

    @property
    def has_ranges(self) -> bool:
        return self.schema.table(NVTX) is not None

    def spans(self) -> Iterator[Span]:
        return (span for span, _, _ in self._walk(times=False))

    def launched(self) -> Iterator[Launched]:
        return self._walk(times=True)

    def _walk(self, times: bool) -> Generator[Launched, None, None]:
        with explained(self.database), closing(self._batches(times)) as batches:
            for rows, places, paths, calls in batches:
                for (start, stop, name, place, size, key), path, call in zip(rows, paths, calls, strict=True):
                    kind, device, stream, names = places[place]
                    yield Span(kind, names[name], start, stop, key >> 32, device, stream, path, size), *call

    def issued(self) -> Iterator[LaunchOrigin]:
        """A kernel of a graph's node has the operators of the node's capture."""
        with connect(self.database) as connection:
            work = replayed_work(connection, self.schema, self._with_processes())
        for span, issued in zip(self.spans(), super().issued(), strict=True):
            found = work.get((span.process, span.device, span.stream, span.start_ns)) if work else None
            yield LaunchOrigin(found.chain, found.replay) if found else issued

    def _batches(self, times: bool) -> Generator[_Batch, None, None]:
        """GPU work in order of start, some rows at a time, with the ranges and the calls of each row."""
        with connect(self.database) as connection:
            launches = self._read_launches(connection, times) if self.has_ranges or times else None
            places = Places(connection, self.schema)
            unlinked = 0
            for rows in rows_in_order(connection, self._selects(), places):
                ranges: Iterable[tuple[str, ...]] = repeat((), len(rows))
                called: Iterable[tuple[int, int] | tuple[None, None]] = repeat((None, None), len(rows))
                if launches is not None:
                    keys = rows[:, 5]
                    called = launches.times(keys, rows[:, 0]) if times else called
                    ranges, linked = launches.find(keys, rows[:, 0])
                    if not linked.all():
                        unlinked += int((~linked & (rows[:, 3] & 3 == 0)).sum())
                yield zip(*rows.T.tolist(), strict=True), places, ranges, called
            if launches is not None:
                self._unlinked = unlinked
                self.warn_unlinked(unlinked)

    def restricted(
        self, window: tuple[int, int] | None, device: int | None, process: int | None, stream: int | None
    ) -> SqliteProfile | None:
        """SQLite filters the rows."""
        conditions = {"deviceId": device, "streamId": stream}
        tables = dict(self.schema.tables)
        origin = self._origin() if window else 0
        for _, name, table in self.schema.work():
            parts = [f"({table.valid})"]
            if window:
                parts.append(f"start >= {origin + window[0]} AND start < {origin + window[1]}")
            for column, wanted in conditions.items():
                if wanted is not None:
                    mask = " & 0xFFFF" if column == "deviceId" else ""
                    held = f'(IFNULL("{column}", 0){mask})' if column in table.columns else "0"
                    parts.append(f"{held} = {int(wanted)}")
            if process is not None:
                held = process_of('IFNULL("globalPid", 0)') if self._with_processes() else "0"
                parts.append(f"{held} = {int(process)}")
            tables[name] = replace(table, valid=" AND ".join(parts))
        found = copy(self)
        found.schema = replace(self.schema, tables=tables)
        found._measured = found._unlinked = None
        return found

    def _origin(self) -> int:
        """Start of the first operation."""
        with connect(self.database) as connection:
            starts = [
                connection.execute(f"SELECT min(start) FROM {table.name} WHERE {table.valid}").fetchone()[0]
                for _, _, table in self.schema.work()
            ]
        return min((start for start in starts if start is not None), default=0)

    def sums(self) -> list[KernelSum]:
        return list(self._measure()[0])

    def timelines(self) -> tuple[Timeline, ...]:
        return self._measure()[1]

    def names(self) -> list[str]:
        found: dict[str, None] = {}
        with connect(self.database) as connection:
            for kind, _, table in self.schema.work():
                known = Names(connection, self.schema, kind)
                rows = connection.execute(
                    f"SELECT DISTINCT {name_of(table, kind)} FROM {table.name} WHERE {table.valid}"
                )
                found.update(dict.fromkeys(known[row[0]] for row in rows.fetchall()))
        return list(found)

    def _measure(self) -> tuple[list[KernelSum], tuple[Timeline, ...]]:
        if self._measured is None:
            with connect(self.database) as connection:
                self._measured = sums_and_timelines(connection, self.schema, self._with_processes(), self)
        return self._measured

    def api_sums(self) -> list[ApiSum]:
        """The rows of cuda_api_sum, with names cut as there. Old exports hold some calls twice, the second inside the
        first under the same cut name. nsys lists both, and so do we; `warnings` then says so."""
        table = self.schema.table(RUNTIME)
        strings = self.schema.table("StringIds")
        if table is None or strings is None or "nameId" not in table.columns:
            return []
        with connect(self.database) as connection:
            table, untimed, _ = with_validity(connection, table)
            rows = connection.execute(
                f'SELECT s.value, r.calls, r.total FROM (SELECT "nameId" AS name, sum({table.valid}) AS calls, '
                f'sum(CASE WHEN {table.valid} THEN "end" - start END) AS total '
                f"FROM {table.name} GROUP BY 1) AS r "
                f"LEFT JOIN {strings.name} AS s ON s.id = r.name ORDER BY r.total DESC, s.value"
            ).fetchall()
        sums = [ApiSum(_api_name(as_text(name)), calls, total) for name, calls, total in rows if calls]
        if untimed:
            self.warn(f"left out: {counted(untimed, 'CUDA API call')} without valid times")
        if len({each.name for each in sums}) < len(sums):
            self.warn("API times count some calls twice: the export has a row for the call and one inside it")
        return sums

    def _selects(self) -> list[str]:
        return [select_spans(table, kind, self._with_processes()) for kind, _, table in self.schema.work()]

    def _with_processes(self) -> bool:
        return all("globalPid" in table.columns for _, _, table in self.schema.work())

    def _read_launches(self, connection: sqlite3.Connection, times: bool = False) -> Launches:
        if self._launches is None or (times and not len(self._launches.starts)):
            self._launches = read_launches(connection, self.schema, self._with_processes(), self.has_ranges, times)
        return self._launches

    def waits(self) -> list[tuple[int, int, int]]:
        table, strings = self.schema.table(RUNTIME), self.schema.table("StringIds")
        if table is None or strings is None or not {"nameId", "globalTid"} <= table.columns:
            return []
        with connect(self.database) as connection:
            names = connection.execute(
                f'SELECT id, value FROM {strings.name} WHERE id IN (SELECT DISTINCT "nameId" FROM {table.name})'
            ).fetchall()
            waiting = [number for number, name in names if is_waiting(_api_name(as_text(name)))]
            marks = ", ".join("?" * len(waiting))
            return connection.execute(
                f'SELECT {process_of("globalTid")}, start, "end" FROM {table.name} WHERE "nameId" IN ({marks}) '
                f"AND typeof(start) = 'integer' AND typeof(\"end\") = 'integer' AND \"end\" >= start ORDER BY start",
                waiting,
            ).fetchall()

    def range_instances(self, pattern: re.Pattern[str] | None = None) -> list[RangeInstance]:
        with connect(self.database) as connection:
            found = [
                RangeInstance(thread >> 24 & 0xFFFFFF if self._with_processes() else 0, start, end, name)
                for thread, start, end, name in range_rows(connection, self.schema)
                if end < NEVER and (pattern is None or fits(pattern, name))
            ]
        return sorted(found, key=lambda each: (each.start_ns, each.end_ns))

    def launch_shapes(self) -> list[LaunchShape]:
        table = self.schema.table(KERNEL)
        dimensions = [f"{of}{axis}" for of in ("grid", "block") for axis in "XYZ"]
        if table is None or not set(dimensions) <= table.columns:
            return []
        memory = [name for name in ("staticSharedMemory", "dynamicSharedMemory") if name in table.columns]
        shared = " + ".join(or_zero(table, name) for name in memory) or "NULL"
        registers = or_zero(table, "registersPerThread") if "registersPerThread" in table.columns else "NULL"
        columns = ", ".join([*(or_zero(table, name) for name in dimensions), registers, shared])
        with connect(self.database) as connection:
            names = Names(connection, self.schema, 0)
            rows = connection.execute(
                f'SELECT {name_of(table, 0)}, {columns}, count(*), sum("end" - start) FROM {table.name} '
                f'WHERE {table.valid} AND "gridX" IS NOT NULL AND "blockX" IS NOT NULL '
                "GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9 ORDER BY 11 DESC"
            ).fetchall()
            return [LaunchShape(names[row[0]], tuple(row[1:4]), tuple(row[4:7]), *row[7:]) for row in rows]

    def gpu_of(self, process: int, device: int) -> str:
        """The GPU's uuid, if the export gives the uuid for each process and number."""
        if self._uuids is None:
            self._uuids = {}
            table = self.schema.table("TARGET_INFO_CUDA_DEVICE")
            if table is not None and {"cudaId", "pid", "uuid"} <= table.columns:
                with connect(self.database) as connection:
                    rows = connection.execute(f"SELECT pid, cudaId, uuid FROM {table.name} WHERE uuid IS NOT NULL")
                    self._uuids = {
                        (pid, number): uuid.hex() if isinstance(uuid, bytes) else str(uuid)
                        for pid, number, uuid in rows
                    }
        return self._uuids.get((process, device)) or super().gpu_of(process, device)

    @property
    def unlinked_launches(self) -> int:
        """With ranges, spans() counts them on its way. Before such a walk they are counted separately (2 s per
        million)."""
        table = self.schema.table(KERNEL)
        if self._unlinked is None and table is not None:
            with connect(self.database) as connection:
                launches = self._read_launches(connection)
                cursor = connection.execute(f"SELECT key FROM ({select_spans(table, 0, self._with_processes())})")
                self._unlinked = 0
                while rows := cursor.fetchmany(_ROWS):
                    self._unlinked += int((~launches.find(integers(rows, 1)[:, 0])[1]).sum())
        return self._unlinked or 0


def open_sqlite(path: Path, shown: Path | None = None) -> SqliteProfile:
    """shown: the report from which it was exported. DerbyError for a database that is truncated, locked, another
    program's, or without GPU work.
    """
    check_whole(path)
    with connect(path) as connection:
        schema = read_schema(path, connection)
        if not list(schema.work()):
            raise DerbyError(f"{shown or path}: {_nothing(schema)}")
        dropped, nanoseconds = 0, 0.0
        for _, name, table in list(schema.work()):
            schema.tables[name], invalid, taken = with_validity(connection, table)
            dropped += invalid
            nanoseconds += taken
        expect_time(shown or path, nanoseconds, "export it again")
        profile = SqliteProfile(shown or path, _gpu(connection, schema), schema, path)
        profile.compute_capability = _capability(connection, schema)
        profile.warnings.extend(_warnings(connection, schema, dropped))
        if graphs := schema.table(GRAPH_TRACE):
            profile.whole_graphs = connection.execute(f"SELECT count(*) FROM {graphs.name}").fetchone()[0]
    return profile


def _nothing(schema: Schema) -> str:
    if schema.table(GRAPH_TRACE):
        return "only whole CUDA graphs were recorded, no kernels; profile again with --cuda-graph-trace=node"
    return "no kernels, copies or memsets in it; profile code that uses the GPU with `nsys profile --trace cuda,nvtx`"


def _warnings(connection: sqlite3.Connection, schema: Schema, dropped: int) -> Iterator[str]:
    graphs = schema.table(GRAPH_TRACE)
    if graphs is not None:
        time = 'total("end" - start)' if {"start", "end"} <= graphs.columns else "NULL"
        count, total = connection.execute(f"SELECT count(*), {time} FROM {graphs.name}").fetchone()
        took = "" if total is None else f" ({total / 1e6:.1f} ms)"
        yield (
            f"{count:,} CUDA graph launches{took} were recorded whole: their kernels are missing, their time "
            "counts as idle; profile again with --cuda-graph-trace=node"
        )
    if schema.unread:
        yield f"not read: {', '.join(schema.unread)}, which another version of the same table hides"
    if dropped:
        yield f"left out: {counted(dropped, 'GPU operation')} without valid times"
    if schema.table(NVTX) and not schema.table(RUNTIME):
        yield "the export has NVTX ranges but no CUDA API calls, so no kernel can be put into a range"
    diagnostics = schema.table("DIAGNOSTIC_EVENT")
    if diagnostics is not None and {"severity", "text"} <= diagnostics.columns:
        texts = connection.execute(
            f"SELECT text, count(*) FROM {diagnostics.name} WHERE severity > 1 GROUP BY 1 ORDER BY min(rowid)"
        ).fetchall()
        for text, count in texts[:_DIAGNOSTICS_SHOWN]:
            yield f"nsys: {' '.join(str(text).split())[:300]}" + (f" ({counted(count, 'time')})" if count > 1 else "")
        if len(texts) > _DIAGNOSTICS_SHOWN:
            yield f"nsys: {counted(len(texts) - _DIAGNOSTICS_SHOWN, 'more kind')} of warning in DIAGNOSTIC_EVENT"


def _capability(connection: sqlite3.Connection, schema: Schema) -> str | None:
    """computeMajor.computeMinor, if all GPUs of the export have the same."""
    gpus = schema.table("TARGET_INFO_GPU")
    if gpus is None or not {"computeMajor", "computeMinor"} <= gpus.columns:
        return None
    found = connection.execute(
        f"SELECT DISTINCT computeMajor, computeMinor FROM {gpus.name} "
        "WHERE typeof(computeMajor) = 'integer' AND typeof(computeMinor) = 'integer' AND computeMajor > 0"
    ).fetchall()
    return f"{found[0][0]}.{found[0][1]}" if len(found) == 1 else None


def _gpu(connection: sqlite3.Connection, schema: Schema) -> str | None:
    """The name of the GPU that worked; the names of all kinds if several did."""
    gpus = schema.table("TARGET_INFO_GPU")
    if gpus is None or "name" not in gpus.columns:
        return None
    number = gpus.first("cuDevice", "id")
    rows = connection.execute(f"SELECT {number or 'NULL'}, name FROM {gpus.name} WHERE name IS NOT NULL").fetchall()
    if len({name for _, name in rows}) > 1:
        used: set[int] = set()
        for _, _, table in schema.work():
            if "deviceId" in table.columns:
                used.update(row[0] for row in connection.execute(f'SELECT DISTINCT "deviceId" FROM {table.name}'))
        rows = [row for row in rows if row[0] in used] or rows
    return ", ".join(dict.fromkeys(as_text(name) for _, name in rows)) or None


def _api_name(name: str | None) -> str:
    """The name as NVIDIA's cuda_api_sum cuts it: "cudaLaunchKernel_v7000" loses "_v7000", "cudaGraphLaunch_v10000"
    stays."""
    name = name or "(unnamed call)"
    return name[:-6] if name[-6:-4] == "_v" else name
