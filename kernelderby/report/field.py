"""The field as a table: a row an operator and library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import asdict

from kernelderby.catalog.libraries import UNKNOWN
from kernelderby.catalog.not_raced import NotRaced
from kernelderby.rank.field import Field, Raced
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, fields_of, frame
from kernelderby.report.model import BLANK, NOTHING, Column, Report, Table, TableCell

ENOUGH = 3  # libraries


def field_answer(found: Field, here: str, warnings: Sequence[str] = (), only_not_raced: bool = False) -> Answer[Field]:
    """Frames: field, one row an operator and library; not_raced. here: where the newest versions are from, in words."""
    return Answer(
        found,
        lambda: {"field": found},
        lambda: [
            Report("Libraries that were not raced", (), tuple(not_raced_tables(found.not_raced)))
            if only_not_raced
            else field_report(found, here)
        ],
        lambda: _frames(found),
        tuple(warnings),
    )


def _frames(found: Field) -> tuple[Frame, ...]:
    rows = ({"importance": found.importance.get(each.definition)} | fields_of(each) for each in found.raced)
    return frame("field", rows), frame("not_raced", map(asdict, found.not_raced))


def field_report(found: Field, here: str) -> Report:
    columns = (
        Column("operator", "left"),
        Column("share of the survey", is_optional=True),
        Column("library", "left"),
        Column("raced", "left"),
        Column("here", "left"),
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
    table = Table(f"Libraries that were raced{where}", columns, tuple(rows), caption, key_columns=1)
    return Report("The field", tuple(_facts(found)), (table, *not_raced_tables(found.not_raced)), tuple(_notes(found)))


def not_raced_tables(found: Sequence[NotRaced]) -> list[Table]:
    """A table of those that a race would need something for, and one of those whose kernels do not fit."""
    columns = (Column("library", "left"), Column("operators", "left", is_optional=True), Column("why", "left"))
    return [
        Table(title, columns, tuple(_told(each) for each in rows))
        for title, rows in (
            ("Not raced", [each for each in found if each.needs]),
            ("Kernels that do not fit", [each for each in found if not each.needs]),
        )
        if rows
    ]


def _told(each: NotRaced) -> tuple[TableCell, ...]:
    needs = f" Needs {each.needs}." if each.needs else ""
    return TableCell(each.name), TableCell(", ".join(each.operators) or "many"), TableCell(f"{each.why}{needs}")


def _facts(found: Field) -> Iterator[str]:
    if sum(found.importance.values()):
        made, raced = (found.at_least(ENOUGH, raced=each) for each in (False, True))
        yield (
            f"Share of the survey's GPU time with {ENOUGH} libraries or more: {made:.0f} % have a solution of each, "
            f"{raced:.0f} % were raced, times of former code left out."
        )


def _row(raced: Raced, importance: float | None, is_same: bool) -> tuple[TableCell, ...]:
    days = dict.fromkeys(day for day in (raced.measured_from, raced.measured_to) if day)
    return (
        BLANK if is_same else TableCell(raced.definition),
        BLANK if is_same else NOTHING if importance is None else TableCell(f"{importance:.1f} %"),
        TableCell(raced.library),
        TableCell(raced.version, "bad" if raced.is_newest is False or raced.version == UNKNOWN else "")
        if raced.version
        else TableCell("not raced", "bad"),
        TableCell(raced.here) if raced.here else NOTHING,
        TableCell(f"{raced.passed}/{raced.workloads}", "" if raced.passed == raced.workloads else "bad"),
        TableCell(" to ".join(days)) if days else NOTHING,
    )


def _notes(found: Field) -> Iterator[str]:
    if found.without:
        yield f"no solution calls a library: {', '.join(found.without)}"
    older = sorted({each.library for each in found.raced if each.is_newest is False})
    if older:
        yield f"raced in another version than the one here: {', '.join(older)}; `derby bench --force` measures again"
    unknown = sorted({each.library for each in found.raced if each.version == UNKNOWN})
    if unknown:
        yield f"the rows do not say the version: {', '.join(unknown)}"
    former = [f"{each.definition} {each.library} ({each.outdated})" for each in found.raced if each.outdated]
    if former:
        yield f"rows of former code: {', '.join(former)}"
