"""Tidy tables: one row per item, one column per number, plain values with the units in the columns' names.

`--format csv` prints them, and `import kernelderby` gives them to pandas. The names are those of `--json`, with nested
names joined by `_`.
"""

from __future__ import annotations

import csv
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, cached_property
from io import StringIO
from itertools import repeat
from math import isfinite
from pathlib import Path
from typing import Any, cast

from kernelderby.errors import DerbyError
from kernelderby.report.plain import cell
from kernelderby.store.counts import counted
from kernelderby.store.files import write_whole


class Frame:
    """columns, and rows with one value per column, None if missing. Both are made on demand."""

    def __init__(self, name: str, rows: Iterable[Any]) -> None:
        """rows: records or dicts. Every name in any row gets a column, in order of appearance."""
        self.name, self._rows = name, rows

    def __repr__(self) -> str:
        return f"Frame({self.name!r}, {counted(len(self.rows), 'row')} of {', '.join(self.columns)})"

    @property
    def columns(self) -> tuple[str, ...]:
        return self._table[0]

    @property
    def rows(self) -> tuple[tuple[Any, ...], ...]:
        return self._table[1]

    @cached_property
    def _table(self) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:
        nested: set[str] = set()
        flat_rows = [flat(row, nested) for row in self._rows]
        self._rows = ()
        every: dict[str, None] = {}
        for row in flat_rows:
            every |= dict.fromkeys(row)
        columns = tuple(column for column in every if column not in nested)
        return columns, tuple(tuple(map(row.get, columns)) for row in flat_rows)

    def to_dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def to_csv(self, path: Path | str | None = None) -> str:
        """The CSV, which pandas.read_csv takes without arguments; with a path it is also written there."""
        stream = StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(map(cell, self.columns))
        writer.writerows([cell(value) if isinstance(value, str) else value for value in row] for row in self.rows)
        if path is not None:
            _write(Path(path), stream.getvalue())
        return stream.getvalue()

    def to_pandas(self) -> Any:
        """A pandas.DataFrame. DerbyError if pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise DerbyError("to_pandas(): pandas is missing; pip install 'kernelderby[pandas]'") from None
        return pandas.DataFrame(list(self.rows), columns=list(self.columns))


def _write(path: Path, text: str) -> None:
    if not path.parent.is_dir():
        raise DerbyError(f"{path}: cannot be written (no such folder); name an existing folder")
    write_whole(path, text)


def frame(name: str, rows: Iterable[Any]) -> Frame:
    """A Frame whose rows are made now."""
    return Frame(name, list(rows))


def flat(row: Any, nested: set[str], prefix: str = "") -> dict[str, Any]:
    """One level: nested names are joined by `_`, a list of plain values becomes one text, a list of records belongs to
    another table. nested: gets the names of values that are not single; such a name is no column either if another row
    has None there.
    """
    found: dict[str, Any] = {}
    for name, value in row.items() if isinstance(row, Mapping) else _fields_of(row):
        key = f"{prefix}{name}"
        kind = type(value)
        if value is None or kind is str or kind is int or kind is bool:
            found[key] = value
        elif kind is float:
            found[key] = value if isfinite(value) else None
        elif isinstance(value, Mapping) or is_dataclass(value):
            nested.add(key)
            found |= flat(value, nested, f"{key}_")
        elif isinstance(value, list | tuple | set | frozenset):
            if all(isinstance(each, str | int | float) for each in value):
                found[key] = ", ".join(map(str, sorted(value) if isinstance(value, set | frozenset) else value))
            else:
                nested.add(key)
        else:
            found[key] = _scalar(value)
    return found


def picked(record: Any, *names: str) -> dict[str, Any]:
    """These attributes of the object, by name."""
    return {name: getattr(record, name) for name in names}


def fields_of(record: Any) -> dict[str, Any]:
    """One level of a record. asdict would copy everything below, which takes seconds for a hundred thousand cells."""
    return dict(record) if isinstance(record, Mapping) else dict(_fields_of(record))


def _fields_of(record: Any) -> Iterator[tuple[str, Any]]:
    names: tuple[str, ...] = _names(record.__class__)
    return zip(names, map(getattr, repeat(record), names), strict=False)


@cache
def _names(kind: Hashable) -> tuple[str, ...]:
    return tuple(each.name for each in fields(cast(Any, kind)))


def _scalar(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if isinstance(value, str | int) else str(value)
