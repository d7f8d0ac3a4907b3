"""Every race in the rows, by definition, GPU, protocol and the three kinds of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from kernelderby.catalog import Solution, Workload
from kernelderby.catalog.selection import by_origin
from kernelderby.page.environments import Environments, clocks_in_words
from kernelderby.page.model.page import KINDS
from kernelderby.page.model.races import ShownCell, ShownLead, ShownOrder, ShownRace, ShownRow, ShownStanding, ShownTime
from kernelderby.page.operators import flops_per_second
from kernelderby.page.text import interval, rounded, words
from kernelderby.rank.model import NOT_MEASURED, Cell, Ranking, Summary
from kernelderby.rank.ranking import rank
from kernelderby.report.ranking.notes import notes
from kernelderby.roofline import selection
from kernelderby.roofline.floors import operator_fair_share, operator_share
from kernelderby.roofline.selection import CountedRow, GroupKey
from kernelderby.rows.measurement import Measurement, Rounds
from kernelderby.statistics.ratio import Ratio

Samples = dict[str, Rounds]  # by the kind of time
Rows = Mapping[tuple[str, str], CountedRow]


def races_of(
    definition: str,
    rows: Sequence[Measurement],
    workloads: Sequence[Workload],
    solutions: Mapping[str, Solution],
    environments: Environments,
    has_samples: bool = True,
) -> list[tuple[ShownRace, list[list[Samples]]]]:
    """rows: the definition's rows. workloads: in the page's order. As in `derby rank`, every origin of workloads has
    its own race. The default races of a GPU come before its others, the survey's before those of other origins. Each
    race comes with its raw samples, workload by workload and solution by solution."""
    found = []
    places = {workload.uuid: place for place, workload in enumerate(workloads)}
    for part in by_origin(workloads):
        others = set(places) - {workload.uuid for workload in part}
        own, elsewhere = list[Measurement](), list[Measurement]()
        for row in rows:
            (elsewhere if row.uuid in others else own).append(row)
        shapes = tuple(places[workload.uuid] for workload in part)
        found += _races_of_part(definition, own, elsewhere, part, shapes, solutions, environments, has_samples)
    return sorted(found, key=lambda each: not each[0].is_default)


def _races_of_part(
    definition: str,
    rows: Sequence[Measurement],
    elsewhere: Sequence[Measurement],
    workloads: Sequence[Workload],
    shapes: tuple[int, ...],
    solutions: Mapping[str, Solution],
    environments: Environments,
    has_samples: bool,
) -> list[tuple[ShownRace, list[list[Samples]]]]:
    known = {workload.uuid for workload in workloads}
    groups = selection.group_rows(rows)
    found = []
    for gpu in dict.fromkeys(key.gpu for key in groups):
        default = selection.choose_group(groups, gpu, None)
        for key in sorted((each for each in groups if each.gpu == gpu), key=lambda each: each != default):
            orders = {
                kind: rank(
                    *(rows, definition, workloads, solutions),
                    gpu=gpu,
                    protocol=key.protocol,
                    time=kind,
                    noted=notes,
                    elsewhere=elsewhere,
                )
                for kind in KINDS
                if any(row.time(kind) for row in groups[key]) or kind == "eager"
            }
            chosen = selection.newest_rows(groups[key], solutions)
            counting = (each.measurement for (_, uuid), each in chosen.items() if uuid in known)
            usual = orders[selection.time_kind(counting, plain=selection.plain_torch(solutions))]
            if usual.order:
                race = _race(key, usual, orders, workloads, shapes, chosen, key == default, environments)
                samples = [[_samples(chosen.get((name, row.uuid))) for name in usual.order] for row in usual.rows]
                found.append((race, samples if has_samples else []))
    return found


def _race(
    key: GroupKey,
    usual: Ranking,
    orders: Mapping[str, Ranking],
    workloads: Sequence[Workload],
    shapes: tuple[int, ...],
    chosen: Rows,
    is_default: bool,
    environments: Environments,
) -> ShownRace:
    names = usual.order
    cells = tuple(
        tuple(_cell(name, place, workload, orders, chosen, environments) for name in names)
        for place, workload in enumerate(workloads)
    )
    return ShownRace(
        words(usual.definition),
        key.gpu,
        words(key.protocol),
        is_default,
        words(usual.origin or ""),
        shapes,
        usual.measured_from,
        usual.measured_to,
        tuple(map(words, usual.environment.get("driver", ()))),
        tuple(map(words, usual.environment.get("commit", ()))),
        tuple(map(words, names)),
        usual.time,
        {kind: _order(ranking, names) for kind, ranking in orders.items()},
        cells,
    )


def _samples(chosen: CountedRow | None) -> Samples:
    times = {kind: chosen.measurement.time(kind) for kind in KINDS} if chosen else {}
    return {kind: tuple(time.samples_us) for kind, time in times.items() if time and time.samples_us}


def _cell(
    name: str, place: int, workload: Workload, orders: Mapping[str, Ranking], chosen: Rows, environments: Environments
) -> ShownCell:
    cells = {kind: ranking.rows[place].cells[name] for kind, ranking in orders.items()}
    times = tuple(_time(cells.get(kind), orders.get(kind), place, workload) for kind in KINDS)
    row = chosen[name, workload.uuid].measurement if (name, workload.uuid) in chosen else None
    if row is None:
        return ShownCell(NOT_MEASURED, times, (), "", "", "", None, None, None, None, -1, "")
    eager = cells["eager"]
    too_good = any(cell.too_good for cell in cells.values())
    marks = [mark for mark, holds in (("outdated", eager.outdated), ("too good", too_good)) if holds]
    correct = row.correctness
    return ShownCell(
        eager.status,
        times,
        tuple(marks),
        words(row.message or row.graph_missing)[:400],
        row.timestamp,
        words(row.solution_hash or ""),
        rounded(row.host_us),
        rounded(row.wall_us),
        rounded(min(correct.matched_ratio.values())) if correct and correct.matched_ratio else None,
        rounded(correct.relative_error_norm) if correct and isfinite(correct.relative_error_norm) else None,
        environments.place(row),
        clocks_in_words(row),
    )


def _time(cell: Cell | None, ranking: Ranking | None, place: int, workload: Workload) -> ShownTime | None:
    if cell is None or ranking is None or cell.latency_us is None:
        return None
    low, high = _whisker(ranking, place, cell.ratio)
    return ShownTime(
        rounded(cell.latency_us),
        low,
        high,
        interval(cell.ratio),
        rounded(cell.share_of_floor),
        rounded(cell.fair_share),
        flops_per_second(workload.cost, cell.latency_us),
    )


def _whisker(ranking: Ranking, place: int, ratio: Ratio | None) -> tuple[float | None, float | None]:
    """The ratio's interval as times: the baseline's time on this workload multiplied by both ends."""
    base = ranking.rows[place].cells[ranking.baseline].latency_us if ranking.baseline else None
    if base is None or ratio is None or ratio.low is None or ratio.high is None:
        return None, None
    return rounded(base * ratio.low), rounded(base * ratio.high)


def _order(ranking: Ranking, names: Sequence[str]) -> ShownOrder:
    places = {name: place for place, name in enumerate(names)}
    fastest = [row.cells[row.fastest] if row.fastest else None for row in ranking.rows]
    shares = [cell.share_of_floor if cell else None for cell in fastest]
    share = operator_share(shares)
    fair = operator_fair_share([cell.fair_share if cell else None for cell in fastest])
    return ShownOrder(
        kind=ranking.time,
        baseline=words(ranking.baseline) if ranking.baseline else None,
        standings=tuple(_standing(summary) for summary in ranking.summaries),
        rows=tuple(
            ShownRow(
                places[row.fastest] if row.fastest else None,
                places[row.second] if row.second else None,
                interval(row.margin),
            )
            for row in ranking.rows
        ),
        lead=_lead(ranking),
        share=rounded(share.measured),
        fair=rounded(fair.measured),
        with_share=share.shapes,
        middle=shares.index(share.measured) if share.measured is not None else None,
        notes=tuple(map(words, ranking.notes)),
    )


def _standing(summary: Summary) -> ShownStanding:
    return ShownStanding(
        words(summary.solution),
        words(summary.author),
        summary.place,
        summary.passed,
        interval(summary.geomean),
        rounded(summary.total_us),
        summary.wins,
        summary.ties,
        summary.losses,
        summary.fastest_on,
        summary.failures,
    )


def _lead(ranking: Ranking) -> ShownLead | None:
    lead = ranking.lead
    if lead is None:
        return None
    ratio: Any = interval(lead.ratio)
    second = words(next(iter(lead.libraries)))
    return ShownLead(second, len(lead.libraries), ratio, lead.wins, lead.ties, lead.losses, lead.workloads)
