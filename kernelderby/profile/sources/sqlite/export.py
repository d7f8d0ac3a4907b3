"""The SQLite export of NVIDIA Nsight Systems, of any version, and what `derby profile run` writes.

Spans stream in order of start; what is kept in memory is in launches.py. Sums are SQLite's, and equal to the nanosecond
what NVIDIA's cuda_gpu_kern_sum, cuda_gpu_mem_time_sum, cuda_gpu_mem_size_sum and cuda_api_sum say of the same file.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from kernelderby.errors import DerbyError
from kernelderby.profile.sources.sqlite.launches import Launches, read_launches
from kernelderby.profile.sources.sqlite.rows import (
    KINDS,
    TABLES,
    VALID,
    Names,
    Places,
    has_repeated_names,
    name_of,
    or_zero,
    select_spans,
)
from kernelderby.profile.sources.sqlite.schema import (
    GRAPH_TRACE,
    KERNEL,
    NVTX,
    RUNTIME,
    Schema,
    check_whole,
    connect,
    read_schema,
)
from kernelderby.profile.spans import ApiSum, KernelSum, Profile, Span

_ROWS = 2048  # fetched at a time
_DIAGNOSTICS_SHOWN = 5


class SqliteProfile(Profile):
    has_events = True

    def __init__(self, path: Path, gpu: str | None, schema: Schema) -> None:
        super().__init__(path, f"nsys SQLite, schema {schema.version}", gpu)
        self.schema = schema
        self._launches: Launches | None = None
        self._unlinked: int | None = None

    @property
    def has_ranges(self) -> bool:
        return self.schema.table(NVTX) is not None

    def spans(self) -> Iterator[Span]:
        parts = " UNION ALL ".join(self._selects())
        with connect(self.path) as connection:
            launches = self._read_launches(connection) if self.has_ranges else None
            places = Places(connection, self.schema)
            cursor = connection.execute(f"{parts} ORDER BY start, stop, place")
            unlinked = 0
            while rows := cursor.fetchmany(_ROWS):
                ranges: Iterable[tuple[str, ...]] = repeat((), len(rows))
                if launches is not None:
                    ranges, linked = launches.find(_column(rows, -1))
                    if not linked.all():
                        unlinked += int((~linked & (_column(rows, 3) & 3 == 0)).sum())
                for (start, stop, name, place, size, key), path in zip(rows, ranges, strict=True):
                    kind, device, stream, names = places[place]
                    yield Span(kind, names[name], start, stop, key >> 32, device, stream, path, size)
            if launches is not None:
                self._unlinked = unlinked
                self.warn_unlinked(unlinked)

    def sums(self) -> list[KernelSum]:
        with connect(self.path) as connection:
            connection.create_aggregate("spread", 1, _Spread)  # type: ignore[arg-type]
            sums = [each for kind in range(3) for each in self._sums_of(connection, kind)]
        return sorted(sums, key=lambda each: (-each.total_ns, each.instances, each.name))

    def _sums_of(self, connection: sqlite3.Connection, kind: int) -> Iterator[KernelSum]:
        table = self.schema.table(TABLES[kind])
        if table is None:
            return
        by_text = kind == 0 and has_repeated_names(connection, self.schema, table)
        name = name_of(table, kind)
        if by_text:
            name = f"(SELECT value FROM {self.schema.tables['StringIds'].name} WHERE id = {name})"
        duration, size = '"end" - start', or_zero(table, "bytes")
        rows = connection.execute(
            f"SELECT {name}, count(*), sum({duration}), min({duration}), max({duration}), spread({duration}), "
            f"sum({size}) FROM {table.name} WHERE {VALID} GROUP BY 1"
        )
        names = Names(connection, self.schema, kind)
        merged: dict[str, list[Any]] = {}
        for name, *numbers in rows.fetchall():
            merged.setdefault(names[name], []).append(numbers)
        for name, parts in merged.items():
            count, total, least, most, spread, size = parts[0]
            median: float | None
            deviation: float | None
            median, deviation = map(float, spread.split())
            if len(parts) > 1:  # copies of kinds that no label tells apart
                count, total, size = (sum(part[index] for part in parts) for index in (0, 1, 5))
                least, most = min(part[2] for part in parts), max(part[3] for part in parts)
                median = deviation = None
            yield KernelSum(KINDS[kind], name, count, total, median, least, most, deviation, size if kind else None)

    def api_sums(self) -> list[ApiSum]:
        """Row for row those of cuda_api_sum, names cut as there. Old exports hold some calls twice, the second inside
        the first and under the same cut name; nsys lists both, and so it is here (`warnings` then says so)."""
        table = self.schema.table(RUNTIME)
        strings = self.schema.table("StringIds")
        if table is None or strings is None or "nameId" not in table.columns:
            return []
        with connect(self.path) as connection:
            rows = connection.execute(
                f'SELECT s.value, r.calls, r.total FROM (SELECT "nameId" AS name, count(*) AS calls, '
                f'sum("end" - start) AS total FROM {table.name} GROUP BY 1) AS r '
                f"LEFT JOIN {strings.name} AS s ON s.id = r.name ORDER BY r.total DESC, s.value"
            ).fetchall()
        sums = [ApiSum(_api_name(name), calls, total) for name, calls, total in rows]
        if len({each.name for each in sums}) < len(sums):
            warning = "API times count some calls twice: the export has a row for the call and one inside it"
            self.warnings.extend([] if warning in self.warnings else [warning])
        return sums

    def _selects(self) -> list[str]:
        return [
            select_spans(table, kind, self._with_processes())
            for kind, name in enumerate(TABLES)
            if (table := self.schema.table(name))
        ]

    def _with_processes(self) -> bool:
        return all("globalPid" in table.columns for name in TABLES if (table := self.schema.table(name)))

    def _read_launches(self, connection: sqlite3.Connection) -> Launches:
        if self._launches is None:
            self._launches = read_launches(connection, self.schema, self._with_processes(), self.has_ranges)
        return self._launches

    @property
    def unlinked_launches(self) -> int:
        """Known after a walk of spans() when there are ranges; asked before that, it is counted (2 s a million)."""
        table = self.schema.table(KERNEL)
        if self._unlinked is None and table is not None:
            with connect(self.path) as connection:
                launches = self._read_launches(connection)
                cursor = connection.execute(f"SELECT key FROM ({select_spans(table, 0, self._with_processes())})")
                self._unlinked = 0
                while rows := cursor.fetchmany(_ROWS):
                    self._unlinked += int((~launches.find(_column(rows, 0))[1]).sum())
        return self._unlinked or 0


def open_sqlite(path: Path) -> SqliteProfile:
    """DerbyError for a database that is truncated, locked, another program's, or without GPU work."""
    check_whole(path)
    with connect(path) as connection:
        schema = read_schema(path, connection)
        if not any(schema.table(name) for name in TABLES):
            raise DerbyError(f"{path}: {_nothing(schema)}")
        profile = SqliteProfile(path, _gpu(connection, schema), schema)
        profile.warnings.extend(_warnings(connection, schema))
    return profile


def _nothing(schema: Schema) -> str:
    if schema.table(GRAPH_TRACE):
        return "only whole CUDA graphs were recorded, no kernels; profile again with --cuda-graph-trace=node"
    return "no kernels, copies or memsets in it; profile code that uses the GPU with `nsys profile --trace cuda,nvtx`"


def _warnings(connection: sqlite3.Connection, schema: Schema) -> Iterator[str]:
    graphs = schema.table(GRAPH_TRACE)
    if graphs is not None:
        count, total = connection.execute(f'SELECT count(*), sum("end" - start) FROM {graphs.name}').fetchone()
        yield (
            f"{count:,} CUDA graph launches ({total / 1e6:.1f} ms) were recorded whole, their kernels are missing; "
            "profile again with --cuda-graph-trace=node"
        )
    dropped = sum(
        connection.execute(f"SELECT count(*) FROM {table.name} WHERE NOT ({VALID})").fetchone()[0]
        for name in TABLES
        if (table := schema.table(name))
    )
    if dropped:
        yield f"{dropped:,} GPU operations have no valid times and are left out"
    if schema.table(NVTX) and not schema.table(RUNTIME):
        yield "the export has NVTX ranges but no CUDA API calls, so no kernel can be put into a range"
    diagnostics = schema.table("DIAGNOSTIC_EVENT")
    if diagnostics is not None and {"severity", "text"} <= diagnostics.columns:
        texts = connection.execute(
            f"SELECT text, count(*) FROM {diagnostics.name} WHERE severity > 1 GROUP BY 1 ORDER BY min(rowid)"
        ).fetchall()
        for text, count in texts[:_DIAGNOSTICS_SHOWN]:
            yield f"nsys: {' '.join(str(text).split())[:300]}" + (f" ({count} times)" if count > 1 else "")
        if len(texts) > _DIAGNOSTICS_SHOWN:
            yield f"nsys: {len(texts) - _DIAGNOSTICS_SHOWN} more kinds of warning in DIAGNOSTIC_EVENT"


def _gpu(connection: sqlite3.Connection, schema: Schema) -> str | None:
    """The name of the GPU that worked; of several kinds that did, all of them."""
    gpus = schema.table("TARGET_INFO_GPU")
    if gpus is None or "name" not in gpus.columns:
        return None
    number = gpus.first("cuDevice", "id")
    rows = connection.execute(f"SELECT {number or 'NULL'}, name FROM {gpus.name} WHERE name IS NOT NULL").fetchall()
    if len({name for _, name in rows}) > 1:
        used: set[int] = set()
        for each in TABLES:
            table = schema.table(each)
            if table is not None and "deviceId" in table.columns:
                used.update(row[0] for row in connection.execute(f'SELECT DISTINCT "deviceId" FROM {table.name}'))
        rows = [row for row in rows if row[0] in used] or rows
    return ", ".join(dict.fromkeys(name for _, name in rows)) or None


class _Spread:
    """SQL aggregate over integers: "median deviation" (of the sample, as nsys has it; 0 for one value)."""

    def __init__(self) -> None:
        self.values = array("q")

    def step(self, value: int) -> None:
        self.values.append(value)

    def finalize(self) -> str:
        values = np.sort(np.frombuffer(self.values, dtype=np.int64))
        middle = len(values) // 2
        median = int(values[middle]) if len(values) % 2 else (int(values[middle - 1]) + int(values[middle])) / 2
        return f"{median!r} {float(np.std(values, ddof=1)) if len(values) > 1 else 0.0!r}"


def _column(rows: list[tuple[Any, ...]], index: int) -> np.ndarray:
    return np.fromiter((row[index] for row in rows), dtype=np.int64, count=len(rows))


def _api_name(name: str | None) -> str:
    """Cut as NVIDIA's cuda_api_sum cuts it: "cudaLaunchKernel_v7000" loses "_v7000", "cudaGraphLaunch_v10000" stays."""
    name = name or "(unnamed call)"
    return name[:-6] if name[-6:-4] == "_v" else name
