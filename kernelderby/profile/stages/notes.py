"""Irregularities of a pipeline as records. report.profile.notes has the words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from kernelderby.profile.stages.stated import StatedFigure


class InvocationSource(Enum):
    MARKED = auto()  # by NVTX ranges
    COUNTED = auto()  # along the events
    PATTERNS = auto()  # the count that most patterns have
    NO_STAGE = auto()  # no stage occurs


@dataclass(frozen=True, slots=True)
class InvocationsFrom:
    """agreeing: of so many `patterns`; only with PATTERNS."""

    source: InvocationSource
    agreeing: int = 0
    patterns: int = 0


# Notes of one stage.


@dataclass(frozen=True, slots=True)
class SharedName:
    """The stages of one row share a kernel name, and a summary has no order."""


@dataclass(frozen=True, slots=True)
class MissingSometimes:
    missing: int
    invocations: int


@dataclass(frozen=True, slots=True)
class KernelsVary:
    """Numbers of kernels of an invocation."""

    fewest: int
    most: int


@dataclass(frozen=True, slots=True)
class UnevenCount:
    """The number of kernels is not `each` times the invocations."""

    instances: int
    each: int
    invocations: int


@dataclass(frozen=True, slots=True)
class TakingTurns:
    """Several kernels (one tile size or another) of which none runs in every invocation."""

    instances: tuple[int, ...]


StageNote = SharedName | MissingSometimes | KernelsVary | UnevenCount | TakingTurns


# Warnings about the whole pipeline.


@dataclass(frozen=True, slots=True)
class AmbiguousKernel:
    """A kernel that fits stages with different patterns. counted: the stages that get it."""

    name: str
    counted: tuple[str, ...]
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnmatchedStage:
    """nvtx: its range; None without one."""

    stage: str
    nvtx: str | None
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CutKernels:
    """stages: (name, kernels that start in the nanosecond of another's end, all kernels)."""

    stages: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class MoreThanStated:
    path: str
    itemised_ns: float
    stated_ns: float


@dataclass(frozen=True, slots=True)
class GlueOutside:
    """A summary cannot tell the kernels of this stage from those of the harness."""

    stage: str


# A string comes from the reader of the file.
PipelineWarning = str | AmbiguousKernel | UnmatchedStage | CutKernels | MoreThanStated | GlueOutside | StatedFigure
