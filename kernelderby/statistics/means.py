"""Averages. The plain median is the standard library's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean


def geometric_mean(values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """exp of the weighted mean logarithm; of 2 and 0.5 it is 1. Values and weights must be positive."""
    return math.exp(fmean(map(math.log, values), weights))


def upper_median(values: Sequence[float]) -> float:
    """The middle value, of an even number the upper one of the two in the middle (the published survey's median)."""
    return sorted(values)[len(values) // 2]
