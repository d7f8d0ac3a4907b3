"""A report for a terminal or a log. The best cell has a star, so that it survives a pipe, and is bold in colour.

A table that is too wide first loses its optional columns, then the middle of long names in its key columns. If it is
still too wide, it is split, with the key columns repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from io import StringIO

from rich.align import Align
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from kernelderby.report.model import Report, Table, TableCell

STYLES = {"": "", "best": "bold green", "muted": "dim", "bad": "red"}
_CODES = {"best": "\x1b[1;32m", "muted": "\x1b[2m", "bad": "\x1b[31m"}  # of STYLES
GAP = 2  # spaces between columns: one of the box, one of padding
SHORT = 7  # titles up to this length stay on one line
NAME = 22  # a name is never shortened to less


def render(report: Report, *, width: int = 120, color: bool = False) -> str:
    """The report as text that ends in one line break; with color, ANSI sequences."""
    stream = StringIO()
    console = Console(
        file=stream,
        width=width,
        force_terminal=color,
        no_color=not color,
        highlight=False,
        color_system="standard" if color else None,
        legacy_windows=False,
    )
    console.print(Text(report.title, style="bold"))
    for fact in report.facts:
        head, _, rest = fact.partition(" ")
        if "/" in head and _length(head) > width:  # a path stays whole, so that it can be copied
            stream.write(f"{head}\n")
            fact = rest
        console.print(Text(fact))
    for table in report.tables:
        console.print()
        console.print(Text(table.title, style="bold"))
        fitted = _fitted(table, width)
        widths = [_width(fitted, index) for index in range(len(fitted.columns))]
        for indices in _split(fitted, widths, width):
            if _is_plain(fitted, indices, widths, width):
                stream.write(_drawn(fitted, indices, widths, color))
            else:
                console.print(_table(fitted, indices))
        kept = set(fitted.columns)
        if left_out := [column.title for column in table.columns if column not in kept]:
            console.print(Text(f"left out, too wide: {', '.join(left_out)}", style="dim"))
        if table.caption:
            console.print(Text(table.caption, style="dim"))
    if report.notes:
        console.print()
        _print_notes(console, report.notes)
    lines = [line.rstrip() if not color else line for line in stream.getvalue().splitlines()]
    return "\n".join(lines).strip("\n") + "\n"


def _fitted(table: Table, width: int) -> Table:
    """The table unchanged if it fits, or if every column is a key, so that long texts wrap."""
    if _excess(table, width) <= 0 or table.key_columns == len(table.columns):
        return table
    for title in [column.title for column in table.columns if column.is_optional]:
        if _excess(table, width) > 0:
            table = _without(table, title)
    for _ in range(table.key_columns):
        excess, longest = _excess(table, width), _longest_name(table)
        if excess > 0 and longest is not None:
            table = _with_shorter_names(table, longest, max(NAME, _cells_width(table, longest) - excess))
    return table


def _with_shorter_names(table: Table, column: int, room: int) -> Table:
    cells = [row[column] for row in table.rows]
    short = _distinct({(each.text, room - (each.emphasis == "best")) for each in cells})
    return replace(
        table,
        rows=tuple(
            (*row[:column], replace(cell, text=short[cell.text]), *row[column + 1 :])
            for row, cell in zip(table.rows, cells, strict=True)
        ),
    )


def _distinct(names: Iterable[tuple[str, int]]) -> dict[str, str]:
    """Name -> the shortened one. names: with their room. Where two names become equal, they get numbers."""
    rooms = dict(sorted(names, reverse=True))  # a name that is once the best has the smaller room
    found = {name: _shortened(name, room) for name, room in rooms.items()}
    counts, seen = Counter(found.values()), Counter[str]()
    for name, text in sorted(found.items()):
        if counts[text] > 1:
            seen[text] += 1
            number = f" #{seen[text]}"
            found[name] = _shortened(name, rooms[name] - len(number)) + number
    return found


def _without(table: Table, title: str) -> Table:
    kept = [index for index, column in enumerate(table.columns) if column.title != title]
    return replace(
        table,
        columns=tuple(table.columns[index] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in table.rows),
    )


def _longest_name(table: Table) -> int | None:
    names = [index for index in range(table.key_columns) if table.columns[index].align == "left"]
    return max(names, key=lambda index: _cells_width(table, index), default=None)


def _excess(table: Table, width: int) -> int:
    """Terminal columns by which the table is too wide."""
    return sum(_width(table, index) + GAP for index in range(len(table.columns))) - GAP - width


def _shortened(text: str, room: int) -> str:
    """abcdefgh -> ab…gh: names differ at both ends."""
    if _length(text) <= room:
        return text
    head = (room - 1) // 2
    return f"{text[:head]}…{text[-(room - 1 - head) :]}"


def _split(table: Table, widths: list[int], width: int) -> list[list[int]]:
    """The table's columns by index, split into as many parts as the width requires. Each part begins with the key
    columns."""
    keys = list(range(table.key_columns))
    taken = sum(widths[index] + GAP for index in keys)
    parts, left = [list(keys)], width - taken
    for index in range(table.key_columns, len(table.columns)):
        needed = widths[index] + GAP
        if needed > left + GAP and len(parts[-1]) > len(keys):
            parts.append(list(keys))
            left = width - taken
        parts[-1].append(index)
        left -= needed
    return parts


def _width(table: Table, index: int) -> int:
    return max(*map(_length, _title(table, index).split("\n")), _cells_width(table, index))


def _cells_width(table: Table, index: int) -> int:
    return max((_length(_shown(row[index])) for row in table.rows), default=0)


def _length(text: str) -> int:
    """Terminal columns that the text takes."""
    return len(text) if text.isascii() else cell_len(text)


def _title(table: Table, index: int) -> str:
    """The title, on two lines if that makes the column narrower."""
    title = table.columns[index].title
    places = [place for place in range(1, len(title)) if title[place - 1] in " _"]
    if len(title) <= max(SHORT, _cells_width(table, index)) or not places:
        return title
    middle = min(places, key=lambda place: abs(place - len(title) / 2))
    return f"{title[:middle].rstrip()}\n{title[middle:]}"


def _table(table: Table, indices: list[int]) -> RichTable:
    rich = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for index in indices:
        align = table.columns[index].align
        rich.add_column(Align(Text(_title(table, index), justify=align), align, vertical="bottom"), justify=align)
    for row in table.rows:
        rich.add_row(*(_cell(row[index]) for index in indices))
    return rich


def _cell(cell: TableCell) -> Text:
    return Text(_shown(cell), style=STYLES[cell.emphasis])


def _shown(cell: TableCell) -> str:
    return f"*{cell.text}" if cell.emphasis == "best" else cell.text


def _is_plain(table: Table, indices: list[int], widths: list[int], width: int) -> bool:
    """Whether nothing wraps. Then no layout is needed, which would take most of the time for thousands of tables."""
    total = sum(widths[index] + GAP for index in indices) - GAP
    return total <= width and not any(
        "\n" in row[index].text or "\t" in row[index].text for row in table.rows for index in indices
    )


def _drawn(table: Table, indices: list[int], widths: list[int], color: bool) -> str:
    """The table as _table draws it if every column has its full width."""
    titles = [_title(table, index).split("\n") for index in indices]
    height = max(map(len, titles), default=0)
    heads = [[""] * (height - len(title)) + title for title in titles]
    gap = " " * GAP
    lines = [
        gap.join(
            _padded(head[line], widths[index], table.columns[index].align)
            for head, index in zip(heads, indices, strict=True)
        )
        for line in range(height)
    ]
    if color:
        lines = [f"\x1b[1m{line}\x1b[0m" for line in lines]
    lines.append("\u2500" * (sum(widths[index] + GAP for index in indices) - GAP))
    lines += [
        gap.join(_styled(row[index], widths[index], table.columns[index].align, color) for index in indices)
        for row in table.rows
    ]
    return "\n".join(lines) + "\n"


def _padded(text: str, width: int, align: str) -> str:
    room = " " * (width - _length(text))
    return room + text if align == "right" else text + room


def _styled(cell: TableCell, width: int, align: str, color: bool) -> str:
    text = _shown(cell)
    padded = _padded(text, width, align)
    if not (color and STYLES[cell.emphasis]):
        return padded
    return padded.replace(text, f"{_CODES[cell.emphasis]}{text}\x1b[0m") if text else padded


def _print_notes(console: Console, notes: tuple[str, ...]) -> None:
    """Prints the notes, wrapped beside their dashes. A note that begins with spaces belongs to the one before. A table
    would take seconds for the layout of thousands of notes."""
    for note in notes:
        indent = note[: len(note) - len(note.lstrip(" "))]
        note, room = note.lstrip(" "), console.width - 2 - len(indent)
        lines = [note] if _length(note) <= room else [line.plain.rstrip() for line in Text(note).wrap(console, room)]
        for dash, line in zip(("- " if not indent else "  ", *["  "] * len(lines)), lines, strict=False):
            console.file.write(f"{indent}{dash}{line}\n")
