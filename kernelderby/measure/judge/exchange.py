"""What judge and solution share: sets of inputs and outputs at different addresses, and the hands that work on them.

The judge owns all memory that counts (wire.shared.BufferSet). The solution runs elsewhere (worker.hands.Hands, in
another process wire.remote.RemoteHands), sees these buffers and nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from types import ModuleType
from typing import Any, Protocol

import torch

from kernelderby.catalog import Definition
from kernelderby.measure.clock.spans import Spans
from kernelderby.measure.clock.timing import Call
from kernelderby.measure.judge.checksums import bytes_of, changed_inputs, checksum
from kernelderby.measure.judge.correctness import POISON, Outputs, judge, make_ready, some_rows, synchronize
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.judge.references import References
from kernelderby.measure.wire.replies import SetUpTaken, Verdict, Wrong
from kernelderby.measure.wire.shared import BufferSet, Loan, private_set, shared_set
from kernelderby.measure.wire.signals import Signals, signal_set
from kernelderby.rows.measurement import Status

INPUT_SETS = 2  # different contents at different addresses
PASSED = Verdict(Status.PASSED)

WHILE_TIMED = "while timed it wrote into its input"


class HandsLike(Protocol):
    """worker.hands.Hands, or wire.remote.RemoteHands for one in another process."""

    def attach(self, sets: list[BufferSet], signals: Signals) -> None: ...
    def set_up(self, which: int) -> SetUpTaken | None: ...
    def call(self, which: int) -> None: ...
    def capture(self) -> None: ...
    def drop_graphs(self) -> None: ...
    def replay(self, which: int) -> None: ...
    def overtake(self, larger: BufferSet) -> None: ...
    def overwritten(self) -> int: ...
    def spans(self, kind: str, iterations: int, before: Call, after: Call) -> Spans: ...
    def extend(self, sets: list[BufferSet]) -> None: ...
    def batch(self, kind: str, count: int) -> None: ...


class RelayHands(Protocol):
    """wire.remote.RemoteHands: in a process that works while the judge does."""

    def relay(
        self, kind: str, count: int, drive: Callable[[], None], release: Callable[[], None], waits: bool
    ) -> bool: ...
    def still(self) -> AbstractContextManager[None]: ...
    def lives(self) -> bool: ...


class Exchange:
    """sets: of timed calls. every: these, and the further ones of batches. in_place: of the solution. shared: the
    hands are in another process. references: of all who race on this case."""

    def __init__(
        self,
        definition: Definition,
        module: ModuleType,
        maker: InputMaker,
        hands: HandsLike,
        in_place: dict[str, str],
        shared: bool,
        references: References | None = None,
    ) -> None:
        self.definition, self.module, self.maker, self.hands = definition, module, maker, hands
        self.references = references or References()
        self.in_place = in_place
        self.random = random.SystemRandom()  # which calls are compared is nothing that a seed could tell
        self.stays: list[dict[str, int]] = []  # checksums of the inputs that a turn's calls share, of each set
        self._own: list[dict[str, Any]] = []  # the same contents in memory that nobody else reaches
        self._make = shared_set if shared else private_set
        self.sets: list[BufferSet] = []
        self.every: list[BufferSet] = []
        self.signals = Signals(signal_set(maker.device))
        try:
            for _ in range(INPUT_SETS):
                self.sets.append(self.buffers(maker))
            self.every = list(self.sets)
            hands.attach(self.sets, self.signals)
        except BaseException:
            self.release()
            raise

    def buffers(self, maker: InputMaker) -> BufferSet:
        """A set for the maker's case."""
        return self._make(maker.places(), maker.output_places(), maker.device)

    def extend(self, count: int) -> int:
        """Further sets until there are so many, or no room for them; how many there are. They have the constants of
        the first ones. NotCapturable where a captured call cannot be captured over them."""
        places, constants = self.maker.places(), self.definition.constants
        more: list[BufferSet] = []
        try:
            for number in range(len(self.every), count):
                loan = Loan(number % len(self.sets), self.sets[number % len(self.sets)].inputs, constants)
                each = self._make(places, self.maker.output_places(), self.maker.device, loan)
                more.append(each)
                self.maker.rewrite(each.inputs, 0)
        except (MemoryError, torch.OutOfMemoryError):
            more.pop().release() if more else None
        if more:
            synchronize(self.maker.device)
            self.every += more
            self.stays += [self.stays[number % len(self.sets)] for number in range(len(self.stays), len(self.every))]
            self.hands.extend(more)
        return len(self.every)

    def release(self) -> None:
        for each in (*(self.every or self.sets), self.signals.buffers):
            each.release()
        self.sets, self.every, self._own = [], [], []

    def write(self, which: int, contents: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Contents into memory of the judge's own, and from there into a set. Gives the judge's: the reference reads
        these, and no one else can reach them. They stay until the set is written again."""
        if not self._own:
            self._own = [private_set(self.maker.places(), {}, self.maker.device).inputs for _ in self.sets]
        own, inputs = self._own[which], self.sets[which].inputs
        contents(own)
        for name, value in own.items():
            if isinstance(value, torch.Tensor):
                bytes_of(inputs[name]).copy_(bytes_of(value))
        return own

    def write_what_stays(self, variants: list[str], whole: bool) -> None:
        """The contents that a turn's calls share, by a variant for each set. whole: the generated inputs, too."""
        maker, self.stays = self.maker, []
        for which, variant in enumerate(variants):
            own = self.write(
                which,
                partial(maker.write, variant=0, random_variant=variant)
                if whole
                else partial(maker.refill_random, variant=variant),
            )
            self.stays.append(checksum({name: own[name] for name in maker.steady}))

    def expected_inputs(self, which: int, variant: str) -> dict[str, Any]:
        """What lies in a set since refresh() of that variant, in the judge's memory: valid until asked again."""
        own = self._own[which % len(self._own)]
        self.maker.refresh(own, variant)
        return own

    def changing_sums(self, inputs: dict[str, Any]) -> dict[str, int]:
        """Of the inputs that refresh() writes."""
        return checksum({name: value for name, value in inputs.items() if name not in self.maker.steady})

    def ready(self, which: int, byte: int) -> None:
        """Poison in the outputs of a set, or its input's contents."""
        each = self.every[which]
        make_ready(each.inputs, each.outputs, self.in_place, byte)

    def ready_all(self) -> None:
        for which in range(len(self.sets)):
            self.ready(which, POISON[0])
        synchronize(self.maker.device)

    def snapshot(self, which: int) -> Outputs:
        """The outputs as they are now: what is looked at later is nothing that anybody else can reach."""
        copies = {name: tensor.clone() for name, tensor in self.every[which].outputs.items()}
        synchronize(self.maker.device)
        return copies

    def again(self, kind: str, which: int, byte: int) -> dict[str, int]:
        """Another call on the contents that lie there; the checksums of what it left."""
        self.ready(which, byte)
        synchronize(self.maker.device)
        if kind == "eager":
            self.hands.call(which)
        else:
            self.hands.replay(which)
        return checksum(self.sets[which].outputs)

    def judged(
        self, outputs: Outputs, inputs: dict[str, int], which: int, variant: str, rows: int | None = None
    ) -> Verdict:
        """Outputs that a call on a set left, against the reference of the contents that the judge wrote there. inputs:
        checksums, of what lay there when the call was over. Wrong where that is something else: who writes into the
        inputs changes what is expected. The reference reads memory that nobody else reaches. rows: only so many, at
        random."""
        own = self.expected_inputs(which, variant)
        expected = self.changing_sums(own)
        if changed := [name for name, value in inputs.items() if expected[name] != value]:
            raise Wrong(Status.INPUT_CHANGED, f"{WHILE_TIMED} {', '.join(changed)}")
        if rows is not None:
            there = len(next(iter(outputs.values())))
            drawn = sorted(self.random.sample(range(there), min(rows, there)))
            own, outputs = some_rows(self.module, own, outputs, drawn)
            return judge(self.definition, self.module, own, outputs)
        return self.compared(own, outputs, {**self.stays[which % len(self.stays)], **expected})

    def compared(
        self, own: dict[str, Any], outputs: Outputs, sums: dict[str, int], definition: Definition | None = None
    ) -> Verdict:
        """Outputs against the reference of the judge's contents, whose checksums these are."""
        definition = definition or self.definition
        return judge(
            definition, self.module, own, outputs, partial(self.references.of, definition, self.module, own, sums)
        )


def unchanged(before: dict[str, int], inputs: dict[str, Any], what: str) -> None:
    """Wrong where an input has another checksum."""
    changed = changed_inputs(before, inputs)
    if changed:
        raise Wrong(Status.INPUT_CHANGED, f"{what} {', '.join(changed)}")
