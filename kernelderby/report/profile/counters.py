"""What ncu counted, as tables: which unit of the GPU each kernel fills, and what it takes of a multiprocessor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kernelderby.profile.counters import FULL, UNITS, Counters, KernelCounters
from kernelderby.report.answer import Answer
from kernelderby.report.frame import frame
from kernelderby.report.model import NOTHING, Column, Report, Table, TableCell
from kernelderby.report.numbers import amount, microseconds
from kernelderby.store.counts import counted

_STALLS = 4  # reasons of a kernel in the text


def counters_answer(found: Sequence[Counters]) -> Answer[tuple[Counters, ...]]:
    """Frames: kernels, stalls."""
    found = tuple(found)
    return Answer(
        found,
        lambda: {"profiles": [asdict(each) | {"rows": list(map(_data, each.rows))} for each in found]},
        lambda: [counters_report(each) for each in found],
        lambda: (
            frame(
                "kernels",
                ({"profile": each.path, "gpu": each.gpu} | _data(row) for each in found for row in each.rows),
            ),
            frame(
                "stalls",
                (
                    {"profile": each.path, "kernel": row.kernel, "reason": reason, "cycles_an_instruction": cycles}
                    for each in found
                    for row in each.rows
                    for reason, cycles in row.stalls
                ),
            ),
        ),
    )


def _data(row: KernelCounters) -> dict[str, Any]:
    return asdict(row) | {"bound": row.bound, "flops_a_byte": row.flops_a_byte}


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
    light, stalls = _light_table(counters.rows), _stall_table(counters.rows)
    calls = counted(counters.invocations, "call") if counters.invocations else "no call is marked"
    outside = (
        f", {counted(counters.outside, 'launch', 'launches')} outside of them left out" if counters.outside else ""
    )
    return Report(
        title=f"Counters of {counters.path}",
        facts=(f"{counters.gpu or 'GPU not named'} · {calls}{outside}",),
        tables=(*([light] if light.rows else []), table, *([stalls] if stalls.rows else [])),
        notes=(_unread(counters.unread),) if counters.unread else (),
    )


def _unread(names: Sequence[str]) -> str:
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return f"{counted(len(names), 'metric')} of the file stand in no table: {', '.join(names[:6])}{more}"


def _light_table(rows: Sequence[KernelCounters]) -> Table:
    """The speed of light of ncu's first section, and the place on a roofline."""
    lines = tuple(
        (
            TableCell(row.short_name),
            TableCell(row.bound or "-"),
            _share(row.compute_percent),
            _share(row.memory_percent),
            _share(row.l1_percent),
            NOTHING if row.flops is None or not row.duration_ns else TableCell(amount(row.flops / row.duration_ns)),
            NOTHING if row.flops_a_byte is None else TableCell(amount(row.flops_a_byte)),
        )
        for row in rows
        if row.compute_percent is not None or row.memory_percent is not None or row.flops
    )
    titles = ("compute %", "memory %", "L1 %", "Gflop/s", "flop/byte")
    caption = (
        f"share of what the GPU can; bound by latency: both below {FULL:.0f} %. Gflop/s and flop/byte (of DRAM): a "
        "kernel's place on the roofline, without tensor cores"
    )
    columns = (Column("kernel", "left"), Column("bound by", "left"), *map(Column, titles))
    return Table("Speed of light", columns, lines, caption)


def _stall_table(rows: Sequence[KernelCounters]) -> Table:
    lines = tuple(
        (
            TableCell(row.short_name if not place else ""),
            TableCell(reason),
            TableCell(f"{cycles:.2f}"),
            TableCell(f"{cycles / sum(each for _, each in row.stalls):.0%}"),
        )
        for row in rows
        for place, (reason, cycles) in enumerate(row.stalls[:_STALLS])
    )
    columns = (Column("kernel", "left"), Column("stalled on", "left"), Column("cycles"), Column("% of them"))
    return Table("Stalls", columns, lines, "cycles that a warp waits for each instruction that it issues")


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
