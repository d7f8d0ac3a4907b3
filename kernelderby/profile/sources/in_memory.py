"""A profile whose operations are read at once into memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.profile.spans import KernelSum, LaunchShape, Profile, Span, sum_spans
from kernelderby.store.counts import counted

NO_TIME = 1 << 62  # ns; a larger value is no real time, and sums of such values exceed 64 bits


def expect_time(path: Path, nanoseconds: float, mend: str = "record it again") -> None:
    """DerbyError if the operations of a profile take longer together than 64 bits can hold."""
    if nanoseconds >= NO_TIME:
        years = nanoseconds / 3.156e16
        raise DerbyError(f"{path}: its operations take {years:,.0f} years together, so the times are damaged; {mend}")


def whole_number(value: object) -> int:
    """0 for what is no integer, or does not fit into 64 bits."""
    return value if isinstance(value, int) and abs(value) < NO_TIME else 0


class InMemoryProfile(Profile):
    """held: its spans, in any order until settle(). untimed: number of operations left out because they have no valid
    times."""

    has_events = True

    def __init__(self, path: Path, form: str, gpu: str | None = None) -> None:
        super().__init__(path, form, gpu)
        self.held: list[Span] = []
        self.untimed = 0
        self._shapes: dict[tuple[Any, ...], list[int]] = {}

    def spans(self) -> Iterator[Span]:
        return iter(self.held)

    def sums(self) -> list[KernelSum]:
        return sum_spans(self.held)

    def launch_shapes(self) -> list[LaunchShape]:
        shapes = [LaunchShape(*key, *tally) for key, tally in self._shapes.items()]
        return sorted(shapes, key=lambda each: (-each.total_ns, each.name))

    def count_shape(self, duration: int, *shape: Any) -> None:
        """shape: name, grid, block, registers and shared memory of one launch, as LaunchShape has them."""
        tally = self._shapes.setdefault(shape, [0, 0])
        tally[0] += 1
        tally[1] += duration

    def settle(self) -> None:
        self.held.sort(key=lambda span: (span.start_ns, span.end_ns))
        self.expect_times()
        if self.untimed:
            self.warnings.append(f"left out: {counted(self.untimed, 'GPU operation')} without valid times")

    def expect_times(self) -> None:
        """DerbyError if their sum is too large."""
        expect_time(self.path, sum(span.end_ns - span.start_ns for span in self.held))

    def expect_work(self, mend: str, where: str = "it") -> None:
        """DerbyError if there is no GPU work."""
        if not self.held:
            told = f" ({self.warnings[0]})" if self.warnings else ""
            raise DerbyError(f"{self.path}: no GPU work in {where}{told}; {mend}")
