"""Makes a Ranking from recorded rows. Without torch, so it runs on any laptop that has the traces."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median_high
from typing import Any

from kernelderby.catalog import Solution, Workload
from kernelderby.catalog.selection import shortest_labels
from kernelderby.errors import DerbyError
from kernelderby.hardware import find_gpu
from kernelderby.rank.input import RankingInput, ranking_input
from kernelderby.rank.lead import Lead, lead_of, of_present_code, strongest_library
from kernelderby.rank.model import NOT_MEASURED, PASSED, CallerChoices, Cell, Noted, Pair, Ranking, Summary, WorkloadRow
from kernelderby.rank.order import order, order_dependences, slowdowns
from kernelderby.rank.pairs import PairComparisons, compare
from kernelderby.roofline import selection
from kernelderby.roofline.floors import fair_share, share_of_floor
from kernelderby.rows.measurement import Measurement, Status
from kernelderby.statistics.means import geometric_mean
from kernelderby.statistics.ratio import Ratio
from kernelderby.store.counts import counted

TOO_GOOD = 0.9  # a latency below this share of the floor means an error in the measurement or in the cost


def rank(
    measurements: Iterable[Measurement],
    definition: str,
    workloads: Sequence[Workload],
    solutions: Mapping[str, Solution],
    *,
    gpu: str | None = None,
    protocol: str | None = None,
    baseline: str | None = None,
    only: Collection[str] | None = None,
    time: str | None = None,
    noted: Noted | None = None,
    told_apart: Sequence[Workload] = (),
    elsewhere: Iterable[Measurement] = (),
) -> Ranking:
    """Ranks the solutions of one definition on one GPU under one protocol, by one kind of time: `time`, or the one that
    selection.time_kind chooses.

    measurements: rows of any definition; rows of other definitions are skipped. solutions: all solutions of the
    definition in the set; `only` narrows them. gpu, protocol: see selection.choose_group. baseline: see
    docs/scoring.md. noted: writes the notes, such as report.ranking.notes. told_apart: the workloads that labels tell
    apart, where more than the ranked ones. elsewhere: the definition's rows on workloads of other origins, which also
    say which library is the strongest. DerbyError: no rows at all, an unknown GPU or protocol, or a baseline that
    passed nothing there.
    """
    measurements = [row for row in measurements if row.definition == definition]
    groups = selection.group_rows(measurements)
    if not groups:
        raise DerbyError(f"traces/: no row of {definition}; measure it with `derby bench`")
    key = selection.choose_group(groups, gpu, protocol)
    rows = groups[key]
    contenders = {name: each for name, each in solutions.items() if only is None or name in only}
    importance = {workload.uuid: _importance(workload) for workload in workloads}
    data = ranking_input(rows, workloads, contenders, find_gpu(rows[0].gpu), time, importance)
    slowdown = slowdowns(data.times, data.importance)
    ordered = order(data.times, data.importance, slowdown, data.asked, slowdowns(data.eager, data.importance))
    by_eager = order(data.eager, data.importance, asked=data.asked)
    if baseline is not None and not data.times.get(baseline):
        raise DerbyError(
            f"--baseline: {baseline} passed no workload on {rows[0].gpu} under {key.protocol}; "
            f"those that did: {', '.join(name for name in ordered if data.times[name]) or 'none'}"
        )
    reference = baseline or next((name for name in ordered if data.times[name]), None)
    compared = compare(data, ordered, reference)
    labels = shortest_labels(told_apart or data.workloads)
    table = tuple(_row(data, workload, ordered, compared, labels[workload.uuid]) for workload in data.workloads)
    chosen = sorted((each.measurement for each in data.chosen.values()), key=lambda row: row.moment)
    moments = [row.timestamp for row in chosen]
    not_measured = tuple(sorted(name for name in contenders if name not in data.times))
    summaries = _summaries(data, (*ordered, *not_measured), reference, compared.pairs, table, contenders, slowdown)
    ranking = Ranking(
        definition=definition,
        group=selection.describe_group(key, rows),
        other_groups=tuple(selection.describe_group(other, groups[other]) for other in sorted(groups) if other != key),
        measured_from=moments[0] if moments else "",
        measured_to=moments[-1] if moments else "",
        environment=_environment(data),
        baseline=reference,
        is_weighted=any(workload.importance is not None for workload in data.workloads),
        order=ordered,
        rows=table,
        summaries=summaries,
        pairs=tuple(compared.pairs.values()),
        order_dependences=order_dependences(data.times, data.importance, ordered, data.asked),
        not_measured=not_measured,
        no_floor_reason=_no_floor_reason(data, rows[0].gpu),
        time=data.kind,
        eager_order=by_eager if data.kind != "eager" and by_eager != ordered else (),
        origin=_origin(workloads),
        lead=_lead(data, ordered, contenders, [*rows, *selection.group_rows(elsewhere).get(key, ())]),
    )
    if noted is None:
        return ranking
    asked = CallerChoices(
        gpu=gpu is not None, protocol=protocol is not None, baseline=baseline is not None, time=time is not None
    )
    return replace(ranking, notes=noted(ranking, rows, data.chosen, solutions, asked))


def _lead(
    data: RankingInput, ordered: Sequence[str], solutions: Mapping[str, Solution], every: Sequence[Measurement]
) -> Lead | None:
    """The lead of the author of the first solution that passed anything, without the workloads on which a time that
    counts is of former code, or the strongest library was not measured. None if that author is plain torch, which is
    nobody's rival. every: the rows of the operator, on workloads of all origins."""
    first = next((name for name in ordered if data.times[name]), None)
    if first is None or solutions[first].author == selection.BASELINE_AUTHOR:
        return None
    best: dict[str, dict[str, tuple[float, str]]] = {}
    for name, own in data.times.items():
        for uuid, time_us in own.items():
            of_shape, author = best.setdefault(uuid, {}), solutions[name].author
            of_shape[author] = min(of_shape.get(author, (time_us, name)), (time_us, name))
    rows = {
        uuid: {author: data.chosen[name, uuid].measurement for author, (_, name) in of_shape.items()}
        for uuid, of_shape in best.items()
    }
    author = solutions[first].author
    strongest = strongest_library(author, selection.newest_rows(every, solutions), solutions)
    raced = {uuid for name, uuid in data.chosen if name in solutions and solutions[name].author == strongest}
    for uuid, of_shape in best.items():
        if strongest and uuid not in raced:
            rows[uuid] = {}
            continue
        former = {who for who, (_, name) in of_shape.items() if data.chosen[name, uuid].outdated}
        rows[uuid] = of_present_code(author, rows[uuid], data.kind, former)
    return lead_of(author, rows, data.kind, data.importance)


def _origin(workloads: Sequence[Workload]) -> str | None:
    origins = {workload.origin for workload in workloads}
    return origins.pop() if len(origins) == 1 else None


def _importance(workload: Workload) -> float:
    value = 1.0 if workload.importance is None else workload.importance
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise DerbyError(f"workloads/: {workload.uuid}: importance: {value!r} is no positive number; mend or remove it")
    return float(value)


def _row(
    data: RankingInput, workload: Workload, ordered: Sequence[str], compared: PairComparisons, label: str
) -> WorkloadRow:
    uuid = workload.uuid
    passed = sorted((name for name in ordered if uuid in data.times[name]), key=lambda name: data.times[name][uuid])
    fastest, second = (*passed, None, None)[:2]
    floor = data.floors(workload, fastest)
    return WorkloadRow(
        uuid=uuid,
        label=label,
        axes=dict(workload.axes),
        importance=data.importance[uuid],
        floor_us=floor.floor_us if floor else None,
        regime=floor.regime if floor else None,
        cells={name: _cell(data, name, workload, compared.over_baseline.get((name, uuid))) for name in ordered},
        fastest=fastest,
        second=second,
        margin=compared.margins.get(uuid),
    )


def _cell(data: RankingInput, solution: str, workload: Workload, ratio: Ratio | None) -> Cell:
    uuid = workload.uuid
    chosen = data.chosen.get((solution, uuid))
    if chosen is None:
        return Cell(NOT_MEASURED)
    row, latency_us = chosen.measurement, data.times[solution].get(uuid)
    floor = data.floors(workload, solution)
    share = share_of_floor(floor.floor_us, latency_us) if latency_us is not None and floor else None
    if row.status is Status.PASSED and latency_us is None:
        return Cell(
            f"no {data.kind} time",
            eager_us=data.eager[solution].get(uuid),
            outdated=chosen.outdated,
            timestamp=row.timestamp,
            message=row.graph_missing,
        )
    fair_us = data.fair_floor_us(workload, selection.empty_kernel_us(row, data.kind), solution in data.in_place)
    return Cell(
        status=in_words(row.status),
        latency_us=latency_us,
        eager_us=data.eager[solution].get(uuid) if data.kind != "eager" else None,
        fair_share=fair_share(fair_us, latency_us),
        ratio=ratio,
        share_of_floor=share,
        outdated=chosen.outdated,
        too_good=share is not None and share * TOO_GOOD > 1,
        timestamp=row.timestamp,
        message=row.message,
    )


def in_words(status: Status) -> str:
    return status.value.replace("_", " ")


def _summaries(
    data: RankingInput,
    names: Sequence[str],
    baseline: str | None,
    pairs: dict[tuple[str, str], Pair],
    table: Sequence[WorkloadRow],
    contenders: Mapping[str, Solution],
    slowdown: Mapping[str, float],
) -> tuple[Summary, ...]:
    """names: the solutions in their order, then the solutions without a row."""
    fastest_on = Counter(row.fastest for row in table if row.margin is not None and not row.margin.is_tie)
    found = []
    for place, name in enumerate(names, start=1):
        times = data.times.get(name, {})
        cells = {row.uuid: row.cells.get(name, Cell(NOT_MEASURED)) for row in table}
        statuses = Counter(cell.status for cell in cells.values())
        shares = {uuid: cell.share_of_floor for uuid, cell in cells.items() if cell.share_of_floor is not None}
        total = sum(times[uuid] for uuid in shares)
        fair = {uuid: cell.fair_share for uuid, cell in cells.items() if cell.fair_share is not None}
        found.append(
            Summary(
                solution=name,
                author=contenders[name].author,
                place=place if times else None,
                passed=len(times),
                workloads=len(data.workloads),
                failures={status: count for status, count in sorted(statuses.items()) if status != PASSED},
                outdated=sum(cell.outdated for cell in cells.values()),
                slowdown=slowdown.get(name),
                total_us=sum(times.values()) if times else None,
                fastest_on=fastest_on[name],
                share=median_high(shares.values()) if shares else None,
                share_total=sum(share * times[uuid] for uuid, share in shares.items()) / total if shares else None,
                fair_geomean=geometric_mean(list(fair.values()), [data.importance[uuid] for uuid in fair])
                if fair
                else None,
                **_against_baseline(name, baseline, pairs),
            )
        )
    return tuple(found)


def _against_baseline(name: str, baseline: str | None, pairs: dict[tuple[str, str], Pair]) -> dict[str, Any]:
    """The fields of Summary that compare with the baseline. Takes them from the pair, in whichever order it has the
    two."""
    pair = pairs.get((baseline or "", name))
    if pair is None and (found := pairs.get((name, baseline or ""))):
        pair = found.swapped()
    if pair is None:
        nothing = {"common": 0, "geomean": None, "total_ratio": None}
        return {**nothing, "wins": 0, "ties": 0, "losses": 0, "win_rate": None}
    return {
        "common": pair.workloads,
        "geomean": pair.geomean,
        "total_ratio": pair.total,
        "wins": pair.losses,
        "ties": pair.ties,
        "losses": pair.wins,
        "win_rate": pair.losses / pair.workloads,
    }


def _environment(data: RankingInput) -> dict[str, tuple[str, ...]]:
    drivers, commits = set(), set()
    for chosen in data.chosen.values():
        found = chosen.measurement.environment
        if found.get("driver"):
            drivers.add(str(found["driver"]))
        if found.get("commit"):
            commits.add(found["commit"][:10] + (" with changes" if found.get("dirty") else ""))
    return {"driver": tuple(sorted(drivers)), "commit": tuple(sorted(commits))}


def _no_floor_reason(data: RankingInput, gpu: str) -> str | None:
    """Why some or all workloads have no floor; None if all have one."""
    if gpu == "CPU":
        return "no peaks of a CPU are known"
    if find_gpu(gpu) is None:
        return f"the peaks of {gpu} are unknown; describe it under kernelderby/hardware/gpus/"
    without = [workload for workload in data.workloads if data.floors(workload, None) is None]
    if any(workload.cost is None for workload in without):
        return (
            f"{len(without)} of {counted(len(data.workloads), 'workload carries', 'workloads carry')} no cost; "
            "run `derby pack`"
        )
    return (
        f"{gpu} has no peak for a dtype of {counted(len(without), 'workload')}; see its file's source"
        if without
        else None
    )
