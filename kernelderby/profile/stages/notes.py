"""Irregularities of a pipeline as records. report.profile.notes has the words."""

from __future__ import annotations

from enum import Enum, auto

from msgspec import Struct

from kernelderby.profile.stages.stated import StatedEntry


class InvocationSource(Enum):
    MARKED = auto()  # by NVTX ranges
    COUNTED = auto()  # along the events
    PATTERNS = auto()  # the count that most patterns have
    NO_STAGE = auto()  # no stage occurs


class InvocationsFrom(Struct, frozen=True):
    source: InvocationSource
    agreeing: int = 0  # patterns with this count, if patterns give it
    patterns: int = 0


class SharedName(Struct, frozen=True):
    """The row's stages share a kernel name, and a summary has no order."""


class MissingSometimes(Struct, frozen=True):
    missing: int
    invocations: int


class KernelsVary(Struct, frozen=True):
    """Numbers of kernels of an invocation."""

    fewest: int
    most: int


class UnevenCount(Struct, frozen=True):
    """The number of kernels is not `each` times the invocations."""

    instances: int
    each: int
    invocations: int


class TakingTurns(Struct, frozen=True):
    """Several kernels (one tile size or another) of which none runs in every invocation."""

    instances: tuple[int, ...]


StageNote = SharedName | MissingSometimes | KernelsVary | UnevenCount | TakingTurns  # of one row


class AmbiguousKernel(Struct, frozen=True):
    name: str
    counted: tuple[str, ...]  # the stages that get it; the others' patterns fit too
    others: tuple[str, ...]


class UnmatchedStage(Struct, frozen=True):
    stage: str
    nvtx: str | None
    patterns: tuple[str, ...]


class CutKernels(Struct, frozen=True):
    """stages: (name, kernels that start in the nanosecond of another's end, all kernels)."""

    stages: tuple[tuple[str, int, int], ...]


class MoreThanStated(Struct, frozen=True):
    path: str
    itemised_ns: float
    stated_ns: float


class GlueOutside(Struct, frozen=True):
    """A summary cannot tell the kernels of this stage from those of the harness."""

    stage: str


class StatedFigure(Struct, frozen=True):
    entry: StatedEntry
    invocations: int | None


# Of the whole pipeline; a string comes from the reader of the file.
PipelineWarning = str | AmbiguousKernel | UnmatchedStage | CutKernels | MoreThanStated | GlueOutside | StatedFigure
