"""What every profile source gives: spans of GPU work in order, or only their sums.

An export with events (nsys SQLite, Kineto) can be walked span by span and is never loaded whole; a summary (nsys stats,
a copied table) has one row a kernel name. Verbs that need order say so when only sums are there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class SpanKind(StrEnum):
    KERNEL = "kernel"
    MEMCPY = "memcpy"
    MEMSET = "memset"


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel, copy or memset on a GPU. Times in ns on the profile's clock.

    name: demangled kernel name; of copies and memsets nsys's bracketed operation, "[CUDA memcpy Host-to-Device]".
    ranges: NVTX ranges that were open on the launching thread at launch, outermost first; empty when none is known.
    """

    kind: SpanKind
    name: str
    start_ns: int
    end_ns: int
    process: int = 0
    device: int = 0
    stream: int = 0
    ranges: tuple[str, ...] = ()
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class KernelSum:
    """All spans of one name. Statistics that a source does not give are None; bytes only for copies and memsets."""

    kind: SpanKind
    name: str
    instances: int
    total_ns: float
    median_ns: float | None = None
    min_ns: float | None = None
    max_ns: float | None = None
    stddev_ns: float | None = None
    bytes: float | None = None

    @property
    def average_ns(self) -> float:
        return self.total_ns / self.instances if self.instances else 0.0


@dataclass(frozen=True, slots=True)
class ApiSum:
    """All calls of one CUDA API function, host time."""

    name: str
    calls: int
    total_ns: float


class Profile(ABC):
    """A profile file, open for reading. warnings: what a reader of the tables must know (printed with every table).

    form: what it is, in words ("nsys SQLite, schema 3.25.0"). gpu: name as the profile has it, None when it does not.
    has_events: whether spans() works; sums() always does.
    """

    has_events = False

    def __init__(self, path: Path, form: str, gpu: str | None = None, warnings: Iterable[str] = ()) -> None:
        self.path, self.form, self.gpu, self.warnings = path, form, gpu, list(warnings)

    def spans(self) -> Iterator[Span]:
        """Every span in order of start (then of end). DerbyError for a source that has sums only."""
        raise NotImplementedError

    @abstractmethod
    def sums(self) -> list[KernelSum]:
        """One row a (kind, name), largest total first."""

    def api_sums(self) -> list[ApiSum]:
        """Host time by CUDA API function, largest first; empty when the source has none."""
        return []

    def warn_unlinked(self, count: int) -> None:
        """Once: kernels whose launch is missing cannot be placed in the ranges around it."""
        warning = f"{count:,} kernels have no launch in the file, so it is not known in which ranges they ran"
        if count and warning not in self.warnings:
            self.warnings.append(warning)

    @property
    def unlinked_launches(self) -> int:
        """Kernels whose launch is not in the profile, which therefore have no ranges."""
        return 0
