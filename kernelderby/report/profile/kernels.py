"""A KernelTable and its findings as tables: findings, every kernel, totals by library, role, architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernelderby.hardware.families import amd_architecture_of
from kernelderby.profile.kernels.findings import Finding, Severity
from kernelderby.profile.kernels.summary import KernelRow, KernelTable, Total
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, frame
from kernelderby.report.model import Column, Emphasis, Report, Row, Table, TableCell, cell_of, left, right
from kernelderby.report.numbers import milliseconds, us_of_ns
from kernelderby.report.profile.findings import ToldFinding, told_finding
from kernelderby.report.profile.ranks import profile_names, rank_rows, ranks_report
from kernelderby.store.counts import counted

GUESS = "?"
LARGEST = 4  # roles in the line under the title
_EMPHASIS: dict[Severity, Emphasis] = {Severity.HIGH: "bad", Severity.MEDIUM: "", Severity.LOW: "muted"}


@dataclass(frozen=True, slots=True)
class KernelsOf:
    """One profile's kernels and the findings. has_events: otherwise it has sums only."""

    table: KernelTable
    findings: tuple[Finding, ...]
    has_events: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """The kinds of findings for which the profile lacks data."""
        gpu, notes = self.table.gpu, []
        if self.table.compute_capability is None and gpu is None:
            notes.append("the profile names no GPU: kernels for an older architecture cannot be marked; give --gpu")
        elif self.table.compute_capability is None and not amd_architecture_of(gpu or ""):
            notes.append(f"{gpu}: not among the known GPUs, so kernels for an older architecture cannot be marked")
        return (*notes, *(() if self.has_events else ("sums only, no events: launch gaps are unknown",)))


def kernels_answer(found: Sequence[KernelsOf], top: int | None = None, bars: int = 20) -> Answer[tuple[KernelsOf, ...]]:
    """Frames: kernels, memory, totals by library, role, dtype and architecture, findings. top: see kernels_report.
    bars: number of bars in the picture."""
    found = tuple(found)
    return Answer(
        found,
        lambda: {"profiles": [_data(each) for each in found]},
        lambda: [
            *([ranks_report([each.table for each in found], top)] if len(found) > 1 else []),
            *(kernels_report(each.table, each.findings, top=top, notes=each.notes) for each in found),
        ],
        lambda: _frames(found),
        draw=lambda path: _draw([each.table for each in found], path, bars),
    )


def _draw(tables: list[KernelTable], path: Path, most: int) -> None:
    """Bars of one profile's kernels, or stacked roles of several profiles."""
    from kernelderby.report import plot

    if len(tables) > 1:
        roles = {table.path.name: {total.key: total.total_ns / 1e6 for total in table.by_role} for table in tables}
        plot.stacked_bars(roles, path, title="Kernel time by role", unit="ms", as_share=True, rest=("unknown",))
        return
    [table] = tables
    first, rest = table.top(most)
    values = {row.short_name: row.total_ns / 1e6 for row in first}
    groups = {row.short_name: row.library for row in first}
    if rest:
        values[rest.key], groups[rest.key] = rest.total_ns / 1e6, "the rest"
    plot.bars(values, path, title=f"Kernels of {table.path.name}", unit="ms", total=table.total_ns / 1e6, groups=groups)


def _data(each: KernelsOf) -> dict[str, Any]:
    """The data of asdict, with the properties added."""
    return {
        **asdict(each.table),
        "unknown": asdict(each.table.unknown),
        "unknown_role": asdict(each.table.unknown_role),
        "guessed": asdict(each.table.guessed),
        "findings": [asdict(told_finding(one)) for one in each.findings],
        "notes": each.notes,
    }


def _frames(found: Sequence[KernelsOf]) -> tuple[Frame, ...]:
    def rows(own: Callable[[KernelsOf], Sequence[Any]]) -> Iterator[dict[str, Any]]:
        return ({"profile": each.table.path} | asdict(row) for each in found for row in own(each))

    return (
        frame("kernels", rows(lambda each: each.table.rows)),
        frame("memory", rows(lambda each: each.table.memory)),
        frame("library", rows(lambda each: each.table.by_library)),
        frame("role", rows(lambda each: each.table.by_role)),
        frame("dtype", rows(lambda each: each.table.by_dtype)),
        frame("architecture", rows(lambda each: each.table.by_architecture)),
        frame("ranks", _rank_frame([each.table for each in found])),
        frame("findings", rows(lambda each: [*map(told_finding, each.findings)])),
    )


def _rank_frame(tables: Sequence[KernelTable]) -> list[dict[str, Any]]:
    """One row per kernel and profile, so the table is tidy for any number of ranks."""
    names = profile_names([table.path for table in tables])
    return [
        {"kernel": row.kernel, "library": row.library, "role": row.role, "profile": name, "total_ns": time}
        | {"spread": row.spread, "slowest": row.slowest}
        for row in rank_rows(tables)
        for name, time in zip(names, row.times_ns, strict=True)
    ]


def kernels_report(
    table: KernelTable, found: Sequence[Finding], *, top: int | None = None, notes: Sequence[str] = ()
) -> Report:
    """top: number of kernels with a row; the rest is summed (None: all kernels)."""
    told = [*map(told_finding, found)]
    tables = [
        _kernel_table(table, top),
        _memory_table(table),
        _totals("library", table.by_library, table),
        _totals("role", table.by_role, table),
        _totals("architecture in the name", table.by_architecture, table),
        _finding_table(told),
    ]
    advice = {one.kind: one.advice for one in reversed(told)}  # the first of each kind stands for the others
    return Report(
        f"Kernels of {table.path}",
        _facts(table),
        tuple(each for each in tables if each.rows),
        (*table.warnings, *notes, *(f"{kind}: {said}" for kind, said in reversed(advice.items()))),
    )


def _facts(table: KernelTable) -> tuple[str, ...]:
    launches = sum(row.instances for row in table.rows)
    counts = f"{_kernels(len(table.rows))}, {counted(launches, 'launch', 'launches')}, {_ms(table.total_ns)} ms"
    parts = [table.form, table.gpu or "GPU not named", counts]
    if table.memory:
        parts.append(f"copies and memsets {_ms(table.memory_ns)} ms")
    unknown, guessed = table.unknown, table.guessed
    known = "every kernel is known" if table.rows else "no kernels in it"
    if unknown.names:
        known = f"unknown: {_kernels(unknown.names)}, {unknown.share:.1%} of the time"
    role = table.unknown_role
    if role.names and role.names != unknown.names:
        known += f"; role unknown: {_kernels(role.names)}, {role.share:.1%}"
    if guessed.names:
        known += f"; library guessed: {_kernels(guessed.names)}, {guessed.share:.1%}"
    return (" · ".join(parts), *_shares(table), known)


def _shares(table: KernelTable) -> tuple[str, ...]:
    """The shares of roles in one line: attention 50.9 %, copy 15.5 %, GEMM 10.8 %, 5 more."""
    shown, rest = table.by_role[:LARGEST], len(table.by_role) - LARGEST
    if not shown:
        return ()
    said = ", ".join(f"{total.key} {total.share:.1%}" for total in shown)
    return (f"time goes to {said}" + (f", {rest} more" if rest > 0 else ""),)


def _kernel_table(table: KernelTable, top: int | None) -> Table:
    columns = (
        Column("kernel", "left"),
        *right("% of time", "total ms", "instances", "avg us"),
        *left("role", "library", "dtype", "arch"),
        *right("median us", "min us", "max us", "StdDev us"),
        Column("source file", "left", is_optional=True),
    )
    first, rest = table.top(top)
    rows = [_kernel_row(row) for row in first]
    rows += [(TableCell(rest.key, "muted"), *_numbers(rest), *((None,) * 10))] if rest else []
    caption = f"% of the time of all kernels; dtype: the narrowest that the name mentions; {GUESS} a guess"
    return Table("Kernels", columns, rows, caption=caption)


def _kernel_row(row: KernelRow) -> Row:
    known = row.attribution
    library = TableCell(known.library + GUESS * known.is_guess, "muted" if known.is_guess else "")
    return (
        row.short_name,
        f"{row.share:.1%}",
        _ms(row.total_ns),
        row.instances,
        us_of_ns(row.average_ns),
        known.role.value,
        library,
        known.dtype or None,
        known.architecture or None,
        *(cell_of(value, us_of_ns) for value in (row.median_ns, row.min_ns, row.max_ns, row.stddev_ns)),
        known.source_file or None,
    )


def _memory_table(table: KernelTable) -> Table:
    columns = (Column("operation", "left"), *right("total ms", "instances", "avg us", "MB", "GB/s"))
    rows = tuple(
        (
            row.name,
            _ms(row.total_ns),
            row.instances,
            us_of_ns(row.average_ns),
            f"{row.bytes / 1e6:.1f}" if row.bytes else None,
            f"{row.bytes / row.total_ns:.1f}" if row.bytes and row.total_ns else None,
        )
        for row in table.memory
    )
    return Table("Copies and memsets", columns, rows, caption="not part of the kernels' 100 %")


def _totals(title: str, totals: Sequence[Total], table: KernelTable) -> Table:
    columns = (Column(title, "left"), *right("% of time", "total ms", "instances", "kernels"))
    counts = sum(total.instances for total in totals), sum(total.names for total in totals)
    whole = Total("all kernels", float(bool(totals)), table.total_ns, *counts)
    rows: list[Row] = [(total.key, *_numbers(total), total.names) for total in totals]
    rows.append((TableCell(whole.key, "muted"), *_numbers(whole), whole.names))
    return Table(f"By {title}", columns, rows)


def _finding_table(found: Sequence[ToldFinding]) -> Table:
    columns = left("finding", "severity", "what", "evidence")
    rows = tuple(
        (TableCell(each.kind, _EMPHASIS[each.severity]), each.severity.value, each.what, _evidence(each))
        for each in found
    )
    return Table("Findings", columns, rows, caption="the advice for each kind stands below", key_columns=2)


def _evidence(finding: ToldFinding) -> str:
    """total ms 8894.7, kernels 10, ..., without the share of the time, which is in `what`."""
    items = [(label, value) for label, value in finding.evidence.items() if not label.startswith("share of")]
    return ", ".join(f"{label} {value if isinstance(value, str) else _figure(value)}" for label, value in items)


def _figure(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def _numbers(total: Total) -> Row:
    return f"{total.share:.1%}", _ms(total.total_ns), total.instances


def _kernels(count: int) -> str:
    return counted(count, "kernel")


def _ms(nanoseconds: float) -> str:
    return milliseconds(nanoseconds, fine_below=100)
