"""A KernelTable and its findings as tables: what to act on, every kernel, totals by library, role, architecture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kernelderby.profile.kernels.findings import Finding, Severity
from kernelderby.profile.kernels.summary import KernelRow, KernelTable, Total
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, frame
from kernelderby.report.model import NOTHING, Column, Emphasis, Report, Table, TableCell
from kernelderby.report.numbers import microseconds, milliseconds
from kernelderby.report.profile.ranks import profile_names, rank_rows, ranks_report
from kernelderby.store.counts import counted

GUESS = "?"
LARGEST = 4  # roles that the line under the title names
_SPREAD = ("median us", "min us", "max us", "StdDev us")
_EMPHASIS: dict[Severity, Emphasis] = {Severity.HIGH: "bad", Severity.MEDIUM: "", Severity.LOW: "muted"}


@dataclass(frozen=True, slots=True)
class KernelsOf:
    """One profile's kernels, what they tell, and what could not be looked for."""

    table: KernelTable
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def kernels_answer(found: Sequence[KernelsOf], top: int | None = None) -> Answer[tuple[KernelsOf, ...]]:
    """Frames: kernels, memory, totals by library, role, dtype and architecture, findings. top: see kernels_report."""
    found = tuple(found)
    return Answer(
        found,
        lambda: {"profiles": [_data(each) for each in found]},
        lambda: [
            *([ranks_report([each.table for each in found], top)] if len(found) > 1 else []),
            *(kernels_report(each.table, each.findings, top=top, notes=each.notes) for each in found),
        ],
        lambda: _frames(found),
    )


def _data(each: KernelsOf) -> dict[str, Any]:
    """With the properties that asdict leaves out."""
    return {
        **asdict(each.table),
        "unknown": asdict(each.table.unknown),
        "unknown_role": asdict(each.table.unknown_role),
        "guessed": asdict(each.table.guessed),
        "findings": [asdict(one) for one in each.findings],
        "notes": each.notes,
    }


def _frames(found: Sequence[KernelsOf]) -> tuple[Frame, ...]:
    tables = {
        "kernels": "rows",
        "memory": "memory",
        "library": "by_library",
        "role": "by_role",
        "dtype": "by_dtype",
        "architecture": "by_architecture",
    }
    frames = [
        frame(
            name, ({"profile": each.table.path} | asdict(row) for each in found for row in getattr(each.table, field))
        )
        for name, field in tables.items()
    ]
    return (
        *frames,
        frame("ranks", _rank_frame([each.table for each in found])),
        frame("findings", ({"profile": each.table.path} | asdict(one) for each in found for one in each.findings)),
    )


def _rank_frame(tables: Sequence[KernelTable]) -> list[dict[str, Any]]:
    """A row a kernel and profile: tidy, however many ranks there are."""
    names = profile_names([table.path for table in tables])
    return [
        {"kernel": row.kernel, "library": row.library, "role": row.role, "profile": name, "total_ns": time}
        | {"spread": row.spread, "slowest": row.slowest}
        for row in rank_rows(tables)
        for name, time in zip(names, row.times_ns, strict=True)
    ]


def kernels_report(
    table: KernelTable,
    found: Sequence[Finding],
    *,
    top: int | None = None,
    full_names: bool = False,
    notes: Sequence[str] = (),
) -> Report:
    """top: how many kernels get a row, the rest is summed (None: all). full_names: as the profile has them."""
    tables = [_kernel_table(table, top, full_names)]
    if table.memory:
        tables.append(_memory_table(table))
    tables += [
        _totals("library", table.by_library, table),
        _totals("role", table.by_role, table),
        _totals("architecture in the name", table.by_architecture, table),
    ]
    if found:
        tables.append(_finding_table(found))
    return Report(
        title=f"Kernels of {table.path}",
        facts=_facts(table),
        tables=tuple(each for each in tables if each.rows),
        notes=(*table.warnings, *notes, *(f"{each.kind}: {each.advice}" for each in _once(found))),
    )


def _facts(table: KernelTable) -> tuple[str, ...]:
    launches = sum(row.instances for row in table.rows)
    counts = f"{_kernels(len(table.rows))}, {counted(launches, 'launch', 'launches')}, {_ms(table.total_ns)} ms"
    parts = [table.form, table.gpu or "GPU not named", counts]
    if table.memory:
        parts.append(f"copies and memsets {_ms(table.memory_ns)} ms")
    lines = [" · ".join(parts)]
    unknown, guessed = table.unknown, table.guessed
    known = "every kernel is known" if table.rows else "no kernels in it"
    if unknown.names:
        known = f"unknown: {_kernels(unknown.names)}, {unknown.share:.1%} of the time"
    role = table.unknown_role
    if role.names and role.names != unknown.names:
        known += f"; role unknown: {_kernels(role.names)}, {role.share:.1%}"
    if guessed.names:
        known += f"; library guessed: {_kernels(guessed.names)}, {guessed.share:.1%}"
    return (*lines, *_shares(table), known)


def _shares(table: KernelTable) -> tuple[str, ...]:
    """The answer in a line: attention 50.9 %, copy 15.5 %, GEMM 10.8 %, 5 more."""
    shown, rest = table.by_role[:LARGEST], len(table.by_role) - LARGEST
    if not shown:
        return ()
    said = ", ".join(f"{total.key} {total.share:.1%}" for total in shown)
    return (f"time goes to {said}" + (f", {rest} more" if rest > 0 else ""),)


def _kernel_table(table: KernelTable, top: int | None, full_names: bool) -> Table:
    columns = (
        Column("kernel", "left"),
        Column("% of time"),
        Column("total ms"),
        Column("instances"),
        Column("avg us"),
        Column("role", "left"),
        Column("library", "left"),
        Column("dtype", "left"),
        Column("arch", "left"),
        *(Column(title) for title in _SPREAD),
        Column("source file", "left", is_optional=True),
    )
    first, rest = table.top(top)
    rows = [_kernel_row(row, full_names) for row in first]
    if rest:
        rows.append((TableCell(rest.key, "muted"), *_numbers(rest), *(NOTHING,) * 10))
    caption = f"% of the time of all kernels; dtype: the narrowest that the name mentions; {GUESS} a guess"
    return Table("Kernels", columns, tuple(rows), caption=caption)


def _kernel_row(row: KernelRow, full_names: bool) -> tuple[TableCell, ...]:
    known = row.attribution
    library = TableCell(known.library + GUESS * known.is_guess, "muted" if known.is_guess else "")
    return (
        TableCell(row.name if full_names else row.short_name),
        TableCell(f"{row.share:.1%}"),
        TableCell(_ms(row.total_ns)),
        TableCell(str(row.instances)),
        TableCell(microseconds(row.average_ns / 1e3)),
        TableCell(known.role.value),
        library,
        _or_nothing(known.dtype),
        _or_nothing(known.architecture),
        *(_us(value) for value in (row.median_ns, row.min_ns, row.max_ns, row.stddev_ns)),
        _or_nothing(known.source_file),
    )


def _memory_table(table: KernelTable) -> Table:
    columns = (
        Column("operation", "left"),
        Column("total ms"),
        Column("instances"),
        Column("avg us"),
        Column("MB"),
        Column("GB/s"),
    )
    rows = tuple(
        (
            TableCell(row.name),
            TableCell(_ms(row.total_ns)),
            TableCell(str(row.instances)),
            TableCell(microseconds(row.average_ns / 1e3)),
            TableCell(f"{row.bytes / 1e6:.1f}") if row.bytes else NOTHING,
            TableCell(f"{row.bytes / row.total_ns:.1f}") if row.bytes and row.total_ns else NOTHING,
        )
        for row in table.memory
    )
    return Table("Copies and memsets", columns, rows, caption="not part of the kernels' 100 %")


def _totals(title: str, totals: Sequence[Total], table: KernelTable) -> Table:
    columns = (Column(title, "left"), Column("% of time"), Column("total ms"), Column("instances"), Column("kernels"))
    rows = [(TableCell(total.key), *_numbers(total), TableCell(str(total.names))) for total in totals]
    whole = Total(
        "all kernels",
        float(bool(totals)),
        table.total_ns,
        sum(total.instances for total in totals),
        sum(total.names for total in totals),
    )
    rows.append((TableCell(whole.key, "muted"), *_numbers(whole), TableCell(str(whole.names))))
    return Table(f"By {title}", columns, tuple(rows))


def _finding_table(found: Sequence[Finding]) -> Table:
    columns = (
        Column("finding", "left"),
        Column("severity", "left"),
        Column("what", "left"),
        Column("evidence", "left"),
    )
    rows = tuple(
        (
            TableCell(each.kind, _EMPHASIS[each.severity]),
            TableCell(each.severity.value),
            TableCell(each.what),
            TableCell(_evidence(each)),
        )
        for each in found
    )
    return Table("Findings", columns, rows, caption="the advice for each kind stands below", key_columns=2)


def _evidence(finding: Finding) -> str:
    """total ms 8894.7, kernels 10, ...: without the share of the time, which stands in `what`."""
    items = [(label, value) for label, value in finding.evidence.items() if not label.startswith("share of")]
    return ", ".join(f"{label} {value if isinstance(value, str) else _figure(value)}" for label, value in items)


def _figure(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def _once(found: Sequence[Finding]) -> list[Finding]:
    """The first finding of each kind: its advice holds for the others."""
    return list({each.kind: each for each in reversed(found)}.values())[::-1]


def _numbers(total: Total) -> tuple[TableCell, ...]:
    return TableCell(f"{total.share:.1%}"), TableCell(_ms(total.total_ns)), TableCell(str(total.instances))


def _kernels(count: int) -> str:
    return counted(count, "kernel")


def _ms(nanoseconds: float) -> str:
    return milliseconds(nanoseconds, fine_below=100)


def _us(nanoseconds: float | None) -> TableCell:
    return NOTHING if nanoseconds is None else TableCell(microseconds(nanoseconds / 1e3))


def _or_nothing(text: str | None) -> TableCell:
    return TableCell(text) if text else NOTHING
