"""The Parquet export of Nsight Systems (`nsys export --type parquetdir`): a folder with one file per table, whose
columns are those of the SQLite export. It is copied into a temporary SQLite database, which is removed with the
profile. The next process removes what a killed one left."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.profile.sources.sqlite.export import SqliteProfile, open_sqlite
from kernelderby.store.bounds import bound_text, bounds
from kernelderby.store.files import opened, remove_unfinished, temporary

_PLAIN = (int, str, bytes, float, type(None))
_WANTED = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "StringIds", "TARGET_INFO_", "DIAGNOSTIC_EVENT", "META_DATA_EXPORT")
_ROWS = 10_000  # copied at a time


def open_parquet(folder: Path) -> SqliteProfile:
    """DerbyError for a damaged file, a folder without GPU work, or a missing pyarrow."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise DerbyError(
            f"{folder}: Parquet files need pyarrow; pip install 'kernelderby[parquet]', or export with --type sqlite"
        ) from None
    target = Path(tempfile.gettempdir(), "derby-parquet.sqlite")
    remove_unfinished(target)
    with ExitStack() as stack:
        database, descriptor = stack.enter_context(temporary(target))
        os.fchmod(descriptor, 0o600)
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("PRAGMA journal_mode = OFF")
            page = connection.execute("PRAGMA page_size").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {max(1, int(bounds().unpacked) // page)}")
            for path in sorted(folder.glob("*.parquet")):
                if path.stem.startswith(_WANTED):
                    _copy(connection, path, parquet)
        profile = open_sqlite(database, folder)
        profile.form = profile.form.replace("nsys SQLite", "nsys Parquet")
        weakref.finalize(profile, stack.pop_all().close)
        return profile


def _copy(connection: sqlite3.Connection, path: Path, parquet: Any) -> None:
    try:
        with opened(path) as regular, parquet.ParquetFile(regular) as file:
            columns = [field.name for field in file.schema_arrow]
            quoted = ", ".join('"' + column.replace('"', '""') + '"' for column in columns)
            table = '"' + path.stem.replace('"', '""') + '"'
            connection.execute(f"CREATE TABLE {table} ({quoted})")
            rows = _rows(file, columns)
            insert = f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})"
            while batch := list(islice(rows, _ROWS)):
                connection.executemany(insert, batch)
    except MemoryError:
        raise
    except Exception as error:  # pyarrow's are of many classes, some of none but its own  # noqa: BLE001
        if isinstance(error, sqlite3.OperationalError) and "full" in str(error):
            if shutil.disk_usage(tempfile.gettempdir()).free:
                raise DerbyError(f"{path}: unpacks to over {bound_text('unpacked', bounds().unpacked)}") from None
            raise DerbyError(f"{path}: cannot be copied ({error}); make room in {tempfile.gettempdir()}") from None
        raise DerbyError(f"{path}: damaged Parquet file ({error}); export it again".replace("\n", " ")) from None


def _rows(file: Any, columns: list[str]) -> Iterator[list[Any]]:
    for batch in file.iter_batches(batch_size=_ROWS):
        values = [batch.column(place).to_pylist() for place in range(len(columns))]
        for row in zip(*values, strict=True):
            yield [value if isinstance(value, _PLAIN) else str(value) for value in row]
