"""The SQLite database of rocprofv3 (rocpd, its default since ROCm 7) and of rocmProfileData before it (.rpd).

Tables have a uuid in their names ("rocpd_kernel_dispatch_00004ec5_..."), and there are views without it. All of them
are read, one process each. Times are in the row (schema 3), or in a table of timestamps (schema 4: start_id). A GPU is
identified by its number among the GPUs of its node, as HIP counts them.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.profile.sources.operations import MEMSET, copy_name
from kernelderby.profile.sources.rocprof import AXES, RocprofProfile
from kernelderby.profile.sources.sqlite.schema import as_text, connect

_TITLES = ("name", "start", "end", "gpu", "queue", "process", "dispatch", "registers", "shared", *AXES)
MEND = "record it again with `rocprofv3 --kernel-trace`"
_SUFFIX = re.compile(r"^rocpd_kernel_dispatch(?P<suffix>.*)$")
_COPY = re.compile(r"(?P<from>HOST|DEVICE)_TO_(?P<to>HOST|DEVICE)", re.IGNORECASE)


def is_rocpd(names: Iterable[str]) -> bool:
    return any(name.startswith("rocpd_") for name in names)


def open_rocpd(path: Path) -> RocprofProfile:
    """DerbyError for a database without GPU work, or without the columns of a dispatch."""
    with connect(path, MEND) as connection:
        kinds = dict(connection.execute("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"))
        names = [str(name) for name in kinds]
        profile = RocprofProfile(path, "rocpd database")
        if "rocpd_op" in names:
            profile.form = "rpd database"
            _take_operations(profile, connection)
        tables = {match["suffix"] for name in names if (match := _SUFFIX.match(name)) and kinds[name] == "table"}
        for suffix in sorted(tables or {match["suffix"] for name in names if (match := _SUFFIX.match(name))}):
            reader = _Database(path, connection, suffix, set(names))
            for row in (*reader.dispatches(), *reader.copies()):
                profile.take(row)
            profile.gpu = ", ".join(dict.fromkeys(filter(None, (profile.gpu, *reader.gpus())))) or None
    profile.settle()
    profile.expect_work(MEND)
    return profile


def _take_operations(profile: RocprofProfile, connection: sqlite3.Connection) -> None:
    """Takes the operations of rocmProfileData: kernels, copies and fills of a GPU and a queue."""
    rows = connection.execute(
        "SELECT d.string, t.string, o.start, o.end, o.gpuId, o.queueId, o.id FROM rocpd_op AS o "
        "LEFT JOIN rocpd_string AS d ON d.id = o.description_id LEFT JOIN rocpd_string AS t ON t.id = o.opType_id"
    )
    for description, kind, start, end, gpu, queue, number in rows:
        values = as_text(description) or as_text(kind), start, end, gpu, queue, 0, number
        profile.take(dict(zip(_TITLES, values, strict=False)))


class _Database:
    """One process's tables."""

    def __init__(self, path: Path, connection: sqlite3.Connection, suffix: str, names: set[str]) -> None:
        self.path, self.connection, self.suffix, self.names = path, connection, suffix, names

    def _table(self, name: str) -> str:
        """The table's name in SQL: with the suffix, or the view without it."""
        full = f"rocpd_{name}{self.suffix}"
        return f'"{full}"' if full in self.names else f'"rocpd_{name}"'

    def _columns(self, name: str) -> set[str]:
        return {row[1] for row in self.connection.execute(f"PRAGMA table_info({self._table(name)})")}

    def _times(self, name: str) -> tuple[str, str, str]:
        """SQL for start and end, and the joins that they need."""
        columns = self._columns(name)
        if {"start", "end"} <= columns:
            return "k.start", 'k."end"', ""
        if not {"start_id", "end_id"} <= columns:
            missing = "start" if "start" not in columns else "end"
            raise DerbyError(f"{self.path}: table rocpd_{name} has no column {missing}; {MEND}")
        stamps = self._table("timestamp")
        joined = f"LEFT JOIN {stamps} AS s ON s.id = k.start_id LEFT JOIN {stamps} AS e ON e.id = k.end_id"
        return "s.value", "e.value", joined

    def _place(self, name: str) -> tuple[str, str, str, str]:
        """SQL for agent, queue and process, of the row itself or of its track, and the joins that they need."""
        columns = self._columns(name)
        has_track = "track_id" in columns
        joined = f"LEFT JOIN {self._table('track')} AS w ON w.id = k.track_id" if has_track else ""
        agent = next((f"k.{each}" for each in ("agent_id", "dst_agent_id") if each in columns), "w.agent_id")
        queues = [f"k.{each}" for each in ("stream_id", "queue_id") if each in columns]
        queues += ["w.stream_id", "w.queue_id"] if has_track and not queues else []
        process = "k.pid" if "pid" in columns else "w.pid"
        return agent, f"coalesce({', '.join([*queues, '0', '0'])})", process, joined

    def _agents(self) -> dict[Any, int]:
        columns = self._columns("info_agent")
        wanted = next((each for each in ("type_index", "logical_index", "logical_node_id") if each in columns), "id")
        rows = self.connection.execute(f"SELECT id, {wanted} FROM {self._table('info_agent')} WHERE type = 'GPU'")
        return dict(rows)

    def gpus(self) -> list[str]:
        if "type" not in self._columns("info_agent"):
            return []
        names = [each for each in ("product_name", "model_name", "name") if each in self._columns("info_agent")]
        if not names:
            return []
        used = f"SELECT DISTINCT agent_id FROM {self._table('kernel_dispatch')}"
        only = f"AND id IN ({used})" if "agent_id" in self._columns("kernel_dispatch") else ""
        rows = self.connection.execute(
            f"SELECT coalesce({', '.join(f'nullif({name}, {_EMPTY})' for name in names)}, '') "
            f"FROM {self._table('info_agent')} WHERE type = 'GPU' {only}"
        )
        return [as_text(row[0]) for row in rows]

    def _processes(self) -> dict[Any, Any]:
        if "pid" not in self._columns("info_process"):
            return {}
        return dict(self.connection.execute(f"SELECT id, pid FROM {self._table('info_process')}"))

    def dispatches(self) -> Iterator[dict[str, Any]]:
        start, end, times = self._times("kernel_dispatch")
        agent, queue, process, track = self._place("kernel_dispatch")
        symbols = self._columns("info_kernel_symbol")
        named = [f"nullif(y.{each}, {_EMPTY})" for each in ("display_name", "kernel_name") if each in symbols]
        registers = "y.arch_vgpr_count" if "arch_vgpr_count" in symbols else "NULL"
        axes = ", ".join(f"k.{axis}" for axis in AXES)
        rows = self.connection.execute(
            f"SELECT coalesce({', '.join([*named, _EMPTY, _EMPTY])}), {start}, {end}, {agent}, {queue}, {process}, "
            f"k.dispatch_id, {registers}, k.group_segment_size, {axes} FROM {self._table('kernel_dispatch')} AS k "
            f"{times} {track} LEFT JOIN {self._table('info_kernel_symbol')} AS y ON y.id = k.kernel_id"
        )
        agents, processes = self._agents(), self._processes()
        for row in rows:
            gpu, process = agents.get(row[3], row[3]), processes.get(row[5], row[5])
            yield dict(zip(_TITLES, row, strict=True)) | {"gpu": gpu, "process": process}

    def copies(self) -> Iterator[dict[str, Any]]:
        columns = self._columns("memory_copy")
        if not columns:
            return
        start, end, times = self._times("memory_copy")
        source = "k.src_agent_id" if "src_agent_id" in columns else "NULL"
        agent, queue, process, track = self._place("memory_copy")
        rows = self.connection.execute(
            f"SELECT n.string, {start}, {end}, {agent}, {queue}, {process}, {source}, k.size "
            f"FROM {self._table('memory_copy')} AS k {times} {track} "
            f"LEFT JOIN {self._table('string')} AS n ON n.id = k.name_id"
        )
        agents, processes = self._agents(), self._processes()
        for name, began, ended, agent, queue, process, other, size in rows:
            gpu = agents.get(agent, agents.get(other, 0))  # one end of a copy is the host
            values = _copied(as_text(name)), began, ended, gpu, queue, processes.get(process, process)
            yield {**dict(zip(_TITLES, values, strict=False)), "bytes": size}


_EMPTY = "''"


def _copied(name: str) -> str:
    """ "MEMORY_COPY_HOST_TO_DEVICE" in the spelling of all sources."""
    if match := _COPY.search(name):
        return f"[CUDA memcpy {match['from'].capitalize()}-to-{match['to'].capitalize()}]"
    return MEMSET if "FILL" in name.upper() or "SET" in name.upper() else name or copy_name(None)
