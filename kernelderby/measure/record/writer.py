"""Writes a recording as the SQLite file that `nsys export` would make, so that `nsys stats` and our readers see no
difference."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from kernelderby import __version__
from kernelderby.measure.record import schema
from kernelderby.measure.record.records import CopyRecord, FillRecord, KernelRecord, ProcessRecording, WorkRecord
from kernelderby.store.demangle import demangled, function_name

_Row = tuple[int | str | None, ...]  # the types that SQLite stores

_PID_SHIFT = 24  # globalTid: process << 24 | thread; the higher bits (host, virtual machine) are 0 here
_WARNING = 2
_PARTS = "MAJOR", "MINOR", "MICRO"
_MAXIMUM_UINT32 = (1 << 32) - 1  # CUPTI's "none" of events


def write(recording: ProcessRecording, path: Path) -> None:
    """Writes the file whole or not at all, and replaces an existing one."""
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    staging.unlink(missing_ok=True)
    try:
        connection = sqlite3.connect(staging)
        try:
            with connection:
                _Writer(connection, recording).write()
        finally:
            connection.close()
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)


class _Writer:
    def __init__(self, connection: sqlite3.Connection, recording: ProcessRecording) -> None:
        self._connection, self._recording = connection, recording
        self._strings: dict[str, int] = {}
        self._pid = recording.process << _PID_SHIFT

    def write(self) -> None:
        recording = self._recording
        self._meta()
        self._target()
        for table, rows in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", map(self._kernel, recording.kernels)),
            ("CUPTI_ACTIVITY_KIND_MEMCPY", map(self._copy, recording.copies)),
            ("CUPTI_ACTIVITY_KIND_MEMSET", map(self._fill, recording.fills)),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", self._calls()),
            ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", self._waits()),
            ("NVTX_EVENTS", self._ranges()),
            ("DIAGNOSTIC_EVENT", ((0, 0, 0, _WARNING, text, self._pid) for text in recording.warnings)),
        ):
            self._insert(table, rows)
        self._insert(
            "ThreadNames", [(self._string(name), 0, self._thread(thread)) for thread, name in recording.threads.items()]
        )
        self._insert("StringIds", [(number, text) for text, number in self._strings.items()])
        for table, values in schema.ENUMS.items():
            self._connection.execute(f"CREATE TABLE {table} (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT)")
            self._connection.executemany(
                f"INSERT INTO {table} VALUES (?, ?, ?)", [(number, *value) for number, value in values.items()]
            )

    def _insert(self, table: str, rows: Iterable[_Row]) -> None:
        """Creates the table with its first row, since nsys has no empty tables either."""
        rows = iter(rows)
        first = next(rows, None)
        if first is None:
            return
        self._connection.execute(f"CREATE TABLE {table} ({' '.join(schema.TABLES[table].split())})")
        statement = f"INSERT INTO {table} VALUES ({', '.join('?' * len(first))})"
        self._connection.execute(statement, first)
        self._connection.executemany(statement, rows)

    def _meta(self) -> None:
        numbers = [str(number) for number in schema.SCHEMA_VERSION]
        export = {"SCHEMA_VERSION": ".".join(numbers)}
        export |= {f"SCHEMA_VERSION_{part}": number for part, number in zip(_PARTS, numbers, strict=True)}
        export |= {"PRODUCT_NAME": "KernelDerby", "PRODUCT_VERSION": __version__}
        self._insert("META_DATA_EXPORT", [(f"EXPORT_{name}", value) for name, value in export.items()])
        facts = [(f"KERNELDERBY:{name.upper()}", value) for name, value in self._recording.facts.items()]
        self._insert("META_DATA_CAPTURE", [("CAPTURE_EVENTS:TYPE", "cuda,nvtx"), *facts])

    def _target(self) -> None:
        recording, gpu = self._recording, self._recording.gpu
        self._insert("PROCESSES", [(self._pid, recording.process, recording.process_name)])
        self._insert("ANALYSIS_DETAILS", [(0, self._time(recording.end_ns), 0, self._time(recording.end_ns))])
        started = datetime.fromtimestamp(recording.start_ns / 1e9, UTC)
        self._insert(
            "TARGET_INFO_SESSION_START_TIME",
            [(recording.start_ns, *(time.isoformat(timespec="seconds") for time in (started, started.astimezone())))],
        )
        major, _, minor = gpu.compute_capability.partition(".")
        sizes = gpu.l2_bytes, gpu.memory_bytes, gpu.multiprocessors
        capability = int(major or 0), int(minor or 0)
        self._insert("TARGET_INFO_GPU", [(0, 0, gpu.name, *sizes, gpu.uuid.removeprefix("GPU-"), 0, *capability)])

    def _kernel(self, kernel: KernelRecord) -> _Row:
        name = demangled(kernel.name)
        static, dynamic, executed = kernel.shared_memory
        return (
            *self._work(kernel),
            self._string(name),
            self._string(function_name(name)),
            self._string(kernel.name),
            kernel.launch_type + 1,
            0,
            kernel.registers,
            *kernel.grid,
            *kernel.block,
            static,
            dynamic,
            *kernel.local_memory,
            kernel.grid_id,
            executed,
            kernel.graph_node or None,
            0,
        )

    def _copy(self, copy: CopyRecord) -> _Row:
        return (
            *self._work(copy),
            copy.bytes,
            copy.copy_kind,
            None,
            _memory(copy.source_kind),
            _memory(copy.destination_kind),
            *(copy.peers or (None,) * 4),
            None,
            copy.graph_node or None,
            None,
            copy.count,
        )

    def _fill(self, fill: FillRecord) -> _Row:
        return (*self._work(fill), fill.value, fill.bytes, fill.graph_node or None, _memory(fill.memory_kind))

    def _calls(self) -> Iterator[_Row]:
        for call in self._recording.calls:
            yield (
                self._time(call.start),
                self._time(call.end),
                schema.EVENT_DRIVER if call.driver else schema.EVENT_RUNTIME,
                self._thread(call.thread),
                call.correlation,
                self._string(call.name),
                call.returned,
                None,
            )

    def _waits(self) -> Iterator[_Row]:
        for wait in self._recording.waits:
            event = _MAXIMUM_UINT32 if wait.event is None else wait.event
            yield (
                self._time(wait.start),
                self._time(wait.end),
                0,
                wait.context,
                None,
                -1 if wait.stream is None else wait.stream,
                wait.correlation,
                self._pid,
                wait.kind,
                wait.kind,
                event,
                None,
            )

    def _ranges(self) -> Iterator[_Row]:
        """Domains come first, because a range's domainId means nothing without the event that created the domain."""
        domains = {"": 0}
        for one in self._recording.ranges:
            if one.domain not in domains:
                domains[one.domain] = len(domains)
                yield self._nvtx(one.start, None, schema.NVTX_DOMAIN, one.domain, one.thread, None, domains[one.domain])
        for one in self._recording.ranges:
            kind = schema.NVTX_PUSH_POP if one.end_thread is None else schema.NVTX_START_END
            kind = schema.NVTX_MARK if one.end is None else kind
            yield self._nvtx(one.start, one.end, kind, one.name, one.thread, one.end_thread, domains[one.domain])

    def _nvtx(
        self, start: int, end: int | None, kind: int, text: str, thread: int, end_thread: int | None, domain: int
    ) -> _Row:
        return (
            self._time(start),
            None if end is None else self._time(end),
            kind,
            *(None,) * 4,
            self._thread(thread),
            None if end_thread is None else self._thread(end_thread),
            self._string(text),
            domain,
            *(None,) * 9,
        )

    def _work(self, work: WorkRecord) -> _Row:
        start, end = self._time(work.start), self._time(work.end)
        return start, end, work.device, work.context, None, work.stream, work.correlation, self._pid

    def _time(self, stamp: int) -> int:
        return stamp - self._recording.start_ns

    def _thread(self, thread: int) -> int:
        return self._pid | thread

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))


def _memory(kind: int) -> int:
    """nsys's number for a CUPTI memory kind."""
    return kind - 1 if 0 < kind <= schema.UNKNOWN_MEMORY else schema.UNKNOWN_MEMORY
