"""Claimed times beside the judge's own clock, which of the two a row gets, and when neither; and evidence in a series
for or against the spans that a worker claims.

A span is read by a timer in the solution's process. Work that it does not hold has left traces elsewhere as long as the
timer itself is whole: the wall clock, which stands still for no kernel; records that lie in no window; a busy time that
does not go with the graph's.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.clock.spans import Spans
from kernelderby.measure.clock.timing import NO_FLUSH
from kernelderby.measure.judge.batch import LEAST_US, OF_CALL, UNKNOWN, Batches, Beside, Clocked, held_against, sets_for
from kernelderby.measure.judge.exchange import PASSED
from kernelderby.measure.judge.relay import MOST, MOST_AGAIN, Pacemaker, Relay, Relayed
from kernelderby.measure.wire.replies import Verdict, Wrong
from kernelderby.rows.measurement import Status
from kernelderby.store.counts import counted

# A claim that is half of what the judge's clock says, less this much, is no slow host and no accident.
_NO_ACCIDENT_US = {"cuda": 400.0, "cpu": 20_000.0}
_PATIENCE = (0.1, 0.5, 1.0)  # seconds; what makes a GPU or a CPU slow for a while ends, what a solution hides does not
_LONG_SECONDS = 1.0  # of a try; whoever makes it so long on its host gets no further one: four took 11 s (H200)
_MOST_HOST_US = 20_000.0  # of a call, as its process says, for which the relay makes fewer calls
_FAR_US = 1000.0  # so far from its claim no busy machine brings a median of single calls
# Where the pace is less certain than that, the relay decides nothing, and a batch does.
_UNSOUND_US, _UNSOUND_OF_CALL = 8.0, 0.1
# Beside the span and the host's time to enqueue, the wall clock sees the first launch and the wake-up behind the last
# record. In 2,020 rows of an H200 (2026-11-22) that was 19 us in 99 of 100, and never over 1 % of the span beside it.
_BESIDE_WALL_US, _OF_SPAN = 50.0, 0.05
_LEAST_BUSY = 0.1  # of the graph's span; 0.51 and more in the same rows, but a call may take another way in a graph


@dataclass(frozen=True, slots=True)
class Claims:
    """Of a worker: kind ("eager", "graph") -> median time of a call in us, and the median time to enqueue one."""

    medians: dict[str, float]
    host_us: float


@dataclass(frozen=True, slots=True)
class SessionClock:
    """Measured at a session's begin, in processes without a solution. Without: unknown."""

    empty_kernel_us: dict[str, float | None] | None = None
    beside: dict[str, Beside] = field(default_factory=dict)
    pace: Pacemaker | None = None


@dataclass(slots=True)
class Judged:
    """clocked: kind -> the judge's clock. graph_missing: why a captured call has no time after all."""

    verdict: Verdict = PASSED
    clocked: dict[str, Clocked] = field(default_factory=dict)
    relayed: dict[str, Relayed] = field(default_factory=dict)
    graph_missing: str = ""


class SecondLook:
    """returns_outputs: its worker copies them after each call."""

    def __init__(
        self, relay: Relay, batches: Batches, device: str, session: SessionClock, returns_outputs: bool
    ) -> None:
        self._relay, self._batches, self._device, self._session = relay, batches, device, session
        self._returns_outputs, self._has_graph = returns_outputs, False

    def at(self, claims: Claims, judged: Judged) -> Judged:
        """A claim that falls short of the judge's clock is replaced by it; one that nothing explains ends the race for
        the solution. The relay sees each call alone. Without it (no pace, or one that is not certain) a batch counts:
        in it long Python in a call looks the same as work that its timer does not show, and the eager time is what a
        call takes, whatever took it."""
        left, self._has_graph = dict(claims.medians), "graph" in claims.medians
        for kind, claimed in claims.medians.items():
            host_us = 0.0 if kind == "graph" else min(claims.host_us, _MOST_HOST_US)
            if (clocked := self._alone(kind, claimed, host_us, judged)) is not None:
                del left[kind]
                judged.clocked[kind] = clocked
                explained = claimed if kind == "graph" else max(claimed, claims.host_us)
                if self._is_no_accident(clocked, explained + judged.relayed[kind].unsure_us):
                    return _accused(judged, kind, claimed, clocked)
        return self._in_batches(left, claims.host_us, judged) if left else judged

    def _alone(self, kind: str, claimed: float, host_us: float, judged: Judged) -> Clocked | None:
        """By the relay; None where that is not certain enough."""
        margin = max(LEAST_US, OF_CALL * claimed)
        found = self._relayed(kind, claimed, host_us, margin)
        if not found:
            return None
        sound = [each for each in found if _is_sound(each, claimed)]
        if not sound:
            judged.relayed[kind] = min(found, key=lambda each: each.most_us)
            return None
        judged.relayed[kind] = best = min(sound, key=lambda each: each.short_of(claimed, margin))
        short = best.short_of(claimed, margin)
        return Clocked(best.call_us, best.call_us - claimed if short > 0 else 0.0)

    def _relayed(self, kind: str, claimed: float, host_us: float, margin: float) -> list[Relayed]:
        """What the tries found, until one bears the claim out, none is left, or the GPU does not come to rest; empty
        without a pace. The pace alone says how certain a try is, so no solution gains a further one by being restless.
        """
        pace, most, found = self._session.pace, MOST, list[Relayed]()
        if pace is None:
            return found
        copy_us = self._batches.copy_us(kind) if self._returns_outputs else 0.0
        for pause in (0.0, *_PATIENCE):
            time.sleep(pause)
            start = time.monotonic()
            seen = self._relay.relayed(pace, kind, margin, copy_us, most, claimed + host_us)
            is_long = time.monotonic() - start > _LONG_SECONDS
            if math.isinf(seen.unsure_us):
                break  # what was found so far counts, or whoever keeps the GPU busy would be rid of it
            # A call that waits for the GPU on its host could not be captured.
            found.append(replace(seen, wakes_us=0.0) if self._has_graph else seen)
            sound, short = _is_sound(seen, claimed), found[-1].short_of(claimed, margin)
            if (sound and (short <= 0 or is_long)) or short > _FAR_US:
                break
            if not sound:
                if most == MOST_AGAIN:
                    break
                most = MOST_AGAIN
        return found

    def _in_batches(self, left: dict[str, float], host_us: float, judged: Judged) -> Judged:
        wanted = max(sets_for(claimed, self._device) for claimed in left.values())
        try:
            there = self._batches.sets(wanted)
        except NotCapturable as error:
            judged.graph_missing = f"over {counted(wanted, 'set')} of inputs: {error}"
            there = wanted
        for kind, claimed in left.items():
            if kind == "graph" and judged.graph_missing:
                continue
            explained = claimed if kind == "graph" else max(claimed, host_us)
            clocked = self._clocked(kind, claimed, min(there, sets_for(claimed, self._device)), explained)
            alone = judged.relayed.get(kind)
            if alone is not None and clocked.short_us and alone.most_us < clocked.call_us:
                clocked = _at_most(alone.most_us, claimed)  # a busy host lengthens batches
            judged.clocked[kind] = clocked
            if self._is_no_accident(clocked, explained):
                return _accused(judged, kind, claimed, clocked)
        return judged

    def _is_no_accident(self, clocked: Clocked, explained_us: float) -> bool:
        return clocked.short_us > 0 and clocked.call_us > 2 * explained_us + _NO_ACCIDENT_US[self._device]

    def _clocked(self, kind: str, claimed: float, count: int, explained: float) -> Clocked:
        beside = self._session.beside.get(kind, UNKNOWN[self._device])
        copy_us = self._batches.copy_us(kind) if self._returns_outputs else 0.0
        total_us = self._batches.us(kind, count)
        for pause in (0.0, *_PATIENCE):
            clocked = held_against(claimed, total_us, count, beside, copy_us, self._device)
            # An eager call that takes longer than its kernels is a common thing: that is not waited for.
            if not clocked.short_us or (kind == "eager" and pause and not self._is_no_accident(clocked, explained)):
                break
            time.sleep(pause)
            total_us = min(total_us, self._batches.us(kind, count))
        return held_against(claimed, total_us, count, beside, copy_us, self._device)


def _is_sound(relayed: Relayed, claimed_us: float) -> bool:
    return relayed.unsure_us <= max(_UNSOUND_US, _UNSOUND_OF_CALL * claimed_us)


def told_of_noise(claims: Claims, judged: Judged) -> str:
    """What a user should know if the pace was too uncertain to decide; empty if it was certain."""
    unsure = [each.unsure_us for kind, each in judged.relayed.items() if not _is_sound(each, claims.medians[kind])]
    if not unsure:
        return ""
    return (
        f"the judge's clock is unsure by {max(unsure):.0f} us, so short calls may come out too long: this machine is "
        "busy: end the other work, and measure again"
    )


def _at_most(most_us: float, claimed_us: float) -> Clocked:
    """The judge's clock of a call that may take so long, and no longer."""
    short_us = most_us - claimed_us
    return Clocked(most_us, short_us if short_us > max(LEAST_US, OF_CALL * claimed_us) else 0.0)


def _accused(judged: Judged, kind: str, claimed: float, clocked: Clocked) -> Judged:
    told = (
        f"{kind}: its process claims {claimed:.1f} us; by the judge's clock over unseen inputs a call takes "
        f"{clocked.call_us:.0f} us"
    )
    judged.verdict = Verdict(Status.REWARD_HACK, told)
    return judged


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
    busy_us = [us for each in taken["eager"] for us in each.busy_us]
    graph_us = [us for each in taken["graph"] for us in each.spans_us]
    if busy_us and graph_us:
        busy, graph = statistics.median(busy_us), statistics.median(graph_us)
        if busy < _LEAST_BUSY * graph:
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
