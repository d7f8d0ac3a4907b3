"""Whether a candidate takes longer than a base: a verdict with known error rates, from starts of PAIRS processes each.

Two processes of one program differ by where their memory lies, which no number of turns within them averages out, and a
few differ by ten times as much as most. So each start has several fresh processes of both sides. They run in blocks of
`base candidate base candidate ... candidate base candidate base`: a drift that is linear over a block favours none.

Of a block counts each process's mean log time over its two turns, of a start the median over its blocks, which an
outlier cannot move. A base and a candidate that started beside each other are a pair, and pairs are compared by the
signed-rank test: if both sides are the same program, each difference is as often above 0 as below, by as much. Nothing
else is assumed, and a process far off counts no more than any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, median

from kernelderby.statistics.rank_test import signed_rank_interval

PAIRS, BLOCKS = 3, 3
SIDES = ("base", "candidate")
ROLES = tuple(f"{side} {number}" for number in range(1, PAIRS + 1) for side in SIDES)
ORDER = ROLES + ROLES[::-1]  # of the turns of a block
MOST_STARTS = 16
_LOOKS = (5, 7, 10)  # after so many starts, and after the last one
FALSE_ALARMS, MISSED = 0.005, 0.05  # one-sided, over all looks and workloads; of a change as large as the smallest

NO_REGRESSION, REGRESSION, CANNOT_TELL = "no regression", "regression", "cannot tell"


@dataclass(frozen=True, slots=True)
class Gated:
    """change: candidate over base, less 1; low, high: its interval. noise: how far two processes of the base lie apart,
    their median. detectable: the smallest slowdown that is found in 95 of 100 runs. starts: how many decided."""

    verdict: str
    change: float
    low: float
    high: float
    noise: float
    detectable: float
    starts: int
    base_us: float
    candidate_us: float


Blocks = Sequence[Sequence[float]]  # of a start: the time of each turn of ORDER in us, a block each


def side_of(role: str) -> str:
    return role.partition(" ")[0]


def logs(blocks: Blocks) -> dict[str, float]:
    """Of each process: the median over its blocks of the mean log time."""
    found: dict[str, list[float]] = {role: [] for role in ROLES}
    for turns in blocks:
        sums = dict.fromkeys(ROLES, 0.0)
        for role, us in zip(ORDER, turns, strict=True):
            sums[role] += math.log(us) / 2
        for role in ROLES:
            found[role].append(sums[role])
    return {role: median(each) for role, each in found.items()}


def differences(blocks: Blocks) -> list[float]:
    """Log of candidate over base, a pair of processes each."""
    found = logs(blocks)
    return [found[candidate] - found[base] for base, candidate in zip(ROLES[::2], ROLES[1::2], strict=True)]


def looks(most: int) -> list[int]:
    """After how many starts a run that may take so many looks at them."""
    return [*(each for each in _LOOKS if each < most), most]


def gated(starts: Sequence[Blocks], least: float, comparisons: int = 1, most: int = MOST_STARTS) -> Gated:
    """least: the smallest slowdown that counts, 0.01 of 1 %. comparisons: workloads that are gated together. most:
    starts that the run may take; all its looks share the false alarms."""
    alpha = FALSE_ALARMS / comparisons / len(looks(most))
    low, middle, high = signed_rank_interval([each for blocks in starts for each in differences(blocks)], alpha)
    threshold = math.log1p(least)
    if low > 0 and middle >= threshold:
        verdict = REGRESSION
    elif high < threshold:
        verdict = NO_REGRESSION
    else:
        verdict = CANNOT_TELL
    half = max(high - middle, middle - low)
    missed = NormalDist().inv_cdf(1 - MISSED) / NormalDist().inv_cdf(1 - alpha)
    bases = [[value for role, value in logs(blocks).items() if side_of(role) == "base"] for blocks in starts]
    noise = median(abs(one - other) for each in bases for one, other in pairwise(each))
    return Gated(
        verdict,
        change=math.expm1(middle),
        low=_ratio(low),
        high=_ratio(high),
        noise=math.expm1(noise),
        detectable=_ratio(max(threshold, half) + missed * half),
        starts=len(starts),
        base_us=_time(starts, "base"),
        candidate_us=_time(starts, "candidate"),
    )


def _ratio(log: float) -> float:
    return math.expm1(log) if log < 700 else math.inf


def _time(starts: Sequence[Blocks], side: str) -> float:
    return median(
        us
        for blocks in starts
        for turns in blocks
        for role, us in zip(ORDER, turns, strict=True)
        if side_of(role) == side
    )


def is_decided(found: Gated, most: int = MOST_STARTS) -> bool:
    """Whether another start is of no use."""
    return found.starts >= most or (found.starts in looks(most) and found.verdict != CANNOT_TELL)
