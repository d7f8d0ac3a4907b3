"""The tables and columns of an nsys SQLite export of any version.

Tables are made lazily (absent means no events), some exports suffix them with _V2 or _V3, and columns come and go. So
everything is probed with PRAGMA, and the version number decides nothing. Sources: NVIDIA's "SQLite Export Schema
Reference" of 2019 to 2026, and exports of schema 2.9 to 3.25.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from kernelderby.errors import DerbyError
from kernelderby.store.bounds import bound_text, bounds
from kernelderby.store.counts import counted

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
TABLES = (KERNEL, MEMCPY, MEMSET)
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPH_TRACE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
GRAPH_NODES = "CUDA_GRAPH_NODE_EVENTS"
NVTX = "NVTX_EVENTS"
_EXPORT_AGAIN = "export it again with `nsys export --type sqlite`"
_CACHE_KIB = 8 * 1024  # of the page cache; a larger one would not help, since tables are read from end to end
_LOCK_SECONDS = 2.0
_STEPS = 100_000
_LONGEST = 64 << 20  # bytes of a text; of a name, a message, a table's SQL


def as_text(value: object) -> str:
    """The value as text; in a broken export it may have any type."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return "" if value is None else str(value)


@contextmanager
def explained(path: Path, mend: str = _EXPORT_AGAIN) -> Iterator[None]:
    """Turns SQLite's errors inside the block into a DerbyError of one line. Used in connect(), and around loops over
    rows outside of it."""
    try:
        yield
    except sqlite3.Error as error:
        raise DerbyError(f"{path}: {_explain(error, mend)}") from None
    except UnicodeDecodeError:  # of a message that quotes the damaged name
        raise DerbyError(f"{path}: the database is damaged; {mend}") from None


@contextmanager
def connect(path: Path, mend: str = _EXPORT_AGAIN) -> Iterator[sqlite3.Connection]:
    """A read-only connection; see explained()."""
    connection = None
    for beside in (f"{path.absolute()}{ending}" for ending in ("-journal", "-wal", "-shm")):
        if os.path.lexists(beside) and not os.path.isfile(beside):  # SQLite opens it, and would wait for a pipe
            raise DerbyError(f"{beside}: is no regular file, and SQLite would open it; remove it")
    try:
        with explained(path, mend):
            uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro"
            if _is_at_rest(path.resolve()):
                uri += "&immutable=1"
            connection = sqlite3.connect(uri, uri=True, timeout=_LOCK_SECONDS, check_same_thread=False)
            connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")  # ranges may have any bytes
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            connection.execute("PRAGMA query_only = 1")
            connection.execute("PRAGMA trusted_schema = 0")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
            connection.set_progress_handler(_steps(bounds().steps), _STEPS)
            yield connection
    finally:
        if connection is not None:
            connection.close()


def _is_at_rest(path: Path) -> bool:
    """Whether SQLite need not, and could not, write files beside the database, which it does in WAL mode even to read.
    No program writes to a database without such files."""
    written = any(os.path.lexists(f"{path}{ending}") for ending in ("-journal", "-wal"))
    return not written and not os.access(path.parent, os.W_OK)


def _steps(most: float) -> Callable[[], int]:
    """A callback for SQLite's progress handler; 1 ends the query. An honest row of a walk takes a hundred steps."""
    left = [most]

    def ask() -> int:
        left[0] -= _STEPS
        return int(left[0] < 0)

    return ask


def _explain(error: sqlite3.Error, mend: str) -> str:
    text = str(error)
    if "interrupted" in text:
        return f"reading it takes more than {bound_text('steps', bounds().steps)}"
    if "locked" in text or "busy" in text:
        return "the database is locked by another program; wait until the export has finished, or copy the file"
    if "malformed" in text or "not a database" in text:
        return f"the database is damaged or truncated ({text}); {mend}"
    if "unable to open" in text or "readonly" in text:
        return f"SQLite cannot open it ({text}); with a -journal or -wal file beside it: {mend}"
    return f"SQLite says: {text}; {mend}"


def check_whole(path: Path) -> None:
    """DerbyError if the file is shorter than its header says, as after an interrupted copy or export."""
    with path.open("rb") as file:
        header = file.read(100)
        size = file.seek(0, 2)
    if len(header) < 100:
        raise DerbyError(
            f"{path}: the database is truncated ({counted(size, 'byte')}, no whole header); {_EXPORT_AGAIN}"
        )
    page = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    known = header[24:28] == header[92:96]  # the page count is valid only if both change counters agree
    expected = pages * (65536 if page == 1 else page)
    if known and size < expected:
        raise DerbyError(f"{path}: the database is truncated ({size:,} of {expected:,} bytes); {_EXPORT_AGAIN}")


# CUPTI gives 0 for both times of work that it could not time. The end of interrupted work may be missing (NULL). No
# export has times that are negative or not integers. IFNULL makes NOT VALID true wherever VALID is not.
VALID = """IFNULL("end" >= start AND start >= 0 AND "end" < 4611686018427387904 AND NOT ("end" = 0 AND start = 0)
AND typeof(start) = 'integer' AND typeof("end") = 'integer', 0)"""


@dataclass(frozen=True, slots=True)
class EventTable:
    """valid: SQL that is true for rows with possible times; "1" if all rows are known to have them."""

    name: str
    columns: frozenset[str]
    valid: str = VALID

    def first(self, *names: str) -> str | None:
        """The first of these columns in the table, quoted; None without any."""
        return next((f'"{name}"' for name in names if name in self.columns), None)


@dataclass(frozen=True, slots=True)
class Schema:
    """version: of the export schema, otherwise of the product, otherwise "unknown". `tables` omits empty tables.
    unread: tables of GPU work that have rows beside those of `tables`."""

    version: str
    tables: dict[str, EventTable]
    unread: tuple[str, ...] = ()

    def table(self, name: str) -> EventTable | None:
        return self.tables.get(name)

    def work(self) -> Iterator[tuple[int, str, EventTable]]:
        """The tables of GPU work: number of the kind (0 kernels, 1 copies, 2 memsets), name without suffix, and
        table."""
        return ((kind, name, self.tables[name]) for kind, name in enumerate(TABLES) if name in self.tables)


def with_validity(connection: sqlite3.Connection, table: EventTable) -> tuple[EventTable, int, float]:
    """The table, the number of its rows without valid times, and the time of the others together, in ns. If all rows
    have valid times, later queries need not test again, which would take a quarter of a second for two million rows."""
    told = f'total(NOT {VALID}), total(CASE WHEN {VALID} THEN "end" - start ELSE 0 END)'
    invalid, nanoseconds = connection.execute(f"SELECT {told} FROM {table.name}").fetchone()
    return table if invalid else replace(table, valid="1"), int(invalid), nanoseconds


_INFORMATION = ("StringIds", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE", "DIAGNOSTIC_EVENT")
_WANTED = (*TABLES, RUNTIME, GRAPH_TRACE, GRAPH_NODES, NVTX, *_INFORMATION)
_IS_TABLE = "type = 'table' AND sql LIKE 'CREATE TABLE %'"  # others compute their rows, possibly endlessly
_TABLES = f"SELECT name FROM sqlite_master WHERE {_IS_TABLE}"
_OTHERS = f"SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') AND NOT ({_IS_TABLE})"
_OURS = re.compile(
    r"CUPTI_|CUDA_GRAPH_|NVTX_|StringIds|TARGET_INFO_|DIAGNOSTIC_EVENT|META_DATA_|EXPORT_META_DATA", re.IGNORECASE
)


def read_schema(path: Path, connection: sqlite3.Connection) -> Schema:
    """DerbyError if the database is not an nsys export, or lacks columns of a span."""
    names = [row[0] for row in connection.execute(_TABLES)]
    for name, kind in connection.execute(_OTHERS).fetchall():
        if _OURS.match(str(name)):
            raise DerbyError(f"{path}: {name!s:.60} is a {kind}, where an export of nsys has a table; {_EXPORT_AGAIN}")
    if {"OPS", "KERN"} <= set(names):
        raise DerbyError(
            f"{path}: a database of the old rocprof, which is not read; name its results.csv or results.stats.csv"
        )
    if not any(str(name).startswith("CUPTI_ACTIVITY_KIND_") for name in names) and "StringIds" not in names:
        raise DerbyError(
            f"{path}: an SQLite database, but no export of nsys (no StringIds, no CUPTI_ACTIVITY_KIND_* table); "
            "make one with `nsys export --type sqlite REPORT.nsys-rep`"
        )
    tables, unread = {}, list[str]()
    for wanted in _WANTED:
        found = _tables_of(connection, wanted, names)
        if found:
            columns = frozenset(row[1] for row in connection.execute(f'PRAGMA table_info("{found[0]}")'))
            tables[wanted] = EventTable(f'"{found[0]}"', columns)
            unread += found[1:] if wanted in TABLES else ()
    for wanted, needed in (*((name, {"start", "end"}) for name in TABLES), ("StringIds", {"id", "value"})):
        if wanted in tables and (missing := needed - tables[wanted].columns):
            raise DerbyError(f"{path}: table {tables[wanted].name} has no column {min(missing)}; {_EXPORT_AGAIN}")
    return Schema(_version(connection, names), tables, tuple(unread))


def _tables_of(connection: sqlite3.Connection, wanted: str, names: list[str]) -> list[str]:
    """The tables with rows: `wanted` itself, and those with a _V suffix, the highest first."""
    pattern = re.compile(re.escape(wanted) + r"(?:_V(\d+))?$", re.IGNORECASE)
    versions = [(int(match[1]) if match[1] else 1 << 30, name) for name in names if (match := pattern.match(name))]
    ordered = (name for _, name in sorted(versions, reverse=True))
    return [name for name in ordered if connection.execute(f'SELECT 1 FROM "{name}" LIMIT 1').fetchone()]


def _version(connection: sqlite3.Connection, names: list[str]) -> str:
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):  # since 2024, and before
        if table in names:
            rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
            values = {row[0]: row[1] for row in rows if len(row) > 1}
            for key in ("EXPORT_SCHEMA_VERSION", "EXPORT_PRODUCT_VERSION"):
                if values.get(key):
                    return str(values[key])
    return "unknown"
