"""A Ranking as two tables: solutions over all workloads, and every workload by itself."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from kernelderby.catalog.selection import SCORED
from kernelderby.catalog.workloads import FRESH
from kernelderby.rank.model import NOT_MEASURED, Cell, Ranking, Summary, WorkloadRow
from kernelderby.report.model import NOT_KNOWN, Column, Report, Row, Table, TableCell, cell_of, right
from kernelderby.report.numbers import factor, microseconds, milliseconds, short_percent
from kernelderby.statistics.ratio import Ratio

OUTDATED, SUSPICIOUS, TIED, UNPAIRED = "†", "!", "=", "~"


def ranking_report(ranking: Ranking) -> Report:
    return Report(
        title=ranking.definition + ("" if ranking.origin in (None, *SCORED) else f", origin {ranking.origin}"),
        facts=_facts(ranking),
        tables=(_summary_table(ranking), _workload_table(ranking)),
        notes=ranking.notes,
    )


def _facts(ranking: Ranking) -> tuple[str, ...]:
    first, last = ranking.measured_from[:10], ranking.measured_to[:10]
    parts = [ranking.group.gpu, f"protocol {ranking.group.protocol}"]
    if ranking.time != "eager":
        parts.append(f"{ranking.time} time")
    parts.append(f"measured {first}" if first == last else f"measured {first} to {last}")
    for name, values in ranking.environment.items():
        if values:
            parts.append(f"{name} {', '.join(values)}")
    return (" · ".join(parts),)


def _summary_table(ranking: Ranking) -> Table:
    weight = "weighted by importance" if ranking.is_weighted else "all workloads alike"
    is_fair, is_drawn = _is_fair(ranking), ranking.origin == FRESH  # totals of drawn sizes mean nothing
    totals = (Column(title, is_optional=True) for title in ("total ms", "total vs baseline"))
    columns = (
        Column("#"),
        Column("solution", "left"),
        *right("passed", "time vs baseline geomean [95 %]"),
        *(right("best vs baseline", "worst vs baseline") if is_drawn else totals),
        Column("win tie loss vs baseline"),
        *(Column(title, is_optional=True) for title in ("win rate", "fastest on")),
        Column("S"),
        Column("S fair" if is_fair else "S total", is_optional=True),
    )
    return Table(
        title=f"Over all workloads (baseline {ranking.baseline or 'none'}; {weight})",
        columns=columns,
        rows=(_summary_row(ranking, summary, is_fair) for summary in ranking.summaries),
        key_columns=2,
        caption="Ratios: below 1 is faster, over the workloads that both passed; total: of those passed. "
        "S: floor over time, the median." + (" S fair: reachable time over time, geomean." if is_fair else ""),
    )


def _is_fair(ranking: Ranking) -> bool:
    """Whether there is a fair score: rows of protocol 2 know the time of an empty kernel."""
    return any(summary.fair_geomean is not None for summary in ranking.summaries)


def _summary_row(ranking: Ranking, summary: Summary, is_fair: bool) -> Row:
    if summary.passed == 0:
        (only,) = summary.failures if len(summary.failures) == 1 else ("nothing passed",)
        status = only if only in (NOT_MEASURED, f"no {ranking.time} time") else "nothing passed"
        start = (None, summary.solution, TableCell(f"0/{summary.workloads}", "bad"))
        return (*start, TableCell(status, "bad"), *(None,) * 7)
    is_baseline = summary.solution == ranking.baseline
    total = milliseconds((summary.total_us or 0) * 1e3, fine_below=inf)
    totals = (total, "1" if is_baseline else cell_of(summary.total_ratio, factor))
    return (
        summary.place,
        TableCell(summary.solution, "best" if summary.place == 1 else ""),
        TableCell(f"{summary.passed}/{summary.workloads}", "" if summary.is_complete else "bad"),
        "1 (baseline)" if is_baseline else cell_of(summary.geomean, interval),
        *(_ends(ranking, summary.solution) if ranking.origin == FRESH else totals),
        None if summary.geomean is None else f"{summary.wins} {summary.ties} {summary.losses}",
        cell_of(summary.win_rate, "{:.0%}".format),
        summary.fastest_on,
        share_cell(summary.share),
        share_cell(summary.fair_geomean if is_fair else summary.share_total),
    )


def _ends(ranking: Ranking, solution: str) -> Row:
    """The smallest and largest ratio to the baseline over the workloads."""
    ratios = [cell.ratio.value for row in ranking.rows if (cell := row.cells[solution]).ratio]
    return (factor(min(ratios)), factor(max(ratios))) if ratios else (None, None)


def _workload_table(ranking: Ranking) -> Table:
    axes = _common_axes([row.label for row in ranking.rows])
    weight = ("importance",) if ranking.is_weighted else ()
    columns = (
        Column(", ".join(axes) or "workload", "right" if len(axes) == 1 else "left"),
        *right(*weight, "floor us", *ranking.order, "second over first [95 %]"),
    )
    return Table(
        title=f"Each workload: median us, and time over that of {ranking.baseline or 'no baseline'}",
        columns=columns,
        rows=(_workload_row(ranking, row, bare=bool(axes)) for row in ranking.rows),
        caption=_legend(ranking),
        key_columns=3 if ranking.is_weighted else 2,
    )


def _common_axes(labels: Sequence[str]) -> tuple[str, ...]:
    """The axes that every label names, "m=349, n=2048". They go into the column's title, and the rows have the sizes
    only."""
    named = {tuple(part.partition("=")[0] for part in label.split(", ")) for label in labels}
    plain = all(part.count("=") == 1 and " " not in part for label in labels for part in label.split(", "))
    return named.pop() if plain and len(named) == 1 else ()


def _legend(ranking: Ranking) -> str:
    regimes = sorted({row.regime for row in ranking.rows if row.regime})
    parts = [f"{regime[0].upper()} floor set by {regime}" for regime in regimes]
    parts.append(f"{TIED} tie (the interval holds 1)")
    if ranking.time != "eager":
        parts.append("in brackets: eager time")
    cells = [cell for row in ranking.rows for cell in row.cells.values()]
    if any(cell.outdated for cell in cells):
        parts.append(f"{OUTDATED} outdated sources")
    if any(cell.too_good for cell in cells):
        parts.append(f"{SUSPICIOUS} faster than the floor allows")
    if any(row.margin and row.margin.interval == "unpaired" for row in ranking.rows):
        parts.append(f"{UNPAIRED} unpaired interval")
    return "; ".join(parts)


def _workload_row(ranking: Ranking, row: WorkloadRow, *, bare: bool) -> Row:
    label = ", ".join(part.partition("=")[2] for part in row.label.split(", ")) if bare else row.label
    has_floor = row.floor_us is not None and row.regime
    floor = f"{_floor(row.floor_us or 0)} {(row.regime or '?')[0].upper()}" if has_floor else "n/a"
    weight = (f"{row.importance:g}",) if ranking.is_weighted else ()
    times = (_measured(row.cells[name], name == row.fastest) for name in ranking.order)
    return (label, *weight, TableCell(floor, "muted"), *times, cell_of(row.margin, interval))


def _floor(value: float) -> str:
    """Like a measured time, but with two digits below 0.1 us."""
    return microseconds(value) if value >= 0.1 else f"{value:.2g}"


def _measured(cell: Cell, is_fastest: bool) -> TableCell:
    marks = (OUTDATED if cell.outdated else "") + (SUSPICIOUS if cell.too_good else "")
    if cell.latency_us is None:
        beside = "" if cell.eager_us is None else f" ({microseconds(cell.eager_us)})"
        return TableCell(cell.status + marks + beside, "muted" if cell.status == NOT_MEASURED else "bad")
    text = microseconds(cell.latency_us) + marks
    if cell.ratio is not None:
        text += f" {factor(cell.ratio.value)}"
    if cell.eager_us is not None:
        text += f" ({microseconds(cell.eager_us)})"
    return TableCell(text, "bad" if marks else "best" if is_fastest else "")


def interval(ratio: Ratio) -> str:
    """1.314 [1.309, 1.320]; = a tie, ~ an unpaired interval."""
    marks = (UNPAIRED if ratio.interval == "unpaired" else "") + (TIED if ratio.is_tie else "")
    between = ""
    if ratio.low is not None and ratio.high is not None:
        between = f" [{factor(ratio.low, 3)}, {factor(ratio.high, 3)}]"
    return f"{factor(ratio.value, 3)}{between}" + (f" {marks}" if marks else "")


def share_cell(value: float | None) -> TableCell:
    return NOT_KNOWN if value is None else TableCell(short_percent(value))
