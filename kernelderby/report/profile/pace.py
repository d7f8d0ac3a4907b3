"""The repetitions of a range as a table, with outliers marked."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict

from kernelderby.profile.names import unnumbered
from kernelderby.profile.pace import Pace, Repetition
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame
from kernelderby.report.model import Report, Row, Table, TableCell, cell_of, left, right
from kernelderby.report.numbers import milliseconds, us_of_ns
from kernelderby.store.counts import counted

MOST = 40


def pace_answer(found: Sequence[Pace], most: int = MOST) -> Answer[tuple[Pace, ...]]:
    """Frame: repetitions. most: maximum rows in text and Markdown; outliers take precedence, the farthest first."""
    found = tuple(found)
    frames = (
        Frame("repetitions", ({"profile": each.path} | asdict(row) for each in found for row in each.repetitions)),
    )
    return Answer(
        found,
        lambda: {"profiles": [asdict(each) for each in found]},
        lambda: [pace_report(each, most) for each in found],
        lambda: frames,
    )


def pace_report(pace: Pace, most: int = MOST) -> Report:
    shown = _shown(pace.repetitions, most)
    columns = (
        *(*left("repetition"), *right("start ms", "GPU span us"), *left("out of line")),
        *right("host us", "operations", "GPU busy us", "to the next us"),
    )
    several = len({row.process for row in pace.repetitions}) > 1
    table = Table(
        f"Repetitions of {pace.expression}",
        columns,
        (_line(row, several) for row in shown),
        caption=("number (process): range; " if several else "")
        + "GPU span: first start to last end of what was launched in it; out of line: over 3 deviations (1.4826 MAD) "
        "and a tenth from the median",
    )
    more = len(pace.repetitions) - len(shown)
    outliers = len(pace.outliers) - sum(row.far is not None for row in shown)
    notes = [f"{more} more, {f'{outliers} of them out of line' if outliers else 'all in line'}"] if more else []
    return Report(
        title=f"Pace of {pace.path}",
        facts=(f"{pace.gpu or 'GPU not named'} · {counted(len(pace.repetitions), 'repetition')}, {_figures(pace)}",),
        tables=(table,),
        notes=(*notes, *pace.warnings),
    )


def _shown(rows: Sequence[Repetition], most: int) -> list[Repetition]:
    """At most this many repetitions, in order: the farthest outliers, then the first ones."""
    by_need = sorted(range(len(rows)), key=lambda place: (-(rows[place].far or 0), place))
    return [rows[place] for place in sorted(by_need[:most])]


def _figures(pace: Pace) -> str:
    times = [row.pace_ns for row in pace.repetitions]
    middle, least, most = map(us_of_ns, (statistics.median(times), min(times), max(times)))
    return f"median {middle} us, {least} to {most} us, {len(pace.outliers)} out of line"


def _line(row: Repetition, several: bool) -> Row:
    return (
        f"{row.number}{f' ({row.process})' if several else ''}: {unnumbered(row.name)}",
        milliseconds(row.start_ns),
        cell_of(row.span_ns, us_of_ns),
        None if row.far is None else TableCell(f"{row.far:.1f} deviations", "bad"),
        us_of_ns(row.host_ns),
        row.operations,
        *(cell_of(value, us_of_ns) for value in (row.busy_ns, row.period_ns)),
    )
