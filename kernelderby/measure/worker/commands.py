"""What a worker does when the judge asks: load a solution, open buffers, run calls, time them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from kernelderby.catalog import Catalog, Definition, Solution
from kernelderby.errors import DerbyError
from kernelderby.measure.clock.spans import Spans
from kernelderby.measure.fence import seccomp
from kernelderby.measure.judge.cases import Case
from kernelderby.measure.machine.environment import describe
from kernelderby.measure.wire.replies import (
    CaptureDone,
    CostCounted,
    Done,
    EmptyKernelTimes,
    MachineSeen,
    Overwritten,
    PackChecked,
    SetUpDone,
    Stop,
    TunedTimes,
    TunePrepared,
    Verdict,
)
from kernelderby.measure.worker.failures import NotLoaded, status_of, told
from kernelderby.rows.measurement import Status

if TYPE_CHECKING:  # torch is imported by the first command that needs it
    import torch

    from kernelderby.measure.clock.timing import Timer
    from kernelderby.measure.judge.inputs import InputMaker
    from kernelderby.measure.wire.shared import BufferSet
    from kernelderby.measure.wire.signals import Signals
    from kernelderby.measure.worker.candidate import Candidate
    from kernelderby.measure.worker.channel import Channel
    from kernelderby.measure.worker.hands import Hands
    from kernelderby.measure.worker.tuning import Tuning

_OF_HANDS = ("call", "drop_graphs", "replay", "batch")  # with nothing to add here

Held = TypeVar("Held")


class Worker:
    """The commands. `device` is "cuda" or "cpu"; torch is imported by the first command that needs it. A command that
    comes before the one that it builds on (`call` before `attach`) is the judge's mistake, and raises."""

    def __init__(self, root: str, device: str) -> None:
        self.root, self.device_type = Path(root), device
        self.channel: Channel | None = None
        self._definition: Definition | None = None
        self._solution: Solution | None = None
        self._candidate: Candidate | None = None
        self._timer: Timer | None = None
        self._hands: Hands | None = None
        self._tuning: Tuning | None = None
        self._opened: list[BufferSet] = []
        self._signals: Signals | None = None
        self._module: tuple[str, ModuleType] | None = None

    @property
    def device(self) -> torch.device:
        import torch

        return torch.device(self.device_type, 0) if self.device_type == "cuda" else torch.device("cpu")

    @property
    def definition(self) -> Definition:
        return _there(self._definition, "a definition")

    @property
    def candidate(self) -> Candidate:
        return _there(self._candidate, "a solution")

    @property
    def hands(self) -> Hands:
        return _there(self._hands, "buffers")

    @property
    def tuning(self) -> Tuning:
        return _there(self._tuning, "a case to tune")

    def describe(self) -> MachineSeen:
        """The machine, and the timing protocol that works on it."""
        from kernelderby.measure.clock import timing

        found = describe(self.device_type)
        if found.gpu is None and self.device_type != "cpu":
            return found
        protocol, note = timing.find_protocol(self.device)
        flush_bytes = timing.flush_bytes(self.device) if found.gpu else 0
        return msgspec.structs.replace(found, protocol=protocol, protocol_note=note, flush_bytes=flush_bytes)

    def begin(self) -> Done:
        """Imports what every solution needs, before one is there."""
        import kernelderby.measure.clock.timing
        import kernelderby.measure.worker.build
        import kernelderby.measure.worker.candidate  # noqa: F401

        return Done()

    def load(self, definition: str, solution: str, protocol: str | None = None, guarded: Collection[int] = ()) -> Done:
        """Takes a definition and loads a solution. protocol: the timer is made before any of its code runs. guarded:
        rivals that were started after this process, out of its reach from here on."""
        from kernelderby.measure.worker.build import BuildFailed, load_setup, load_solution
        from kernelderby.measure.worker.candidate import Candidate

        catalog = Catalog.open(self.root)
        self._definition = catalog.definition(definition)
        if protocol is not None:
            self._timer_of(protocol)
        if guarded:
            seccomp.protect(guarded)
        chosen = catalog.solution(solution)
        if self.device_type == "cpu" and chosen.language == "triton":
            from kernelderby.measure.worker.interpreter import as_on_a_gpu

            as_on_a_gpu()
        try:
            function = load_solution(self.definition, chosen)
            setup = load_setup(chosen)
        except BuildFailed as error:
            raise NotLoaded(Status.BUILD_FAILED, str(error)) from error
        except BaseException as error:  # whatever the solution's own code raises on import, sys.exit included
            raise NotLoaded(status_of(error, Status.BUILD_FAILED), told(error)) from error
        self._solution = chosen
        self._candidate = Candidate(function, chosen.destination_passing_style, self.definition, chosen.in_place, setup)
        return Done()

    @property
    def module(self) -> ModuleType:
        """The definition's module, with the reference: not loaded where a solution is only run."""
        from kernelderby.measure.judge.definition import load_definition_module

        if self._module is None or self._module[0] != self.definition.name:
            self._module = self.definition.name, load_definition_module(self.definition)
        return self._module[1]

    def check(self, case: dict[str, Any]) -> Verdict:
        """Correctness in this process, before a profile; nothing that ends in a row."""
        from kernelderby.measure.worker.local import local_check

        return local_check(self.candidate, self.module, self._maker(case))

    def call_once(self, case: dict[str, Any]) -> Done:
        """Of the loaded solution, on inputs that nobody else knows; what it gives is looked at by nobody."""
        from kernelderby.measure.judge.correctness import synchronize

        maker = self._maker(case)
        inputs = maker.make(0)
        outputs = self.candidate.new_outputs(maker.case, maker.device)
        for output, name in self.candidate.in_place.items():
            outputs[output].copy_(inputs[name])
        self.candidate(inputs, outputs, self.candidate.set_up(inputs, maker.device).values)
        synchronize(maker.device)
        return Done()

    def pack_check(self, definition: str) -> PackChecked:
        """What is stale or broken of a definition's blobs and costs; see judge/fenced.py."""
        from kernelderby.measure.judge.blobs import changes_of

        catalog = Catalog.open(self.root)
        chosen = catalog.definition(definition)
        try:
            return PackChecked(tuple(changes_of(catalog, chosen, catalog.workloads(definition), check=True)))
        except DerbyError as error:
            return PackChecked((), str(error))

    def count_cost(self, definition: str, line: dict[str, Any]) -> CostCounted:
        """Work of a shape that no file has, by the definition's own code. line: as in workloads, without a cost."""
        from kernelderby.catalog.workloads import workload_of
        from kernelderby.measure.judge.blobs import count, generate

        if self._definition is None or self._definition.name != definition:
            self._definition = Catalog.open(self.root).definition(definition)
        workload = workload_of("the shape", line, self.definition)
        sizes = self.definition.sizes(workload.axes)
        try:
            tensors = generate(self.definition, self.module, workload, sizes)
            return CostCounted(count(self.definition, self.module, workload, tensors, sizes))
        except (ValueError, DerbyError) as error:
            return CostCounted(broken=str(error))

    def empty_kernel(self, protocol: str) -> EmptyKernelTimes:
        """Times of a kernel that does nothing to speak of, by the same timer."""
        from kernelderby.measure.clock.empty_kernel import empty_kernel_us

        return EmptyKernelTimes(empty_kernel_us(self._timer_of(protocol), self.device))

    def load_empty(self, protocol: str, copies: bool = False) -> Done:
        """Nothing to speak of in the place of a solution, by which the judge learns what its own clock takes; or a copy
        of the input."""
        from kernelderby.measure.worker.empty import trusted_candidate

        self._timer_of(protocol)
        self._candidate = trusted_candidate(copies)
        return Done()

    # --------------------------------------------------------------------------------------------- the judge's hands

    def command(self, name: str) -> Callable[..., Struct]:
        """What a request names: a method of this, one of the hands' that gives nothing back, or a function of a room
        above this one, which is given the set's folder ("kernelderby.measure.certify.resources:seen")."""
        module, _, function = name.rpartition(":")
        if module:
            return partial(getattr(import_module(module), function), self.root)
        if name not in _OF_HANDS:
            found: Callable[..., Struct] = getattr(self, name)
            return found

        def call(**arguments: Any) -> Done:
            getattr(self.hands, name)(**arguments)
            return Done()

        return call

    def attach(self, sets: list[dict[str, Any]], signals: dict[str, Any]) -> Done:
        """Opens the judge's buffers; see shared.opened_set."""
        from kernelderby.measure.clock.timing import WallTimer
        from kernelderby.measure.wire.shared import opened_set
        from kernelderby.measure.wire.signals import opened_signals
        from kernelderby.measure.worker.hands import Hands

        self.release()
        *of_calls, of_signals = self._with_handles([*sets, signals])
        self._opened = [opened_set(each, self.device) for each in of_calls]
        self._signals = opened_signals(of_signals, self.device)
        self._hands = Hands(self.candidate, self._timer or WallTimer(), self.device)
        self._hands.signals = self._signals
        self._hands.attach(self._opened)
        return Done()

    def _with_handles(self, sets: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Descriptions in which a number of a descriptor that came with the request is that descriptor."""
        came = self.channel.taken() if self.channel else []
        return [{**each, "handle": came[each["handle"]]} if came else each for each in sets]

    def set_up(self, which: int) -> SetUpDone:
        return SetUpDone(self.hands.set_up(which))

    def extend(self, sets: list[dict[str, Any]]) -> CaptureDone:
        """Opens further sets for batches."""
        from kernelderby.measure.wire.shared import opened_set

        more = [opened_set(each, self.device, self._opened) for each in self._with_handles(sets)]
        self._opened += more
        return self._captured(lambda: self.hands.extend(more))

    def capture(self) -> CaptureDone:
        return self._captured(self.hands.capture)

    def _captured(self, capture: Callable[[], None]) -> CaptureDone:
        from kernelderby.measure.clock.graphs import NotCapturable

        try:
            capture()
        except NotCapturable as error:
            return CaptureDone(str(error), error.spoiled)
        return CaptureDone("", spoiled=False)

    def overtake(self, larger: dict[str, Any]) -> Done:
        """See hands.Hands; `larger` as in attach()."""
        from kernelderby.measure.wire.shared import opened_set

        (described,) = self._with_handles([larger])
        opened = opened_set(described, self.device)
        try:
            self.hands.overtake(opened)
        finally:
            opened.release()
        return Done()

    def overwritten(self) -> Overwritten:
        return Overwritten(self.hands.overwritten())

    def spans(self, kind: str, iterations: int) -> Spans:
        """Timed calls or replays; stops before and after each window for the judge."""
        channel = _there(self.channel, "a judge")
        return self.hands.spans(
            kind,
            iterations,
            lambda iteration: channel.meet(Stop("ready", iteration)),
            lambda iteration: channel.meet(Stop("done", iteration)),
        )

    def relay(self, kind: str, count: int) -> Done:
        """Calls at the judge's word; a stop when they are all enqueued."""
        channel = _there(self.channel, "a judge")
        self.hands.relay(kind, count, lambda: channel.write(msgspec.to_builtins(Stop("armed", count))))
        return Done()

    # -------------------------------------------------------------------------------------------------------- tuning

    def tune_prepare(self, case: dict[str, Any], protocol: str) -> TunePrepared:
        """The buffers of a case that is tuned, its key and its candidates."""
        from kernelderby.measure.worker.build import solution_module
        from kernelderby.measure.worker.tuning import Tuning

        self._tuning = None
        self.release()
        solution = solution_module(_there(self._solution, "a solution"))
        tuning = Tuning(self.candidate, solution, self.module, self._maker(case), self._timer_of(protocol))
        self._tuning = tuning
        return TunePrepared(tuning.key, tuple(tuning.configs), tuning.chosen)

    def tune_check(self, number: int) -> Verdict:
        return self.tuning.check(number)

    def tune_time(self, number: int, iterations: int) -> TunedTimes:
        """One turn of a candidate as a CUDA graph."""
        from kernelderby.measure.worker.tuning import timed

        return timed(self.tuning, number, iterations)

    def release(self) -> Done:
        """Frees the buffers of the prepared case, so that other processes have the memory."""
        if self._hands is not None:
            self._hands.detach()
        self._hands = None
        for each in (*self._opened, *([self._signals.buffers] if self._signals else [])):
            each.release()
        self._opened, self._signals = [], None
        if self.device_type == "cuda":
            import torch

            torch.cuda.empty_cache()
        return Done()

    def _timer_of(self, protocol: str) -> Timer:
        from kernelderby.measure.clock.timing import make_timer

        if self._timer is None or self._timer.protocol != protocol:
            self._timer = make_timer(protocol, self.device)
        return self._timer

    def _maker(self, case: dict[str, Any]) -> InputMaker:
        from kernelderby.measure.judge.inputs import InputMaker

        return InputMaker(self.definition, self.module, Case(**case), self.device, self.root)


def _there(wanted: Held | None, what: str) -> Held:
    if wanted is None:
        raise RuntimeError(f"the worker holds no {what.partition(' ')[2] or what} yet")
    return wanted
