"""A process that runs one solution: python -m kernelderby.measure.worker.serve REQUESTS REPLIES (two pipe descriptors).

Requests and replies are JSON objects, one a line. The replies have a pipe of their own, so that nothing a solution
prints can be taken for one. Each request names a `command` (a method of Worker) and its arguments; each reply has `ok`,
and either the result or a `status` (trace.Status) with a `message`.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.measure import fence, landlock
from kernelderby.measure.judge.cases import Case, case_of_workload, small_cases
from kernelderby.measure.machine.environment import describe
from kernelderby.trace import Status

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_MESSAGE_CHARACTERS = 2000
_FILE_BYTES = 16 << 30  # the largest file that a solution may write


class Worker:
    """The commands. `device` is "cuda" or "cpu"; torch is imported by the first command that needs it."""

    def __init__(self, root: str, device: str) -> None:
        self.root, self.device_type = Path(root), device
        self.timer = self.hands = self.candidate = self.tuning = self.channel = None
        self._opened: list[Any] = []
        self._module: tuple[str, Any] | None = None

    @property
    def device(self) -> Any:
        import torch

        return torch.device(self.device_type, 0) if self.device_type == "cuda" else torch.device("cpu")

    def describe(self) -> dict[str, Any]:
        """The machine, and the timing protocol that works on it."""
        from kernelderby.measure import timing

        found = describe(self.device_type)
        if found["gpu"] is not None or self.device_type == "cpu":
            found["protocol"], found["protocol_note"] = timing.find_protocol(self.device)
            found["flush_bytes"] = timing.flush_bytes(self.device) if found["gpu"] else 0
        return found

    def load(self, definition: str, solution: str | None, protocol: str | None = None) -> dict[str, Any]:
        """Takes a definition and, unless None, loads a solution. protocol: the timer is made before any of its code
        runs."""
        from kernelderby.measure.judge.correctness import Candidate
        from kernelderby.measure.worker.build import BuildFailed, load_setup, load_solution

        catalog = Catalog.open(self.root)
        self.definition = catalog.definition(definition)
        if solution is None:
            self.module  # noqa: B018 - whether it loads
            return {}
        if protocol is not None:
            self._timer(protocol)
        chosen = catalog.solution(solution)
        if self.device_type == "cpu" and chosen.language == "triton":
            from kernelderby.measure.worker.interpreter import (
                multiply_bfloat16_right,
                round_fp8_right,
                take_whole_numbers,
            )

            round_fp8_right()
            multiply_bfloat16_right()
            take_whole_numbers()
        try:
            function = load_solution(self.definition, chosen)
            setup = load_setup(chosen)
        except BuildFailed as error:
            return _failure(Status.BUILD_FAILED, str(error))
        except BaseException as error:  # whatever the solution's own code raises on import, sys.exit included
            return _failure(_status_of(error, Status.BUILD_FAILED), _told(error))
        self.solution = chosen
        self.candidate = Candidate(function, chosen.destination_passing_style, self.definition, chosen.in_place, setup)
        return {}

    @property
    def module(self) -> Any:
        """The definition's module, with the reference: not loaded where a solution is only run."""
        from kernelderby.measure.worker.build import load_definition_module

        if self._module is None or self._module[0] != self.definition.name:
            self._module = self.definition.name, load_definition_module(self.definition)
        return self._module[1]

    def small_cases(self, seeds: int) -> dict[str, Any]:
        """The cases of a check without a GPU."""
        if self.definition.source_path is None:
            return {"cases": [case.to_json() for case in self._smallest(seeds)]}
        if not hasattr(self.module, "SMALL_AXES"):
            raise DerbyError(
                f"{self.definition.source_path}: has no SMALL_AXES, so it cannot be checked on a CPU; add them"
            )
        variants = getattr(self.module, "SMALL_VARIANTS", None)
        cases = small_cases(self.definition, self.module.SMALL_AXES, variants, seeds)
        return {"cases": [case.to_json() for case in cases]}

    def _smallest(self, seeds: int) -> list[Case]:
        """Of a foreign definition, which brings no SMALL_AXES: the workload that moves the fewest bytes."""
        workloads = Catalog.open(self.root).workloads(self.definition.name)
        counted = [each for each in workloads if each.cost is not None]
        if not counted:
            raise DerbyError(f"{self.definition.place}: has no workload that a CPU could check; add one")
        smallest = min(counted, key=lambda each: each.cost.needed() if each.cost else 0)
        return [case_of_workload(self.definition, smallest, offset) for offset in range(seeds)]

    def check(self, case: dict[str, Any]) -> dict[str, Any]:
        """Correctness in this process, before a profile; nothing that ends in a row."""
        from kernelderby.measure.race import local_check

        return _verdict(local_check(self.candidate, self.module, self._maker(case)))

    def empty_kernel(self, protocol: str) -> dict[str, Any]:
        """Times of a kernel that does nothing to speak of, by the same timer."""
        from kernelderby.measure.empty_kernel import empty_kernel_us

        return {"empty_kernel_us": empty_kernel_us(self._timer(protocol), self.device)}

    # --------------------------------------------------------------------------------------------- the judge's hands

    def attach(self, sets: list[dict[str, Any]]) -> dict[str, Any]:
        """Opens the judge's buffers; see shared.opened_set."""
        from kernelderby.measure.hands import Hands
        from kernelderby.measure.shared import opened_set

        self.release()
        self._opened = [opened_set(each, self.device) for each in sets]
        self.hands = Hands(self.candidate, self.timer, self.device)
        self.hands.attach(self._opened)
        return {}

    def set_up(self, which: int) -> dict[str, Any]:
        return {"setup": self.hands.set_up(which)}

    def call(self, which: int) -> dict[str, Any]:
        self.hands.call(which)
        return {}

    def capture(self) -> dict[str, Any]:
        """missing: why there are no graphs, else empty; spoiled: whether the attempt has left this process unfit."""
        from kernelderby.measure.graphs import NotCapturable

        try:
            self.hands.capture()
        except NotCapturable as error:
            return {"missing": str(error), "spoiled": error.spoiled}
        return {"missing": "", "spoiled": False}

    def drop_graphs(self) -> dict[str, Any]:
        self.hands.drop_graphs()
        return {}

    def replay(self, which: int) -> dict[str, Any]:
        self.hands.replay(which)
        return {}

    def batch(self, kind: str) -> dict[str, Any]:
        self.hands.batch(kind)
        return {}

    def spans(self, kind: str, iterations: int) -> dict[str, Any]:
        """Timed calls or replays; stops before and after each window for the judge."""
        return asdict(
            self.hands.spans(
                kind,
                iterations,
                lambda iteration: self.channel.meet("ready", iteration),
                lambda iteration: self.channel.meet("done", iteration),
            )
        )

    # -------------------------------------------------------------------------------------------------------- tuning

    def tune_prepare(self, case: dict[str, Any], protocol: str) -> dict[str, Any]:
        """The buffers of a case that is tuned, its key and its candidates."""
        from kernelderby.measure.worker.build import solution_module
        from kernelderby.measure.worker.tuning import Tuning

        self.tuning = None
        self.release()
        self.tuning = Tuning(
            self.candidate, solution_module(self.solution), self.module, self._maker(case), self._timer(protocol)
        )
        return {"key": self.tuning.key, "configs": self.tuning.configs}

    def tune_check(self, number: int) -> dict[str, Any]:
        return _verdict(self.tuning.check(number))

    def tune_time(self, number: int, iterations: int) -> dict[str, Any]:
        """One turn of a candidate as a CUDA graph."""
        from kernelderby.measure.worker.tuning import timed

        return timed(self.tuning, number, iterations)

    def release(self) -> dict[str, Any]:
        """Frees the buffers of the prepared case, so that other processes have the memory."""
        if self.hands is not None:
            self.hands.detach()
        self.hands = None
        for each in self._opened:
            each.release()
        self._opened = []
        if self.device_type == "cuda":
            import torch

            torch.cuda.empty_cache()
        return {}

    def _timer(self, protocol: str) -> Any:
        from kernelderby.measure.timing import make_timer

        if self.timer is None or self.timer.protocol != protocol:
            self.timer = make_timer(protocol, self.device)
        return self.timer

    def _maker(self, case: dict[str, Any]) -> Any:
        from kernelderby.measure.judge.inputs import InputMaker

        return InputMaker(self.definition, self.module, Case(**case), self.device, self.root)


def answer(command: Callable[..., dict[str, Any]], arguments: dict[str, Any]) -> dict[str, Any]:
    """The reply to one request. What the solution raises becomes its status; the traceback goes to the log."""
    try:
        return {"ok": True, **command(**arguments)}
    except DerbyError as error:
        return {"ok": False, "error": str(error)}
    except BaseException as error:
        wrong = getattr(error, "verdict", None)  # of correctness.Wrong, without importing torch for it
        if wrong is not None:
            return {"ok": True, "wrong": {"status": wrong.status, "message": wrong.message}}
        traceback.print_exc()
        return _failure(_status_of(error, Status.RAISED), _told(error))


def _verdict(verdict: Any) -> dict[str, Any]:
    correctness = verdict.correctness and asdict(verdict.correctness)
    return {"status": verdict.status, "message": verdict.message, "correctness": correctness}


def _failure(status: Status, message: str) -> dict[str, Any]:
    return {"ok": False, "status": status, "message": message[:_MESSAGE_CHARACTERS]}


def _status_of(error: BaseException, otherwise: Status) -> Status:
    import torch

    text = str(error)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return Status.OUT_OF_MEMORY
    if isinstance(error, RuntimeError) and any(
        sign in text
        for sign in ("can't allocate memory", "not enough memory", "CUDA error: out of memory", "CUDA out of memory")
    ):
        return Status.OUT_OF_MEMORY
    return otherwise


def _told(error: BaseException) -> str:
    """Type, message and the innermost lines of code, in a few lines."""
    frames = traceback.extract_tb(error.__traceback__)[-2:]
    where = ", ".join(f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames)
    return f"{type(error).__name__}: {error} ({where})"


def main() -> None:
    # The worker must not outlive a killed runner. Linux only; elsewhere the closed pipe ends it, once it is idle.
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        pass
    for limit, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, _FILE_BYTES)):
        most = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (value if most < 0 else min(value, most),) * 2)
    requests_fd, replies_fd, root, device = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    writable = [Path(folder) for folder in sys.argv[5].split(os.pathsep) if folder]
    fence.protect([int(pid) for pid in sys.argv[6:]])
    if writable:
        landlock.writes_only_beneath(writable)
    for descriptor in (requests_fd, replies_fd):
        os.set_inheritable(descriptor, False)  # a solution's own subprocesses must not hold the pipes open
    worker = Worker(root, device)
    with os.fdopen(requests_fd, encoding="utf-8") as requests:
        worker.channel = Channel(requests, replies_fd)
        for line in requests:
            request = json.loads(line)
            worker.channel.write(answer(getattr(worker, request.pop("command")), request))


class Channel:
    """The pipes to the judge, for what stops in the middle of a command."""

    def __init__(self, requests: IO[str], replies: int) -> None:
        self._requests, self._replies = requests, replies

    def write(self, reply: dict[str, Any]) -> None:
        data = (json.dumps(reply) + "\n").encode()
        while data:
            data = data[os.write(self._replies, data) :]

    def meet(self, at: str, iteration: int) -> None:
        """Says where the worker stands, and waits until the judge lets it go on."""
        self.write({"at": at, "iteration": iteration})
        if not self._requests.readline():
            raise SystemExit("the judge is gone")


if __name__ == "__main__":
    main()
