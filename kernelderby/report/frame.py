"""Tidy tables: one row a thing, one column a number, plain values with their units in the columns' names.

What `--format csv` prints and the records of `import kernelderby` give to pandas. The names are those of `--json`; what
is nested there has its names joined by `_`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.files import write_whole
from kernelderby.report.plain import plain

_PLAIN = (str, int, float, bool)


@dataclass(frozen=True, slots=True)
class Frame:
    """rows: a value per column; None where a row has none."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def to_csv(self, path: Path | str | None = None) -> str:
        """The CSV, which pandas.read_csv takes without arguments; with a path it is written there too."""
        stream = StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([plain(value) if isinstance(value, str) else value for value in row] for row in self.rows)
        if path is not None:
            _write(Path(path), stream.getvalue())
        return stream.getvalue()

    def to_pandas(self) -> Any:
        """A pandas.DataFrame. DerbyError where pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise DerbyError("to_pandas(): pandas is missing; pip install 'kernelderby[pandas]'") from None
        return pandas.DataFrame(list(self.rows), columns=list(self.columns))


def _write(path: Path, text: str) -> None:
    if not path.parent.is_dir():
        raise DerbyError(f"{path}: cannot be written (there is no such folder); name a place that exists")
    write_whole(path, text)


def frame(name: str, rows: Iterable[Any]) -> Frame:
    """rows: records or dicts. A column for every name that any row has, in the order in which they come."""
    nested: set[str] = set()
    flat_rows = [flat(row, nested) for row in rows]
    columns = tuple(dict.fromkeys(column for row in flat_rows for column in row if column not in nested))
    return Frame(name, columns, tuple(tuple(row.get(column) for column in columns) for row in flat_rows))


def flat(row: Any, nested: set[str], prefix: str = "") -> dict[str, Any]:
    """Nested names joined by `_`; lists of plain values as one text; lists of records belong to another table.

    nested gets the names of what is no single value: where another row has None for it, that is no column either.
    """
    found: dict[str, Any] = {}
    for name, value in (row if isinstance(row, dict) else fields_of(row)).items():
        key = f"{prefix}{name}"
        if value is None or type(value) in _PLAIN:
            found[key] = _scalar(value)
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


def fields_of(record: Any) -> dict[str, Any]:
    """One level of a record: asdict copies all that is below, which takes seconds for a hundred thousand cells."""
    if isinstance(record, Mapping):
        return dict(record)
    return {each.name: getattr(record, each.name) for each in fields(record)}


def _scalar(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
