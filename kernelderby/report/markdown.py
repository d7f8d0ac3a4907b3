"""A report as GitHub Markdown, for a README or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kernelderby.report.model import Report, Table, TableCell
from kernelderby.report.plain import one_line

ALIGNMENT = {"left": ":--", "right": "--:"}
# Plain text that GitHub acts on: mentions, addresses, numbers of issues, links. A zero-width space goes inside.
_CALL = re.compile(r"(?<=@)(?=\w)|(?<!&#)(?<=#)(?=\d)|(?<=\bGH-)(?=\d)|(?<=\w:)(?=//)|(?<=\bwww)(?=\.)", re.IGNORECASE)
_UNSEEN = "\u200b"
_LABEL = re.compile(r"#\d+")  # of a workload, alone in its cell
# What begins a heading, a list, a quote, a table's rule, a block of code or a definition at the start of a line.
_START = re.compile(r"([#>+=|-]|\[(?=[^\]]+\]:)|`(?=``)|\d{1,9}(?=[.)]))")
_ENTITY = re.compile(r"&(?=#?\w+;)")


def render(report: Report) -> str:
    """The report as Markdown that ends in one line break. The best cell is bold, a failed one in italics."""
    parts = [f"**{_prose(report.title)}**", "  \n".join(_line_of(fact) for fact in report.facts)]
    for table in report.tables:
        parts += [_line_of(table.title), _table(table)]
        if table.caption:
            parts.append(f"<sub>{_prose(table.caption)}</sub>")
    parts.append("\n".join(f"{'  ' * note.startswith(' ')}- {_line_of(note.lstrip(' '))}" for note in report.notes))
    return "\n\n".join(part for part in parts if part) + "\n"


LEFT_OUT = "**Left out, since it is broken**"
_SHOWN = 20


def with_left_out(text: str, problems: Sequence[str]) -> str:
    """A page or a block, followed by the parts of the set that were left out."""
    if not problems:
        return text
    more = [f"- and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
    lines = [LEFT_OUT, "", *(f"- {_line_of(one_line(each))}" for each in problems[:_SHOWN]), *more]
    return "\n".join([text.rstrip("\n"), "", *lines, ""])


def _table(table: Table) -> str:
    lines = [
        _line(_data(column.title) for column in table.columns),
        _line(ALIGNMENT[column.align] for column in table.columns),
    ]
    lines += [_line(_cell(cell) for cell in row) for row in table.rows]
    return "\n".join(lines)


def _line(texts: Iterable[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _cell(cell: TableCell) -> str:
    text = _data(cell.text)
    mark = {"best": "**", "bad": "*"}.get(cell.emphasis, "")
    return f"{mark}{text}{mark}" if text else ""


def _data(text: str) -> str:
    """Like _prose, but backticks are not code."""
    return _prose(text).replace("`", "\\`")


def _prose(text: str) -> str:
    """Escapes Markdown's signs, comments and our markers. Underscores inside a word and brackets without a link are
    plain text."""
    if not _LABEL.fullmatch(text):
        text = _CALL.sub(_UNSEEN, text)
    text = _ENTITY.sub("&amp;", text)
    for character in "\\|<*~":
        text = text.replace(character, f"\\{character}")
    return text.replace("\\<!--", "&lt;!--").replace("-->", "--&gt;").replace("](", "]\\(")


def _line_of(text: str) -> str:
    """Like _prose, at the start of a line."""
    text = _prose(text).strip()
    found = _START.match(text)
    if found is None:
        return text
    digits = found.end() if text[0].isdigit() else 0
    return f"{text[:digits]}\\{text[digits:]}"


def code(text: str) -> str:
    """The text as code, between more backticks than it contains."""
    ticks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"
