"""A worker's answers: one frozen record for each kind, and how far the judge believes it.

A worker's process runs a solution's code, so a reply is any JSON object until `Reply.of(Kind)` has typed it; what is
no such answer ends as that solution's row (Failed), never as the end of the run.
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
from kernelderby.store.fields import Count, NotNegative, convert

_CHARACTERS = 2000
# What a worker may call its end; the rest is the judge's to say.
_CLAIMED = {Status.RAISED, Status.BUILD_FAILED, Status.OUT_OF_MEMORY, Status.CRASHED, Status.TIMED_OUT}

Config = dict[str, Any]  # of a tunable solution: plain numbers, strings and booleans by name


class Failed(Exception):
    """A worker that raised, hung, died or sent nonsense. It is to be replaced. gone: it has ended already."""

    def __init__(self, status: Status, message: str, gone: bool = False) -> None:
        super().__init__(message)
        self.status, self.message, self.gone = status, message, gone


# ------------------------------------------------------------------------------------------------------------- answers


class Done(Struct, frozen=True):
    """That it is done, and nothing else; the others add to it."""


class GpuSeen(Struct, frozen=True):
    """A GPU as torch sees it. uuid: "GPU-...", the driver's."""

    name: str
    compute_capability: str
    uuid: str = ""
    memory_bytes: Count = 0
    l2_bytes: Count = 0
    multiprocessors: Count = 0


class MachineSeen(Done, frozen=True):
    """gpu: None without one, and then gpu_missing says why, and gpu_fails whether there is one that CUDA cannot use.
    protocol_note: why the protocol is only a fallback, else empty."""

    python: str
    libs: dict[str, str]
    gpu: GpuSeen | None = None
    gpu_missing: str = ""
    gpu_fails: bool = False
    protocol: str = ""
    protocol_note: str = ""
    flush_bytes: Count = 0


class EmptyKernelTimes(Done, frozen=True):
    """empty_kernel_us: "eager" and "graph" -> median; None where there are no graphs."""

    empty_kernel_us: dict[str, float | None]


class SetUpTaken(Struct, frozen=True):
    """What a solution's setup took: seconds on the host's clock until the GPU was idle again, and bytes of GPU memory
    that it kept."""

    seconds: NotNegative
    memory_bytes: NotNegative


class SetUpDone(Done, frozen=True):
    """setup: None where the solution has none."""

    setup: SetUpTaken | None


class CaptureDone(Done, frozen=True):
    """missing: why there are no graphs, else empty. spoiled: the attempt has left the process unfit."""

    missing: str = ""
    spoiled: bool = True


class PackChecked(Done, frozen=True):
    """changes: a line for each stale file."""

    changes: tuple[str, ...]


class CostCounted(Done, frozen=True):
    """cost: as `cost` of a line of workloads; None where nothing tells it."""

    cost: dict[str, Any] | None = None


class ShapesDrawn(Done, frozen=True):
    """lines: as in workloads."""

    lines: tuple[dict[str, Any], ...]


class KernelsSeen(Done, frozen=True):
    """Of one workload, compiled. missing: what is not known of them, else empty."""

    kernels: tuple[KernelDemand, ...] = ()
    missing: str = ""


class CodeSeen(Done, frozen=True):
    """Of a solution's libraries, built."""

    code: MachineCode


class LaunchesSeen(Done, frozen=True):
    """launched: uuid -> what a call launches on that workload, or why that is not known."""

    launched: dict[str, list[str] | str]


class LibrariesSeen(Done, frozen=True):
    """paths: name of a library -> where the worker has built it."""

    paths: dict[str, str]


class Overwritten(Done, frozen=True):
    """nbytes: of memory that was not the solution's any more."""

    nbytes: Count


class Stop(Struct, frozen=True):
    """Where a worker stands in the middle of `spans`: before ("ready") or after ("done") an iteration's window."""

    at: str
    iteration: int


class TunePrepared(Done, frozen=True):
    """Of one case: its tuning key and its candidates, the heuristic's first. chosen: the number of the one that run()
    uses, where the solution says (choose); it may be none of its candidates', and is the last one then."""

    key: str
    configs: Annotated[tuple[Config, ...], Meta(min_length=1)]
    chosen: int | None = None


class TunedTimes(Done, frozen=True):
    """problem: why there are no samples, else empty. spoiled: the process is no longer fit."""

    samples_us: tuple[Microseconds, ...]
    problem: str = ""
    spoiled: bool = False


class Verdict(Done, frozen=True):
    """What a check says of a solution. A worker says it of itself for derby tune and derby profile alone; no row ever
    rests on that."""

    status: Status
    message: str = ""
    correctness: Correctness | None = None


class ProfileDone(Verdict, frozen=True):
    """What became of a profiled solution. kernels: 0 where a profiler around the process has them."""

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
        """With the distances that the verdict knows."""
        wrong = cls(verdict.status, verdict.message)
        wrong.verdict = verdict
        return wrong


Kind = TypeVar("Kind", bound=Struct)

# ------------------------------------------------------------------------------------------------------- on both sides


def sent(answer: Struct) -> dict[str, Any]:
    """An answer as the object that goes through the pipe. Not by msgspec's own JSON, which has no infinities."""
    return {"ok": True, **msgspec.to_builtins(answer)}


UNHEARD = ", and what it said is in the log"  # of a solution's own child, whose output it did not take


def errors_of(output: str, most: int = 4) -> str:
    """What a compiler complains of: the first lines that speak of an error, else the last ones."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return "; ".join([line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)][:most] or lines[-most:])


def sent_failure(status: Status, message: str) -> dict[str, Any]:
    return {"ok": False, "status": status, "message": message[:_CHARACTERS]}


@dataclass(frozen=True, slots=True)
class Reply:
    """What came. gone: the process that should have answered has ended, or was."""

    content: dict[str, Any]
    gone: bool = False

    @property
    def failed(self) -> Failed | None:
        """None where the worker says that all went well."""
        if self.content.get("ok") is True:
            return None
        try:
            status = Status(text(self.content.get("status"), 100))
        except ValueError:
            status = Status.CRASHED
        message = self.content.get("message") or self.content.get("error") or ""
        if not self.gone:  # who is gone has said nothing: the judge's side has written that
            message = quoted(text(message))
        return Failed(status if status in _CLAIMED else Status.CRASHED, message, self.gone)

    @property
    def fault_of_the_set(self) -> str | None:
        """What is wrong with the set itself, as the worker says."""
        return text(self.content["error"]) if "error" in self.content else None

    @property
    def wrong(self) -> Verdict | None:
        """None unless the worker says that all went well but for the outputs."""
        given = self.content.get("wrong")
        return None if given is None or self.failed else self._typed(Verdict, given)

    def of(self, kind: type[Kind]) -> Kind:
        """The answer. Failed where there is none, or where it is no such thing."""
        if failed := self.failed:
            raise failed
        return self._typed(kind, self.content)

    def stop(self) -> Stop:
        """Failed where the worker has come to an end instead."""
        return self.of(Stop) if "ok" in self.content else self._typed(Stop, self.content)

    def _typed(self, kind: type[Kind], content: Any) -> Kind:
        try:
            return convert("the worker's answer", content, kind)
        except DerbyError as error:
            raise nonsense(quoted(text(str(error)))) from None


def nonsense(what: str) -> Failed:
    """what: in the judge's words, with the worker's quoted."""
    return Failed(Status.CRASHED, what)


def text(value: Any, limit: int = _CHARACTERS) -> str:
    """Any value as text that can be written into a row: no lone surrogates, no control characters but newlines."""
    try:
        shown = value if isinstance(value, str) else repr(value)
    except (RecursionError, ValueError):  # nested deeper, or a number longer, than Python writes
        shown = f"a {type(value).__name__} that cannot be shown"
    shown = shown[:limit].encode("utf-8", "replace").decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in shown)
