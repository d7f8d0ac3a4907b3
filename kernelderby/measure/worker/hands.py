"""What runs a solution's calls on buffers that the judge owns.

Hands works in the process that holds the solution. The judge has its like in another process (remote.RemoteHands): the
same methods, told through pipes. A call's outputs lie in the judge's buffers when a method returns, and nothing of the
solution runs on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from kernelderby.measure.clock.graphs import NotCapturable, Replay
from kernelderby.measure.clock.spans import Spans
from kernelderby.measure.clock.timing import Call, Timer, TimingFailed
from kernelderby.measure.judge.correctness import synchronize
from kernelderby.measure.wire.replies import SetUpTaken
from kernelderby.measure.wire.shared import BufferSet
from kernelderby.measure.wire.signals import Signals
from kernelderby.measure.worker.canaries import Canaries
from kernelderby.measure.worker.candidate import Candidate, SetUp


class Hands:
    def __init__(self, candidate: Candidate, timer: Timer, device: torch.device) -> None:
        self.candidate, self.timer, self.device = candidate, timer, device
        self.sets: Sequence[BufferSet] = ()
        self._prepared: list[SetUp] = []
        self._places: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        self._replays: list[Callable[[], Any]] = []
        self._in_turn = 0  # sets of timed calls
        self._canaries: Canaries | None = None
        self.signals: Signals | None = None  # of relay()

    def attach(self, sets: Sequence[BufferSet], signals: Signals | None = None) -> None:
        """The buffers of a case; those before are let go."""
        self.detach()
        self.sets, self.signals = list(sets), signals or self.signals  # whoever gave them may add to his own list
        self._prepared = [SetUp({}) for _ in sets]
        self._in_turn = len(sets)
        self._places = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in sets[0].outputs.items()}

    def extend(self, sets: Sequence[BufferSet]) -> None:
        """Further sets for batches alone; where the calls are captured, these too, in memory of one graph: they are
        replayed one after the other. NotCapturable with the reason."""
        first = len(self.sets)
        self.sets = [*self.sets, *sets]
        self._prepared += [self._prepared[each.lender] if each.lender is not None else SetUp({}) for each in sets]
        if self._replays:
            pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
            self._replays += [self.timer.capture(partial(self._run, first + n), pool) for n in range(len(sets))]

    def detach(self) -> None:
        self.sets, self._prepared, self._replays, self._canaries = (), [], [], None

    def set_up(self, which: int) -> SetUpTaken | None:
        """Runs setup on the constants of a set: what it took; None without setup."""
        self._prepared[which] = found = self.candidate.set_up(self.sets[which].inputs, self.device)
        return found.taken

    def call(self, which: int) -> None:
        """One call, untimed. What the solution raises goes through; Wrong where its outputs are none."""
        self._keep(which, self._run(which))
        synchronize(self.device)

    def capture(self) -> None:
        """A graph over each set. NotCapturable with the reason."""
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
        """A call on larger buffers, on each stream that captured and on the current one; then whatever memory that has
        freed holds a pattern until overwritten() is asked."""
        prepared = self.candidate.set_up(larger.inputs, self.device).values
        streams = {replay.stream for replay in self._replays if isinstance(replay, Replay)}
        for stream in [*streams, None]:
            with torch.cuda.stream(stream):
                self.candidate(larger.inputs, larger.outputs, prepared)
            synchronize(self.device)
        del prepared
        self._canaries = Canaries(self.device)

    def overwritten(self) -> int:
        """Bytes of the pattern that were written since overtake()."""
        canaries, self._canaries = self._canaries, None
        return canaries.changed() if canaries else 0

    def spans(self, kind: str, iterations: int, before: Call, after: Call) -> Spans:
        """Timed calls ("eager") or replays ("graph"), the sets in turn. before and after: outside the window, after
        with the outputs in the buffers."""
        run, returned = self._runner(kind), [None]

        def call(iteration: int) -> None:
            returned[0] = run(iteration % self._in_turn)

        def look(iteration: int) -> None:
            self._keep(iteration % self._in_turn, returned[0])
            returned[0] = None
            synchronize(self.device)
            after(iteration)

        return self.timer.spans(call, iterations, before, look)

    def batch(self, kind: str, count: int) -> None:
        """One call or replay over each of the first sets, back to back."""
        run = self._runner(kind)
        for which in range(count):
            self._keep(which, run(which))
        synchronize(self.device)

    def relay(self, kind: str, count: int, armed: Callable[[], None]) -> None:
        """Calls or replays over the sets in turn, each when the judge gives the word. On a GPU all of them are enqueued
        before the first word, unless a call looks at its inputs from the host. armed: what to do then."""
        run, signals = self._runner(kind), self.signals
        if signals is None:
            raise RuntimeError("the worker holds no signals")
        try:
            for number in range(count):
                which = number % self._in_turn
                signals.wait("go", number + 1)
                self._keep(which, run(which))
                signals.give("done", number + 1)
            armed()
        except BaseException:
            signals.release()  # the judge is not to wait for what does not come
            raise
        synchronize(self.device)

    def _runner(self, kind: str) -> Callable[[int], Any]:
        return self._run if kind == "eager" else lambda which: self._replays[which]()

    def _run(self, which: int) -> Any:
        each = self.sets[which]
        return self.candidate(each.inputs, each.outputs, self._prepared[which].values)

    def _keep(self, which: int, returned: Any) -> None:
        """Brings what a call returned into the judge's buffers. Wrong where it is no output of that shape and type."""
        outputs = self.sets[which].outputs
        found = self.candidate.fitting(returned, self._places, self.device)
        if not self.candidate.destination_passing_style:
            for name, tensor in outputs.items():
                tensor.copy_(found[name])
