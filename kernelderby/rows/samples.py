"""The raw times of a row in memory: 8 bytes per sample. A tuple of tuples would take 32, and most of the reading
time."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, overload

LEAST_US, MOST_US = 1e-6, 1e12  # possible times: from a thousandth of a nanosecond to eleven days


class Samples(Sequence[tuple[float, ...]]):
    """Rounds of spans in us. Behaves like a tuple of tuples and equals one. Every round has at least one span, and
    every span is a possible time (LEAST_US to MOST_US). flat: the spans of all rounds in order. lengths: of the
    rounds."""

    __slots__ = ("flat", "lengths")

    def __init__(self, flat: array[float], lengths: tuple[int, ...]) -> None:
        """The spans must have been checked; Samples.of checks them."""
        self.flat, self.lengths = flat, lengths

    @classmethod
    def of(cls, rounds: Sequence[Sequence[float]]) -> Samples:
        """ValueError for an empty round, and for an impossible span."""
        if isinstance(rounds, Samples):
            return rounds
        flat = array("d")
        for spans in rounds:
            flat.extend(spans)
        if not all(map(len, rounds)) or not all(LEAST_US <= span <= MOST_US for span in flat):
            raise ValueError(f"a round is empty or holds what is no time of {LEAST_US:g} to {MOST_US:g} us")
        return cls(flat, tuple(map(len, rounds)))

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[tuple[float, ...]]:
        spans, start = self.flat.tolist(), 0
        for length in self.lengths:
            yield tuple(spans[start : start + length])
            start += length

    @overload
    def __getitem__(self, index: int) -> tuple[float, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[tuple[float, ...], ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Samples):
            return self.lengths == other.lengths and self.flat == other.flat
        return tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Samples, (self.flat, self.lengths)

    def __repr__(self) -> str:
        return repr(tuple(self))
