"""The progress of a run: what its observer learns, and an estimate of the time left."""

from __future__ import annotations

from kernelderby.catalog import Workload
from kernelderby.rows.measurement import Measurement

_FEW = 5  # steps, and share of all: fewer tell little, since processes start and compilers run first
_FEW_OF_ALL = 0.1


class Observer:
    """Gets the progress of a run; the command overrides it."""

    def waiting(self, solutions: list[str], seconds: float) -> None:
        """So long already for these, which compile or are checked."""

    def checked(self, solution: str, workload: Workload) -> None: ...

    def round_done(self, solution: str, number: int, workload: Workload) -> None: ...

    def repeated(self, solution: str, why: str) -> None:
        """Its turn was disturbed and is taken again."""

    def row(self, row: Measurement) -> None:
        """A row was written: one of Plan.pairs."""

    def note(self, line: str) -> None:
        """A line for the user. A sealed session records it."""


def left_seconds(finished: int, steps: int, passed: float, estimate: float) -> float | None:
    """The remaining seconds: at first by the estimate, then more and more by the duration of the finished steps. None
    without an estimate while few steps are finished. estimate: seconds of all steps, 0 for none."""
    few = max(_FEW, _FEW_OF_ALL * steps)
    by_pace = passed / finished * (steps - finished) if finished else 0.0
    if not estimate:
        return by_pace if finished >= min(few, steps) and steps else None
    share = finished / (finished + few)
    by_estimate = estimate * (1 - finished / steps) if finished else estimate - passed
    return max(0.0, share * by_pace + (1 - share) * by_estimate)
