"""Wall span, busy time and gaps of the GPUs of a profile, from spans in order of start."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

from kernelderby.profile.spans import Span

# A kernel launch costs the host 2 to 4 us, and a kernel that already waits in the stream starts within 1 to 2 us of the
# end of the one before: the GPU idle for more than 5 us means that the host came too late.
LATE_NS = 5_000
# Above 1 ms the host did something else: another iteration, a check, a file. Launches do not explain that.
PAUSE_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Timeline:
    """One GPU. wall_ns: first start to last end. busy_ns: union of all spans over its streams, never above sum_ns.

    Gaps: stretches in which nothing ran, between two spans; their total is wall_ns - busy_ns. late: gaps above LATE_NS
    up to PAUSE_NS; pauses: those above.
    """

    device: int
    wall_ns: int
    busy_ns: int
    sum_ns: int
    gaps: int
    gap_median_ns: float
    gap_largest_ns: int
    late: int = 0
    late_ns: int = 0
    pauses: int = 0
    pauses_ns: int = 0

    @property
    def gap_total_ns(self) -> int:
        return self.wall_ns - self.busy_ns


class TimelineBuilder:
    """Takes spans in order of start. Eight bytes a gap are kept, for the median; nothing else grows."""

    def __init__(self) -> None:
        self._devices: dict[int, list[Any]] = {}  # device -> [first start, end so far, busy, sum, gaps]

    def take(self, span: Span) -> None:
        start, end = span.start_ns, span.end_ns
        state = self._devices.get(span.device)
        if state is None:
            self._devices[span.device] = [start, end, end - start, end - start, array("q")]
            return
        state[3] += end - start
        if start > state[1]:
            state[4].append(start - state[1])
            state[2] += end - start
            state[1] = end
        elif end > state[1]:
            state[2] += end - state[1]
            state[1] = end

    def timelines(self) -> tuple[Timeline, ...]:
        """One a GPU, by device number."""
        return tuple(
            Timeline(device, end - first, busy, total, len(gaps), _median(gaps), max(gaps, default=0), *_long(gaps))
            for device, (first, end, busy, total, gaps) in sorted(self._devices.items())
        )


def _median(values: array[int]) -> float:
    """As statistics.median; sorting an array of numbers as one list keeps two million of them under a second."""
    if not values:
        return 0.0
    ordered = sorted(values)
    middle = len(ordered) // 2
    return float(ordered[middle]) if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _long(gaps: array[int]) -> tuple[int, int, int, int]:
    """Number and total of the late gaps and of the pauses."""
    late = [gap for gap in gaps if LATE_NS < gap <= PAUSE_NS]
    pauses = [gap for gap in gaps if gap > PAUSE_NS]
    return len(late), sum(late), len(pauses), sum(pauses)
