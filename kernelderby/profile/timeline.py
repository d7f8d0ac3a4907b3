"""Wall span, busy time and gaps of the GPUs of a profile, from spans in order of start."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelderby.profile.spans import Profile, Span

# A kernel launch costs the host 2 to 4 us, and a kernel that already waits in the stream starts within 1 to 2 us of the
# end of the one before: the GPU idle for more than 5 us means that the host came too late.
LATE_NS = 5_000
# Above 1 ms the host did something else: another iteration, a check, a file. Launches do not explain that.
PAUSE_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Timeline:
    """One GPU, by its number in the process (the first, where several share it). wall_ns: first start to last end.
    busy_ns: union of all spans over its streams, never above sum_ns.

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
    process: int = 0
    label: str = ""  # "0", or where several processes use GPUs "0 of process 111"

    @property
    def gap_total_ns(self) -> int:
        return self.wall_ns - self.busy_ns


def timelines_of(profile: Profile) -> tuple[Timeline, ...]:
    """Of every GPU of a profile with events; an export's own, which it computes without spans."""
    own = getattr(profile, "timelines", None)
    if own is not None:
        found: tuple[Timeline, ...] = own()
        return found
    builder = TimelineBuilder(profile.gpu_of)
    for span in profile.spans():
        builder.take(span)
    return builder.timelines()


def timeline_of(starts: np.ndarray, ends: np.ndarray, process: int, device: int, label: str) -> Timeline:
    """Of one GPU's operations in order of start."""
    frontier = np.maximum.accumulate(ends)
    gaps = starts[1:] - frontier[:-1]
    gaps = gaps[gaps > 0]
    late, pauses = gaps[(gaps > LATE_NS) & (gaps <= PAUSE_NS)], gaps[gaps > PAUSE_NS]
    wall = int(frontier[-1] - starts[0])
    return Timeline(
        device,
        wall,
        wall - int(gaps.sum()),
        int((ends - starts).sum()),
        len(gaps),
        float(np.median(gaps)) if len(gaps) else 0.0,
        int(gaps.max()) if len(gaps) else 0,
        len(late),
        int(late.sum()),
        len(pauses),
        int(pauses.sum()),
        process,
        label,
    )


class TimelineBuilder:
    """Takes spans in order of start. Eight bytes a gap are kept, for the median; nothing else grows.

    gpu_of: which GPU a process means by a number (Profile.gpu_of). Every rank of a job may call its own GPU 0.
    """

    def __init__(self, gpu_of: Callable[[int, int], str] = lambda process, device: f"{process}:{device}") -> None:
        self._gpu_of = gpu_of
        self._places: dict[tuple[int, int], list[Any]] = {}
        self._gpus: dict[str, list[Any]] = {}  # -> [first start, end so far, busy, sum, gaps, process, device]

    def take(self, span: Span) -> None:
        start, end = span.start_ns, span.end_ns
        place = span.process, span.device
        state = self._places.get(place)
        if state is None:
            gpu = self._gpu_of(*place)
            state = self._gpus.get(gpu)
            if state is None:
                self._places[place] = self._gpus[gpu] = [start, end, end - start, end - start, array("q"), *place]
                return
            self._places[place] = state
        state[3] += end - start
        if start > state[1]:
            state[4].append(start - state[1])
            state[2] += end - start
            state[1] = end
        elif end > state[1]:
            state[2] += end - state[1]
            state[1] = end

    def timelines(self) -> tuple[Timeline, ...]:
        """One a GPU, by process and device number."""
        several = len({state[5] for state in self._gpus.values()}) > 1
        return tuple(
            Timeline(
                device,
                end - first,
                busy,
                total,
                len(gaps),
                _median(gaps),
                max(gaps, default=0),
                *_long(gaps),
                process,
                gpu_label(process, device, several),
            )
            for first, end, busy, total, gaps, process, device in sorted(
                self._gpus.values(), key=lambda state: (state[5], state[6])
            )
        )


def gpu_label(process: int, device: int, several: bool) -> str:
    """several: whether more than one process used GPUs."""
    return f"{device} of process {process}" if several else str(device)


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
