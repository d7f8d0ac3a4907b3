"""The worker's side of derby tune: one case of a tunable solution, its candidates checked and timed.

A tunable solution's main.py has, beside run(): tuning_key(*inputs) -> str, candidates(*inputs) -> [configuration, ...]
with the heuristic's choice first, and run_with(configuration, *inputs, *outputs). If it has choose(*inputs), this gives
the configuration that run() uses. It is timed too, even if it is not a candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.measure.clock.timing import CPU_WALL, Timer
from kernelderby.measure.judge.checksums import changed_inputs, checksum
from kernelderby.measure.judge.correctness import POISON, judge, make_ready, reference_outputs, synchronize
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.wire.replies import Verdict, Wrong
from kernelderby.measure.worker.candidate import Candidate
from kernelderby.rows.measurement import Status


class Tuning:
    """Holds the buffers, the reference's outputs and the captured graphs of one case."""

    def __init__(
        self, candidate: Candidate, solution: ModuleType, module: ModuleType, maker: InputMaker, timer: Timer
    ) -> None:
        self.definition, self.module, self.maker, self.timer = candidate.definition, module, maker, timer
        self.inputs = maker.make()
        self.prepared, _ = candidate.set_up(self.inputs, maker.device)
        self.key = str(solution.tuning_key(*self.inputs.values()))
        self.configs = list(solution.candidates(*self.inputs.values()))
        if not self.configs or not all(isinstance(config, dict) for config in self.configs):
            raise DerbyError(
                f"{solution.__file__}: candidates(): gave {str(self.configs)[:80]}; it must give a "
                "list of dicts, at least one"
            )
        self.chosen = self._chosen(solution)
        self.candidates = [
            Candidate(partial(solution.run_with, config), True, self.definition, candidate.in_place)
            for config in self.configs
        ]
        self.outputs = candidate.new_outputs(maker)
        self.references = reference_outputs(self.definition, module, self.inputs)
        self.before = checksum(self.inputs)
        self._calls: dict[int, Callable[[], object]] = {}

    def _chosen(self, solution: ModuleType) -> int | None:
        """The number of the chosen configuration, which is appended if it is not a candidate."""
        choose = getattr(solution, "choose", None)
        if choose is None:
            return None
        config = choose(*self.inputs.values())
        if not isinstance(config, dict):
            raise DerbyError(f"{solution.__file__}: choose(): gave {str(config)[:80]}; it must give a dict")
        if config not in self.configs:
            self.configs.append(config)
        return self.configs.index(config)

    def _run(self, number: int) -> Any:
        return self.candidates[number](self.inputs, self.outputs, self.prepared)

    def check(self, number: int) -> Verdict:
        """Checks one call of a candidate against the reference. Its exceptions pass through."""
        candidate = self.candidates[number]
        make_ready(self.inputs, self.outputs, candidate.in_place, POISON[number % len(POISON)])
        returned = self._run(number)
        synchronize(self.maker.device)
        if changed := changed_inputs(self.before, self.inputs):
            for name, fresh in self.maker.make().items():  # so the next candidates find them unchanged
                if name in changed:
                    self.inputs[name].copy_(fresh)
            return Verdict(Status.INPUT_CHANGED, f"it writes into its input {', '.join(changed)}")
        try:
            outputs = candidate.fitting(returned, self.maker.output_places(), self.maker.device)
        except Wrong as wrong:
            return wrong.verdict
        return judge(self.definition, self.module, self.inputs, outputs, lambda: self.references)

    def time_us(self, number: int, iterations: int) -> list[float]:
        """Spans of a candidate's call as a CUDA graph, with L2 flushed before each. NotCapturable without a graph. On a
        CPU, where only the machinery is tested, the call itself is timed."""
        if number not in self._calls:
            self._calls[number] = self._captured(number)
        in_place, replay = self.candidates[number].in_place, self._calls[number]
        restore = partial(make_ready, self.inputs, self.outputs, in_place, POISON[0])
        before = (lambda _: restore()) if in_place else None
        return self.timer.spans(lambda _: replay(), iterations, before).spans_us

    def _captured(self, number: int) -> Callable[[], object]:
        call = partial(self._run, number)
        call()  # compilation and allocation at the first call are not timed
        if self.timer.protocol == CPU_WALL:
            return call
        replay = self.timer.capture(call)
        replay()
        return replay
