"""The repetitions of a range as a table, those that fall out marked."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kernelderby.profile.pace import Pace, Repetition
from kernelderby.report.answer import Answer
from kernelderby.report.frame import frame
from kernelderby.report.model import NOTHING, Column, Report, Table, TableCell
from kernelderby.report.numbers import microseconds, milliseconds

MOST = 40


def pace_answer(found: Sequence[Pace], most: int = MOST) -> Answer[tuple[Pace, ...]]:
    """Frame: repetitions. most: rows of text and Markdown; outliers always have one."""
    found = tuple(found)
    return Answer(
        found,
        lambda: {"profiles": [asdict(each) for each in found]},
        lambda: [pace_report(each, most) for each in found],
        lambda: (frame("repetitions", _rows(found)),),
    )


def _rows(found: Sequence[Pace]) -> list[dict[str, Any]]:
    return [{"profile": each.path} | asdict(row) for each in found for row in each.repetitions]


def pace_report(pace: Pace, most: int = MOST) -> Report:
    shown = [row for place, row in enumerate(pace.repetitions) if place < most or row.far is not None]
    titles = ("start ms", "host us", "operations", "GPU span us", "GPU busy us", "to the next us")
    columns = (Column("repetition", "left"), *map(Column, titles), Column("out of line", "left"))
    several = len({row.process for row in pace.repetitions}) > 1
    table = Table(
        f"Repetitions of {pace.expression}",
        columns,
        tuple(_line(row, several) for row in shown),
        caption="GPU span: first start to last end of what was launched in it; out of line: over 3 deviations (1.4826 "
        "MAD) and a tenth from the median",
    )
    left = len(pace.repetitions) - len(shown)
    notes = [f"{left} more, all in line"] if left else []
    return Report(
        title=f"Pace of {pace.path}",
        facts=(f"{pace.gpu or 'GPU not named'} · {len(pace.repetitions)} repetitions, {_figures(pace)}",),
        tables=(table,),
        notes=(*notes, *pace.warnings),
    )


def _figures(pace: Pace) -> str:
    times = [row.pace_ns for row in pace.repetitions]
    middle = statistics.median(times)
    return (
        f"median {microseconds(middle / 1e3)} us, {microseconds(min(times) / 1e3)} to "
        f"{microseconds(max(times) / 1e3)} us, {len(pace.outliers)} out of line"
    )


def _line(row: Repetition, several: bool) -> tuple[TableCell, ...]:
    name = f"{row.number}{f' of process {row.process}' if several else ''}: {row.name}"
    return (
        TableCell(name),
        TableCell(milliseconds(row.start_ns)),
        TableCell(microseconds(row.host_ns / 1e3)),
        TableCell(str(row.operations)),
        *(_us(value) for value in (row.span_ns, row.busy_ns, row.period_ns)),
        NOTHING if row.far is None else TableCell(f"{row.far:.1f} deviations", "bad"),
    )


def _us(nanoseconds: int | None) -> TableCell:
    return NOTHING if nanoseconds is None else TableCell(microseconds(nanoseconds / 1e3))
