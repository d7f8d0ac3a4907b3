"""Further results of a profile as tables: operators with their gain, the GPU's activity with critical path and memory,
and the changes between two profiles, step by step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kernelderby.api.capture import captured
from kernelderby.api.profile_file import ProfileFile, open_profile_file
from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.page.model.recordings import ShownStudy, ShownTable
from kernelderby.page.text import words
from kernelderby.report.model import Report
from kernelderby.rows.measurement import Measurement
from kernelderby.store.bounds import reading

GAIN, ACTIVITY, COMPARISON = "operators and gain", "activity", "before and after"
TRACES = (".json", ".json.gz", ".sqlite")  # the files that may hold operators with their shapes
# What a reader raises that does not know something yet: the page does without that file, not without all of them.
UNFORESEEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_CAPTURE = "_capture"  # end of the name of a trace in which a server captured the CUDA graphs of another trace
_BEFORE = re.compile(r"(?:^|[._-])before(?=[._-])")


def activity_study(catalog: Catalog, opened: ProfileFile) -> ShownStudy:
    return _study(ACTIVITY, _name(catalog, opened.path), opened.activity().make_reports())


def capture_study(catalog: Catalog, path: Path, rows: Sequence[Measurement]) -> ShownStudy | None:
    """None for a profile without shapes, and for the trace of a graph's capture, which only explains another trace.
    rows: those of the set."""
    stem, _, rest = path.name.partition(".")
    if stem.endswith(_CAPTURE) or not path.name.endswith(TRACES):
        return None
    beside = path.with_name(f"{stem}{_CAPTURE}.{rest}")
    found = captured(catalog, [path, *([beside] if beside.is_file() else [])], with_gain=True, rows=rows)
    if not found.value.capture.shaped_ns:
        return None
    return _study(GAIN, _name(catalog, path), found.make_reports())


def comparisons(catalog: Catalog, paths: Sequence[Path], problem: Callable[[str], None]) -> Iterator[ShownStudy]:
    """Comparisons of the files X_before.Y and X_after.Y of one folder. problem: gets a line for a pair that cannot be
    compared."""
    for path in paths:
        after = path.with_name(_BEFORE.sub(lambda match: match[0].replace("before", "after"), path.name))
        if after == path or after not in paths:
            continue
        try:
            with reading(path):
                answer = open_profile_file(path).compare(open_profile_file(after))
                yield _study(COMPARISON, f"{_name(catalog, path)} -> {after.name}", answer.make_reports())
        except (DerbyError, *UNFORESEEN) as error:
            problem(told_of(path, error))


def told_of(path: Path, error: Exception) -> str:
    """The line about a file that the page does without."""
    if isinstance(error, DerbyError):
        return str(error)
    return (
        f"{path}: cannot be shown ({type(error).__name__}: {error}); this is a defect of derby, report it with the file"
    )


def _name(catalog: Catalog, path: Path) -> str:
    return path.relative_to(catalog.root).as_posix()


def _study(kind: str, title: str, reports: Sequence[Report]) -> ShownStudy:
    return ShownStudy(
        kind,
        words(title),
        tuple(fact for each in reports for fact in each.facts),
        tuple(
            ShownTable(
                table.title,
                tuple((column.title, column.align == "right") for column in table.columns),
                tuple(tuple((cell.text, cell.emphasis) for cell in row) for row in table.rows),
                table.caption,
            )
            for each in reports
            for table in each.tables
            if table.rows
        ),
        tuple(note for each in reports for note in each.notes),
    )
