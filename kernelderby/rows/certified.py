"""The result of certifying one solution, as records. report/certified.py has the words."""

from __future__ import annotations

from enum import Enum, auto

from msgspec import Struct


class CodePart(Enum):
    ARCHITECTURE = auto()
    COMPILER = auto()
    CHANGED_KERNEL = auto()
    FORMER_KERNEL = auto()  # only in the former code
    PRESENT_KERNEL = auto()  # only in the present code
    KERNEL_COUNT = auto()  # one kernel occurs more often
    GPU_DATA = auto()
    HOST_CODE = auto()  # of one library
    PYTHON = auto()


class CodeDifference(Struct, frozen=True):
    """name: of the kernel or library. former, present: only of architecture and compiler."""

    part: CodePart
    name: str = ""
    former: str = ""
    present: str = ""


class CertifyOutcome(Enum):
    """Where there is nothing to write, or nothing to correct."""

    NEW_SOLUTION = auto()
    SAME_TOKENS = auto()
    CERTIFIED_ALREADY = auto()
    NO_CUDA = auto()
    CONFIRMED = auto()  # a build gives what the certificate says
    CONFIRMED_UNBUILT = auto()  # there is nothing to build, and the Python is the same
    OTHER_SOURCES = auto()  # nvcc's sources or the Python differ from the certificate's


class CertificateWritten(Struct, frozen=True):
    """kernels: None if there was nothing to build. reason: of a comparison of launches."""

    path: str
    kernels: int | None
    has_other_host: bool
    reason: str = ""


class LaunchDifference(Struct, frozen=True):
    """Launches on one workload of both versions; a string says why there are none."""

    uuid: str
    gpu: str
    former: list[str] | str
    present: list[str] | str


class SideContradicted(Struct, frozen=True):
    """side: before or after. found: the difference, or why the build failed."""

    side: str
    found: CodeDifference | str


class OtherCompiler(Struct, frozen=True):
    certified: str
    here: str


class OtherHash(Struct, frozen=True):
    """The former version has this hash at the revision that the certificate names."""

    field: str
    revision: str
    found: str


class LaunchesContradicted(Struct, frozen=True):
    uuid: str


Contradiction = CertifyOutcome | SideContradicted | OtherCompiler | OtherHash | LaunchesContradicted
CertifyFinding = Contradiction | CodeDifference | CertificateWritten | LaunchDifference | str  # str: why a build failed


class Certified(Struct, frozen=True):
    """The result for one solution. is_same: nothing contradicts the certificate. certificate: the checked one, such as
    FILE: certificates[0]. revision: of the former version, if its instructions can be compared."""

    solution: str
    is_same: bool
    findings: tuple[CertifyFinding, ...]
    certificate: str = ""
    revision: str = ""
