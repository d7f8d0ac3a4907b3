"""The object that runs a solution's calls on the judge's buffers.

CallExecutor works in the process that holds the solution. In the judge's process remote.RemoteExecutor has the same
methods, which go through pipes. When a method returns, the call's outputs are in the judge's buffers, and the solution
has nothing running on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from types import ModuleType
from typing import Any, cast

import torch

from kernelderby.measure.clock.graphs import NotCapturable, Replay
from kernelderby.measure.clock.spans import Spans
from kernelderby.measure.clock.timing import Call, Timer, TimingFailed, WallTimer
from kernelderby.measure.judge.correctness import synchronize
from kernelderby.measure.judge.exchange import Exchange
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.judge.race import Race
from kernelderby.measure.wire.remote import RemoteExecutor
from kernelderby.measure.wire.replies import SetUpTaken, Verdict
from kernelderby.measure.wire.shared import BufferSet, Place
from kernelderby.measure.wire.signals import Signals
from kernelderby.measure.worker.candidate import Candidate

_PATTERN = 0xA5
_MOST_BYTES = 8 << 30
_SMALL = 1 << 20  # torch's allocator serves requests up to this size from separate segments


class CallExecutor:
    signals: Signals  # of relay()

    def __init__(self, candidate: Candidate, timer: Timer, device: torch.device) -> None:
        self.candidate, self.timer, self.device = candidate, timer, device
        self.sets: Sequence[BufferSet] = ()
        self._prepared: list[dict[str, Any]] = []  # arguments from setup, for each set
        self._places: dict[str, Place] = {}
        self._replays: list[Callable[[], Any]] = []
        self._in_turn = 0  # number of sets of timed calls
        self._canaries: Canaries | None = None

    def attach(self, sets: Sequence[BufferSet], signals: Signals) -> None:
        """Takes the buffers of a case, and releases the former ones."""
        self.detach()
        self.sets, self.signals = list(sets), signals  # a copy, since the caller may extend its list
        self._prepared = [{} for _ in sets]
        self._in_turn = len(sets)
        self._places = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in sets[0].outputs.items()}

    def extend(self, sets: Sequence[BufferSet]) -> None:
        """Adds further sets for batches only. If calls are captured, it captures these too, with the memory of one
        graph, since they are replayed one after another. NotCapturable with the reason."""
        first = len(self.sets)
        self.sets = [*self.sets, *sets]
        self._prepared += [self._prepared[each.lender] if each.lender is not None else {} for each in sets]
        if self._replays:
            pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
            self._replays += [self.timer.capture(partial(self._run, first + n), pool) for n in range(len(sets))]

    def detach(self) -> None:
        self.sets, self._prepared, self._replays, self._canaries = (), [], [], None

    def set_up(self, which: int) -> SetUpTaken | None:
        """Runs setup on the constants of a set. Returns its cost; None without setup."""
        self._prepared[which], taken = self.candidate.set_up(self.sets[which].inputs, self.device)
        return taken

    def call(self, which: int) -> None:
        """One call, untimed. Exceptions of the solution pass through; Wrong if its outputs are invalid."""
        self._keep(which, self._run(which))
        synchronize(self.device)

    def capture(self) -> None:
        """Captures a graph over each set. NotCapturable with the reason."""
        replays = [self.timer.capture(partial(self._run, which)) for which in range(len(self.sets))]
        try:
            self.timer.spans(lambda iteration: replays[iteration % len(replays)](), len(replays))
        except TimingFailed as error:
            raise NotCapturable(f"a replay has no time: {error}") from error
        self._replays = replays

    def drop_graphs(self) -> None:
        self._replays = []

    def replay(self, which: int) -> None:
        """One replay, untimed."""
        self._keep(which, self._replays[which]())
        synchronize(self.device)

    def overtake(self, larger: BufferSet) -> None:
        """Makes a call on larger buffers, on each capturing stream and on the current one. Then it fills all memory
        that this freed with a pattern, until overwritten() is called."""
        prepared, _ = self.candidate.set_up(larger.inputs, self.device)
        streams = {replay.stream for replay in self._replays if isinstance(replay, Replay)}
        for stream in [*streams, None]:
            with torch.cuda.stream(stream):
                self.candidate(larger.inputs, larger.outputs, prepared)
            synchronize(self.device)
        del prepared
        self._canaries = Canaries(self.device)

    def overwritten(self) -> int:
        """The number of bytes of the pattern that were overwritten since overtake()."""
        canaries, self._canaries = self._canaries, None
        return canaries.changed() if canaries else 0

    def spans(self, kind: str, iterations: int, before: Call, after: Call) -> Spans:
        """Timed calls ("eager") or replays ("graph"), with the sets in turn. before and after run outside the window;
        at `after` the outputs are in the buffers."""
        run, returned = self._runner(kind), [None]

        def call(iteration: int) -> None:
            returned[0] = run(iteration % self._in_turn)

        def look(iteration: int) -> None:
            self._keep(iteration % self._in_turn, returned[0])
            returned[0] = None
            synchronize(self.device)
            after(iteration)

        return self.timer.spans(call, iterations, before, look)

    def unseen(self) -> AbstractContextManager[None]:
        return nullcontext()

    def batch(self, kind: str, count: int) -> None:
        """One call or replay over each of the first sets, without pauses."""
        run = self._runner(kind)
        for which in range(count):
            self._keep(which, run(which))
        synchronize(self.device)

    def relay(self, kind: str, which: int, armed: Callable[[], None]) -> None:
        """A call or replay at the judge's signal. On a GPU it is enqueued before the signal, unless it reads its inputs
        on the host. armed: called when it is enqueued."""
        run, signals = self._runner(kind), self.signals
        try:
            signals.wait("go", 1)
            self._keep(which, run(which))
            signals.give("done", 1)
            armed()
        except BaseException:
            with suppress(Exception):
                synchronize(self.device)
            signals.release()  # the judge must not wait in vain
            raise
        synchronize(self.device)

    def _runner(self, kind: str) -> Callable[[int], Any]:
        return self._run if kind == "eager" else lambda which: self._replays[which]()

    def _run(self, which: int) -> Any:
        each = self.sets[which]
        return self.candidate(each.inputs, each.outputs, self._prepared[which])

    def _keep(self, which: int, returned: Any) -> None:
        """Copies a call's returned outputs into the judge's buffers. Wrong if shape or type do not fit."""
        outputs = self.sets[which].outputs
        found = self.candidate.fitting(returned, self._places, self.device)
        if not self.candidate.destination_passing_style:
            for name, tensor in outputs.items():
                tensor.copy_(found[name])


class Canaries:
    """Free memory of torch's allocator, filled with a pattern. A changed byte shows a write to memory that no longer
    belongs to the writer. It holds the free blocks of a GPU's common pool, each for its own stream; none on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._held: list[torch.Tensor] = []
        if device.type != "cuda":
            return
        for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
            if segment["device"] != (device.index or 0) or tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0):
                continue  # a graph's own pool
            for block in segment["blocks"]:
                if block["state"] == "inactive" and self.nbytes + block["size"] <= _MOST_BYTES:
                    for size in _requests(block["size"], segment["segment_type"] == "small"):
                        self._held.append(_filled(size, segment["stream"], device))
        torch.cuda.synchronize(device)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._held)

    def changed(self) -> int:
        """The number of bytes written since."""
        return sum(int((tensor != _PATTERN).sum()) for tensor in self._held)


def _requests(nbytes: int, is_small: bool) -> list[int]:
    """The sizes of tensors that fill a free block of a small or a large segment."""
    if is_small:
        return [_SMALL] * (nbytes // _SMALL) + [nbytes % _SMALL] * (nbytes % _SMALL > 0)
    return [nbytes] * (nbytes > _SMALL)


def _filled(nbytes: int, stream: int, device: torch.device) -> torch.Tensor:
    """A tensor that fills the block: the allocator takes the smallest free block of the stream that is large enough."""
    if stream:
        of_block: torch.cuda.Stream = torch.cuda.ExternalStream(stream, device)  # type: ignore[no-untyped-call]
    else:
        of_block = torch.cuda.default_stream(device)
    with torch.cuda.stream(of_block):
        return torch.full((nbytes,), _PATTERN, dtype=torch.uint8, device=device)


def local_race(candidate: Candidate, module: ModuleType, maker: InputMaker, timer: Timer) -> Race:
    """A race whose solution runs in this process: for comparing builds and for tests, never for rows."""
    race = _local(candidate, module, maker, timer)
    race.start()
    return race


def local_check(candidate: Candidate, module: ModuleType, maker: InputMaker) -> Verdict:
    """The check in this process."""
    return _local(candidate, module, maker, WallTimer()).check()


def _local(candidate: Candidate, module: ModuleType, maker: InputMaker, timer: Timer) -> Race:
    executor = cast(RemoteExecutor, CallExecutor(candidate, timer, maker.device))
    return Race(Exchange(candidate.definition, module, maker, executor, candidate.in_place, shared=False))
