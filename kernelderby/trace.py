"""The data that the tools exchange: frozen records with units in their field names, to and from JSON.

A row of traces/ is a flashinfer-bench Trace line (definition, workload, solution, evaluation) with one more field,
`measurement`, which flashinfer-bench ignores and which carries what its schema has no room for: the exact status, the
raw samples, the protocol, the solution's hash, clocks and versions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How one solution ended on one workload."""

    PASSED = "passed"
    WRONG_VALUES = "wrong_values"
    WRONG_SHAPE = "wrong_shape"
    WRONG_DTYPE = "wrong_dtype"
    NOT_A_NUMBER = "not_a_number"
    UNWRITTEN = "unwritten"  # poison survives in the output
    INPUT_CHANGED = "input_changed"
    STALE_OUTPUT = "stale_output"  # right at first, wrong once the same addresses held new contents
    REWARD_HACK = "reward_hack"  # the time that its process claims is not the judge's
    BELOW_FLOOR = "below_floor"  # faster than the hardware allows
    RAISED = "raised"
    BUILD_FAILED = "build_failed"
    CRASHED = "crashed"  # the process died
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"

    @property
    def evaluation_status(self) -> str:
        """The nearest of flashinfer-bench's seven statuses (flashinfer_bench.data.EvaluationStatus)."""
        return _EVALUATION_STATUS[self]


_EVALUATION_STATUS = {
    Status.PASSED: "PASSED",
    Status.WRONG_VALUES: "INCORRECT_NUMERICAL",
    Status.WRONG_SHAPE: "INCORRECT_SHAPE",
    Status.WRONG_DTYPE: "INCORRECT_DTYPE",
    Status.NOT_A_NUMBER: "INCORRECT_NUMERICAL",
    Status.UNWRITTEN: "INCORRECT_NUMERICAL",
    Status.INPUT_CHANGED: "INCORRECT_NUMERICAL",
    Status.STALE_OUTPUT: "INCORRECT_NUMERICAL",
    Status.REWARD_HACK: "RUNTIME_ERROR",
    Status.BELOW_FLOOR: "RUNTIME_ERROR",
    Status.RAISED: "RUNTIME_ERROR",
    Status.BUILD_FAILED: "COMPILE_ERROR",
    Status.CRASHED: "RUNTIME_ERROR",
    Status.TIMED_OUT: "TIMEOUT",
    Status.OUT_OF_MEMORY: "RUNTIME_ERROR",
}
_STATUS_OF_EVALUATION = {
    "PASSED": Status.PASSED,
    "INCORRECT_NUMERICAL": Status.WRONG_VALUES,
    "INCORRECT_SHAPE": Status.WRONG_SHAPE,
    "INCORRECT_DTYPE": Status.WRONG_DTYPE,
    "RUNTIME_ERROR": Status.RAISED,
    "COMPILE_ERROR": Status.BUILD_FAILED,
    "TIMEOUT": Status.TIMED_OUT,
}

# Times in flashinfer-bench's own traces hold launch overhead (CUDA events) or not (CUPTI), which the trace does not
# say; they are kept apart from ours, and never meet them in one ranking.
FLASHINFER_BENCH_PROTOCOL = "flashinfer-bench"


@dataclass(frozen=True, slots=True)
class Cost:
    """Work that no implementation of a workload can avoid; facts are counts worth showing (say local_pairs)."""

    flops: dict[str, int]
    bytes_read: int
    bytes_written: int
    facts: dict[str, int] = field(default_factory=dict)
    # Read and written together, where less than the two counts has to be moved: at all, and where outputs lie in the
    # memory of their inputs.
    bytes_needed: int | None = None
    bytes_in_place: int | None = None

    def needed(self, in_place: bool = False) -> int:
        """Bytes that a solution has to move: what the fair score counts."""
        if in_place and self.bytes_in_place is not None:
            return self.bytes_in_place
        return self.bytes_read + self.bytes_written if self.bytes_needed is None else self.bytes_needed


@dataclass(frozen=True, slots=True)
class Correctness:
    """Distance of an output from the reference. matched_ratio: tolerance name -> share of elements within it."""

    max_absolute_error: float
    max_relative_error: float
    relative_error_norm: float
    matched_ratio: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timed:
    """One kind of time. samples_us: the rounds in which the solution took its turn, each one span per call."""

    median_us: float
    samples_us: tuple[tuple[float, ...], ...]


TIME_KINDS = ("graph", "eager", "busy")  # what Measurement.times may hold; docs/protocol.md says what they are


@dataclass(frozen=True, slots=True)
class Measurement:
    """One solution on one workload on one GPU.

    times: kind -> its time, empty unless passed; rows before protocol 2 have the eager one alone.
    samples_us, latency_us: the eager time's, which flashinfer-bench measures too: the rounds in which it took its
    turn, each the raw span of every iteration, and the median of all of them, None unless passed. Rounds of competitors
    with the same `session` alternate in time, so round i of one is to be compared with round i of the other.
    graph_missing: why times has no "graph", else empty. host_us, wall_us: medians of the time to enqueue a call, and
    until the GPU was idle again. setup: what the solution's setup took, seconds and memory_bytes.
    """

    definition: str
    workload: dict[str, Any]  # uuid, axes, inputs: as in the workloads file
    solution: str
    status: Status
    gpu: str
    protocol: str
    timestamp: str
    latency_us: float | None = None
    samples_us: tuple[tuple[float, ...], ...] = ()
    reference_latency_us: float | None = None
    correctness: Correctness | None = None
    solution_hash: str | None = None
    session: str | None = None
    message: str = ""
    environment: dict[str, Any] = field(default_factory=dict)  # driver, clocks, library versions, commit
    times: dict[str, Timed] = field(default_factory=dict)
    graph_missing: str = ""
    host_us: float | None = None
    wall_us: float | None = None
    setup: dict[str, float] | None = None

    def time(self, kind: str) -> Timed | None:
        """A time of the row; None where it has none of the kind, and for a row that did not pass."""
        if self.status is not Status.PASSED:
            return None
        if kind == "eager" and kind not in self.times and self.latency_us is not None:
            return Timed(self.latency_us, self.samples_us)
        return self.times.get(kind)

    @property
    def uuid(self) -> str:
        return self.workload["uuid"]

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
            } if has_numbers else None,
            "performance": None,
        }
        if status == "PASSED":
            latency, reference = self.latency_us or 0.0, self.reference_latency_us or 0.0
            evaluation["performance"] = {
                "latency_ms": latency / 1e3,
                "reference_latency_ms": reference / 1e3,
                "speedup_factor": reference / latency if latency else 0.0,
            }
        measurement = asdict(self)
        for stored_elsewhere in ("definition", "workload", "solution", "gpu", "timestamp", "message"):
            del measurement[stored_elsewhere]
        if "eager" in self.times:
            del measurement["samples_us"]  # once is enough
        for empty in ("times", "graph_missing", "host_us", "wall_us", "setup"):
            if not measurement[empty]:
                del measurement[empty]
        if self.correctness:
            for name in ("max_absolute_error", "max_relative_error", "relative_error_norm"):
                measurement["correctness"][name] = _json_number(measurement["correctness"][name])
        return {"definition": self.definition, "workload": self.workload, "solution": self.solution,
                "evaluation": evaluation, "measurement": measurement}

    @classmethod
    def from_trace(cls, trace: dict[str, Any]) -> Measurement:
        """Reads our rows and flashinfer-bench's own alike. KeyError or ValueError where a field is missing or odd."""
        evaluation = trace["evaluation"]
        common = dict(definition=trace["definition"], workload=trace["workload"], solution=trace["solution"],
                      gpu=evaluation["environment"]["hardware"], timestamp=evaluation["timestamp"],
                      message=evaluation.get("log", ""))
        own = trace.get("measurement")
        if own is not None:
            own = dict(own)
            correctness = own.pop("correctness", None)
            if correctness is not None:
                numbers = {k: float(v) if isinstance(v, str) else v for k, v in correctness.items()}
                correctness = Correctness(**numbers)
            own["status"] = Status(own["status"])
            own["times"] = {kind: Timed(each["median_us"], tuple(map(tuple, each["samples_us"])))
                            for kind, each in own.get("times", {}).items()}
            eager = own["times"].get("eager")
            own["samples_us"] = eager.samples_us if eager else tuple(tuple(r) for r in own.get("samples_us", ()))
            return cls(**common, correctness=correctness, **own)
        performance = evaluation.get("performance")
        latency_us = performance["latency_ms"] * 1e3 if performance else None
        found = evaluation.get("correctness")
        correctness = found and Correctness(float(found["max_absolute_error"]), float(found["max_relative_error"]),
                                            float("nan"))
        return cls(**common, status=_STATUS_OF_EVALUATION[evaluation["status"]], protocol=FLASHINFER_BENCH_PROTOCOL,
                   latency_us=latency_us, correctness=correctness or None,
                   reference_latency_us=performance["reference_latency_ms"] * 1e3 if performance else None,
                   environment={"libs": evaluation["environment"].get("libs", {})})


def _json_number(value: float) -> float | str:
    """JSON has no NaN and no infinity; flashinfer-bench writes them as strings, and so do we."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


STAGE_ROLES = ("gemm",)  # gemm: multiplies; the roofline of a workload is the floor of these stages together


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a solution's pipeline: NVTX range name, or patterns (regular expressions) of its kernels' names.
    role: one of STAGE_ROLES, by which tools choose stages; None for all else."""

    name: str
    title: str
    kernels: tuple[str, ...] = ()
    nvtx: str | None = None
    role: str | None = None
