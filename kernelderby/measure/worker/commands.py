"""The commands of a worker: load a solution, open buffers, run calls, time them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import torch
from msgspec import Struct

from kernelderby.catalog import Catalog, Definition, Solution
from kernelderby.catalog.workloads import workload_of
from kernelderby.errors import DerbyError
from kernelderby.measure.clock import timing
from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.clock.spans import Spans
from kernelderby.measure.fence import seccomp
from kernelderby.measure.judge import blobs
from kernelderby.measure.judge.cases import Case
from kernelderby.measure.judge.correctness import synchronize
from kernelderby.measure.judge.definition import Uncountable, load_definition_module
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.machine.environment import describe
from kernelderby.measure.wire import shared
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
from kernelderby.measure.wire.shared import BufferSet
from kernelderby.measure.wire.signals import opened_signals
from kernelderby.measure.worker.build import BuildFailed, load_setup, load_solution, solution_module
from kernelderby.measure.worker.candidate import Candidate
from kernelderby.measure.worker.channel import Channel
from kernelderby.measure.worker.executor import CallExecutor, local_check
from kernelderby.measure.worker.failures import NotLoaded, status_of, told
from kernelderby.measure.worker.tuning import Tuning
from kernelderby.rows.measurement import Status

# Methods of CallExecutor that need only the kind of their answer.
_OF_EXECUTOR: dict[str, Callable[..., Struct]] = {
    **dict.fromkeys(("call", "drop_graphs", "replay", "batch"), lambda nothing: Done()),
    "set_up": SetUpDone,
    "overwritten": Overwritten,
}


class Worker:
    """The commands. A command before the one that it needs (`call` before `attach`) is the judge's mistake, and an
    AttributeError."""

    definition: Definition
    candidate: Candidate
    executor: CallExecutor
    tuning: Tuning
    channel: Channel
    _solution: Solution

    def __init__(self, root: str, device: str) -> None:
        self.root, self.device = Path(root), torch.device(device, 0) if device == "cuda" else torch.device("cpu")
        self._timer: timing.Timer | None = None
        self._opened: list[BufferSet] = []
        self._module: tuple[str, ModuleType] | None = None

    def describe(self) -> MachineSeen:
        """The machine, and its working timing protocol."""
        found = describe(self.device.type)
        if found.gpu is None and self.device.type != "cpu":
            return found
        protocol, note = timing.find_protocol(self.device)
        flush_bytes = timing.flush_bytes(self.device) if found.gpu else 0
        return msgspec.structs.replace(found, protocol=protocol, protocol_note=note, flush_bytes=flush_bytes)

    def begin(self) -> Done:
        """Comes before the solution: meanwhile the process imports the libraries that every solution needs."""
        return Done()

    def load(self, definition: str, solution: str, protocol: str | None = None, guarded: Collection[int] = ()) -> Done:
        """Takes a definition and loads a solution. protocol: of the timer, which is made before the solution's code
        runs. guarded: rivals that started after this process, which it cannot reach from now on."""
        catalog = Catalog.open(self.root)
        self.definition = catalog.definition(definition)
        if protocol is not None:
            self._timer_of(protocol)
        if guarded:
            seccomp.protect(guarded)
        chosen = catalog.solution(solution)
        try:
            if self.device.type == "cpu" and chosen.language == "triton":
                from kernelderby.measure.worker.interpreter import as_on_a_gpu

                as_on_a_gpu()
            function = load_solution(self.definition, chosen)
            setup = load_setup(chosen)
        except BuildFailed as error:
            raise NotLoaded(status_of(error, Status.BUILD_FAILED), str(error)) from error
        except BaseException as error:  # any exception of the solution's code during the import, sys.exit included
            raise NotLoaded(status_of(error, Status.BUILD_FAILED), told(error)) from error
        self._solution = chosen
        self.candidate = Candidate(function, chosen.destination_passing_style, self.definition, chosen.in_place, setup)
        return Done()

    @property
    def module(self) -> ModuleType:
        """The definition's module, with the reference. It is not loaded if a solution is only run."""
        if self._module is None or self._module[0] != self.definition.name:
            self._module = self.definition.name, load_definition_module(self.definition)
        return self._module[1]

    def check(self, case: dict[str, Any]) -> Verdict:
        """A check in this process, before a profile; its result never goes into a row."""
        return local_check(self.candidate, self.module, self._maker(case))

    def call_once(self, case: dict[str, Any]) -> Done:
        """One call of the loaded solution on secret inputs. Nobody checks its outputs."""
        maker = self._maker(case)
        inputs = maker.make(0)
        outputs = self.candidate.new_outputs(maker)
        for output, name in self.candidate.in_place.items():
            outputs[output].copy_(inputs[name])
        prepared, _ = self.candidate.set_up(inputs, maker.device)
        self.candidate(inputs, outputs, prepared)
        synchronize(maker.device)
        return Done()

    def pack_check(self, definition: str) -> PackChecked:
        """The stale and broken blobs and costs of a definition; see judge/fenced.py."""
        catalog = Catalog.open(self.root)
        chosen = catalog.definition(definition)
        return PackChecked(tuple(blobs.changes_of(catalog, chosen, catalog.workloads(definition), check=True)))

    def count_cost(self, definition: str, line: dict[str, Any]) -> CostCounted:
        """The cost of an unlisted shape, by the definition's own code. line: a line of workloads without a cost."""
        if not hasattr(self, "definition") or self.definition.name != definition:
            self.definition = Catalog.open(self.root).definition(definition)
        workload = workload_of("the shape", line, self.definition)
        sizes = self.definition.sizes(workload.axes)
        try:
            tensors = blobs.generate(self.definition, self.module, workload, sizes)
            return CostCounted(blobs.count(self.definition, self.module, workload, tensors, sizes))
        except Uncountable:
            return CostCounted()
        except ValueError as error:  # the generator refuses these contents
            said = " ".join(str(error).split())[:200] or type(error).__name__
            raise DerbyError(f"{self.definition.place}: {said}") from None

    def empty_kernel(self, protocol: str) -> EmptyKernelTimes:
        """Times of a nearly empty kernel, by the same timer."""
        from kernelderby.measure.worker.empty import empty_kernel_us  # with triton

        return EmptyKernelTimes(empty_kernel_us(self._timer_of(protocol), self.device))

    def load_empty(self, protocol: str, copies: bool = False) -> Done:
        """Loads a nearly empty call, or a copy of the input, as the solution. With it the judge measures the overhead
        of its clock."""
        from kernelderby.measure.worker.empty import trusted_candidate

        self._timer_of(protocol)
        self.candidate = trusted_candidate(copies)
        return Done()

    # ------------------------------------------------------------------------------------------- the calls of the judge

    def command(self, name: str) -> Callable[..., Struct]:
        """The command that a request names: a method of this class or of the executor, or a function of a higher room,
        which gets the set's folder ("kernelderby.measure.certify.resources:seen_here")."""
        module, _, function = name.rpartition(":")
        if module:
            return partial(getattr(import_module(module), function), self.root)
        if name in _OF_EXECUTOR:
            return lambda **arguments: _OF_EXECUTOR[name](getattr(self.executor, name)(**arguments))
        found: Callable[..., Struct] = getattr(self, name)
        return found

    def attach(self, sets: list[dict[str, Any]], signals: dict[str, Any]) -> Done:
        """Opens the judge's buffers; see shared.opened_set."""
        self.release()
        *of_calls, of_signals = self._with_handles([*sets, signals])
        self._opened = [shared.opened_set(each, self.device) for each in of_calls]
        opened = opened_signals(of_signals, self.device)
        self.executor = CallExecutor(self.candidate, self._timer or timing.WallTimer(), self.device)
        self.executor.attach(self._opened, opened)
        return Done()

    def _with_handles(self, sets: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The descriptions, with numbers of received descriptors replaced by the descriptors."""
        came = self.channel.taken()
        return [{**each, "handle": came[each["handle"]]} if came else each for each in sets]

    def extend(self, sets: list[dict[str, Any]]) -> CaptureDone:
        """Opens further sets for batches."""
        more = [shared.opened_set(each, self.device, self._opened) for each in self._with_handles(sets)]
        self._opened += more
        return self._captured(partial(self.executor.extend, more))

    def capture(self) -> CaptureDone:
        return self._captured(self.executor.capture)

    def _captured(self, capture: Callable[[], None]) -> CaptureDone:
        try:
            capture()
        except NotCapturable as error:
            return CaptureDone(str(error), error.spoiled)
        return CaptureDone("", spoiled=False)

    def overtake(self, larger: dict[str, Any]) -> Done:
        """See CallExecutor.overtake(); `larger` as in attach()."""
        (described,) = self._with_handles([larger])
        opened = shared.opened_set(described, self.device)
        try:
            self.executor.overtake(opened)
        finally:
            opened.release()
        return Done()

    def spans(self, kind: str, iterations: int) -> Spans:
        """Timed calls or replays, with a stop for the judge before and after each window."""
        meet = self.channel.meet
        return self.executor.spans(
            kind,
            iterations,
            lambda iteration: meet(Stop("ready", iteration)),
            lambda iteration: meet(Stop("done", iteration)),
        )

    def relay(self, kind: str, which: int) -> Done:
        """A call at the judge's signal, with a stop when it is enqueued."""
        self.executor.relay(kind, which, lambda: self.channel.write(msgspec.to_builtins(Stop("armed", which))))
        return Done()

    # -------------------------------------------------------------------------------------------------------- tuning

    def tune_prepare(self, case: dict[str, Any], protocol: str) -> TunePrepared:
        """The buffers of a case that is tuned, its key and its candidates."""
        vars(self).pop("tuning", None)
        self.release()
        solution = solution_module(self._solution)
        tuning = Tuning(self.candidate, solution, self.module, self._maker(case), self._timer_of(protocol))
        self.tuning = tuning
        return TunePrepared(tuning.key, tuple(tuning.configs), tuning.chosen)

    def tune_check(self, number: int) -> Verdict:
        return self.tuning.check(number)

    def tune_time(self, number: int, iterations: int) -> TunedTimes:
        """One turn of a candidate as a CUDA graph."""
        try:
            return TunedTimes(tuple(self.tuning.time_us(number, iterations)))
        except NotCapturable as error:
            return TunedTimes((), f"no CUDA graph: {error}", error.spoiled)

    def release(self) -> Done:
        """Frees the buffers of the prepared case for other processes."""
        if held := vars(self).pop("executor", None):
            held.detach()
            self._opened.append(held.signals.buffers)
        for each in self._opened:
            each.release()
        self._opened = []
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return Done()

    def _timer_of(self, protocol: str) -> timing.Timer:
        if self._timer is None or self._timer.protocol != protocol:
            self._timer = timing.make_timer(protocol, self.device)
        return self._timer

    def _maker(self, case: dict[str, Any]) -> InputMaker:
        return InputMaker(self.definition, self.module, Case(**case), self.device, self.root)
