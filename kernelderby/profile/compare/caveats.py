"""What limits a comparison, as records. report.profile.notes has the words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from fractions import Fraction
from typing import Literal

from kernelderby.profile.stages.notes import PipelineWarning

Letter = Literal["A", "B"]  # the first and the second profile


class Caveat(Enum):
    NO_INVOCATIONS = auto()  # of the pipeline in one profile: totals are compared
    NO_COMMON_LENGTH = auto()  # most kernels ran neither equally often nor a multiple as often, and there are no steps
    NEIGHBOURS_ALIKE = auto()  # another kernel has nearly the same neighbours
    ONLY_SUMS = auto()  # role and launches are the same, the order is unknown


@dataclass(frozen=True, slots=True)
class OfProfile:
    """A warning of one profile that the other one does not have."""

    letter: Letter
    warning: PipelineWarning


@dataclass(frozen=True, slots=True)
class Overlapping:
    """Kernels of this profile overlap. row: stage or kernel. by_added: both profiles have events, so added times are
    compared; otherwise durations."""

    path: str
    row: str
    by_added: bool


@dataclass(frozen=True, slots=True)
class Longer:
    """Most kernels ran `times` as often in this profile, so its times are divided by that."""

    letter: Letter
    times: Fraction


@dataclass(frozen=True, slots=True)
class WholeGraphs:
    """CUDA graphs of each profile that were recorded without their kernels."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class OtherClock:
    """Most kernels take `factor` times as long in B."""

    factor: float


@dataclass(frozen=True, slots=True)
class NoSteps:
    letter: Letter


@dataclass(frozen=True, slots=True)
class OnlyKinds:
    """Kinds of steps that only this profile has, with the number of steps."""

    letter: Letter
    kinds: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The first steps of this kind took longer than the rest and are left out."""

    letter: Letter
    kind: str
    steps: int


@dataclass(frozen=True, slots=True)
class OtherLaunches:
    """Operations in the median step of a kind."""

    kind: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class ReplaysGraphs:
    """Only this profile replays CUDA graphs."""

    letter: Letter


@dataclass(frozen=True, slots=True)
class FewNeighbours:
    """share: of a kernel's places, those with the same neighbours in both profiles."""

    share: float


@dataclass(frozen=True, slots=True)
class OtherDuration:
    """A launch takes `factor` times as long or short, and its neighbours changed too."""

    factor: float


Doubt = Caveat | FewNeighbours | OtherDuration  # why two names may be two kernels
FirstWarning = OtherClock | NoSteps | OnlyKinds | WarmUp | OtherLaunches | ReplaysGraphs  # comes before any number
ComparisonWarning = PipelineWarning | Caveat | OfProfile | Overlapping | Longer
NotComparable = Caveat | WholeGraphs
