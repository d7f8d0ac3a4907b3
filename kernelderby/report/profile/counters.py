"""What ncu counted, as tables: which unit of the GPU each kernel fills, and what it takes of a multiprocessor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from kernelderby.profile.counters import FULL, UNITS, Counters, KernelCounters
from kernelderby.report.answer import Answer
from kernelderby.report.frame import frame
from kernelderby.report.model import NOTHING, Column, Report, Table, TableCell
from kernelderby.report.numbers import amount, microseconds


def counters_answer(found: Sequence[Counters]) -> Answer[tuple[Counters, ...]]:
    """Frame: kernels."""
    found = tuple(found)
    return Answer(
        found,
        lambda: {"profiles": [asdict(each) for each in found]},
        lambda: [counters_report(each) for each in found],
        lambda: (
            frame(
                "kernels",
                ({"profile": each.path, "gpu": each.gpu} | asdict(row) for each in found for row in each.rows),
            ),
        ),
    )


def counters_report(counters: Counters) -> Report:
    columns = (
        Column("kernel", "left"),
        Column("us"),
        *(Column(f"{name} %") for name in UNITS),
        *map(Column, ("read MB", "written MB", "warps %", "registers", "shared KB")),
        *(Column(name, "left", is_optional=True) for name in ("grid", "block")),
    )
    table = Table(
        "Counters",
        columns,
        tuple(map(_line, counters.rows)),
        caption=f"% of the unit's peak over the kernel's time, {FULL:.0f} and more in bold; medians of a kernel's "
        "launches. ncu runs a kernel by itself, several times, with cold caches: the time is not that of a bench",
    )
    calls = f"{counters.invocations} calls" if counters.invocations else "no call is marked"
    outside = f", {counters.outside} launches outside of them left out" if counters.outside else ""
    return Report(
        title=f"Counters of {counters.path}",
        facts=(f"{counters.gpu or 'GPU not named'} · {calls}{outside}",),
        tables=(table,),
    )


def _line(row: KernelCounters) -> tuple[TableCell, ...]:
    return (
        TableCell(row.short_name),
        NOTHING if row.duration_ns is None else TableCell(microseconds(row.duration_ns / 1e3)),
        *(_share(getattr(row, field)) for field in UNITS.values()),
        *map(_megabytes, (row.read_bytes, row.written_bytes)),
        _share(row.warps_percent, bold=False),
        NOTHING if row.registers is None else TableCell(f"{row.registers:.0f}"),
        NOTHING if row.shared_bytes is None else TableCell(f"{row.shared_bytes / 1024:.0f}"),
        TableCell(row.grid),
        TableCell(row.block),
    )


def _share(value: float | None, bold: bool = True) -> TableCell:
    if value is None:
        return NOTHING
    text = f"{value:.0f}" if value >= 10 else f"{value:.1f}"
    return TableCell(text, "best" if bold and value >= FULL else "")


def _megabytes(value: float | None) -> TableCell:
    return NOTHING if value is None else TableCell(amount(value / 1e6))
