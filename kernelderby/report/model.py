"""The input of a renderer: headings, facts, tables of short texts, notes. Numbers are texts already, with units.

All texts lose their control characters on entry, so renderers need not handle them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from kernelderby.report.plain import plain

_T = TypeVar("_T")
Emphasis = Literal["", "best", "muted", "bad"]


def _make_plain(record: object, *names: str) -> None:
    for name in names:
        object.__setattr__(record, name, plain(getattr(record, name)))


@dataclass(frozen=True, slots=True)
class TableCell:
    """best: the winner of its row or column. muted: less important. bad: failed or doubtful."""

    text: str
    emphasis: Emphasis = ""

    def __post_init__(self) -> None:
        _make_plain(self, "text")


NOTHING = TableCell("-", "muted")  # there is no such number
NOT_KNOWN = TableCell("n/a", "muted")  # the number exists, but data to compute it are missing


def cell_of(value: _T | None, written: Callable[[_T], str] = str) -> TableCell:
    """NOTHING without a value."""
    return NOTHING if value is None else TableCell(written(value))


@dataclass(frozen=True, slots=True)
class Column:
    """title: includes the unit; the text form breaks it into two lines after the space or underscore nearest to its
    middle."""

    title: str
    align: Literal["left", "right"] = "right"
    is_optional: bool = False  # left out of the text form if the table is too wide

    def __post_init__(self) -> None:
        _make_plain(self, "title")


def left(*titles: str) -> tuple[Column, ...]:
    """Columns of texts."""
    return tuple(Column(title, "left") for title in titles)


def right(*titles: str) -> tuple[Column, ...]:
    """Columns of numbers."""
    return tuple(map(Column, titles))


Row = Sequence[TableCell | str | float | None]  # one cell per column; None becomes NOTHING, other values their text


@dataclass(frozen=True, slots=True, init=False)
class Table:
    """rows: one TableCell per column. caption: one line that explains the table.

    key_columns: the leading columns that a narrow terminal repeats when it splits the table.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    caption: str
    key_columns: int

    def __init__(
        self, title: str, columns: Iterable[Column], rows: Iterable[Row], caption: str = "", key_columns: int = 1
    ) -> None:
        cells = tuple(tuple(each if isinstance(each, TableCell) else cell_of(each) for each in row) for row in rows)
        for name, value in (
            *(("title", plain(title)), ("columns", tuple(columns)), ("rows", cells)),
            *(("caption", plain(caption)), ("key_columns", key_columns)),
        ):
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class Report:
    """facts come under the title, notes at the end; each is one line of plain text."""

    title: str
    facts: tuple[str, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _make_plain(self, "title")
        for name in ("facts", "notes"):
            object.__setattr__(self, name, tuple(map(plain, getattr(self, name))))
