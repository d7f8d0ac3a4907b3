"""Whether times differ beyond chance, by their ranks: Mann-Whitney's test for two sets, Wilcoxon's for pairs. They
assume no distribution."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import erfc, inf, sqrt

import numpy as np

FEWEST = 5  # values on either side; with fewer the approximation is bad, and the test would find little anyway
MOST = 20_000  # values of a side that are used, evenly over the profile: more would only cost time


def mann_whitney(one: array[int], other: array[int]) -> float | None:
    """Two-sided p: the probability that chance alone makes the ranks differ this much. None with too few values.

    Normal approximation with the correction for ties and for continuity (Hollander and Wolfe, 4.1).
    """
    if len(one) < FEWEST or len(other) < FEWEST:
        return None
    left, right = _thinned(one), _thinned(other)
    count, others = len(left), len(right)
    values, inverse, repeats = np.unique(np.concatenate((left, right)), return_inverse=True, return_counts=True)
    if len(values) == 1:
        return 1.0
    ranks = np.cumsum(repeats) - (repeats - 1) / 2  # a tie gets the middle of its places
    u = float(ranks[inverse[:count]].sum()) - count * (count + 1) / 2
    total = count + others
    ties = float((repeats.astype(float) ** 3 - repeats).sum())
    variance = count * others / 12 * (total + 1 - ties / (total * (total - 1)))
    distance = max(abs(u - count * others / 2) - 0.5, 0.0)
    return erfc(distance / sqrt(variance) / sqrt(2)) if variance > 0 else 1.0


def _thinned(values: array[int]) -> np.ndarray:
    found = np.frombuffer(values, dtype=np.int64)
    return found[:: -(-len(found) // MOST)]


def signed_rank_interval(differences: Sequence[float], alpha: float) -> tuple[float, float, float]:
    """Low, middle and high of the shift of pairs: Hodges and Lehmann's estimate and Tukey's interval from Wilcoxon's
    signed-rank test (Hollander and Wolfe, 3.2 and 3.3). alpha: the chance that the shift is below low, and equally that
    it is above high. Exact for differences that are symmetric around the shift; infinite with too few of them."""
    values = np.asarray(differences)
    first, second = np.triu_indices(len(values))
    averages = np.sort((values[first] + values[second]) / 2)
    chances = np.zeros(len(averages) + 1)  # the number of ways to each sum of positive ranks
    chances[0] = 1.0
    for rank in range(1, len(values) + 1):
        chances[rank:] = (chances[rank:] + chances[: len(chances) - rank]) / 2
        chances[:rank] /= 2
    below = int(np.searchsorted(np.cumsum(chances), alpha, side="right"))
    middle = float(np.median(averages))
    return (float(averages[below - 1]), middle, float(averages[-below])) if below else (-inf, middle, inf)


def holm(chances: Sequence[float]) -> list[float]:
    """Each chance corrected for the number of chances (Holm's step-down procedure). Then the probability that any of
    them falls below a limit by chance alone is at most the limit."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    found = [0.0] * len(chances)
    highest = 0.0
    for place, number in enumerate(order):
        highest = max(highest, min(1.0, (len(chances) - place) * chances[number]))
        found[number] = highest
    return found
