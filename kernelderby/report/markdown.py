"""A report as GitHub Markdown, for a README or a pull request."""

from __future__ import annotations

from kernelderby.report.model import Report, Table, TableCell

ALIGNMENT = {"left": ":--", "right": "--:"}


def render(report: Report) -> str:
    """The report as Markdown that ends in one line break. The best cell is bold, a failed one in italics."""
    parts = [f"**{_escape(report.title)}**", "  \n".join(_escape(fact) for fact in report.facts)]
    for table in report.tables:
        parts += [_escape(table.title), _table(table)]
        if table.caption:
            parts.append(f"<sub>{_escape(table.caption)}</sub>")
    parts.append("\n".join(f"- {_escape(note)}" for note in report.notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(table: Table) -> str:
    lines = [
        _line(_escape(column.title) for column in table.columns),
        _line(ALIGNMENT[column.align] for column in table.columns),
    ]
    lines += [_line(_cell(cell) for cell in row) for row in table.rows]
    return "\n".join(lines)


def _line(texts) -> str:
    return "| " + " | ".join(texts) + " |"


def _cell(cell: TableCell) -> str:
    text = _escape(cell.text)
    mark = {"best": "**", "bad": "*"}.get(cell.emphasis, "")
    return f"{mark}{text}{mark}" if text else ""


def _escape(text: str) -> str:
    """Escapes what Markdown would act on. Underscores inside a word and brackets without a link are plain text."""
    for character in "\\|<*~":
        text = text.replace(character, f"\\{character}")
    return text
