"""The judge's side of one solution on one case: check, timed turns, and a look at what each call left.

The judge owns all memory that counts: two sets of inputs and outputs at different addresses (shared.BufferSet). The
solution runs elsewhere (hands.Hands, in another process remote.RemoteHands) and sees these buffers and nothing else.
Before every timed call, outside its window, the random inputs of its set get new contents and the outputs new poison
(the input's contents, where they lie in one). The generated inputs stay, so that the work (the routing, say) is the
workload's own. Calls chosen at random are compared whole, from a copy that is taken right after the window. Of all
others a checksum is taken there, and the call is made once more, untimed and in another order, on the same contents:
where the solution gave the same bits twice in the check, it has to give them again.
"""

from __future__ import annotations

import functools
import random
import time
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

import torch

from kernelderby.catalog import Definition
from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.clock.spans import Spans
from kernelderby.measure.clock.timing import Call, Timer, flush_bytes
from kernelderby.measure.judge.checksums import changed_inputs, checksum
from kernelderby.measure.judge.correctness import (
    POISON,
    Outputs,
    judge,
    make_ready,
    reference_outputs,
    still_poisoned,
    synchronize,
)
from kernelderby.measure.judge.draws import NORMAL, Draw, told
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.wire.replies import Failed, SetUpTaken, Verdict, Wrong
from kernelderby.measure.wire.shared import BufferSet, private_set, shared_set
from kernelderby.trace import Status

INPUT_SETS = 2  # different contents at different addresses
WARMUP = 3  # untimed calls: compilation happened in the check, this is for clocks and allocator
BATCHES = 6  # of unseen inputs, by the judge's clock
# Of a series of timed calls: how long references may take, by what is known of the solution. One call is compared at
# least. A solution of which calls have not repeated is looked at longer.
_COMPARING_SECONDS = {True: 0.01, None: 0.02, False: 0.1}
_REPEATING_SECONDS = 0.02  # how long the calls that are made once more may take, one at least
_KEPT_BYTES = 256 << 20  # of a series' outputs, so that a call that does not repeat can be compared itself

# A copy of outputs within the judge's memory: its launch, and bytes a second of a slow GPU and a busy CPU.
_COPY_SECONDS, _COPIED_PER_SECOND = 1e-4, {"cuda": 2e11, "cpu": 1e9}

_WHILE_TIMED = "while timed it wrote into its input"
_WHILE_JUDGED = "while its outputs were compared it wrote into its input"

PASSED = Verdict(Status.PASSED)


class HandsLike(Protocol):
    """worker.hands.Hands, or wire.remote.RemoteHands for one in another process."""

    def attach(self, sets: list[BufferSet]) -> None: ...
    def set_up(self, which: int) -> SetUpTaken | None: ...
    def call(self, which: int) -> None: ...
    def capture(self) -> None: ...
    def drop_graphs(self) -> None: ...
    def replay(self, which: int) -> None: ...
    def overtake(self, larger: BufferSet) -> None: ...
    def overwritten(self) -> int: ...
    def spans(self, kind: str, iterations: int, before: Call, after: Call) -> Spans: ...
    def batch(self, kind: str) -> None: ...


@dataclass(slots=True)
class Turn:
    """What one round gave: nothing but the verdict unless its status is PASSED. graph: None without a captured call."""

    verdict: Verdict
    eager: Spans = field(default_factory=lambda: Spans([]))
    graph: Spans | None = None

    @property
    def samples_us(self) -> list[float]:
        return self.eager.spans_us


@dataclass(slots=True)
class _Round:
    """One call of the check, and everything there is to say about it."""

    verdict: Verdict
    checksum: dict[str, int]
    unwritten: Outputs


@dataclass(slots=True)
class _Left:
    """What a timed call left: its checksums, and where there is room for it the outputs themselves."""

    sums: dict[str, int]
    outputs: Outputs | None


class Race:
    """in_place: of the solution. shared: the hands are in another process."""

    def __init__(
        self,
        definition: Definition,
        module: ModuleType,
        maker: InputMaker,
        hands: HandsLike,
        in_place: dict[str, str] | None = None,
        shared: bool = True,
    ) -> None:
        self.definition, self.module, self.maker, self.hands = definition, module, maker, hands
        self.in_place = in_place or {}
        self.has_graph = False
        self.setup: SetUpTaken | None = None
        self.random = random.SystemRandom()  # which calls are compared is nothing that a seed could tell
        self._stays: list[dict[str, int]] = []  # checksums of the inputs that a turn's calls share, of each set
        self.repeats: bool | None = None  # the same bits from the same contents: so far; None never, False no longer
        self._reference_seconds = 0.0
        self._batches = 0
        self.taken: dict[str, list[Spans]] = {"eager": [], "graph": []}  # of the rounds, for other clocks to look at
        self._make = shared_set if shared else private_set
        self.sets: list[BufferSet] = []
        try:
            for _ in range(INPUT_SETS):
                self.sets.append(self._make(maker.places(), maker.output_places(), maker.device))
            hands.attach(self.sets)
            for each in self.sets:
                each.seal()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        for each in self.sets:
            each.release()
        self.sets = []

    # ---------------------------------------------------------------------------------------------------- correctness

    def check(self) -> Verdict:
        """Two calls on the same buffers with different contents, and one for each of INPUT_DRAWS. An exception of the
        solution's goes through."""
        try:
            first = self._round(0, 0, POISON[0])
            self.repeats = self._again("eager", 0, POISON[1]) == first.checksum or None
            second = self._round(0, 1, POISON[1])
            unwritten = sum(int((first.unwritten[name] & second.unwritten[name]).sum()) for name in first.unwritten)
            if unwritten:
                elements = sum(tensor.numel() for tensor in self.sets[0].outputs.values())
                return Verdict(
                    Status.UNWRITTEN,
                    f"{unwritten} of {elements} output elements were never written",
                    first.verdict.correctness,
                )
            if first.verdict.status is not Status.PASSED:
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
        """The first verdict that is none of passed, of a round for each of the definition's INPUT_DRAWS: inputs so
        small, large or skewed that what normal numbers hide decides. None where all pass."""
        for number, draw in enumerate(getattr(self.module, "INPUT_DRAWS", ())):
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
        inputs, outputs = self.sets[which].inputs, self.sets[which].outputs
        self.maker.write(inputs, variant, draw=draw)
        make_ready(inputs, outputs, self.in_place, byte)
        before = checksum(inputs)
        synchronize(self.maker.device)
        self.hands.set_up(which)
        self.hands.call(which)
        snapshot = self._snapshot(which)
        self._unchanged(before, inputs, "it writes into its input")
        unwritten = {name: still_poisoned(snapshot[name], byte) for name in outputs if name not in self.in_place}
        start = time.monotonic()
        verdict = judge(self.definition, self.module, inputs, snapshot)
        synchronize(self.maker.device)
        self._reference_seconds = time.monotonic() - start
        self._unchanged(before, inputs, _WHILE_JUDGED)
        return _Round(verdict, checksum(snapshot), unwritten)

    def _snapshot(self, which: int) -> Outputs:
        """The outputs as they are now: what is looked at later is nothing that anybody else can reach."""
        copies = {name: tensor.clone() for name, tensor in self.sets[which].outputs.items()}
        synchronize(self.maker.device)
        return copies

    def _judged(self, which: int, outputs: Outputs, variant: str) -> Verdict:
        """Against the reference of the contents that lie there since refresh() of that variant. Wrong where they are
        not those that the judge wrote, or do not stay until the reference is there: who writes into them changes what
        is expected. What was written is known from the judge's own memory, never from what lies there."""
        inputs = self.sets[which].inputs
        written = self._stays[which] | self.maker.refreshed_sums(variant)
        self._unchanged(written, inputs, _WHILE_TIMED)
        verdict = judge(self.definition, self.module, inputs, outputs)
        self._unchanged(written, inputs, _WHILE_JUDGED)
        return verdict

    @staticmethod
    def _unchanged(before: dict[str, int], inputs: dict[str, Any], what: str) -> None:
        changed = changed_inputs(before, inputs)
        if changed:
            raise Wrong(Status.INPUT_CHANGED, f"{what} {', '.join(changed)}")

    # ---------------------------------------------------------------------------------------------------------- turns

    def start(self) -> None:
        """The contents of the timed calls, and setup on their constants."""
        for which, each in enumerate(self.sets):
            self.maker.write(each.inputs, 0, f"start/{which}")
        self._stays = [self.maker.steady_sums(f"start/{which}") for which in range(len(self.sets))]
        synchronize(self.maker.device)
        self.setup, *_ = [self.hands.set_up(which) for which in range(len(self.sets))]

    def capture(self) -> None:
        """Captures the call over each set. NotCapturable with the reason; also where a replay on other contents behind
        the same addresses is wrong, because the capture froze what the call should compute."""
        self._ready_all()
        self.hands.capture()
        try:
            for which in range(len(self.sets)):
                verdict = self._replayed(which, variant=1)
                if verdict.status is not Status.PASSED:
                    raise NotCapturable(
                        "a replay with other contents behind the same addresses is wrong, so the "
                        f"capture froze what depends on them ({verdict.status}: {verdict.message})"
                    )
        except NotCapturable:
            self.hands.drop_graphs()
            raise
        self.has_graph = True

    def overtaken(self, larger: InputMaker) -> Verdict:
        """Whether the captured calls stay right, and within their own memory, after a larger call."""
        buffers = self._make(larger.places(), larger.output_places(), larger.device)
        try:
            larger.write(buffers.inputs)
            make_ready(buffers.inputs, buffers.outputs, self.in_place, POISON[0])
            synchronize(self.maker.device)
            self.hands.overtake(buffers)
        finally:
            buffers.release()
        after = f"a captured call, replayed after a larger one ({larger.case.label})"
        try:
            for which in range(len(self.sets)):
                verdict = self._replayed(which, variant=2)
                if verdict.status is not Status.PASSED:
                    told = f"{after}: {verdict.status}: {verdict.message}"
                    return Verdict(Status.GRAPH_OVERTAKEN, told, verdict.correctness)
            nbytes = self.hands.overwritten()
        except Failed as failed:
            raise Failed(Status.GRAPH_OVERTAKEN, f"{after}: {failed.message}", failed.gone) from failed
        if nbytes:
            return Verdict(Status.GRAPH_OVERTAKEN, f"{after}, wrote into {nbytes} bytes that were no longer its own")
        return PASSED

    def _replayed(self, which: int, variant: int) -> Verdict:
        """Of other contents, which the timed ones then follow again."""
        each = self.sets[which]
        self.maker.rewrite(each.inputs, variant)
        make_ready(each.inputs, each.outputs, self.in_place, POISON[variant % 2])
        synchronize(self.maker.device)
        self.hands.replay(which)
        verdict = self._replay_judged(which)
        self.maker.rewrite(each.inputs, variant=0)
        return verdict

    def _replay_judged(self, which: int) -> Verdict:
        inputs = self.sets[which].inputs
        before = checksum(inputs)
        verdict = judge(self.definition, self.module, inputs, self._snapshot(which))
        self._unchanged(before, inputs, _WHILE_JUDGED)
        return verdict

    def turn(self, number: int, iterations: int) -> Turn:
        """One round with contents of its own, timed and looked at. What the solution raises goes through."""
        if self.setup is None:  # otherwise the constants stay what setup saw
            for which, each in enumerate(self.sets):
                self.maker.refill_random(each.inputs, variant=f"{number}/{which}")
            self._stays = [self.maker.steady_sums(f"{number}/{which}") for which in range(len(self.sets))]
        try:
            for iteration in range(WARMUP):
                self._ready_all()
                self.hands.call(iteration % len(self.sets))
            turn = Turn(PASSED, self._timed(f"{number}/eager", "eager", iterations))
            if self.has_graph:
                turn.graph = self._timed(f"{number}/graph", "graph", iterations)
            if number:  # the trial runs beside those of others
                self.taken["eager"].append(turn.eager)
                self.taken["graph"] += [turn.graph] if turn.graph else []
            for each, sums in zip(self.sets, self._stays, strict=True):
                self._unchanged(sums, {name: each.inputs[name] for name in sums}, _WHILE_TIMED)
        except Wrong as wrong:
            return Turn(wrong.verdict)
        return turn

    def _ready_all(self) -> None:
        for each in self.sets:
            make_ready(each.inputs, each.outputs, self.in_place, POISON[0])
        synchronize(self.maker.device)

    def _timed(self, name: str, kind: str, iterations: int) -> Spans:
        """A series of timed calls. Wrong, after its end, where one of the compared ones was.

        Which are compared shows nowhere until they are done, and whoever has been compared may be again: nobody can
        tell from how long the judge takes when it looks away."""
        seconds = _COMPARING_SECONDS[self.repeats]
        share = seconds / max(self._reference_seconds, 1e-6) / iterations
        keeps = iterations * sum(output.nbytes for output in self.sets[0].outputs.values()) <= _KEPT_BYTES
        left: dict[int, _Left] = {}  # of the other calls
        found: list[Verdict] = []

        def before(iteration: int) -> None:
            each = self.sets[iteration % len(self.sets)]
            self.maker.refresh(each.inputs, f"{name}/{iteration}")
            make_ready(each.inputs, each.outputs, self.in_place, POISON[self.random.randrange(2)])
            evict_inputs(self.maker.device)
            synchronize(self.maker.device)

        def after(iteration: int) -> None:
            which = iteration % len(self.sets)
            is_last_to_compare = not found and iteration == iterations - 1
            if is_last_to_compare or self.random.random() < share:
                found.append(self._compared(which, f"{name}/{iteration}", f"after a timed {kind} call"))
            elif self.repeats:
                left[iteration] = _Left(checksum(self.sets[which].outputs), self._snapshot(which) if keeps else None)

        spans = self.hands.spans(kind, iterations, before, after)
        for verdict in found:
            if verdict.status is not Status.PASSED:
                raise Wrong.of(verdict)
        if not found:
            raise Wrong(Status.RAISED, "a timed call was to be compared, none came")
        self._repeat(name, kind, iterations, left)
        return spans

    def _repeat(self, name: str, kind: str, iterations: int, left: dict[int, _Left]) -> None:
        """Timed calls once more, untimed, in random order: the bits that they left must come again. Where they do not,
        what the call left is compared whole, if it was kept, else what came now; Wrong where it is not right. From then
        on the solution is looked at longer: rounding may hang on the order of atomics, or a call was wrong."""
        still_there = range(iterations)[-len(self.sets) :]  # nothing has been written over the contents of the last
        ready = [number for number in left if number in still_there]
        rest = [number for number in left if number not in ready]
        until = time.monotonic() + _REPEATING_SECONDS
        for number in (*self.random.sample(ready, len(ready)), *self.random.sample(rest, len(rest))):
            which = number % len(self.sets)
            if number in rest:
                self.maker.refresh(self.sets[which].inputs, f"{name}/{number}")
            if self._again(kind, which, POISON[self.random.randrange(2)]) != left[number].sums:
                kept = left[number].outputs
                self.repeats = False if kept is None else None
                verdict = self._judged(which, kept or self._snapshot(which), f"{name}/{number}")
                if verdict.status is not Status.PASSED:
                    what = f"after a timed {kind} call" if kept else f"a timed {kind} call, made once more"
                    raise Wrong.of(Verdict(verdict.status, f"{what}: {verdict.message}", verdict.correctness))
                return
            if time.monotonic() > until:
                return

    def _again(self, kind: str, which: int, byte: int) -> dict[str, int]:
        """Another call on the contents that lie there; the checksums of what it left."""
        each = self.sets[which]
        make_ready(each.inputs, each.outputs, self.in_place, byte)
        synchronize(self.maker.device)
        if kind == "eager":
            self.hands.call(which)
        else:
            self.hands.replay(which)
        return checksum(each.outputs)

    def _compared(self, which: int, variant: str, when: str) -> Verdict:
        """What a call left, against the reference of its inputs."""
        try:
            verdict = self._judged(which, self._snapshot(which), variant)
        except Wrong as wrong:
            return wrong.verdict
        if verdict.status is Status.PASSED:
            return verdict
        return Verdict(verdict.status, f"{when}: {verdict.message}", verdict.correctness)

    # ------------------------------------------------------------------------------------------------------ witnesses

    def batch_us(self, kind: str) -> float:
        """The judge's own clock: unseen inputs in every set, released at once, until all outputs are there; per call,
        the least of BATCHES. One set's outputs are compared each time. Wrong where they are not right.

        Nothing lies between the last contents and the clock, so that a thread which watches them gains nothing. The
        clock runs until the outputs are copied, since a worker's word that it is done is only a word; less what another
        copy takes, but no more than it may: whoever keeps the GPU busy meanwhile gains nothing either."""
        best = float("inf")
        for number in range(BATCHES):
            self._batches += 1  # asked again, it has seen the contents of before
            names = [f"batch/{kind}/{self._batches}/{which}" for which in range(len(self.sets))]
            for name, each in zip(names, self.sets, strict=True):
                self.maker.refresh(each.inputs, name)
                make_ready(each.inputs, each.outputs, self.in_place, POISON[number % 2])
            synchronize(self.maker.device)
            which = self.random.randrange(len(self.sets))
            start = time.perf_counter()
            self.hands.batch(kind)
            snapshot = self._snapshot(which)
            copied = time.perf_counter()
            self._snapshot(which)
            copy = min(time.perf_counter() - copied, self._copy_seconds(snapshot))
            best = min(best, (copied - start - copy) * 1e6 / len(self.sets))
            verdict = self._judged(which, snapshot, names[which])
            if verdict.status is not Status.PASSED:
                what = f"after an untimed batch ({kind}): {verdict.message}"
                raise Wrong.of(Verdict(verdict.status, what, verdict.correctness))
        return best

    def _copy_seconds(self, outputs: Outputs) -> float:
        """What a copy of outputs takes at most where nobody hinders it."""
        nbytes = sum(tensor.nbytes for tensor in outputs.values())
        return _COPY_SECONDS + nbytes / _COPIED_PER_SECOND[self.maker.device.type]

    def reference_latency_us(self, timer: Timer, iterations: int) -> float:
        """Median time of the definition's reference."""
        inputs = self.sets[0].inputs
        reference_outputs(self.definition, self.module, inputs)
        spans = timer.spans(lambda _: reference_outputs(self.definition, self.module, inputs), iterations)
        return sorted(spans.spans_us)[len(spans.spans_us) // 2]


def evict_inputs(device: torch.device) -> None:
    """What the judge has just written leaves L2, so that nothing is gained where a solution has disabled the flush of
    its own process. That one follows, and leaves L2 as it is before every call."""
    if device.type == "cuda":
        _flush_buffer(device).zero_()


def wait_for_gpu(device: torch.device) -> None:
    """Until a kernel of the judge's has run: where the worker's are not at their end yet, behind them."""
    if device.type == "cuda":
        _flush_buffer(device)[:1].zero_()
        synchronize(device)


@functools.cache
def _flush_buffer(device: torch.device) -> torch.Tensor:
    return torch.empty(flush_bytes(device), dtype=torch.uint8, device=device)
