"""ncu's counters as tables: the units of the GPU that each kernel fills, and its share of a multiprocessor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kernelderby.profile.counters import FULL, UNITS, Counters, KernelCounters
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, frame
from kernelderby.report.model import NOTHING, Column, Report, Row, Table, TableCell, cell_of, left, right
from kernelderby.report.numbers import amount, few, us_of_ns
from kernelderby.store.counts import counted

_STALLS = 4  # reasons of a kernel in the text


def counters_answer(found: Sequence[Counters]) -> Answer[tuple[Counters, ...]]:
    """Frames: kernels, stalls."""
    found = tuple(found)
    return Answer(
        found,
        lambda: {"profiles": [asdict(each) | {"rows": list(map(_data, each.rows))} for each in found]},
        lambda: [counters_report(each) for each in found],
        lambda: _frames(found),
    )


def _frames(found: Sequence[Counters]) -> tuple[Frame, ...]:
    rows = [(each, row) for each in found for row in each.rows]
    stalls = (
        {"profile": each.path, "kernel": row.kernel, "reason": reason, "cycles_an_instruction": cycles}
        for each, row in rows
        for reason, cycles in row.stalls
    )
    kernels = ({"profile": each.path, "gpu": each.gpu} | _data(row) for each, row in rows)
    return frame("kernels", kernels), frame("stalls", stalls)


def _data(row: KernelCounters) -> dict[str, Any]:
    return asdict(row) | {"bound": row.bound, "flops_a_byte": row.flops_a_byte}


def counters_report(counters: Counters) -> Report:
    columns = (
        Column("kernel", "left"),
        *right("us", *(f"{name} %" for name in UNITS), "read MB", "written MB", "warps %", "registers", "shared KB"),
        *(Column(name, "left", is_optional=True) for name in ("grid", "block")),
    )
    table = Table(
        "Counters",
        columns,
        map(_line, counters.rows),
        caption=f"% of the unit's peak over the kernel's time, {FULL:.0f} and more in bold; medians of a kernel's "
        "launches. ncu runs a kernel by itself, several times, with cold caches: the time is not that of a bench",
    )
    light, stalls = _light_table(counters.rows), _stall_table(counters.rows)
    calls = counted(counters.invocations, "call") if counters.invocations else "no call is marked"
    if counters.outside:
        calls += f", {counted(counters.outside, 'launch', 'launches')} outside of them left out"
    facts = (f"{counters.gpu or 'GPU not named'} · {calls}",)
    tables = tuple(each for each in (light, table, stalls) if each.rows or each is table)
    unread = counters.unread
    stand = counted(len(unread), "metric of the file stands", "metrics of the file stand")
    notes = (f"{stand} in no table: {few(unread, 6)}",) if unread else ()
    return Report(f"Counters of {counters.path}", facts, tables, notes)


def _light_table(rows: Sequence[KernelCounters]) -> Table:
    """The speed of light of ncu's first section, and the place on a roofline."""
    lines = tuple(
        (
            row.short_name,
            row.bound or "-",
            *map(_share, (row.compute_percent, row.memory_percent, row.l1_percent)),
            None if row.flops is None or not row.duration_ns else amount(row.flops / row.duration_ns),
            cell_of(row.flops_a_byte, amount),
        )
        for row in rows
        if row.compute_percent is not None or row.memory_percent is not None or row.flops
    )
    caption = (
        f"share of what the GPU can; bound by latency: both below {FULL:.0f} %. Gflop/s and flop/byte (of DRAM): a "
        "kernel's place on the roofline, without tensor cores"
    )
    columns = (*left("kernel", "bound by"), *right("compute %", "memory %", "L1 %", "Gflop/s", "flop/byte"))
    return Table("Speed of light", columns, lines, caption)


def _stall_table(rows: Sequence[KernelCounters]) -> Table:
    lines = []
    for row in rows:
        whole = sum(each for _, each in row.stalls)
        for place, (reason, cycles) in enumerate(row.stalls[:_STALLS]):
            lines.append((row.short_name if not place else "", reason, f"{cycles:.2f}", f"{cycles / whole:.0%}"))
    columns = (*left("kernel", "stalled on"), *right("cycles", "% of them"))
    return Table("Stalls", columns, lines, "cycles that a warp waits for each instruction that it issues")


def _line(row: KernelCounters) -> Row:
    return (
        row.short_name,
        cell_of(row.duration_ns, us_of_ns),
        *(_share(getattr(row, field)) for field in UNITS.values()),
        *(None if size is None else amount(size / 1e6) for size in (row.read_bytes, row.written_bytes)),
        _share(row.warps_percent, bold=False),
        cell_of(row.registers, "{:.0f}".format),
        None if row.shared_bytes is None else f"{row.shared_bytes / 1024:.0f}",
        row.grid,
        row.block,
    )


def _share(value: float | None, bold: bool = True) -> TableCell:
    if value is None:
        return NOTHING
    text = f"{value:.0f}" if value >= 10 else f"{value:.1f}"
    return TableCell(text, "best" if bold and value >= FULL else "")
