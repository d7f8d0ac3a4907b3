"""The notes of a ranking, one sentence each: choices, rows left out, doubts, undecided places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from textwrap import shorten
from typing import Any

from kernelderby.catalog.workloads import FRESH
from kernelderby.rank.gpu_spread import CardSpread, spread
from kernelderby.rank.model import CallerChoices, Pair, Ranking, WorkloadRow
from kernelderby.report.roofline.notes import groups_told
from kernelderby.roofline.selection import CountedRow
from kernelderby.rows.measurement import FLASHINFER_BENCH_CUPTI, FLASHINFER_BENCH_EVENTS, Measurement
from kernelderby.statistics.ratio import Ratio
from kernelderby.store.counts import counted

NAMED_AT_MOST = 4  # workloads that one note spells out
_WITHOUT_INTERVAL = 0.05  # without samples, leads that differ by less count as equal
REASON = 100  # characters of the reason for a missing graph; a row has the whole text
_OF_FLASHINFER_BENCH = {
    FLASHINFER_BENCH_EVENTS: "flashinfer-bench's CUDA events hold the launch; it records one mean, no samples",
    FLASHINFER_BENCH_CUPTI: "flashinfer-bench's CUPTI takes the span of the kernels; it records one number, no samples",
}


def notes(
    ranking: Ranking,
    rows: Sequence[Measurement],
    chosen: Mapping[tuple[str, str], CountedRow],
    solutions: Mapping[str, Any],
    asked: CallerChoices,
) -> tuple[str, ...]:
    """One sentence each. rows: all rows of the ranked GPU and protocol. solutions: all solutions of the definition in
    the set."""
    return (
        *_choice(ranking, asked),
        *_times(ranking, asked, chosen),
        *_left_out(ranking, rows, solutions),
        *_provenance(ranking, rows, chosen),
        *_doubtful(ranking),
        *_undecided(ranking),
        *_missing(ranking),
    )


def _choice(ranking: Ranking, asked: CallerChoices) -> Iterator[str]:
    if ranking.other_groups:
        several = any(group.gpu != ranking.group.gpu for group in ranking.other_groups)
        reasons = ["the newest protocol"] * (not asked.protocol) + ["the most rows"] * (several and not asked.gpu)
        chosen = f"chosen for {' and '.join(reasons)}; " if reasons else ""
        others = groups_told(ranking.other_groups)
        yield f"{ranking.group.gpu} under {ranking.group.protocol}: {chosen}also recorded, not compared here: {others}"
    if ranking.baseline and not asked.baseline:
        yield f"baseline: {ranking.baseline}, the first in the order (--baseline names another)"


def _times(ranking: Ranking, asked: CallerChoices, chosen: Mapping[tuple[str, str], CountedRow]) -> Iterator[str]:
    """The compared kind of time, and what another kind would show."""
    rows = [each.measurement for each in chosen.values()]
    missing = {
        row.solution: shorten(row.graph_missing, REASON, placeholder=" ...") for row in rows if row.graph_missing
    }
    if ranking.time == "eager" and missing and not asked.time:
        listed = "; ".join(f"{name} ({reason})" for name, reason in sorted(missing.items()))
        yield f"ordered by eager time, since some have none as a CUDA graph: {listed}"
    without = Counter(
        name for row in ranking.rows for name, cell in row.cells.items() if cell.status == f"no {ranking.time} time"
    )
    if without:
        listed = "; ".join(
            f"{name} ({count} workload{'s'[: count > 1]}){f': {missing[name]}' if missing.get(name) else ''}"
            for name, count in sorted(without.items())
        )
        yield f"no {ranking.time} time: {listed}"
    if ranking.time == "eager":
        return
    if not asked.time:
        yield "ordered by the time as a CUDA graph; eager beside it (--time eager orders by that)"
    if ranking.eager_order:
        yield f"by eager time the order is another one: {', '.join(ranking.eager_order)}"
    differing = [row.label for row in ranking.rows if _fastest_eager(row) not in (None, row.fastest)]
    if differing:
        more = f" and {len(differing) - NAMED_AT_MOST} more" if len(differing) > NAMED_AT_MOST else ""
        yield f"another solution is fastest by eager time on {', '.join(differing[:NAMED_AT_MOST])}{more}"


def _fastest_eager(row: WorkloadRow) -> str | None:
    times = {name: cell.eager_us for name, cell in row.cells.items() if cell.eager_us is not None}
    return min(times, key=lambda name: times[name], default=None)


def _left_out(ranking: Ranking, rows: Sequence[Measurement], solutions: Mapping[str, Any]) -> Iterator[str]:
    known = {row.uuid for row in ranking.rows}
    gone = Counter(row.solution for row in rows if row.solution not in solutions)
    if gone:
        listed = ", ".join(f"{name} ({counted(count, 'row')})" for name, count in sorted(gone.items()))
        yield f"left out, no longer in the set: {listed}"
    strange = sum(row.uuid not in known for row in rows)
    if strange:
        yield f"left out: {counted(strange, 'row')} of workloads that the definition has no more"


def _provenance(
    ranking: Ranking, rows: Sequence[Measurement], chosen: Mapping[tuple[str, str], CountedRow]
) -> Iterator[str]:
    outdated = [f"{each.solution} ({each.outdated})" for each in ranking.summaries if each.outdated]
    if outdated:
        yield (
            f"† outdated: measured with sources that the solution has no more, no row of the present ones: "
            f"{', '.join(outdated)}; run `derby bench`"
        )
    changed = sorted({solution for (solution, _), each in chosen.items() if each.host_changed})
    if changed:
        yield (
            f"only graph times count of rows of {', '.join(changed)}: the kernels are the present ones, the host's "
            "code is not (certificates/machine_code/)"
        )
    nameless = {solution for (solution, _), each in chosen.items() if each.measurement.solution_hash is None}
    if nameless:
        yield f"rows without a source hash, may be of older sources: {', '.join(sorted(nameless))}"
    if (of_cards := spread(rows)) is not None:
        yield _cards(of_cards)
    if len(ranking.environment["driver"]) > 1:
        yield f"measured under several drivers: {', '.join(ranking.environment['driver'])}"
    if ranking.group.protocol in _OF_FLASHINFER_BENCH:
        yield _OF_FLASHINFER_BENCH[ranking.group.protocol]


def _cards(found: CardSpread) -> str:
    told = f"rows of {counted(found.cards, 'card')}"
    if found.apart is None:
        return f"{told}, which have no time in common; times of two cards are never paired"
    return (
        f"{told}: {found.slowest:.12} is {found.apart:.1%} slower than {found.fastest:.12} (eager, "
        f"{counted(found.shared, 'time')} that cards have in common); times of two cards are never paired"
    )


def _doubtful(ranking: Ranking) -> Iterator[str]:
    for row in ranking.rows:
        for name, cell in row.cells.items():
            if cell.too_good and cell.latency_us and cell.share_of_floor:
                yield (
                    f"suspicious: {name} on {row.label} takes {cell.latency_us:.1f} us, less than 0.9 x the floor "
                    f"of {cell.latency_us * cell.share_of_floor:.1f} us: the measurement or the cost is wrong"
                )
    kinds = {cell.ratio.interval for row in ranking.rows for cell in row.cells.values() if cell.ratio}
    kinds |= {row.margin.interval for row in ranking.rows if row.margin}
    if "unpaired" in kinds:
        yield "~ unpaired interval: not three rounds in turn in one session, so drift is not in it"
    if "none" in kinds:
        yield "rows without samples have no interval, and the lower number counts as a win"


def _undecided(ranking: Ranking) -> Iterator[str]:
    labels = {row.uuid: row.label for row in ranking.rows}
    pairs = {(pair.first, pair.second): pair for pair in ranking.pairs}
    complete = {summary.solution: summary.is_complete for summary in ranking.summaries}
    for first, second in zip(ranking.order, ranking.order[1:], strict=False):
        pair = pairs.get((first, second))
        if pair and pair.geomean.is_tie and complete[first] == complete[second]:
            interval = f"[{pair.geomean.low:.3f}, {pair.geomean.high:.3f}]" if pair.geomean.low is not None else "equal"
            yield f"{first} and {second} are tied: geomean ratio {pair.geomean.value:.3f} {interval}"
    for dependence in ranking.order_dependences:
        named = [labels[uuid] for uuid in dependence.workloads[:NAMED_AT_MOST]]
        more = len(dependence.workloads) - len(named)
        listed = " or ".join(named) + (f" or any of {more} more" if more else "")
        yield (
            f"the order of {dependence.first} and {dependence.second} depends on workload {listed}: "
            f"without it {dependence.second} is first"
        )
    yield from _total_disagrees(ranking, pairs, complete)


def _total_disagrees(
    ranking: Ranking, pairs: Mapping[tuple[str, str], Pair], complete: Mapping[str, bool]
) -> Iterator[str]:
    """The winner by geomean, if another solution of its coverage class needs less time in total."""
    if not ranking.baseline:
        return
    winner = ranking.order[0]
    rivals = {
        name: pair.total
        for name in ranking.order[1:]
        if complete[winner] == complete[name] and (pair := pairs.get((winner, name)))
    }
    quickest = min(rivals, key=lambda name: rivals[name], default=None)
    if quickest and rivals[quickest] < 1:
        yield (f"{winner} is first by geomean, {quickest} by total time ({rivals[quickest]:.3f} of {winner}'s)")


def _missing(ranking: Ranking) -> Iterator[str]:
    for summary in ranking.summaries:
        told = f"no {ranking.time} time"  # by _times()
        failures = {status: count for status, count in summary.failures.items() if status != told}
        if failures and summary.solution not in ranking.not_measured:
            reasons = ", ".join(f"{count} {status}" for status, count in failures.items())
            yield f"{summary.solution} passed {summary.passed} of {counted(summary.workloads, 'workload')}: {reasons}"
    if ranking.not_measured:
        yield f"not measured on {ranking.group.gpu}: {', '.join(ranking.not_measured)}"
    if ranking.no_floor_reason:
        yield f"S is n/a: {ranking.no_floor_reason}"


def with_other_leads(rankings: Sequence[Ranking]) -> list[Ranking]:
    """The same rankings. A ranking of fresh shapes gets a note if the lead on them differs from the lead on the listed
    shapes."""
    found = []
    for ranking in rankings:
        listed = next((each for each in rankings if each.definition == ranking.definition), ranking)
        note = _difference(listed, ranking) if ranking.origin == FRESH and listed is not ranking else None
        found.append(replace(ranking, notes=(note, *ranking.notes)) if note else ranking)
    return found


def _difference(listed: Ranking, fresh: Ranking) -> str | None:
    if len(listed.order) < 2:
        return None
    first, second = listed.order[:2]
    there, here = _lead(listed, first, second), _lead(fresh, first, second)
    if there is None or here is None or not _differ(there, here):
        return None
    return (
        f"the lead is another one than on the listed shapes: {first} is {_told(here)} times as fast as {second} here, "
        f"{_told(there)} times there"
    )


def _lead(ranking: Ranking, first: str, second: str) -> Ratio | None:
    """Time of second over time of first, whichever is ahead; None if no workload was passed by both."""
    pairs = {(pair.first, pair.second): pair for pair in ranking.pairs}
    if (first, second) in pairs:
        return pairs[first, second].geomean
    return pairs[second, first].geomean.inverse() if (second, first) in pairs else None


def _differ(one: Ratio, other: Ratio) -> bool:
    """Whether two ratios differ, by their intervals if both have one."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return abs(one.value / other.value - 1) > _WITHOUT_INTERVAL
    return one.high < other.low or other.high < one.low


def _told(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3f}"
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
