"""Changes, failures and missing measurements on the page."""

from __future__ import annotations

from msgspec import Struct

from kernelderby.page.model.races import ShownInterval


class ShownChange(Struct, frozen=True):
    """One solution now against another run: ratio is time now over time then."""

    definition: str
    gpu: str
    protocol: str
    kind: str
    solution: str
    ratio: ShownInterval
    wins: int
    ties: int
    losses: int
    workloads: int
    same_sources: bool


class ShownChanges(Struct, frozen=True):
    """lines: solutions with different rows in both runs. unchanged: number of solutions with identical rows in both.
    only_here, only_there: definition / solution."""

    against: str
    lines: tuple[ShownChange, ...]
    unchanged: int
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]


class ShownGroup(Struct, frozen=True):
    """A group of rows: where, how and when it was measured."""

    gpu: str
    protocol: str
    rows: int
    passed: int
    definitions: int
    solutions: int
    measured_from: str
    measured_to: str
    boards: int
    drivers: tuple[str, ...]
    commits: tuple[str, ...]


class ShownFailure(Struct, frozen=True):
    """A row that did not pass or is doubtful. is_cheat: the judge caught the solution cheating."""

    definition: str
    gpu: str
    protocol: str
    solution: str
    workload: str
    status: str
    is_cheat: bool
    message: str
    timestamp: str


class ShownMissing(Struct, frozen=True):
    """A solution without any row on a GPU that has rows of its operator."""

    definition: str
    gpu: str
    solution: str
    author: str
    needs: str


class ShownOutdated(Struct, frozen=True):
    """Rows that count but are of former sources."""

    definition: str
    gpu: str
    protocol: str
    solution: str
    rows: int
    of_rows: int


class ShownNotRaced(Struct, frozen=True):
    """A library that was not raced: why, and what a race would need (empty if its kernel does not fit)."""

    library: str
    operators: tuple[str, ...]
    why: str
    needs: str


class ShownTrust(Struct, frozen=True):
    groups: tuple[ShownGroup, ...]
    failures: tuple[ShownFailure, ...]
    outdated: tuple[ShownOutdated, ...]
    missing: tuple[ShownMissing, ...]
    not_raced: tuple[ShownNotRaced, ...]
    warnings: tuple[str, ...]
