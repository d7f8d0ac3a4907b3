"""What a renderer needs: headings, facts, tables of short texts, notes. Numbers are already texts here, with units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Emphasis = Literal["", "best", "muted", "bad"]


@dataclass(frozen=True, slots=True)
class TableCell:
    """best: the winner of its row or column; muted: beside the point; bad: failed or doubtful."""

    text: str
    emphasis: Emphasis = ""


@dataclass(frozen=True, slots=True)
class Column:
    """title carries the unit; text breaks it into two lines after the space or underscore nearest to its middle."""

    title: str
    align: Literal["left", "right"] = "right"


@dataclass(frozen=True, slots=True)
class Table:
    """rows: one TableCell per column. caption: how to read the table, one line.

    key_columns: the leading columns that a narrow terminal repeats when it splits the table.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    caption: str = ""
    key_columns: int = 1


@dataclass(frozen=True, slots=True)
class Report:
    """facts stand under the title, notes at the end; each is one line of plain text."""

    title: str
    facts: tuple[str, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
