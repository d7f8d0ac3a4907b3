"""Claimed times beside the judge's own clock: which of the two a row gets, and when neither."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.judge.batch import UNKNOWN, Batches, Beside, Clocked, held_against, sets_for
from kernelderby.measure.judge.exchange import PASSED
from kernelderby.measure.wire.replies import Verdict
from kernelderby.trace import Status

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


@dataclass(slots=True)
class Judged:
    """clocked: kind -> the judge's clock. graph_missing: why a captured call has no time after all."""

    verdict: Verdict = PASSED
    clocked: dict[str, Clocked] = field(default_factory=dict)
    graph_missing: str = ""


class SecondLook:
    """returns_outputs: its worker copies them after each call."""

    def __init__(self, batches: Batches, device: str, session: SessionClock, returns_outputs: bool) -> None:
        self._batches, self._device, self._session = batches, device, session
        self._returns_outputs = returns_outputs

    def at(self, claims: Claims, judged: Judged) -> Judged:
        """A claim that falls short of the judge's clock is replaced by it; one that no slow host explains ends the
        race for the solution. Long Python in a call looks the same as work that its timer does not show, so the eager
        time is what a call takes, whatever took it."""
        wanted = max(sets_for(claimed, self._device) for claimed in claims.medians.values())
        try:
            there = self._batches.sets(wanted)
        except NotCapturable as error:
            judged.graph_missing = f"over {wanted} sets of inputs: {error}"
            there = wanted
        for kind, claimed in claims.medians.items():
            if kind == "graph" and judged.graph_missing:
                continue
            explained = claimed if kind == "graph" else max(claimed, claims.host_us)
            clocked = self._clocked(kind, claimed, min(there, sets_for(claimed, self._device)), explained)
            judged.clocked[kind] = clocked
            if self._is_no_accident(clocked, explained):
                told = (
                    f"{kind}: its process claims {claimed:.1f} us; by the judge's clock over unseen inputs a call "
                    f"takes {clocked.call_us:.0f} us"
                )
                judged.verdict = Verdict(Status.REWARD_HACK, told)
                break
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
