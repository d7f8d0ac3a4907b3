"""Shared by judge and solution: sets of inputs and outputs at different addresses, and the executor of its calls.

The judge owns all memory that counts (wire.shared.BufferSet). The solution runs elsewhere and sees only these buffers:
behind wire.remote.RemoteExecutor in another process, in tests behind worker.executor.CallExecutor.
"""

from __future__ import annotations

import random
import secrets
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch

from kernelderby.catalog import Definition
from kernelderby.measure.judge.checksums import bytes_of, changed_inputs, checksum
from kernelderby.measure.judge.correctness import (
    POISON,
    Outputs,
    has_rows,
    joined_rows,
    judge,
    make_ready,
    reference_outputs,
    row_dimensions,
    some_rows,
    synchronize,
)
from kernelderby.measure.judge.definition import DefinitionFailed, blamed_on
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.wire.remote import RemoteExecutor
from kernelderby.measure.wire.replies import Verdict, Wrong
from kernelderby.measure.wire.shared import BufferSet, Loan, private_set, shared_set
from kernelderby.measure.wire.signals import Signals, signal_set
from kernelderby.rows.measurement import Status

INPUT_SETS = 2  # different contents at different addresses
PASSED = Verdict(Status.PASSED)
WHILE_TIMED = "while timed it wrote into its input"
COMPARING_SECONDS = 0.02  # of references for calls by the judge's clock
# A median moves only where half of the calls are wrong: so many of them find that in 99 of 100 cases. Whatever their
# references take: they are the same calls for all who race.
ENOUGH_BY_CLOCK = 7
_ROWS = 4  # of a call that is compared by some rows
_MOST_DRAWN = 128  # of the judge's clock
_KEPT_BYTES = 1 << 30  # of references
_JOINED_BYTES = 128 << 20  # of the calls of one reference, their inputs and outputs
_JOINING_SECONDS = 0.001  # that a reference takes at least which is computed for several calls
_OF_MEMORY = 64  # and no more than this part of a GPU's
_DRAWN_BYTES, _OF_MEMORY_DRAWN = 4 << 30, 16  # the same of outputs that wait to be compared


class References:
    """The reference's outputs of one case, computed once for all who race: they are compared on the same contents.
    seconds, rows_seconds: the least that one, or one of some rows, took to compute and to compare, whatever the
    solutions' processes did meanwhile; 0: none was computed yet."""

    def __init__(self) -> None:
        self.seconds = self.rows_seconds = 0.0
        self._kept: dict[frozenset[tuple[str, int]], Outputs] = {}
        self._nbytes = 0
        self._filled: dict[int, tuple[dict[str, int], dict[str, int], weakref.ref[Exchange]]] = {}
        self.redraw()

    def of(
        self, definition: Definition, module: ModuleType, inputs: dict[str, Any], sums: Mapping[str, int]
    ) -> Outputs:
        """sums: checksums of all tensors among the inputs. What is kept is a copy: a reference may give back its
        inputs, and those are written over."""
        contents = frozenset(sums.items())
        if contents in self._kept:
            return self._kept[contents]
        found = reference_outputs(definition, module, inputs)
        self.keep(sums, found)
        return found

    def keep(self, sums: Mapping[str, int], found: Outputs) -> None:
        """What the reference gave for the contents with these checksums, as far as there is room."""
        contents = frozenset(sums.items())
        nbytes, device = sum(tensor.nbytes for tensor in found.values()), next(iter(found.values())).device
        most = _room(device, _KEPT_BYTES, _OF_MEMORY)
        while self._kept and self._nbytes + nbytes > most:
            self._nbytes -= sum(tensor.nbytes for tensor in self._kept.pop(next(iter(self._kept))).values())
        if nbytes <= most:
            self._kept[contents] = {name: tensor.clone() for name, tensor in found.items()}
            self._nbytes += nbytes

    def holds(self, sums: Mapping[str, int]) -> bool:
        return frozenset(sums.items()) in self._kept

    def took(self, seconds: float) -> None:
        self.seconds = min(self.seconds or seconds, seconds)

    def rows_took(self, seconds: float) -> None:
        self.rows_seconds = min(self.rows_seconds or seconds, seconds)

    def drawn(self, name: str, iterations: int) -> list[int]:
        """The calls of a series in the order in which they are compared, the same for all who race, each order as
        likely as any other."""
        every = max(iterations, _MOST_DRAWN)  # the same ones also of shorter series, as far as they go
        order = random.Random(f"{self._token}/{name}").sample(range(every), every)
        return [call for call in order if call < iterations]

    def fills(self, which: int, seeds: dict[str, int], sums: dict[str, int], exchange: Exchange) -> None:
        """That exchange's own memory holds the contents of these seeds, with these checksums, until it is written
        again."""
        self._filled[which] = seeds, sums, weakref.ref(exchange)

    def filled(self, which: int, seeds: dict[str, int]) -> tuple[Exchange | None, dict[str, int]]:
        """Who has told last to hold the contents of these seeds, and their checksums. They may be others by now."""
        known, sums, holder = self._filled.get(which, ({}, {}, None))
        return (holder(), sums) if holder and seeds == known else (None, {})

    def clear(self) -> None:
        self._kept, self._nbytes, self._filled = {}, 0, {}

    def redraw(self) -> None:
        """Once somebody is out: another solution could see that, and know of a call that is compared."""
        self._token = secrets.token_hex(16)


def _room(device: torch.device, nbytes: int, part: int) -> int:
    """So many bytes, but no more than that part of a GPU's."""
    if device.type != "cuda":
        return nbytes
    return min(nbytes, int(torch.cuda.get_device_properties(device).total_memory) // part)


@dataclass(frozen=True, slots=True)
class Left:
    """What a call has left in a set: checksums of its outputs, and of the inputs that lay there by then; the outputs
    where they are kept."""

    sums: dict[str, int]
    inputs: dict[str, int]
    outputs: Outputs | None


class Exchange:
    """sets: of timed calls. every: these, and the further ones of batches. in_place: of the solution. shared: the
    executor is in another process. references: of all who race on this case."""

    def __init__(
        self,
        definition: Definition,
        module: ModuleType,
        maker: InputMaker,
        executor: RemoteExecutor,
        in_place: dict[str, str] | None = None,
        shared: bool = True,
        references: References | None = None,
    ) -> None:
        self.definition, self.module, self.maker, self.executor = definition, module, maker, executor
        self.references = references or References()
        self.in_place = in_place or {}
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
            executor.attach(self.sets, self.signals)
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
                self.maker.write(each.inputs, constants=False)
        except (MemoryError, torch.OutOfMemoryError):
            more.pop().release() if more else None
        if more:
            synchronize(self.maker.device)
            self.every += more
            self.stays += [self.stays[number % len(self.sets)] for number in range(len(self.stays), len(self.every))]
            self.executor.extend(more)
        return len(self.every)

    def release(self) -> None:
        for each in (*(self.every or self.sets), self.signals.buffers):
            each.release()
        self.sets, self.every, self._own = [], [], []

    @property
    def reference_seconds(self) -> float:
        return self.references.seconds

    def affordable(self, seconds: float, most: int) -> int:
        """How many whole references take so long; one at least."""
        return max(1, min(most, int(seconds / max(self.reference_seconds, 1e-6))))

    def drawn(self, name: str, calls: int, wanted: int, seconds: float, least: int = 1) -> dict[int, int | None]:
        """Which calls of a series are compared, each as likely as any other and the same for all who race: whole
        (None) as long as their references take no longer than that, the others by some rows, where the definition has
        a reference of those. least: so many in any case."""
        whole, rows = self.affordable(seconds, min(wanted, calls)), 0
        if has_rows(self.module):
            of_rows = self.references.rows_seconds or self.reference_seconds / 8
            rows = max(least - whole, min(wanted - whole, int(seconds / max(of_rows, 1e-6))))
        else:
            whole = max(whole, least)
        found = self.references.drawn(name, calls)[: min(whole + max(0, rows), self._kept_at_once())]
        return {call: None if number < whole else _ROWS for number, call in enumerate(found)}

    def _kept_at_once(self) -> int:
        nbytes = sum(output.nbytes for output in self.sets[0].outputs.values())
        return max(1, _room(self.maker.device, _DRAWN_BYTES, _OF_MEMORY_DRAWN) // max(1, nbytes))

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
            if not whole:
                self.stays.append(self._refilled(which, variant))
                continue
            own = self.write(which, partial(maker.write, variant=0, random_variant=variant))
            self.stays.append(self._steady_sums(own))

    def _steady_sums(self, own: dict[str, Any]) -> dict[str, int]:
        return checksum({name: own[name] for name in self.maker.steady})

    def _refilled(self, which: int, variant: str) -> dict[str, int]:
        """Other random contents; the checksums of what stays. What a rival's turn of the same round has generated (the
        weights of experts, a gigabyte and more) is copied from the judge's memory for that one, if its checksums are
        still those of when it was generated."""
        seeds, refill = self.maker.seeds_of_steady(variant), partial(self.maker.refill_random, variant=variant)
        holder, known = self.references.filled(which, seeds)
        if holder is not None and holder is not self and which < len(holder._own):
            held = {name: holder._own[which][name] for name in seeds}
            sums = self._steady_sums(self.write(which, partial(refill, known=held)))
            if all(sums[name] == known[name] for name in seeds):
                return sums
        sums = self._steady_sums(self.write(which, refill))
        self.references.fills(which, seeds, sums, self)
        return sums

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

    def snapshot(self, which: int, into: Outputs | None = None) -> Outputs:
        """The outputs as they are now: what is looked at later is nothing that anybody else can reach."""
        copies = into or {name: torch.empty_like(tensor) for name, tensor in self.every[which].outputs.items()}
        for name, tensor in self.every[which].outputs.items():
            bytes_of(copies[name]).copy_(bytes_of(tensor))
        synchronize(self.maker.device)
        return copies

    def room(self, count: int) -> list[Outputs]:
        """Memory for the outputs of so many calls that are kept, and of one that is not. A call's outputs go into the
        last, which is taken off where they are kept. It is there before the first call: everybody sees how much memory
        the judge and its GPU have, and would see by its growth which calls are compared, and when no more will be."""
        outputs = self.sets[0].outputs
        found = [{name: torch.empty_like(tensor) for name, tensor in outputs.items()} for _ in range(count + 1)]
        for tensor in (tensor for each in found for tensor in each.values()):
            bytes_of(tensor).fill_(0)  # a CPU gives pages to who writes
        return found

    def left(self, which: int, keeps: bool, taken: Outputs | None = None) -> Left:
        """After a call. The same is done whether the outputs are kept or not: a worker that waits could tell by the
        time which calls are compared, and do nothing in those that are left. taken: its outputs, copied already."""
        outputs = taken or self.snapshot(which)
        return Left(checksum(outputs), self.changing_sums(self.every[which].inputs), outputs if keeps else None)

    def again(self, kind: str, which: int, byte: int) -> dict[str, int]:
        """Another call on the contents that lie there; the checksums of what it left."""
        self.ready(which, byte)
        synchronize(self.maker.device)
        (self.executor.call if kind == "eager" else self.executor.replay)(which)
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
            there, start = len(next(iter(outputs.values()))), time.monotonic()
            drawn = sorted(self.random.sample(range(there), min(rows, there)))
            own, outputs = some_rows(self.definition, self.module, own, outputs, drawn)
            verdict = judge(self.definition, self.module, own, outputs)
            self.references.rows_took(time.monotonic() - start)
            return verdict
        return self.compared(own, outputs, {**self.stays[which % len(self.stays)], **expected})

    def expect_right(self, seen: str, calls: Iterable[tuple[Left, int, str, int | None]]) -> None:
        """calls: what each left, its set, the variant of its contents, and the rows that are compared (None: all).
        Wrong where one is not right."""
        calls = list(calls)
        self._compute_joined([(which, variant) for _, which, variant, rows in calls if rows is None])
        for left, which, variant, rows in calls:
            assert left.outputs is not None
            expect_passed(self.judged(left.outputs, left.inputs, which, variant, rows), seen)

    def _compute_joined(self, calls: list[tuple[int, str]]) -> None:
        """The references of these calls, several in one run of the definition's where its REFERENCE_ROWS tell them
        apart: what it does with the weights of experts, say, is done once."""
        inputs, outputs = self.sets[0].inputs, self.sets[0].outputs
        with blamed_on(self.definition, "the reference of some rows raises"):
            dimensions = row_dimensions(self.module, inputs)
        tensors = {name for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        if self.reference_seconds < _JOINING_SECONDS or not tensors.difference(self.maker.steady) <= set(dimensions):
            return
        nbytes = sum(each.nbytes for each in (*(inputs[name] for name in dimensions), *outputs.values()))
        most = _JOINED_BYTES // max(1, nbytes)
        for which in range(len(self._own)):  # calls on a set share what stays
            variants = [variant for place, variant in calls if place % len(self._own) == which]
            for start in range(0, len(variants), max(1, most)):
                self._join(which, variants[start : start + most], dimensions)

    def _join(self, which: int, variants: list[str], names: Iterable[str]) -> None:
        """One reference for the calls of these variants. Where it fails, each has its own computed later."""
        waiting = list[tuple[dict[str, int], dict[str, Any]]]()
        for variant in variants if len(variants) > 1 else ():
            own = self.expected_inputs(which, variant)
            sums = {**self.stays[which], **self.changing_sums(own)}
            if not self.references.holds(sums):
                waiting.append((sums, {name: own[name].clone() for name in names}))
        if len(waiting) < 2:
            return
        inputs = joined_rows(self.module, self._own[which], [each for _, each in waiting])
        count = len(next(iter(self.sets[0].outputs.values())))
        try:
            found = reference_outputs(self.definition, self.module, inputs)
        except (DefinitionFailed, MemoryError, torch.OutOfMemoryError):
            return
        if all(len(tensor) == len(waiting) * count for tensor in found.values()):
            for place, (sums, _) in enumerate(waiting):
                rows = slice(place * count, (place + 1) * count)
                self.references.keep(sums, {name: tensor[rows] for name, tensor in found.items()})

    def compared(
        self, own: dict[str, Any], outputs: Outputs, sums: dict[str, int], definition: Definition | None = None
    ) -> Verdict:
        """Outputs against the reference of the judge's contents, whose checksums these are."""
        definition = definition or self.definition
        computed = list[float]()

        def known() -> Outputs:
            if not self.references.holds(sums):
                computed.append(time.monotonic())  # now: others wait for their turn to be judged
            return self.references.of(definition, self.module, own, sums)

        verdict = judge(definition, self.module, own, outputs, known)
        if computed:
            self.references.took(time.monotonic() - computed[0])
        return verdict


def expect_passed(verdict: Verdict, what: str) -> None:
    """Wrong, with `what` before its message, for any other verdict."""
    if verdict.status is not Status.PASSED:
        raise Wrong.of(Verdict(verdict.status, f"{what}: {verdict.message}", verdict.correctness))


def unchanged(before: dict[str, int], inputs: dict[str, Any], what: str) -> None:
    """Wrong where an input has another checksum."""
    if changed := changed_inputs(before, inputs):
        raise Wrong(Status.INPUT_CHANGED, f"{what} {', '.join(changed)}")
