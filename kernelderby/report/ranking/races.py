"""Rankings as an answer: the tables of each (tables.py), or one table with a row for each race."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernelderby.catalog.selection import SCORED
from kernelderby.errors import DerbyError
from kernelderby.rank.model import Ranking
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, fields_of, picked
from kernelderby.report.leads import second_library
from kernelderby.report.model import Column, Report, Row, Table, TableCell, left
from kernelderby.report.numbers import factor
from kernelderby.report.ranking.tables import OUTDATED, TIED, ranking_report, share_cell
from kernelderby.store.counts import counted


def rankings_answer(
    rankings: Sequence[Ranking], warnings: Sequence[str] = (), by_shape: bool = True
) -> Answer[tuple[Ranking, ...]]:
    """Frames: solutions, one row per solution and definition; workloads, one row per solution and workload; pairs.
    by_shape: tables of every ranking instead of one table of all."""
    rankings = tuple(rankings)
    return Answer(
        rankings,
        lambda: {"rankings": rankings},
        lambda: [ranking_report(ranking) for ranking in rankings] if by_shape else [races_report(rankings)],
        lambda: _frames(rankings),
        tuple(warnings),
        lambda path: draw_race(rankings, path),
    )


def _frames(rankings: Sequence[Ranking]) -> tuple[Frame, ...]:
    return (
        Frame("solutions", (row for ranking in rankings for row in _solution_rows(ranking))),
        Frame("workloads", (row for ranking in rankings for row in _long_rows(ranking))),
        Frame("pairs", (_key(ranking) | fields_of(pair) for ranking in rankings for pair in ranking.pairs)),
    )


def _key(ranking: Ranking) -> dict[str, Any]:
    return picked(ranking, "definition", "origin") | {"gpu": ranking.group.gpu, "protocol": ranking.group.protocol}


def _solution_rows(ranking: Ranking) -> Iterator[dict[str, Any]]:
    for summary in ranking.summaries:
        row = fields_of(summary)
        yield _key(ranking) | {"rank": row.pop("place")} | row | {"baseline": ranking.baseline}


def _long_rows(ranking: Ranking) -> Iterator[dict[str, Any]]:
    for row in ranking.rows:
        workload = {
            **{"uuid": row.uuid, "workload": row.label},
            **{f"axes_{name}": size for name, size in row.axes.items()},  # as a frame names them, for all solutions
            **picked(row, "importance", "floor_us", "regime"),
        }
        for name in ranking.order:
            own = {"solution": name, "is_fastest": name == row.fastest}
            yield _key(ranking) | workload | own | fields_of(row.cells[name])


def races_report(rankings: Sequence[Ranking]) -> Report:
    """In the given order. Values that all rankings share are stated once above the table."""
    groups = {
        "GPU": [ranking.group.gpu for ranking in rankings],
        "protocol": [ranking.group.protocol for ranking in rankings],
        "time": [f"{ranking.time} time" for ranking in rankings],
    }
    same = [values[0] for values in groups.values() if len(set(values)) == 1]
    differing = {name: values for name, values in groups.items() if len(set(values)) > 1}
    columns = (
        *left("operator", "first", *differing),
        *(Column("lead"), Column("over", "left"), Column("S")),
        *(Column(title, is_optional=True) for title in ("win tie loss", "fastest on", "solutions")),
    )
    rows = []
    for place, ranking in enumerate(rankings):
        row = _row(ranking)
        rows.append((*row[:2], *(values[place] for values in differing.values()), *row[2:]))
    return Report(
        counted(len(rankings), "race"),
        (" · ".join(same),) if same else (),
        (Table("Who is first", columns, rows, caption=_caption(rankings), key_columns=2),),
        ("`derby rank OPERATOR` shows every shape with notes; --shapes shows the shapes of all operators",),
    )


def _row(ranking: Ranking) -> Row:
    operator = ranking.definition + ("" if ranking.origin in (None, *SCORED) else f", {ranking.origin}")
    passed = [summary for summary in ranking.summaries if summary.passed]
    if not passed:
        return operator, TableCell("nothing passed", "bad"), *(None,) * 6
    first, ahead, over, record = passed[0], None, None, None
    if lead := ranking.lead:
        ahead = f"{factor(lead.ratio.value)}{f' {TIED}' if lead.ratio.is_tie else ''}"
        over, record = second_library(lead), f"{lead.wins} {lead.ties} {lead.losses}"
    name = first.solution + (OUTDATED if first.outdated else "")
    fastest_on = f"{first.fastest_on}/{len(ranking.rows)}"
    return (operator, name, ahead, over, share_cell(first.share), record, fastest_on, len(passed))


def _caption(rankings: Sequence[Ranking]) -> str:
    parts = [
        "Lead: the best library's time on each shape over the best of the first one's author, geomean. Over: the "
        "library that is fastest on most shapes, and how many were raced. Win, tie, loss: by the 95 % interval of each "
        "shape. Fastest on: faster than every other solution, by the interval. S: floor over time, the median."
    ]
    if any(ranking.lead and ranking.lead.ratio.is_tie for ranking in rankings):
        parts.append(f"{TIED} a tie.")
    if any(ranking.summaries and ranking.summaries[0].outdated for ranking in rankings):
        parts.append(f"{OUTDATED} outdated sources.")
    return " ".join(parts)


def draw_race(rankings: Sequence[Ranking], path: Path) -> None:
    """One race: every workload, and every solution that passed at least one. Of one operator's races the first, on its
    published shapes if it has them (`--origin` names another)."""
    from kernelderby.report.scatter import lanes

    if len({(each.definition, each.group.gpu, each.group.protocol) for each in rankings}) != 1:
        raise DerbyError(f"--plot: a picture holds one race, and this is {len(rankings)}; name one with --definitions")
    ranking = rankings[0]
    rows: dict[str, dict[str, tuple[float, float, float]]] = {}
    for row in ranking.rows:
        base = row.cells[ranking.baseline].latency_us if ranking.baseline else None
        rows[row.label] = {}
        for name in ranking.order:
            cell = row.cells[name]
            if cell.latency_us is not None:
                ratio = cell.ratio
                low = high = cell.latency_us
                if ratio and base and ratio.low and ratio.high:
                    low, high = base * ratio.low, base * ratio.high
                rows[row.label][name] = (cell.latency_us, low, high)
    floors = {row.label: row.floor_us for row in ranking.rows if row.floor_us}
    title = f"{ranking.definition} on {ranking.group.gpu}, {ranking.time} time"
    lanes(rows, floors, path, title=title)
