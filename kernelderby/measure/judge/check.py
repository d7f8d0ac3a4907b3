"""Correct first: calls on the same buffers with different contents, each against the reference."""

from __future__ import annotations

from pathlib import Path

from kernelderby.measure.judge.checksums import checksum
from kernelderby.measure.judge.correctness import POISON, Outputs, still_poisoned, synchronize
from kernelderby.measure.judge.draws import NORMAL, ODD_ROWS, Draw, bounded, of_definition, told
from kernelderby.measure.judge.exchange import Exchange, expect_passed, unchanged
from kernelderby.measure.judge.mismatch import look_closer
from kernelderby.measure.wire.replies import Verdict, Wrong
from kernelderby.rows.measurement import Status
from kernelderby.store.counts import counted

_LOOKED_AT = (Status.WRONG_VALUES, Status.NOT_A_NUMBER)


class CheckRounds:
    """repeats: whether the same contents gave the same bits; None where not. why: of the first round that was wrong, in
    lines, with looks_closer alone; dump: the file that gets its tensors."""

    def __init__(self, exchange: Exchange, looks_closer: bool, dump: Path | None) -> None:
        self._exchange = exchange
        self._looks_closer, self._dump = looks_closer, dump
        self.why: tuple[str, ...] = ()
        self.repeats: bool | None = None

    def verdict(self) -> Verdict:
        """Two calls on the same buffers with different contents, one for each of INPUT_DRAWS, and one of odd rows. An
        exception of the solution's goes through."""
        exchange = self._exchange
        try:
            first, first_sums, first_left = self._round(0, 0, POISON[0])
            self.repeats = exchange.again("eager", 0, POISON[1]) == first_sums or None
            # The bytes of poison are numbers of int8 and uint8: what was written has to be both on the same contents.
            first_left = {
                name: left & still_poisoned(exchange.sets[0].outputs[name], POISON[1])
                for name, left in first_left.items()
            }
            second, second_sums, second_left = self._round(0, 1, POISON[1])
            if unwritten := sum(int((first_left[name] & second_left[name]).sum()) for name in first_left):
                elements = sum(tensor.numel() for tensor in exchange.sets[0].outputs.values())
                return Verdict(
                    Status.UNWRITTEN,
                    f"{unwritten} of {counted(elements, 'output element was', 'output elements were')} never written",
                    first.correctness,
                )
            if first.status is not Status.PASSED:
                is_wrong = second.status is not Status.PASSED
                also = "other inputs are wrong too" if is_wrong else "other inputs are right: it depends on the draw"
                self.why += (also,) if self.why else ()
                return first
            if second.status is Status.PASSED:
                self._expect_drawn_passed()
                return first
            if first_sums == second_sums or self._right_elsewhere():
                return Verdict(
                    Status.STALE_OUTPUT,
                    f"right at first, wrong once the same addresses held new contents ({second.message})",
                    second.correctness,
                )
            return second
        except Wrong as wrong:
            return wrong.verdict

    def _expect_drawn_passed(self) -> None:
        """Wrong at the first one that does not pass, of a round for each of the definition's INPUT_DRAWS and one of odd
        rows: inputs so small, large or skewed that what normal numbers hide decides."""
        exchange = self._exchange
        for number, draw in enumerate((*of_definition(exchange.definition, exchange.module), ODD_ROWS)):
            verdict, *_ = self._round(0, 2 + number, POISON[number % 2], draw)
            expect_passed(verdict, f"with {told(draw)}")

    def _right_elsewhere(self) -> bool:
        """Whether these contents give the right output at other addresses: this tells stale from wrong."""
        try:
            return self._round(1, 1, POISON[0])[0].status is Status.PASSED
        except Wrong:
            return False

    def _round(
        self, which: int, variant: int, byte: int, draw: Draw = NORMAL
    ) -> tuple[Verdict, dict[str, int], Outputs]:
        """One call: its verdict, the checksums of its outputs, and masks of their elements that are still poison."""
        exchange, device = self._exchange, self._exchange.maker.device
        inputs, outputs = exchange.sets[which].inputs, exchange.sets[which].outputs
        own = exchange.write(which, lambda into: exchange.maker.write(into, variant, draw=draw))
        exchange.ready(which, byte)
        synchronize(device)
        exchange.executor.set_up(which)
        exchange.executor.call(which)
        snapshot = exchange.snapshot(which)
        sums = checksum(own)
        unchanged(sums, inputs, "it writes into its input")
        unwritten = {name: still_poisoned(snapshot[name], byte) for name in outputs if name not in exchange.in_place}
        definition = bounded(exchange.definition, draw)
        verdict = exchange.compared(own, snapshot, sums, definition)
        if verdict.status in _LOOKED_AT and self._looks_closer and not self.why:
            self.why = look_closer(definition, exchange.module, own, snapshot, self._dump)
        return verdict, checksum(snapshot), unwritten
