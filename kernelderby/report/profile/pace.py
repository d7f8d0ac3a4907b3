"""The repetitions of a range as a table, those that fall out marked."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kernelderby.profile.names import unnumbered
from kernelderby.profile.pace import Pace, Repetition
from kernelderby.report.answer import Answer
from kernelderby.report.frame import frame
from kernelderby.report.model import NOTHING, Column, Report, Table, TableCell
from kernelderby.report.numbers import microseconds, milliseconds
from kernelderby.store.counts import counted

MOST = 40


def pace_answer(found: Sequence[Pace], most: int = MOST) -> Answer[tuple[Pace, ...]]:
    """Frame: repetitions. most: rows of text and Markdown; outliers have theirs first, the farthest before the rest."""
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
    shown = _shown(pace.repetitions, most)
    columns = (
        Column("repetition", "left"),
        *map(Column, ("start ms", "GPU span us")),
        Column("out of line", "left"),
        *map(Column, ("host us", "operations", "GPU busy us", "to the next us")),
    )
    several = len({row.process for row in pace.repetitions}) > 1
    table = Table(
        f"Repetitions of {pace.expression}",
        columns,
        tuple(_line(row, several) for row in shown),
        caption=("number (process): range; " if several else "")
        + "GPU span: first start to last end of what was launched in it; out of line: over 3 deviations (1.4826 MAD) "
        "and a tenth from the median",
    )
    left = len(pace.repetitions) - len(shown)
    outliers = len(pace.outliers) - sum(row.far is not None for row in shown)
    notes = [f"{left} more, {f'{outliers} of them out of line' if outliers else 'all in line'}"] if left else []
    return Report(
        title=f"Pace of {pace.path}",
        facts=(f"{pace.gpu or 'GPU not named'} · {counted(len(pace.repetitions), 'repetition')}, {_figures(pace)}",),
        tables=(table,),
        notes=(*notes, *pace.warnings),
    )


def _shown(rows: Sequence[Repetition], most: int) -> list[Repetition]:
    """At most so many, in their order: those farthest out of line, then the first ones."""
    by_need = sorted(range(len(rows)), key=lambda place: (-(rows[place].far or 0), place))
    return [rows[place] for place in sorted(by_need[:most])]


def _figures(pace: Pace) -> str:
    times = [row.pace_ns for row in pace.repetitions]
    middle = statistics.median(times)
    return (
        f"median {microseconds(middle / 1e3)} us, {microseconds(min(times) / 1e3)} to "
        f"{microseconds(max(times) / 1e3)} us, {len(pace.outliers)} out of line"
    )


def _line(row: Repetition, several: bool) -> tuple[TableCell, ...]:
    name = f"{row.number}{f' ({row.process})' if several else ''}: {unnumbered(row.name)}"
    return (
        TableCell(name),
        TableCell(milliseconds(row.start_ns)),
        _us(row.span_ns),
        NOTHING if row.far is None else TableCell(f"{row.far:.1f} deviations", "bad"),
        TableCell(microseconds(row.host_ns / 1e3)),
        TableCell(str(row.operations)),
        *(_us(value) for value in (row.busy_ns, row.period_ns)),
    )


def _us(nanoseconds: int | None) -> TableCell:
    return NOTHING if nanoseconds is None else TableCell(microseconds(nanoseconds / 1e3))
