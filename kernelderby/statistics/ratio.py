"""A ratio of two times with its interval."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ratio:
    """A time over another one (1.3: takes 30 % longer), with its 95 % interval.

    interval: "paired" (rounds that alternated in one session), "unpaired" (raw samples, or a mixture of both) or
    "none" (the rows hold one number each), then low and high are None.
    """

    value: float
    low: float | None = None
    high: float | None = None
    interval: str = "none"

    @property
    def is_tie(self) -> bool:
        """Whether the interval contains 1; without an interval, whether the numbers are equal."""
        if self.low is None or self.high is None:
            return self.value == 1.0
        return self.low <= 1.0 <= self.high

    @property
    def verdict(self) -> str:
        """Whether the numerator is faster or slower than the denominator, or a tie."""
        if self.is_tie:
            return "tie"
        return "faster" if self.value < 1.0 else "slower"

    def inverse(self) -> Ratio:
        """The ratio with numerator and denominator exchanged."""
        if self.low is None or self.high is None:
            return Ratio(1 / self.value)
        return Ratio(1 / self.value, 1 / self.high, 1 / self.low, self.interval)
