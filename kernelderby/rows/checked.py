"""The result of checking one solution on one case."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from kernelderby.rows.measurement import Correctness, Status


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One solution on one case."""

    definition: str
    solution: str
    case: str
    status: Status
    message: str
    correctness: Correctness | None
    why: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"CheckResult({self.solution!r}, {self.case!r}: {self.status})"

    @property
    def matched_ratio(self) -> float | None:
        """The matched ratio of the tolerance that is closest to failing."""
        return min(self.correctness.matched_ratio.values()) if self.correctness else None

    def to_json(self) -> dict[str, Any]:
        """The result as a dict. Numbers without a JSON form become strings."""
        found = asdict(self)
        if self.correctness:
            found["correctness"] = {
                name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in msgspec.structs.asdict(self.correctness).items()
            }
        return found
