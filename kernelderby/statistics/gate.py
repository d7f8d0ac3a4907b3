"""Whether a candidate takes longer than a base: a verdict with known error rates, from starts of three processes.

In each start run the base, the base once more, and the candidate, each in a process of its own, in blocks of
`base candidate again again candidate base` (ABBA), so that a drift that is linear over a block favours none.
Of a block counts each process's mean log time over its two turns; of a start the median over its blocks, which an
outlier cannot move. The differences between the two base processes are the noise of the machine as it is now; with
those of the candidate they give one variance. Its degrees of freedom are of starts: two processes of one program
differ by where their memory lies, which no number of turns within a start averages out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from kernelderby.statistics import student

ORDER = ("base", "candidate", "again", "again", "candidate", "base")  # of the turns of a block
FEWEST_STARTS, MOST_STARTS, BLOCKS = 4, 10, 3
FALSE_ALARMS, MISSED = 0.005, 0.05  # one-sided, over all looks and workloads; of a change as large as the smallest
_LEAST_NOISE = 2e-4  # of a start: clocks count in ticks, and equal numbers are no proof of no noise

NO_REGRESSION, REGRESSION, CANNOT_TELL = "no regression", "regression", "cannot tell"


@dataclass(frozen=True, slots=True)
class Gated:
    """change: candidate over base, less 1; low, high: its interval. band: how far two runs of the base alone may lie
    apart by chance. detectable: the smallest slowdown that is found in 95 of 100 runs. starts: how many decided."""

    verdict: str
    change: float
    low: float
    high: float
    band: float
    again: float
    detectable: float
    starts: int
    base_us: float
    candidate_us: float


Blocks = Sequence[Sequence[float]]  # of a start: the time of each turn of ORDER in us, a block each


def differences(blocks: Blocks) -> tuple[float, float]:
    """Log of candidate over base, and of the base's second process over its first: medians over the blocks."""
    found: dict[str, list[float]] = {"candidate": [], "again": []}
    for turns in blocks:
        logs: dict[str, float] = dict.fromkeys(ORDER, 0.0)
        for name, us in zip(ORDER, turns, strict=True):
            logs[name] += math.log(us) / 2
        base = logs["base"]
        found["candidate"].append(logs["candidate"] - base)
        found["again"].append(logs["again"] - base)
    return median(found["candidate"]), median(found["again"])


def gated(starts: Sequence[Blocks], least: float, comparisons: int = 1, most: int = MOST_STARTS) -> Gated:
    """starts: two or more. least: the smallest slowdown that counts, 0.01 of 1 %. comparisons: workloads that are gated
    together. most: starts that the run may take; every look from FEWEST_STARTS on shares the false alarms."""
    pairs = [differences(blocks) for blocks in starts]
    number, looks = len(pairs), max(1, most - FEWEST_STARTS + 1)
    found, again = ([pair[which] for pair in pairs] for which in (0, 1))
    mean, noise_mean = sum(found) / number, sum(again) / number
    freedom = 2 * number - 1
    squares = sum((each - mean) ** 2 for each in found) + sum(each**2 for each in again)
    error = max(math.sqrt(squares / freedom), _LEAST_NOISE) / math.sqrt(number)
    alpha = FALSE_ALARMS / comparisons / looks
    quantile = student.upper_quantile(alpha, freedom)
    low, high = mean - quantile * error, mean + quantile * error
    band = quantile * error
    threshold = math.log1p(least)
    if low > 0 and mean >= threshold:
        verdict = REGRESSION
    elif high < threshold:
        verdict = NO_REGRESSION
    else:
        verdict = CANNOT_TELL
    detectable = max(threshold, band) + student.upper_quantile(MISSED, freedom) * error
    times = {name: median(_times(starts, name)) for name in ("base", "candidate")}
    return Gated(
        verdict,
        change=math.expm1(mean),
        low=math.expm1(low),
        high=math.expm1(high),
        band=math.expm1(band),
        again=math.expm1(noise_mean),
        detectable=math.expm1(detectable),
        starts=number,
        base_us=times["base"],
        candidate_us=times["candidate"],
    )


def _times(starts: Sequence[Blocks], name: str) -> list[float]:
    return [us for blocks in starts for turns in blocks for each, us in zip(ORDER, turns, strict=True) if each == name]


def is_decided(found: Gated, most: int = MOST_STARTS) -> bool:
    """Whether another start is of no use."""
    return found.starts >= most or (found.starts >= FEWEST_STARTS and found.verdict != CANNOT_TELL)
