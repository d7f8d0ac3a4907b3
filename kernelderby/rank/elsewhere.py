"""Whether a lead on the listed shapes is one on shapes that nobody listed, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelderby.catalog.workloads import FRESH
from kernelderby.rank.model import Ranking
from kernelderby.statistics.ratio import Ratio

_WITHOUT_INTERVAL = 0.05  # where samples are missing, leads that differ by less are the same


def with_other_leads(rankings: Sequence[Ranking]) -> list[Ranking]:
    """The same rankings; one of fresh shapes says where the lead of the definition's first one is another there."""
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
    """Time of second over time of first, whichever is ahead; None where no workload was passed by both."""
    for pair in ranking.pairs:
        if (pair.first, pair.second) == (first, second):
            return pair.geomean
        if (pair.first, pair.second) == (second, first):
            found = pair.geomean
            low, high = found.high and 1 / found.high, found.low and 1 / found.low
            return replace(found, value=1 / found.value, low=low, high=high)
    return None


def _differ(one: Ratio, other: Ratio) -> bool:
    """By their intervals, where both have one."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return abs(one.value / other.value - 1) > _WITHOUT_INTERVAL
    return one.high < other.low or other.high < one.low


def _told(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3f}"
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
