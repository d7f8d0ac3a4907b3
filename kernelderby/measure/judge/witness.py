"""What the rest of a series says of the spans that a worker claims.

A span is read by a timer in the solution's process. Work that it does not hold has left traces elsewhere as long as the
timer itself is whole: the wall clock, which stands still for no kernel; records that lie in no window; a busy time that
does not go with the graph's.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from kernelderby.measure.clock.spans import Spans
from kernelderby.measure.clock.timing import NO_FLUSH
from kernelderby.measure.wire.replies import Wrong
from kernelderby.rows.measurement import Status
from kernelderby.store.counts import counted

# Beside the span and the host's time to enqueue, the wall clock sees the first launch and the wake-up behind the last
# record. In 2,020 rows of an H200 (2026-11-22) that was 19 us in 99 of 100, and never over 1 % of the span beside it.
_BESIDE_WALL_US, _OF_SPAN = 50.0, 0.05
_LEAST_BUSY = 0.1  # of the graph's span; 0.51 and more in the same rows, but a call may take another way in a graph


def witnessed(series: Spans, copies: int) -> Spans:
    """The iterations of a round that have their witness: a flush before the window, and no work outside of it but the
    copies of outputs. A note says how many were left out. Wrong where there are none. Without records, all of them."""
    kept = [number for number, count in enumerate(series.outside) if count != NO_FLUSH and count <= copies]
    if not series.outside or len(kept) == len(series.outside):
        return series
    if not kept:
        raise Wrong(Status.REWARD_HACK, "in a whole round it works outside of its calls, or no flush was recorded")
    left_out = len(series.outside) - len(kept)
    return msgspec.structs.replace(
        series,
        spans_us=[series.spans_us[number] for number in kept],
        busy_us=[series.busy_us[number] for number in kept] if series.busy_us else [],
        notes=[
            *series.notes,
            f"{left_out} of {counted(len(series.outside), 'call is', 'calls are')} left out: work outside of their "
            "windows",
        ],
    )


def contradiction(taken: Mapping[str, Sequence[Spans]], kind: str, copies: int, has_records: bool) -> str:
    """Why the spans of a kind cannot be the whole of the calls; empty where nothing speaks against them. copies: of
    outputs, which a call may leave behind its window. has_records: whether the protocol's timer keeps any."""
    series = taken[kind]
    if has_records and any(not each.outside or (kind == "eager" and not each.busy_us) for each in series):
        return "its timer has kept no records of them"
    waited = _unexplained_us(series)
    if waited > 0:
        return f"it waits {waited:.0f} us longer for the GPU than its spans explain"
    outside = [count for each in series for count in each.outside]
    if 2 * sum(count == NO_FLUSH for count in outside) > len(outside):
        return "no flush was recorded before its calls"
    if 2 * sum(count > copies for count in outside) > len(outside):
        return f"it works outside of its calls (records there in the median iteration: {statistics.median(outside):g})"
    busy, graph = (_median([span for each in found for span in each]) for found in _busy_and_graph(taken))
    if busy is not None and graph is not None and busy < _LEAST_BUSY * graph:
        return f"it claims a busy GPU for {busy:.1f} us, where its graph takes {graph:.1f}"
    return ""


def _unexplained_us(series: Sequence[Spans]) -> float:
    """Per call, how long the worker waited for work that its spans do not hold; <= 0 where they explain the wait. The
    lower quartile: what slows a host down comes and goes, what is hidden comes with every call."""
    left = sorted(
        wall - host - span - _BESIDE_WALL_US - _OF_SPAN * span
        for each in series
        for span, host, wall in zip(each.spans_us, each.host_us, each.wall_us, strict=True)
    )
    return left[len(left) // 4] if left else 0.0


def _busy_and_graph(taken: Mapping[str, Sequence[Spans]]) -> tuple[list[list[float]], list[list[float]]]:
    return [each.busy_us for each in taken["eager"]], [each.spans_us for each in taken["graph"]]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
