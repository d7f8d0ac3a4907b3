"""What other clocks say of the spans that a worker claims, call by call.

A span is read by a timer in the solution's process. Work that this timer misses (a record that does not come, work
before the window or behind it, a changed clock) takes time nevertheless: by the worker's wall clock, which stands
still for no kernel, and by the judge's, which runs from the word that lets a call go until the word that it is done.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from kernelderby.measure.timing import Spans

# Beside the span and the host's time to enqueue, the wall clock sees the first launch and the wake-up behind the last
# record. In 2,020 rows of an H200 (2026-11-22) that was 19 us in 99 of 100, and never over 1 % of the span beside it.
_BESIDE_WALL_US, _OF_SPAN = 50.0, 0.05
_HOST_US = {
    "eager": 1000.0,
    "graph": 200.0,
}  # host time that is believed: no library takes more before its first kernel


def unexplained_by_wall_us(taken: Sequence[Spans]) -> float:
    """Per call, how long the worker waited for work that its spans do not hold. <= 0 where they explain the wait."""
    left = [
        wall - host - span - _BESIDE_WALL_US - _OF_SPAN * span
        for each in taken
        for span, host, wall in zip(each.spans_us, each.host_us, each.wall_us, strict=True)
    ]
    return _quarter(left)


def beside_us(taken: Sequence[Spans], kind: str) -> float | None:
    """What the judge's clock saw of a call beside its span and its host time: flush, messages, and what was hidden.
    Of the faster half, which is what a median rests on. None where the judge's clock did not run."""
    calls = [
        (span, judged - span - min(host, _HOST_US[kind]))
        for each in taken
        if each.judged_us
        for span, host, judged in zip(each.spans_us, each.host_us, each.judged_us, strict=True)
    ]
    if not calls:
        return None
    middle = statistics.median(span for span, _ in calls)
    return _quarter([beside for span, beside in calls if span <= middle])


def _quarter(values: Sequence[float]) -> float:
    """The lower quartile: what slows a host down comes and goes, what is hidden comes with every call."""
    return sorted(values)[len(values) // 4]
