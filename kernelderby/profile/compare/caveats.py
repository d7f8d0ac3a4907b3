"""What limits a comparison, as records. report.profile.notes has the words."""

from __future__ import annotations

from enum import Enum, auto
from fractions import Fraction
from typing import Literal

from msgspec import Struct

from kernelderby.profile.stages.notes import PipelineWarning

Letter = Literal["A", "B"]  # the first and the second profile


class Caveat(Enum):
    NO_INVOCATIONS = auto()  # of the pipeline in one profile: totals are compared
    NO_COMMON_LENGTH = auto()  # most kernels ran neither equally often nor a multiple as often, and there are no steps
    NEIGHBOURS_ALIKE = auto()  # another kernel has nearly the same neighbours
    ONLY_SUMS = auto()  # role and launches are the same, the order is unknown


class OfProfile(Struct, frozen=True):
    """A warning of one profile that the other one does not have."""

    letter: Letter
    warning: PipelineWarning


class Overlapping(Struct, frozen=True):
    """Kernels of this profile overlap. by_added: both profiles have events, so added times are compared; otherwise
    durations."""

    path: str
    row: Literal["stage", "kernel"]
    by_added: bool


class Longer(Struct, frozen=True):
    """Most kernels ran `times` as often in this profile, so its times are divided by that."""

    letter: Letter
    times: Fraction


class WholeGraphs(Struct, frozen=True):
    """CUDA graphs of each profile that were recorded without their kernels."""

    before: int
    after: int


class OtherClock(Struct, frozen=True):
    """Most kernels take `factor` times as long in B."""

    factor: float


class NoSteps(Struct, frozen=True):
    letter: Letter


class OnlyKinds(Struct, frozen=True):
    """Kinds of steps that only this profile has, with the number of steps."""

    letter: Letter
    kinds: tuple[tuple[str, int], ...]


class WarmUp(Struct, frozen=True):
    """The first steps of this kind took longer than the rest and are left out."""

    letter: Letter
    kind: str
    steps: int


class OtherLaunches(Struct, frozen=True):
    """Operations in the median step of a kind."""

    kind: str
    before: float
    after: float


class ReplaysGraphs(Struct, frozen=True):
    """Only this profile replays CUDA graphs."""

    letter: Letter


class FewNeighbours(Struct, frozen=True):
    """share: of a kernel's places, those with the same neighbours in both profiles."""

    share: float


class OtherDuration(Struct, frozen=True):
    """A launch takes `factor` times as long or short, and its neighbours changed too."""

    factor: float


FirstWarning = OtherClock | NoSteps | OnlyKinds | WarmUp | OtherLaunches | ReplaysGraphs  # comes before any number
Doubt = Caveat | FewNeighbours | OtherDuration  # why two names may be two kernels
ComparisonWarning = PipelineWarning | Caveat | OfProfile | Overlapping | Longer
