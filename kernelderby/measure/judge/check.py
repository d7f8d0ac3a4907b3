"""Correct first: calls on the same buffers with different contents, each against the reference."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from kernelderby.measure.judge.checksums import checksum
from kernelderby.measure.judge.correctness import POISON, Outputs, still_poisoned, synchronize
from kernelderby.measure.judge.draws import NORMAL, ODD_ROWS, Draw, bounded, told
from kernelderby.measure.judge.exchange import Exchange, unchanged
from kernelderby.measure.judge.mismatch import look_closer
from kernelderby.measure.wire.replies import Verdict, Wrong
from kernelderby.rows.measurement import Status
from kernelderby.store.counts import counted

_LOOKED_AT = (Status.WRONG_VALUES, Status.NOT_A_NUMBER)


@dataclass(slots=True)
class _Round:
    """One call of the check, and everything there is to say about it."""

    verdict: Verdict
    checksum: dict[str, int]
    unwritten: Outputs


class CheckRounds:
    """repeats: whether the same contents gave the same bits; None where not. reference_seconds: of the last round.
    why: of the first round that was wrong, in lines, with looks_closer alone; dump: the file that gets its tensors."""

    def __init__(self, exchange: Exchange, looks_closer: bool = False, dump: Path | None = None) -> None:
        self._exchange = exchange
        self._looks_closer, self._dump = looks_closer, dump
        self.why: tuple[str, ...] = ()
        self.repeats: bool | None = None
        self.reference_seconds = 0.0

    def verdict(self) -> Verdict:
        """Two calls on the same buffers with different contents, one for each of INPUT_DRAWS, and one of odd rows. An
        exception of the solution's goes through."""
        exchange = self._exchange
        try:
            first = self._round(0, 0, POISON[0])
            self.repeats = exchange.again("eager", 0, POISON[1]) == first.checksum or None
            second = self._round(0, 1, POISON[1])
            unwritten = sum(int((first.unwritten[name] & second.unwritten[name]).sum()) for name in first.unwritten)
            if unwritten:
                elements = sum(tensor.numel() for tensor in exchange.sets[0].outputs.values())
                return Verdict(
                    Status.UNWRITTEN,
                    f"{unwritten} of {counted(elements, 'output element was', 'output elements were')} never written",
                    first.verdict.correctness,
                )
            if first.verdict.status is not Status.PASSED:
                is_wrong = second.verdict.status is not Status.PASSED
                also = (
                    "wrong with other contents too" if is_wrong else "right with other contents: it depends on the draw"
                )
                self.why += (also,) if self.why else ()
                return first.verdict
            if second.verdict.status is Status.PASSED:
                return self._drawn() or first.verdict
            if first.checksum == second.checksum or self._right_elsewhere():
                return Verdict(
                    Status.STALE_OUTPUT,
                    f"right at first, wrong once the same addresses held new contents ({second.verdict.message})",
                    second.verdict.correctness,
                )
            return second.verdict
        except Wrong as wrong:
            return wrong.verdict

    def _drawn(self) -> Verdict | None:
        """The first verdict that is none of passed, of a round for each of the definition's INPUT_DRAWS and one of
        odd rows: inputs so small, large or skewed that what normal numbers hide decides. None where all pass."""
        for number, draw in enumerate((*getattr(self._exchange.module, "INPUT_DRAWS", ()), ODD_ROWS)):
            verdict = self._round(0, 2 + number, POISON[number % 2], draw).verdict
            if verdict.status is not Status.PASSED:
                return Verdict(verdict.status, f"with {told(draw)}: {verdict.message}", verdict.correctness)
        return None

    def _right_elsewhere(self) -> bool:
        """Whether these contents give the right output at other addresses: this tells stale from wrong."""
        try:
            return self._round(1, 1, POISON[0]).verdict.status is Status.PASSED
        except Wrong:
            return False

    def _round(self, which: int, variant: int, byte: int, draw: Draw = NORMAL) -> _Round:
        exchange, device = self._exchange, self._exchange.maker.device
        inputs, outputs = exchange.sets[which].inputs, exchange.sets[which].outputs
        own = exchange.write(which, lambda into: exchange.maker.write(into, variant, draw=draw))
        exchange.ready(which, byte)
        synchronize(device)
        exchange.hands.set_up(which)
        exchange.hands.call(which)
        snapshot = exchange.snapshot(which)
        sums = checksum(own)
        unchanged(sums, inputs, "it writes into its input")
        unwritten = {name: still_poisoned(snapshot[name], byte) for name in outputs if name not in exchange.in_place}
        start = time.monotonic()
        definition = bounded(exchange.definition, draw)
        verdict = exchange.compared(own, snapshot, sums, definition)
        if verdict.status in _LOOKED_AT and self._looks_closer and not self.why:
            self.why = look_closer(definition, exchange.module, inputs, snapshot, self._dump)
        synchronize(device)
        self.reference_seconds = max(time.monotonic() - start, exchange.references.seconds)
        return _Round(verdict, checksum(snapshot), unwritten)
