"""The field as a table: one row per operator and library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import asdict

from kernelderby.catalog.libraries import UNKNOWN
from kernelderby.catalog.templates import NotRaced
from kernelderby.rank.field import Field, RacedLibrary
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, fields_of, frame
from kernelderby.report.model import Column, Report, Row, Table, TableCell, cell_of, left

ENOUGH = 3  # libraries


def field_answer(found: Field, here: str, warnings: Sequence[str] = (), only_not_raced: bool = False) -> Answer[Field]:
    """Frames: field, one row per operator and library; not_raced. here: source of the newest versions, in words."""
    without = tuple(not_raced_tables(found.not_raced))
    report = Report("Libraries that were not raced", (), without) if only_not_raced else field_report(found, here)
    return Answer(found, lambda: {"field": found}, lambda: [report], lambda: _frames(found), tuple(warnings))


def _frames(found: Field) -> tuple[Frame, ...]:
    rows = ({"importance": found.importance.get(each.definition)} | fields_of(each) for each in found.raced)
    return frame("field", rows), frame("not_raced", map(asdict, found.not_raced))


def field_report(found: Field, here: str) -> Report:
    columns = (
        Column("operator", "left"),
        Column("share of the survey", is_optional=True),
        *left("library", "raced", "here"),
        Column("shapes"),
        Column("rows of", "left", is_optional=True),
    )
    rows, former = [], None
    for each in found.raced:
        rows.append(_row(each, found.importance.get(each.definition), each.definition == former))
        former = each.definition
    caption = (
        f"raced: the oldest version behind the rows that count; here: {here}; shapes: with a time, of all that count."
    )
    where = f", {found.group.gpu}" if found.group else ""
    table = Table(f"Libraries that were raced{where}", columns, rows, caption, key_columns=1)
    return Report("The field", tuple(_facts(found)), (table, *not_raced_tables(found.not_raced)), tuple(_notes(found)))


def not_raced_tables(found: Sequence[NotRaced]) -> list[Table]:
    """One table of libraries whose race would need something, and one of libraries whose kernels do not fit."""
    tables = []
    for title, needed in (("Not raced", True), ("Kernels that do not fit", False)):
        rows = []
        for each in found:
            if bool(each.needs) is needed:
                needs = f" Needs {each.needs}." if needed else ""
                rows.append((each.name, ", ".join(each.operators) or "many", f"{each.why}{needs}"))
        tables += [Table(title, left("library", "operators", "why"), rows, key_columns=3)] if rows else []
    return tables


def _facts(found: Field) -> Iterator[str]:
    if sum(found.importance.values()):
        made, raced = (found.at_least(ENOUGH, raced=each) for each in (False, True))
        yield (
            f"Share of the survey's GPU time with {ENOUGH} libraries or more: {made:.0f} % have a solution of each, "
            f"{raced:.0f} % were raced on half of their shapes or more, times of former code left out."
        )


def _row(raced: RacedLibrary, importance: float | None, is_same: bool) -> Row:
    is_bad = not raced.version or raced.is_newest is False or raced.version == UNKNOWN
    days = dict.fromkeys(day for day in (raced.measured_from, raced.measured_to) if day)
    return (
        "" if is_same else raced.definition,
        "" if is_same else cell_of(importance, "{:.1f} %".format),
        raced.library,
        TableCell(raced.version or ("nothing passed" if raced.failed else "not raced"), "bad" if is_bad else ""),
        raced.here or None,
        TableCell(f"{raced.passed}/{raced.workloads}", "" if raced.passed == raced.workloads else "bad"),
        " to ".join(days) if days else None,
    )


def _notes(found: Field) -> Iterator[str]:
    if found.without:
        yield f"no solution calls a library: {', '.join(found.without)}"
    older = sorted({each.library for each in found.raced if each.is_newest is False})
    if older:
        yield f"raced in another version than the one here: {', '.join(older)}; `derby bench --again` measures again"
    unknown = sorted({each.library for each in found.raced if each.version == UNKNOWN})
    if unknown:
        yield f"rows without a version: {', '.join(unknown)}"
    former = [f"{each.definition} {each.library} ({each.outdated})" for each in found.raced if each.outdated]
    if former:
        yield f"rows of former code: {', '.join(former)}"
