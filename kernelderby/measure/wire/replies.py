"""A worker's answers: one frozen record for each kind, and the judge's checks of them.

A worker's process runs a solution's code, so a reply may be any JSON object until `Reply.of(Kind)` has typed it. An
invalid answer ends as that solution's row (Failed), and never ends the run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from kernelderby.catalog.same_code import MachineCode
from kernelderby.errors import DerbyError
from kernelderby.hardware.occupancy import KernelDemand
from kernelderby.measure.clock.spans import Microseconds
from kernelderby.measure.wire.quoted import quoted
from kernelderby.rows.measurement import Correctness, Status
from kernelderby.store.fields import Count, NotNegative, convert, must_be

_CHARACTERS = 2000
# Statuses that a worker may report for its end; the judge gives the others.
_CLAIMED = {Status.RAISED, Status.BUILD_FAILED, Status.OUT_OF_MEMORY, Status.CRASHED, Status.TIMED_OUT}

Config = dict[str, Any]  # configuration of a tunable solution: plain numbers, strings and booleans by name


class Failed(Exception):
    """A worker raised, hung, died or sent nonsense, and must be replaced. gone: it has ended already."""

    def __init__(self, status: Status, message: str, gone: bool = False) -> None:
        super().__init__(message)
        self.status, self.message, self.gone = status, message, gone


# ------------------------------------------------------------------------------------------------------------- answers


class Done(Struct, frozen=True):
    """The command is done. Other answers add fields."""


class GpuSeen(Struct, frozen=True):
    """A GPU as torch sees it. uuid: "GPU-...", the driver's."""

    name: str
    compute_capability: str
    uuid: str = ""
    memory_bytes: Count = 0
    l2_bytes: Count = 0
    multiprocessors: Count = 0


class MachineSeen(Done, frozen=True):
    """gpu: None without one; then gpu_missing has the reason, and gpu_fails tells whether there is a GPU that CUDA
    cannot use. protocol_note: why the protocol is a fallback, else empty."""

    python: str
    libs: dict[str, str]
    gpu: GpuSeen | None = None
    gpu_missing: str = ""
    gpu_fails: bool = False
    protocol: str = ""
    protocol_note: str = ""
    flush_bytes: Count = 0


class EmptyKernelTimes(Done, frozen=True):
    """empty_kernel_us: "eager" and "graph" -> median; None without graphs."""

    empty_kernel_us: dict[str, float | None]


class SetUpTaken(Struct, frozen=True):
    """The cost of a solution's setup: seconds on the host's clock until the GPU was idle again, and bytes of GPU memory
    that it keeps."""

    seconds: NotNegative
    memory_bytes: Annotated[float, must_be("a number of bytes", ge=0, le=2**53)]


class SetUpDone(Done, frozen=True):
    """setup: None if the solution has none."""

    setup: SetUpTaken | None


class CaptureDone(Done, frozen=True):
    """missing: why there are no graphs, else empty. spoiled: the attempt has made the process unusable."""

    missing: str = ""
    spoiled: bool = True


class PackChecked(Done, frozen=True):
    """changes: a line for each stale file."""

    changes: tuple[str, ...]


class CostCounted(Done, frozen=True):
    """cost: the `cost` for a line of workloads; None if unknown."""

    cost: dict[str, Any] | None = None


class ShapesDrawn(Done, frozen=True):
    """lines: as in workloads."""

    lines: tuple[dict[str, Any], ...]


class KernelsSeen(Done, frozen=True):
    """The compiled kernels of one workload. missing: unknown facts in words, else empty."""

    kernels: tuple[KernelDemand, ...] = ()
    missing: str = ""


class CodeSeen(Done, frozen=True):
    """The code of each of a solution's libraries, after a build."""

    libraries: dict[str, MachineCode]


class LaunchesSeen(Done, frozen=True):
    """launched: uuid -> the launches of a call on that workload, or why they are unknown."""

    launched: dict[str, list[str] | str]


class LibrariesSeen(Done, frozen=True):
    """paths: name of a library -> where the worker has built it."""

    paths: dict[str, str]


class Overwritten(Done, frozen=True):
    """nbytes: overwritten bytes of memory that no longer belonged to the solution."""

    nbytes: Count


class Stop(Struct, frozen=True):
    """The position of a worker in `spans`: before ("ready") or after ("done") an iteration's window."""

    at: str
    iteration: int


class TunePrepared(Done, frozen=True):
    """For one case its tuning key and its candidates, the heuristic's first. chosen: the number of the configuration
    that run() uses, if the solution tells it (choose). If it is none of the candidates, it is added as the last one."""

    key: str
    configs: Annotated[tuple[Config, ...], Meta(min_length=1)]
    chosen: int | None = None


class TunedTimes(Done, frozen=True):
    """problem: why there are no samples, else empty. spoiled: the process is no longer usable."""

    samples_us: tuple[Microseconds, ...]
    problem: str = ""
    spoiled: bool = False


class Verdict(Done, frozen=True):
    """The result of a check. A worker reports its own only for derby tune and derby profile; no row ever relies on
    that."""

    status: Status
    message: str = ""
    correctness: Correctness | None = None


class ProfileDone(Verdict, frozen=True):
    """The result of profiling a solution. kernels: 0 if a profiler around the process has them."""

    iterations: int = 0
    kernels: int = 0
    warnings: tuple[str, ...] = ()


class Wrong(Exception):
    """An output that cannot be compared at all."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.verdict = Verdict(status, message)

    @classmethod
    def of(cls, verdict: Verdict) -> Wrong:
        """The verdict as an exception, with its distances."""
        wrong = cls(verdict.status, verdict.message)
        wrong.verdict = verdict
        return wrong


Kind = TypeVar("Kind", bound=Struct)

# ------------------------------------------------------------------------------------------------------- on both sides


def sent(answer: Struct) -> dict[str, Any]:
    """The answer as an object for the pipe. msgspec's JSON is not used, because it has no infinities."""
    return {"ok": True, **msgspec.to_builtins(answer)}


UNHEARD = ", and what it said is in the log"  # of a solution's child process, whose output it did not capture


def errors_of(output: str, most: int = 4) -> str:
    """A compiler's complaint: the first lines about an error, otherwise the last lines."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return "; ".join([line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)][:most] or lines[-most:])


def sent_failure(status: Status, message: str) -> dict[str, Any]:
    return {"ok": False, "status": status, "message": message[:_CHARACTERS]}


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply. gone: the process that should have answered has ended or was killed."""

    content: dict[str, Any]
    gone: bool = False

    @property
    def failed(self) -> Failed | None:
        """The failure; None if the worker reports success."""
        if self.content.get("ok") is True:
            return None
        try:
            status = Status(text(self.content.get("status"), 100))
        except ValueError:
            status = Status.CRASHED
        message = self.content.get("message") or self.content.get("error") or ""
        if not self.gone:  # a process that is gone has sent nothing; the judge's side wrote this
            message = quoted(text(message))
        return Failed(status if status in _CLAIMED else Status.CRASHED, message, self.gone)

    @property
    def fault_of_the_set(self) -> str | None:
        """A fault of the set itself, as the worker reports it."""
        return text(self.content["error"]) if "error" in self.content else None

    @property
    def wrong(self) -> Verdict | None:
        """The Wrong verdict, if everything except the outputs went well; otherwise None."""
        given = self.content.get("wrong")
        return None if given is None or self.failed else self._typed(Verdict, given)

    def of(self, kind: type[Kind]) -> Kind:
        """The answer of that kind. Failed without one, or if the reply is of another kind."""
        if failed := self.failed:
            raise failed
        return self._typed(kind, self.content)

    def stop(self) -> Stop:
        """Failed if the worker has ended instead."""
        return self.of(Stop) if "ok" in self.content else self._typed(Stop, self.content)

    def _typed(self, kind: type[Kind], content: Any) -> Kind:
        try:
            return convert("the worker's answer", content, kind)
        except DerbyError as error:
            raise nonsense(quoted(text(str(error)))) from None


def nonsense(what: str) -> Failed:
    """what: a text of the judge, with the worker's words quoted."""
    return Failed(Status.CRASHED, what)


def text(value: Any, limit: int = _CHARACTERS) -> str:
    """Any value as text for a row, without lone surrogates and without control characters except newlines."""
    try:
        shown = value if isinstance(value, str) else repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or a number too long, for Python
        shown = f"a {type(value).__name__} that cannot be shown"
    shown = shown[:limit].encode("utf-8", "replace").decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in shown)
