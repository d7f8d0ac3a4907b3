"""Wall span, busy time and gaps of the GPUs of a profile, from spans in order of start."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from kernelderby.profile.spans import Profile, Span
from kernelderby.store.bounds import expect_few

# A kernel launch costs the host 2 to 4 us. A kernel that already waits in the stream starts within 1 to 2 us after the
# end of the one before. So more than 5 us of idle GPU mean that the host was too late.
LATE_NS = 5_000
# Launches do not explain more than 1 ms: the host did something else, such as another iteration, a check, or a file.
PAUSE_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Timeline:
    """One GPU, by its number in its process (the first process, if several share the GPU). wall_ns: first start to last
    end. busy_ns: union of all spans over its streams, never above sum_ns.

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
    label: str = ""  # "0", or "0 of process 111" if several processes use GPUs

    @property
    def gap_total_ns(self) -> int:
        return self.wall_ns - self.busy_ns


def timelines_of(profile: Profile) -> tuple[Timeline, ...]:
    """The timeline of every GPU of a profile with events. An export computes its own without spans."""
    own = getattr(profile, "timelines", None)
    if own is not None:
        found: tuple[Timeline, ...] = own()
        return found
    builder = TimelineBuilder(profile)
    for span in profile.spans():
        builder.take(span)
    return builder.timelines()


class TimelineBuilder:
    """Takes spans in order of start. Keeps 16 bytes for each."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._times: dict[tuple[int, int], array[int]] = {}

    def take(self, span: Span) -> None:
        times = self._times.get((span.process, span.device))
        if times is None:
            times = self._times[span.process, span.device] = array("q")
        times.append(span.start_ns)
        times.append(span.end_ns)

    def timelines(self) -> tuple[Timeline, ...]:
        times = {place: np.frombuffer(own, np.int64).reshape(-1, 2) for place, own in self._times.items()}
        return timelines_from(times, self._profile)


def timelines_from(times: dict[tuple[int, int], np.ndarray], profile: Profile) -> tuple[Timeline, ...]:
    """One timeline per GPU, named by its first process and the number there. times: process and number -> [operations,
    2], start and end. Profile.gpu_of identifies a GPU, since every rank of a job may call its own GPU 0.
    """
    gpus: dict[str, list[tuple[int, int]]] = {}
    for place in times:
        gpus.setdefault(profile.gpu_of(*place), []).append(place)
        expect_few(str(profile.path), "GPUs", len(gpus))
    several = len({places[0][0] for places in gpus.values()}) > 1
    return tuple(
        _timeline(np.concatenate([times[place] for place in places]), *places[0], gpu_label(*places[0], several))
        for places in sorted(gpus.values())
    )


def _timeline(times: np.ndarray, process: int, device: int, label: str) -> Timeline:
    starts, ends = times[np.argsort(times[:, 0], kind="stable")].T
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
        int(gaps.max(initial=0)),
        len(late),
        int(late.sum()),
        len(pauses),
        int(pauses.sum()),
        process,
        label,
    )


def gpu_label(process: int, device: int, several: bool) -> str:
    """several: whether more than one process used GPUs."""
    return f"{device} of process {process}" if several else str(device)
