"""A report's tables as CSV: for each a comment line with its title, the header, the rows; a blank line between tables.

Facts, captions and notes are comment lines too, so that nothing that qualifies a number is lost; `grep -v '^#'` leaves
the tables.
"""

from __future__ import annotations

import csv
from io import StringIO

from kernelderby.report.model import Report


def render(report: Report) -> str:
    """The report as CSV that ends in one line break. Cells are the texts that the other renderers show."""
    stream = StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for line in (report.title, *report.facts):
        stream.write(_comment(line))
    for table in report.tables:
        stream.write(f"\n{_comment(table.title)}")
        writer.writerow([column.title for column in table.columns])
        writer.writerows([cell.text for cell in row] for row in table.rows)
        if table.caption:
            stream.write(_comment(table.caption))
    if report.notes:
        stream.write("\n" + "".join(map(_comment, report.notes)))
    return stream.getvalue()


def _comment(text: str) -> str:
    return "# " + " ".join(text.split()) + "\n"
