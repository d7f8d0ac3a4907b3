"""The data that the tools exchange: frozen records with units in their field names, to and from JSON.

A row of traces/ is a flashinfer-bench Trace line (definition, workload, solution, evaluation) with one more field,
`measurement`, which flashinfer-bench ignores. It holds the data without a place in that schema: the exact status, the
raw samples, the protocol, the solution's hash, clocks and versions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from kernelderby.rows.row import (
    JUDGE_WITHOUT_MEMORY,
    STATUS_OF_EVALUATION,
    Errors,
    KnownEnvironment,
    MaybeNumber,
    RanWorkload,
    Row,
)
from kernelderby.rows.row import Status as Status
from kernelderby.store.fields import Count, Name, convert
from kernelderby.store.patterns import pattern_problem

K = TypeVar("K", bound=Hashable)
Rounds = Sequence[Sequence[float]]  # tuples of tuples; Samples where a row was read from a file


# flashinfer-bench's two timers: up to 0.1.2 CUDA events around the call (with the launch; the mean of all calls), on
# its main branch CUPTI (the span of the kernels; the mean of the trials' medians). Neither meets the other, or ours, in
# one ranking.
FLASHINFER_BENCH_EVENTS = "flashinfer-bench-events"
FLASHINFER_BENCH_CUPTI = "flashinfer-bench-cupti"
FLASHINFER_BENCH_PROTOCOLS = (FLASHINFER_BENCH_EVENTS, FLASHINFER_BENCH_CUPTI)
_FIRST_CUPTI = datetime(2026, 2, 24, tzinfo=UTC)  # its commit 0cd5b6e1
_NO_CUPTI = "Falling back to CUDA events"  # FlashInfer's warning where cupti-python is missing, in the row's log


class Cost(Struct, frozen=True):
    """Work that no implementation of a workload can avoid. facts: counts worth showing, such as local_pairs. counted:
    the work was counted from the reference, because the definition has no count_cost."""

    flops: dict[Name, Count]
    bytes_read: Count
    bytes_written: Count
    facts: dict[str, int] = {}
    # Bytes read and written together, if fewer than the two counts must be moved: in general, and if outputs lie in
    # their inputs' memory.
    bytes_needed: Count | None = None
    bytes_in_place: Count | None = None
    counted: bool = False

    def needed(self, in_place: bool = False) -> int:
        """The bytes that a solution has to move; the fair score counts these."""
        if in_place and self.bytes_in_place is not None:
            return self.bytes_in_place
        return self.bytes_read + self.bytes_written if self.bytes_needed is None else self.bytes_needed


class Correctness(Struct, frozen=True):
    """Distance of the outputs from the reference. matched_ratio: tolerance name -> share of elements within it, for the
    output with the smallest share."""

    max_absolute_error: float
    max_relative_error: float
    relative_error_norm: float
    matched_ratio: dict[str, float] = {}


class Timed(Struct, frozen=True):
    """One kind of time. samples_us: one list of spans for each round of the solution, a span for each call."""

    median_us: float
    samples_us: Rounds


TIME_KINDS = ("graph", "eager", "busy")  # the keys of Measurement.times; docs/protocol.md defines them


class FileLine(Struct, frozen=True):
    """A line of a file."""

    path: str
    line: int


class Measurement(Struct, frozen=True):
    """One solution on one workload on one GPU. Two measurements with equal values are equal, wherever they were read.

    times: kind -> its time, empty unless passed; rows before protocol 2 have the eager time only. samples_us,
    latency_us: the eager time, which flashinfer-bench measures too. samples_us has the raw span of every iteration,
    round by round. latency_us is the median of all samples, None unless passed. Rounds of competitors with the same
    `session` alternate in time, so round i of one is to be compared with round i of the other. graph_missing: why times
    has no "graph", else empty. host_us, wall_us: medians of the time to enqueue a call, and of the time until the GPU
    was idle again. setup: seconds and memory_bytes of the solution's setup. shape: for a workload that no file lists,
    the fields that its line would have beside `workload`: origin, cost, generator.
    """

    definition: str
    workload: dict[str, Any]  # uuid, axes, inputs: as in the workloads file
    solution: str
    status: Status
    gpu: str
    protocol: str
    timestamp: str
    latency_us: float | None = None
    samples_us: Rounds = ()
    reference_latency_us: float | None = None
    correctness: Correctness | None = None
    solution_hash: str | None = None
    session: str | None = None
    message: str = ""
    environment: dict[str, Any] = {}  # driver, clocks, library versions, commit
    times: dict[str, Timed] = {}
    graph_missing: str = ""
    host_us: float | None = None
    wall_us: float | None = None
    setup: dict[str, float] | None = None
    shape: dict[str, Any] = {}
    place: FileLine | None = None  # where it was read; not written

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Measurement) and all(getattr(self, one) == getattr(other, one) for one in _COMPARED)

    __hash__ = None  # type: ignore[assignment]  # it holds dicts

    def __repr__(self) -> str:
        time = "" if self.latency_us is None else f", {self.latency_us:g} us"
        return f"Measurement({self.solution!r}, {self.uuid[:8]}, {self.gpu}, {self.status}{time})"

    def time(self, kind: str) -> Timed | None:
        """The row's time of that kind; None without one, and for a row that did not pass."""
        if self.status is not Status.PASSED:
            return None
        if kind == "eager" and kind not in self.times and self.latency_us is not None:
            return Timed(self.latency_us, self.samples_us)
        return self.times.get(kind)

    @property
    def uuid(self) -> str:
        uuid: str = self.workload["uuid"]
        return uuid

    @property
    def is_unjudged(self) -> bool:
        """The judge itself ran out of memory, so the row says nothing about the solution."""
        return self.status is Status.OUT_OF_MEMORY and self.message.startswith(JUDGE_WITHOUT_MEMORY)

    @property
    def moment(self) -> datetime:
        """The time of the measurement. A time without a zone counts as UTC, other text as the oldest time."""
        return moment_of(self.timestamp)

    def to_trace(self) -> dict[str, Any]:
        """A flashinfer-bench Trace as a dict, with `measurement` beside its own fields."""
        status = self.status.evaluation_status
        has_numbers = status in ("PASSED", "INCORRECT_NUMERICAL")
        correctness = self.correctness or Correctness(float("nan"), float("nan"), float("nan"))
        evaluation: dict[str, Any] = {
            "status": status,
            "environment": {"hardware": self.gpu, "libs": dict(self.environment.get("libs", {}))},
            "timestamp": self.timestamp,
            "log": self.message,
            "correctness": {
                "max_relative_error": _json_number(correctness.max_relative_error),
                "max_absolute_error": _json_number(correctness.max_absolute_error),
            }
            if has_numbers
            else None,
            "performance": None,
        }
        if status == "PASSED":
            latency, reference = self.latency_us or 0.0, self.reference_latency_us or 0.0
            evaluation["performance"] = {
                "latency_ms": latency / 1e3,
                "reference_latency_ms": reference / 1e3,
                "speedup_factor": reference / latency if latency else 0.0,
            }
        measurement = {name: getattr(self, name) for name in _OWN}
        measurement |= {name: deepcopy(measurement[name]) for name in ("environment", "setup", "shape")}
        measurement["samples_us"] = tuple(map(tuple, self.samples_us))
        measurement["correctness"] = self.correctness and asdict(self.correctness)
        measurement["times"] = {
            kind: {"median_us": time.median_us, "samples_us": tuple(map(tuple, time.samples_us))}
            for kind, time in self.times.items()
        }
        if "eager" in self.times:
            del measurement["samples_us"]  # once is enough
        for empty in ("times", "graph_missing", "host_us", "wall_us", "setup", "shape"):
            if not measurement[empty]:
                del measurement[empty]
        if self.correctness:
            for name in ("max_absolute_error", "max_relative_error", "relative_error_norm"):
                measurement["correctness"][name] = _json_number(measurement["correctness"][name])
        return {
            "definition": self.definition,
            "workload": self.workload,
            "solution": self.solution,
            "evaluation": evaluation,
            "measurement": measurement,
        }

    @classmethod
    def from_trace(cls, trace: dict[str, Any]) -> Measurement:
        """Reads a line of ours or of flashinfer-bench. DerbyError if a field is missing or invalid, or two fields
        disagree."""
        return cls.from_row(convert("the row", trace, Row), "the row")

    @classmethod
    def from_row(
        cls, row: Row, where: str, place: FileLine | None = None, *, is_known: bool = False, by_author: bool = False
    ) -> Measurement:
        """where: file and line, for the DerbyError. is_known: a row with word for word the same workload was read
        before. by_author: the row lies where flashinfer-bench's main branch writes, see flashinfer_bench_protocol()."""
        evaluation, own = row.evaluation, row.measurement
        if not is_known:
            convert(f"{where}: workload", row.workload, RanWorkload)
        gpu, timestamp, message = evaluation.environment.hardware, evaluation.timestamp, evaluation.log or ""
        if own is None:
            found = evaluation.performance
            return cls(
                row.definition,
                row.workload,
                row.solution,
                STATUS_OF_EVALUATION[evaluation.status],
                gpu,
                flashinfer_bench_protocol(timestamp, message, by_author),
                timestamp,
                found.latency_ms * 1e3 if found else None,
                reference_latency_us=found.reference_latency_ms * 1e3 if found else None,
                correctness=correctness_of(evaluation.correctness),
                message=message,
                environment={"libs": evaluation.environment.libs},
                place=place,
            )
        convert(f"{where}: measurement.environment", own.environment, KnownEnvironment)
        times = {kind: Timed(each.median_us, each.samples_us) for kind, each in own.times.items()}
        return cls(
            row.definition,
            row.workload,
            row.solution,
            own.status,
            gpu,
            own.protocol,
            timestamp,
            own.latency_us,
            times["eager"].samples_us if "eager" in times else own.samples_us,
            own.reference_latency_us,
            correctness_of(own.correctness),
            own.solution_hash,
            own.session,
            message,
            own.environment,
            times,
            own.graph_missing or "",
            own.host_us,
            own.wall_us,
            own.setup,
            own.shape,
            place,
        )


_COMPARED = tuple(name for name in Measurement.__struct_fields__ if name != "place")
_ELSEWHERE = ("definition", "workload", "solution", "gpu", "timestamp", "message")  # of flashinfer-bench's own fields
_OWN = tuple(name for name in _COMPARED if name not in _ELSEWHERE)


def flashinfer_bench_protocol(timestamp: str, log: str, by_author: bool) -> str:
    """The timer of a row of flashinfer-bench. The row does not name it, but the path tells it: 0.1.2 writes
    traces/<op_type>/<definition>.jsonl, its main branch traces/<author>/<op_type>/<definition>.jsonl (by_author)."""
    is_cupti = by_author and moment_of(timestamp) >= _FIRST_CUPTI and _NO_CUPTI not in log
    return FLASHINFER_BENCH_CUPTI if is_cupti else FLASHINFER_BENCH_EVENTS


@lru_cache(1 << 16)
def moment_of(timestamp: str) -> datetime:
    try:
        time = datetime.fromisoformat(timestamp)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def correctness_of(found: Errors | None) -> Correctness | None:
    return (
        None
        if found is None
        else Correctness(
            _number(found.max_absolute_error),
            _number(found.max_relative_error),
            _number(found.relative_error_norm),
            found.matched_ratio,
        )
    )


def _number(value: MaybeNumber) -> float:
    return float("nan") if value is None else float(value)


def _json_number(value: float) -> float | str:
    """JSON has no NaN and no infinity; flashinfer-bench and we write them as strings."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def by_definition(rows: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    found: dict[str, list[Measurement]] = {}
    for row in rows:
        found.setdefault(row.definition, []).append(row)
    return found


def newest(rows: Iterable[Measurement], key: Callable[[Measurement], K]) -> dict[K, Measurement]:
    """The row that counts for each key. In one file it is the last line, whatever its timestamp. Across files, and for
    rows that were not read from files, it is the latest; of equally late rows the last."""
    last: dict[tuple[K, str | None], Measurement] = {}
    for row in rows:
        within = (key(row), row.place.path if row.place else None)
        if within not in last or within[1] is not None or row.moment >= last[within].moment:
            last[within] = row
    found: dict[K, Measurement] = {}
    for (each, _), row in last.items():
        if each not in found or row.moment >= found[each].moment:
            found[each] = row
    return found


class Stage(Struct, frozen=True):
    """One step of a solution's pipeline: NVTX range name, or patterns (regular expressions) of its kernels' names.
    role: tools choose stages by it. "gemm": the stage multiplies matrices; a workload's roofline is the floor of all
    such stages together."""

    name: Name
    title: str
    kernels: tuple[str, ...] = ()
    nvtx: str | None = None
    role: str | None = None

    def __post_init__(self) -> None:
        for pattern in self.kernels:
            if problem := pattern_problem(pattern):
                raise ValueError(f"kernels: {pattern!r:.60} {problem}; mend it")
