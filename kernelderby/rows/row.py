"""A line of traces/ on disk: the allowed values of its fields, and the agreement between them.

Both our lines and flashinfer-bench's, which lack `measurement`. The tools work with measurement.Measurement.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Raw, Struct

from kernelderby.rows.samples import LEAST_US, MOST_US
from kernelderby.store.fields import Name, NotNegative, Number, Size, must_be


class Status(StrEnum):
    """How one solution ended on one workload."""

    PASSED = "passed"
    WRONG_VALUES = "wrong_values"
    WRONG_SHAPE = "wrong_shape"
    WRONG_DTYPE = "wrong_dtype"
    NOT_A_NUMBER = "not_a_number"
    UNWRITTEN = "unwritten"  # poison survives in the output
    INPUT_CHANGED = "input_changed"
    STALE_OUTPUT = "stale_output"  # correct at first, wrong with new contents at the same addresses
    GRAPH_OVERTAKEN = "graph_overtaken"  # after a larger call, a captured call is wrong or writes elsewhere
    REWARD_HACK = "reward_hack"  # the time that its process claims contradicts the judge's
    BELOW_FLOOR = "below_floor"  # faster than the hardware allows
    RAISED = "raised"
    BUILD_FAILED = "build_failed"
    CRASHED = "crashed"  # the process died
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"

    @property
    def evaluation_status(self) -> str:
        """The nearest of flashinfer-bench's seven statuses (flashinfer_bench.data.EvaluationStatus)."""
        return _EVALUATION_STATUS.get(self, "RUNTIME_ERROR")


# The beginning of an OUT_OF_MEMORY message that says nothing about the solution.
JUDGE_WITHOUT_MEMORY = "the judge has no memory for its case"

_EVALUATION_STATUS = {  # all others: RUNTIME_ERROR
    Status.PASSED: "PASSED",
    Status.WRONG_VALUES: "INCORRECT_NUMERICAL",
    Status.WRONG_SHAPE: "INCORRECT_SHAPE",
    Status.WRONG_DTYPE: "INCORRECT_DTYPE",
    Status.NOT_A_NUMBER: "INCORRECT_NUMERICAL",
    Status.UNWRITTEN: "INCORRECT_NUMERICAL",
    Status.INPUT_CHANGED: "INCORRECT_NUMERICAL",
    Status.STALE_OUTPUT: "INCORRECT_NUMERICAL",
    Status.BUILD_FAILED: "COMPILE_ERROR",
    Status.TIMED_OUT: "TIMEOUT",
}
STATUS_OF_EVALUATION = {
    "PASSED": Status.PASSED,
    "INCORRECT_NUMERICAL": Status.WRONG_VALUES,
    "INCORRECT_SHAPE": Status.WRONG_SHAPE,
    "INCORRECT_DTYPE": Status.WRONG_DTYPE,
    "RUNTIME_ERROR": Status.RAISED,
    "COMPILE_ERROR": Status.BUILD_FAILED,
    "TIMEOUT": Status.TIMED_OUT,
}

# Medians and samples in rows have three decimals of a microsecond.
ROUNDING_US, ROUNDING = 1.01e-3, 1e-6
_CLOCKS = 1.01  # the clocks of the GPU and the host may differ
_SPEEDUP = 0.01  # flashinfer-bench rounds times before it divides

Time = Annotated[float, must_be(f"a time from {LEAST_US:g} to {MOST_US:g} us", ge=LEAST_US, le=MOST_US)]
Round = Annotated[tuple[Time, ...], must_be("a round of at least one time", min_length=1)]
Rounds = tuple[Round, ...]
# JSON has no NaN and no infinity: they are written as texts.
MaybeNumber = Annotated[float, must_be("a number of 0 or more", ge=0)] | Literal["NaN", "Infinity", "-Infinity"] | None


class Performance(Struct):
    latency_ms: Annotated[
        float, must_be(f"a time from {LEAST_US / 1e3:g} to {MOST_US / 1e3:g} ms", ge=LEAST_US / 1e3, le=MOST_US / 1e3)
    ]
    reference_latency_ms: NotNegative = 0.0
    speedup_factor: NotNegative | None = None

    def __post_init__(self) -> None:
        if self.speedup_factor is None or not self.reference_latency_ms:
            return
        found = self.reference_latency_ms / self.latency_ms
        if abs(found - self.speedup_factor) > _SPEEDUP * found:
            raise ValueError(
                f"speedup_factor: is {self.speedup_factor:g}, but the two times give {found:g}; measure it again"
            )


class Errors(Struct):
    max_relative_error: MaybeNumber = 0.0
    max_absolute_error: MaybeNumber = 0.0
    relative_error_norm: MaybeNumber = None
    matched_ratio: dict[str, Annotated[float, must_be("a number from 0 to 1", ge=0, le=1)]] = {}


class Hardware(Struct):
    hardware: Name
    libs: dict[str, Any] = {}


class Evaluation(Struct):
    status: Literal[
        "PASSED", "INCORRECT_NUMERICAL", "INCORRECT_SHAPE", "INCORRECT_DTYPE", "RUNTIME_ERROR", "COMPILE_ERROR",
        "TIMEOUT",
    ]  # fmt: skip
    environment: Hardware
    timestamp: str
    log: str | None = ""
    correctness: Errors | None = None
    performance: Performance | None = None

    def __post_init__(self) -> None:
        try:
            datetime.fromisoformat(self.timestamp)
        except ValueError:
            raise ValueError(
                f"timestamp: {self.timestamp!r:.40} is no ISO time such as 2026-11-21T02:00:00+00:00; mend it"
            ) from None


class Times(Struct):
    median_us: Time
    samples_us: Rounds

    def __post_init__(self) -> None:
        _expect_median("median_us", self.median_us, self.samples_us)


class OwnFields(Struct):
    """`measurement`: the data without a place in flashinfer-bench's schema."""

    status: Status
    protocol: Name
    latency_us: Time | None = None
    samples_us: Rounds = ()
    reference_latency_us: NotNegative | None = None
    correctness: Errors | None = None
    solution_hash: str | None = None
    session: str | None = None
    environment: dict[str, Any] = {}
    times: dict[str, Times] = {}
    graph_missing: str | None = ""
    host_us: NotNegative | None = None
    wall_us: NotNegative | None = None
    setup: dict[str, NotNegative] | None = None
    shape: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if (self.latency_us is None) == (self.status is Status.PASSED):
            raise ValueError("latency_us: a passed row needs a time, and no other has one; measure it again")
        if self.times and self.status is not Status.PASSED:
            raise ValueError(f"times: a row that {self.status.value} has none; measure it again")
        if self.graph_missing and "graph" in self.times:
            raise ValueError("graph_missing: says why there is no graph time, but times.graph is one; measure it again")
        there = self.times["eager"].median_us if "eager" in self.times else self.latency_us
        if self.latency_us is not None and abs((there or 0.0) - self.latency_us) > ROUNDING_US:
            raise ValueError(f"latency_us: is {self.latency_us}, but times.eager.median_us {there}; measure it again")
        if self.latency_us is not None and self.samples_us:
            _expect_median("latency_us", self.latency_us, self.samples_us)
        busy, eager = self.times.get("busy"), self.times.get("eager")
        if busy and eager:
            _expect_within("times.busy.median_us", busy.median_us, "times.eager.median_us", eager.median_us)
        if self.wall_us is not None:
            _expect_within("host_us", self.host_us, "wall_us", self.wall_us)
            _expect_within("latency_us", self.latency_us, "wall_us", self.wall_us)


class Clocks(Struct):
    """The GPU's in one round."""

    sm_mhz: Number | None = None
    temperature_celsius: Number | None = None
    power_watts: Number | None = None
    throttled_by: tuple[str, ...] | None = None


class KnownEnvironment(Struct):
    """The fields of measurement.environment that tables show."""

    driver: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    libs: dict[str, str | None] = {}
    seconds: NotNegative | None = None
    empty_kernel_us: dict[str, NotNegative | None] | None = None
    gpu_uuid: str | None = None
    apart: str | None = None  # the solution that was measured alone
    clocks: tuple[Clocks, ...] | None = None


class RanInput(Struct):
    """Other programs may know more kinds than ours."""

    type: Name


class RanWorkload(Struct):
    """`workload`, as in the workloads file."""

    uuid: Name
    axes: dict[str, Size]
    inputs: dict[str, RanInput]


class Row(Struct):
    definition: Name
    workload: dict[str, Any]
    solution: Name
    evaluation: Evaluation
    measurement: OwnFields | None = None

    def __post_init__(self) -> None:
        own, evaluation = self.measurement, self.evaluation
        if (evaluation.performance is None) == (evaluation.status == "PASSED"):
            raise ValueError(
                "evaluation.performance: a passed row needs a time, and no other has one; measure it again"
            )
        if own is None:
            return
        if own.status.evaluation_status != evaluation.status:
            raise ValueError(
                f"evaluation.status: is {evaluation.status}, but measurement.status {own.status.value}; "
                "measure it again"
            )
        if own.latency_us is not None and evaluation.performance is not None:
            there = evaluation.performance.latency_ms * 1e3
            if abs(there - own.latency_us) > ROUNDING_US + ROUNDING * own.latency_us:
                raise ValueError(
                    f"evaluation.performance.latency_ms: is {there:g} us, but measurement.latency_us "
                    f"{own.latency_us:g}; measure it again"
                )
        _expect_twins(evaluation, own)


def _expect_twins(evaluation: Evaluation, own: OwnFields) -> None:
    """DerbyError if flashinfer-bench's part and ours disagree about the same value."""
    there, here = evaluation.correctness, own.correctness
    if evaluation.performance is not None:
        reference_us = evaluation.performance.reference_latency_ms * 1e3
        _expect_one("reference_latency_us", reference_us, own.reference_latency_us or 0.0)
    if there is not None and here is not None:
        _expect_one("correctness.max_absolute_error", there.max_absolute_error, here.max_absolute_error)
        _expect_one("correctness.max_relative_error", there.max_relative_error, here.max_relative_error)
        if there.relative_error_norm is not None:
            _expect_one("correctness.relative_error_norm", there.relative_error_norm, here.relative_error_norm)
        for name in there.matched_ratio.keys() & here.matched_ratio.keys():
            _expect_one(f"correctness.matched_ratio.{name}", there.matched_ratio[name], here.matched_ratio[name])
    if isinstance(evaluation.environment, Hardware):  # in a QuickRow (bulk.py) it is text
        expect_same_libs(evaluation.environment.libs, own.environment.get("libs"))


def expect_same_libs(known: dict[str, Any], libs: Any) -> None:
    if known != libs and isinstance(libs, dict):
        for name in known.keys() & libs.keys():
            _expect_one(f"environment.libs.{name}", known[name], libs[name])


def _expect_one(field: str, there: Any, here: Any) -> None:
    if there == here or (
        isinstance(there, (int, float))
        and isinstance(here, (int, float))
        and abs(there - here) <= ROUNDING_US + ROUNDING * abs(here)
    ):
        return
    raise ValueError(f"measurement.{field}: is {here!r:.40}, but {there!r:.40} in evaluation; measure it again")


def _expect_within(field: str, part: float | None, around: str, whole: float) -> None:
    if part is not None and part > whole * _CLOCKS + ROUNDING_US:
        raise ValueError(f"{field}: is {part:g}, longer than {around} {whole:g} around it; measure it again")


def _expect_median(field: str, stated: float, rounds: tuple[tuple[float, ...], ...] | Raw) -> None:
    if isinstance(rounds, Raw):  # see bulk.py
        return
    samples = sorted([sample for samples in rounds for sample in samples])
    middle = len(samples) // 2
    found = (samples[middle] + samples[~middle]) / 2 if samples else None
    if found is None or abs(found - stated) > ROUNDING_US + ROUNDING * stated:
        raise ValueError(
            f"{field}: is {stated:g}, but the median of the samples {found or 'missing'}; measure it again"
        )
