"""Student's distribution: its 97.5 % quantile, for 95 % intervals of few values."""

from __future__ import annotations

NORMAL = 1.960  # of the normal distribution
# For 1 to 30 degrees of freedom (any table of it).
_TABLE = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def quantile(freedom: int) -> float:
    """The 97.5 % quantile for 1 or more degrees of freedom; beyond the table by the first term of Cornish and
    Fisher."""
    if freedom <= len(_TABLE):
        return _TABLE[freedom - 1]
    return NORMAL + (NORMAL**3 + NORMAL) / (4 * freedom)
