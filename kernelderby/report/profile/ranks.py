"""Several profiles or ranks of one job side by side, kernel by kernel: one column each, the spread, the slowest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelderby.profile.kernels.summary import KernelTable
from kernelderby.profile.names import short_name
from kernelderby.report.model import Column, Report, Row, Table, cell_of, left, right
from kernelderby.report.numbers import milliseconds
from kernelderby.store.counts import counted


@dataclass(frozen=True, slots=True)
class RankRow:
    """times_ns: one per profile, None without such a kernel. spread: how far the smallest is below the largest, as a
    share of the largest. slowest: the profile with the largest."""

    kernel: str
    library: str
    role: str
    times_ns: tuple[float | None, ...]
    spread: float
    slowest: str


def rank_rows(tables: Sequence[KernelTable]) -> list[RankRow]:
    """One row per kernel name, the largest sum first."""
    names = profile_names([table.path for table in tables])
    found: dict[str, list[float | None]] = {}
    about: dict[str, tuple[str, str]] = {}
    for place, table in enumerate(tables):
        for row in table.rows:
            times = found.setdefault(row.name, [None] * len(tables))
            times[place] = row.total_ns
            about[row.name] = row.library, row.role.value
    rows = []
    for name, times in found.items():
        known = [time or 0.0 for time in times]
        most = max(known)
        spread = (most - min(known)) / most if most else 0.0
        rows.append(RankRow(name, *about[name], tuple(times), spread, names[known.index(most)]))
    return sorted(rows, key=lambda row: (-sum(time or 0.0 for time in row.times_ns), row.kernel))


def profile_names(paths: Sequence[Path | str]) -> list[str]:
    """The profiles' names: file names, or paths if two file names are equal."""
    names = [Path(path).name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def labels(names: Sequence[str]) -> list[str]:
    """The distinguishing part of each name, if one part suffices: worker0_step_12.1694.pt.trace.json ... -> worker0
    ..."""
    parts = [re.split(r"([-._/\\]+)", name) for name in names]
    if len(names) < 2 or len({len(each) for each in parts}) > 1:
        return list(names)
    for place in range(0, len(parts[0]), 2):
        found = ["".join(each[max(0, place - 2 * each[place].isdigit()) : place + 1]) for each in parts]
        if len(set(found)) == len(names) and all(found):
            return found
    return list(names)


def ranks_report(tables: Sequence[KernelTable], top: int | None) -> Report:
    names = profile_names([table.path for table in tables])
    short = dict(zip(names, labels(names), strict=True))
    rows = rank_rows(tables)
    shown = rows[:top] if top else rows
    columns = (
        Column("kernel", "left"),
        *right(*(f"{short[name]} ms" for name in names), "spread"),
        *left("slowest", "role"),
    )
    lines: list[Row] = []
    for row in shown:
        times = (cell_of(time, milliseconds) for time in row.times_ns)
        lines.append((short_name(row.kernel), *times, f"{row.spread:.1%}", short[row.slowest], row.role))
    totals = [table.total_ns for table in tables]
    most = max(totals)
    spread = f"{(most - min(totals)) / most:.1%}" if most else "-"
    lines.append(("all kernels", *map(milliseconds, totals), spread, short[names[totals.index(most)]], ""))
    caption = "spread: how far the smallest is below the largest; a collective's time is mostly its wait for others"
    table = Table("Kernels side by side", columns, lines, caption)
    more = len(rows) - len(shown)
    return Report(
        title=f"{counted(len(tables), 'profile')} side by side",
        facts=(
            ", ".join(dict.fromkeys(table.gpu or "GPU not named" for table in tables)),
            *(f"{short[name]}: {name}" for name in names if short[name] != name),
        ),
        tables=(table,),
        notes=(counted(more, "more kernel"),) if more else (),
    )
