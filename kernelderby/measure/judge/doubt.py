"""Claimed times beside the judge's own clock: which of the two a row gets, and when neither."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.judge.batch import (
    LEAST_US,
    OF_CALL,
    UNKNOWN,
    Batches,
    Beside,
    Clocked,
    held_against,
    sets_for,
)
from kernelderby.measure.judge.exchange import PASSED
from kernelderby.measure.judge.relay import Pacemaker, Relay, Relayed
from kernelderby.measure.wire.replies import Verdict
from kernelderby.rows.measurement import Status
from kernelderby.store.counts import counted

# A claim that is half of what the judge's clock says, less this much, is no slow host and no accident.
_NO_ACCIDENT_US = {"cuda": 400.0, "cpu": 20_000.0}
_PATIENCE = (0.1, 0.5, 2.0)  # seconds; what makes a GPU or a CPU slow for a while ends, what a solution hides does not


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


# Where the pace is less certain than that, the relay decides nothing, and a batch does.
_UNSOUND_US, _UNSOUND_OF_CALL = 8.0, 0.1


class SecondLook:
    """returns_outputs: its worker copies them after each call."""

    def __init__(
        self, relay: Relay, batches: Batches, device: str, session: SessionClock, returns_outputs: bool
    ) -> None:
        self._relay, self._batches, self._device, self._session = relay, batches, device, session
        self._returns_outputs = returns_outputs

    def at(self, claims: Claims, judged: Judged) -> Judged:
        """A claim that falls short of the judge's clock is replaced by it; one that nothing explains ends the race for
        the solution. The relay sees each call alone. Without it (no pace, or one that is not certain) a batch counts:
        in it long Python in a call looks the same as work that its timer does not show, and the eager time is what a
        call takes, whatever took it."""
        left = dict(claims.medians)
        for kind, claimed in claims.medians.items():
            if (clocked := self._alone(kind, claimed, judged)) is not None:
                del left[kind]
                judged.clocked[kind] = clocked
                if self._is_no_accident(clocked, claimed if kind == "graph" else max(claimed, claims.host_us)):
                    return _accused(judged, kind, claimed, clocked)
        return self._in_batches(left, claims.host_us, judged) if left else judged

    def _alone(self, kind: str, claimed: float, judged: Judged) -> Clocked | None:
        """By the relay; None where that is not certain enough."""
        pace, margin = self._session.pace, max(LEAST_US, OF_CALL * claimed)
        if pace is None:
            return None
        copy_us = self._batches.copy_us(kind) if self._returns_outputs else 0.0
        best: Relayed | None = None
        for pause in (0.0, *_PATIENCE):
            time.sleep(pause)
            found = self._relay.relayed(pace, kind, margin, copy_us)
            best = found if best is None or found.short_of(claimed, margin) < best.short_of(claimed, margin) else best
            short = best.short_of(claimed, margin)
            if short <= 0:
                break
        assert best is not None
        if not math.isfinite(best.unsure_us):
            return None
        judged.relayed[kind] = best
        if best.unsure_us > max(_UNSOUND_US, _UNSOUND_OF_CALL * claimed):
            return None
        return Clocked(best.call_us, best.call_us - claimed if short > 0 else 0.0)

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


def _accused(judged: Judged, kind: str, claimed: float, clocked: Clocked) -> Judged:
    told = (
        f"{kind}: its process claims {claimed:.1f} us; by the judge's clock over unseen inputs a call takes "
        f"{clocked.call_us:.0f} us"
    )
    judged.verdict = Verdict(Status.REWARD_HACK, told)
    return judged
