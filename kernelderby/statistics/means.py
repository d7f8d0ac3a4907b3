"""Averages. For medians, use the standard library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean


def geometric_mean(values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """exp of the weighted mean logarithm; 1 for the values 2 and 0.5. Values and weights must be positive."""
    return math.exp(fmean(map(math.log, values), weights))
