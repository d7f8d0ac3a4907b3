"""Whether a candidate takes longer than a base: a verdict with known error rates, from several starts of PAIRS
processes on each side.

Two processes of one program differ by the place of their memory. More turns do not average this out, and a few
processes differ ten times as much as most. So each start has several fresh processes of both sides. They run in blocks
of `base candidate base candidate ... candidate base candidate base`, so a drift that is linear over a block favours
neither. A process's value in a block is its mean log time over its two turns; in a start it is the median over the
blocks, which one outlier cannot move. A base and a candidate that started beside each other are a pair, and the
signed-rank test compares the pairs. Its only assumption: if both sides are the same program, the differences are
symmetric around 0. A process far off counts no more than any other.
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
ORDER = ROLES + ROLES[::-1]  # the sides of the turns in a block
MOST_STARTS = 16
_LOOKS = (5, 7, 10)  # tests after these numbers of starts, and after the last one
FALSE_ALARMS, MISSED = 0.005, 0.05  # one-sided, over all tests and workloads; for a change of the smallest counted size

NO_REGRESSION, REGRESSION, CANNOT_TELL = "no regression", "regression", "cannot tell"


@dataclass(frozen=True, slots=True)
class Gated:
    """change: candidate over base, minus 1; low, high: its interval. noise: median difference of two processes of the
    base. detectable: the smallest slowdown that 95 of 100 runs find. starts: number of starts until the decision."""

    verdict: str
    change: float
    low: float
    high: float
    noise: float
    detectable: float
    starts: int
    base_us: float
    candidate_us: float


Blocks = Sequence[Sequence[float]]  # one start: blocks, each with the time in us of every turn of ORDER


def side_of(role: str) -> str:
    return role.partition(" ")[0]


def logs(blocks: Blocks) -> dict[str, float]:
    """For each process the median over its blocks of the mean log time."""
    found: dict[str, list[float]] = {role: [] for role in ROLES}
    for turns in blocks:
        sums = dict.fromkeys(ROLES, 0.0)
        for role, us in zip(ORDER, turns, strict=True):
            sums[role] += math.log(us) / 2
        for role in ROLES:
            found[role].append(sums[role])
    return {role: median(each) for role, each in found.items()}


def differences(blocks: Blocks) -> list[float]:
    """The log of candidate over base, for each pair of processes."""
    found = logs(blocks)
    return [found[candidate] - found[base] for base, candidate in zip(ROLES[::2], ROLES[1::2], strict=True)]


def looks(most: int) -> list[int]:
    """The numbers of starts after which a run with this maximum tests."""
    return [*(each for each in _LOOKS if each < most), most]


def gated(starts: Sequence[Blocks], least: float, comparisons: int = 1, most: int = MOST_STARTS) -> Gated:
    """least: the smallest slowdown that counts, 0.01 for 1 %. comparisons: number of workloads that are gated together.
    most: maximum number of starts; all tests share the false alarms."""
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
    """Whether another start cannot change the verdict."""
    return found.starts >= most or (found.starts in looks(most) and found.verdict != CANNOT_TELL)
