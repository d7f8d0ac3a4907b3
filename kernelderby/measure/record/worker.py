"""A process that runs one solution on one workload: python -m kernelderby.measure.record.worker REQUEST.json

The request is a ProfileRequest. A profile's reply is a file with one JSON object, as a Worker answers (ProfileDone).
Under compute-sanitizer only the solution's call and the making of its inputs run on the GPU.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kernelderby.errors import DerbyError
from kernelderby.measure.machine.environment import gpu_seen
from kernelderby.measure.record.records import ProfileRequest
from kernelderby.measure.wire.replies import Done, ProfileDone, Verdict
from kernelderby.measure.worker.commands import Worker
from kernelderby.measure.worker.failures import NotLoaded, told
from kernelderby.measure.worker.serve import answer
from kernelderby.rows.measurement import Status
from kernelderby.store.fields import read_json

if TYPE_CHECKING:  # torch is imported by the first command that needs it
    from kernelderby.measure.judge.inputs import InputMaker
    from kernelderby.measure.record.profiler import Recorder
    from kernelderby.measure.record.records import ProcessRecording
    from kernelderby.measure.worker.candidate import Candidate

CAPTURE_SECONDS = 5.0  # maximum for all calls; slow solutions get fewer iterations, at least 3
MINIMUM_ITERATIONS = 3
WARMUP = 3


class ProfileWorker(Worker):
    """A worker that records instead of timing. recorder: None if a profiler around this process records."""

    recorder: Recorder | None = None

    def make_recorder(self) -> Done:
        """Must come before load(), because a library's first use of NVTX decides who sees its ranges."""
        from kernelderby.measure.record.profiler import Recorder

        self.recorder = Recorder()
        return Done()

    def profile(
        self,
        case: dict[str, Any],
        solution: str,
        definition: str,
        iterations: int,
        output: str | None,
        call_by_call: bool = False,
    ) -> Verdict:
        """Checks the loaded solution, warms it up outside the capture, then records it."""
        from kernelderby.measure.record import profiler

        verdict = self.check(case)
        if verdict.status is not Status.PASSED:
            return verdict
        passed = ProfileDone(verdict.status, verdict.message, verdict.correctness)
        measured = _Pass(self.candidate, self._maker(case), solution)
        iterations = measured.warm_up(iterations)
        with profiler.record_function_as_nvtx():
            if self.recorder is None or output is None:
                measured.under_profiler(iterations, call_by_call)
                return msgspec.structs.replace(passed, iterations=iterations)
            with self.recorder.record(gpu_seen()) as recording:
                measured.run(iterations, self.recorder.range)
        recording.facts |= {"solution": solution, "definition": definition}
        recording.facts |= {"workload": case["label"], "iterations": str(iterations)}
        _write(recording, Path(output))
        warnings = tuple(recording.warnings)
        return msgspec.structs.replace(passed, iterations=iterations, kernels=len(recording.kernels), warnings=warnings)


class _Pass:
    """The measured calls: as in a timed round, with cold L2 and input sets in turn, but in named ranges."""

    def __init__(self, candidate: Candidate, maker: InputMaker, solution: str) -> None:
        import torch

        from kernelderby.measure.clock.timing import flush_bytes
        from kernelderby.measure.judge.exchange import INPUT_SETS

        self._candidate, self._device = candidate, maker.device
        self._name = f"solution:{solution} {maker.case.label}"
        self._inputs = [maker.make(0, random_variant=2 + number) for number in range(INPUT_SETS)]
        self._outputs = [candidate.new_outputs(maker) for _ in self._inputs]
        self._flush = torch.empty(flush_bytes(maker.device), dtype=torch.uint8, device=maker.device)

    def warm_up(self, iterations: int) -> int:
        """The number of iterations that fit into CAPTURE_SECONDS, at most `iterations`."""
        for number in range(WARMUP):
            self._synchronize()
            start = time.perf_counter()
            self._call(number)
            self._synchronize()
            seconds = time.perf_counter() - start
        return max(MINIMUM_ITERATIONS, min(iterations, int(CAPTURE_SECONDS / max(seconds, 1e-6))))

    def run(
        self,
        iterations: int,
        named: Callable[[str], AbstractContextManager[None]],
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """around: a context around each call, without the flush before it."""
        for number in range(iterations):
            with named("harness: flush L2"):
                self._flush.zero_()
                self._synchronize()
            with around(), named(self._name), named(f"invocation {number}"):
                self._call(number)
                if around is not nullcontext:
                    self._synchronize()
            with named("harness: wait"):
                self._synchronize()

    def under_profiler(self, iterations: int, call_by_call: bool) -> None:
        """Runs the calls between cudaProfilerStart and cudaProfilerStop (nsys's capture range), all together or each by
        itself."""
        import torch

        from kernelderby.measure.record.profiler import nvtx_range

        self._synchronize()
        if call_by_call:
            self.run(iterations, nvtx_range, torch.cuda.profiler.profile)
            return
        with torch.cuda.profiler.profile():
            self.run(iterations, nvtx_range)

    def _call(self, number: int) -> None:
        which = number % len(self._inputs)
        self._candidate(self._inputs[which], self._outputs[which])

    def _synchronize(self) -> None:
        import torch

        torch.cuda.synchronize(self._device)


def _write(recording: ProcessRecording, path: Path) -> None:
    from kernelderby.measure.record.writer import write

    if not recording.kernels:
        raise DerbyError(f"{recording.facts['solution']}: CUPTI recorded no kernels; another profiler may hold it")
    write(recording, path)


def call_once(request: ProfileRequest) -> None:
    """Ends the process with the reason if the solution does not load, or raises."""
    worker = Worker(request.root, request.device)
    try:
        worker.load(request.definition, request.solution)
        worker.call_once(request.case)
    except NotLoaded as error:
        sys.exit(str(error))
    except Exception as error:  # noqa: BLE001 - any exception of the solution
        sys.exit(told(error))


def work_off(request: ProfileRequest) -> dict[str, Any]:
    """Loads and profiles. Gives the reply, also if either fails."""
    worker = ProfileWorker(request.root, request.device)
    names = {"definition": request.definition, "solution": request.solution}
    asked = {name: getattr(request, name) for name in ("case", "iterations", "output", "call_by_call")}
    steps: list[tuple[Callable[..., Done], dict[str, Any]]] = [(worker.load, names), (worker.profile, names | asked)]
    if request.output is not None:
        steps.insert(0, (worker.make_recorder, {}))
    for command, arguments in steps:
        reply = answer(command, arguments)
        if not reply["ok"]:
            break
    return reply


def main() -> None:
    request = read_json(Path(sys.argv[1]), ProfileRequest)
    if request.reply is None:
        call_once(request)
    else:
        Path(request.reply).write_text(json.dumps(work_off(request)), encoding="utf-8")


if __name__ == "__main__":
    main()
