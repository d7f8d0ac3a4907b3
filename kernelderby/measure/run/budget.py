"""A run that has so many seconds: which jobs it takes, operator after operator, the most important one first."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from kernelderby.measure.run.plan import Job

_EVENLY = 0.5  # of the time goes to all operators alike, the rest by importance


def in_time(
    jobs: Sequence[Job],
    seconds: float,
    importance: Mapping[str, float],
    now: Callable[[], float] = time.monotonic,
) -> Iterator[Job]:
    """The jobs that the seconds allow, to be worked off as they come: the last one may end later.

    Of the time that is left each operator gets a part, half of it evenly and half by importance (one without a
    published one counts as the mean); what it does not need goes to those after it, and in the end to what was left
    over. Its shapes come in the order of a hash of their uuids: whatever the time allows is a fair sample of them, not
    the smallest ones."""
    end = now() + seconds
    left: dict[str, list[Job]] = {}
    for job in sorted(jobs, key=lambda job: hashlib.sha256(job.workload.uuid.encode()).digest(), reverse=True):
        left.setdefault(job.definition.name, []).append(job)
    weights = _weights(left, importance)
    order = by_weight(left, importance)
    while any(left.values()) and now() < end:
        waiting = [name for name in order if left[name]]
        while waiting and now() < end:
            name = waiting[0]
            part = _EVENLY / len(waiting) + (1 - _EVENLY) * weights[name] / sum(weights[each] for each in waiting)
            until = now() + part * (end - now())
            yield left[name].pop()
            while left[name] and now() < until:
                yield left[name].pop()
            waiting.pop(0)


def by_weight(names: Collection[str], importance: Mapping[str, float]) -> list[str]:
    """The most important operator first; those that weigh the same in the order that they have."""
    weights = _weights(names, importance)
    return sorted(names, key=lambda name: -weights[name])


def _weights(names: Collection[str], importance: Mapping[str, float]) -> dict[str, float]:
    usual = statistics.fmean(importance.values()) if importance else 1.0
    return {name: importance.get(name, usual) for name in names}
