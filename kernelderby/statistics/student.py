"""Student's distribution: its 97.5 % quantile, for 95 % intervals of few values."""

from __future__ import annotations

import math
from statistics import NormalDist

NORMAL = 1.960  # of the normal distribution
# For 1 to 30 degrees of freedom (any table of it).
_TABLE = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def quantile(freedom: int) -> float:
    """97.5 % quantile for 1 or more degrees of freedom; beyond the table the first term of Cornish and Fisher."""
    if freedom <= len(_TABLE):
        return _TABLE[freedom - 1]
    return NORMAL + (NORMAL**3 + NORMAL) / (4 * freedom)


def upper_quantile(tail: float, freedom: int) -> float:
    """The quantile with this probability above it, for 5 or more degrees of freedom and a tail from 1e-5 on: four terms
    of the expansion in 1 / freedom (Abramowitz and Stegun, 26.7.5), within 1 % from 7 on."""
    z = NormalDist().inv_cdf(1 - tail)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / float(freedom) ** power for power, term in enumerate(terms))
