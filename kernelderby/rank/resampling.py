"""How far a ratio of two times would move if the rounds were measured again: bootstrap deviations of its logarithm.

Everything is a deviation from what was measured, so that it can be subtracted between solutions (a ratio), averaged
over workloads (a geomean) and laid around the measured ratio. docs/scoring.md has the formulas.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelderby.rank.model import Ratio
from kernelderby.trace import Measurement

RESAMPLES = 1000
SEED = 19  # any fixed number: the same rows give the same intervals
FEWEST_ROUNDS = 3  # with fewer, the spread between rounds says next to nothing

# 0.975 quantile of Student's t for 1 to 30 degrees of freedom (any table of it), and of the normal distribution.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
            2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
            2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)
_NORMAL = 1.960


def geometric_mean(values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """exp of the weighted mean logarithm; of 2 and 0.5 it is 1. Values and weights must be positive."""
    return float(np.exp(np.average(np.log(values), weights=weights)))


@dataclass(frozen=True, slots=True)
class Deviation:
    """values: float64 [RESAMPLES], log(resampled ratio) - log(ratio). freedom: degrees of freedom behind them."""

    values: np.ndarray
    freedom: int
    kind: str  # "paired" or "unpaired"


class Bootstrap:
    """Deviations of ratios between rows of one workload. Resamples are kept per row, so a ratio is one subtraction."""

    def __init__(self) -> None:
        self._draws: dict[tuple[str, int], np.ndarray] = {}
        self._of_rounds: dict[tuple[int, int], np.ndarray] = {}
        self._of_samples: dict[int, tuple[np.ndarray, int] | None] = {}

    def compare(self, a: Measurement, b: Measurement) -> Deviation | None:
        """Of time of a over time of b; None where a row has fewer than three samples in all."""
        rounds = min(len(a.samples_us), len(b.samples_us))
        if a.session is not None and a.session == b.session and rounds >= FEWEST_ROUNDS:
            # A bootstrap of n values spreads sqrt((n - 1) / n) times too little.
            values = (self._rounds(a, rounds) - self._rounds(b, rounds)) * np.sqrt(rounds / (rounds - 1))
            return Deviation(values, rounds - 1, "paired")
        first, second = self._samples(a), self._samples(b)
        if first is None or second is None:
            return None
        return Deviation(first[0] - second[0], first[1] + second[1] - 2, "unpaired")

    def _rounds(self, row: Measurement, rounds: int) -> np.ndarray:
        """[RESAMPLES]: mean log of the round medians; rows of one workload resample the same rounds together."""
        key = (id(row), rounds)
        if key not in self._of_rounds:
            logs = np.log([_median(samples) for samples in row.samples_us[:rounds]])
            self._of_rounds[key] = self._counts(row.uuid, rounds) @ logs / rounds - logs.mean()
        return self._of_rounds[key]

    def _counts(self, uuid: str, rounds: int) -> np.ndarray:
        """[RESAMPLES, rounds]: how often each round is drawn; independent between workloads."""
        key = (uuid, rounds)
        if key not in self._draws:
            drawn = _generator(uuid).integers(0, rounds, size=(RESAMPLES, rounds))
            flat = (drawn + rounds * np.arange(RESAMPLES)[:, None]).ravel()
            counts = np.bincount(flat, minlength=RESAMPLES * rounds)
            self._draws[key] = counts.reshape(RESAMPLES, rounds).astype(np.float64)
        return self._draws[key]

    def _samples(self, row: Measurement) -> tuple[np.ndarray, int] | None:
        if id(row) not in self._of_samples:
            samples = np.sort([sample for samples in row.samples_us for sample in samples])
            enough = len(samples) >= FEWEST_ROUNDS
            self._of_samples[id(row)] = (_median_deviations(row, samples), len(samples)) if enough else None
        return self._of_samples[id(row)]


def _median_deviations(row: Measurement, samples: np.ndarray) -> np.ndarray:
    """[RESAMPLES]: log(median of a resample) - log(median), drawn from its exact distribution.

    Value number k of n draws from sorted samples is samples[floor(n * u)] with u the k-th smallest of n uniforms, a
    Beta(k, n + 1 - k) number; for an even n the next one up follows from the minimum of the n - k uniforms above it.
    """
    n = len(samples)
    generator = _generator(f"{row.solution} {row.uuid}")
    k = (n + 1) // 2
    lower = generator.beta(k, n + 1 - k, size=RESAMPLES)
    medians = samples[np.minimum((lower * n).astype(int), n - 1)]
    if n % 2 == 0:
        upper = 1 - (1 - lower) * generator.random(RESAMPLES) ** (1 / (n - k))
        medians = (medians + samples[np.minimum((upper * n).astype(int), n - 1)]) / 2
    return np.log(medians) - np.log(_median(samples))


def ratio_with_interval(value: float, deviation: Deviation | None) -> Ratio:
    """One ratio and its 95 % interval."""
    return mean_with_interval(value, [deviation], None)


def mean_with_interval(value: float, deviations: Sequence[Deviation | None], weights: Sequence[float] | None) -> Ratio:
    """A geomean of ratios over fixed workloads with the interval that the resampled rounds give it.

    No interval where one of the workloads has none. value: the geomean itself.
    """
    known = [deviation for deviation in deviations if deviation is not None]
    if len(known) < len(deviations) or not known:
        return Ratio(value)
    mean = np.average([deviation.values for deviation in known], axis=0, weights=weights)
    # Percentiles of few rounds are too narrow: widened as Student's interval is against the normal one (Hesterberg,
    # "What Teachers Should Know about the Bootstrap", The American Statistician 69 (2015), expanded percentiles).
    widening = _student(sum(deviation.freedom for deviation in known)) / _NORMAL
    ordered = np.sort(mean)
    low = min(float(ordered[round(0.025 * RESAMPLES)]), 0.0)
    high = max(float(ordered[round(0.975 * RESAMPLES) - 1]), 0.0)
    kind = "paired" if all(deviation.kind == "paired" for deviation in known) else "unpaired"
    return Ratio(value, value * float(np.exp(widening * low)), value * float(np.exp(widening * high)), kind)


def _student(freedom: int) -> float:
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    return _NORMAL + (_NORMAL**3 + _NORMAL) / (4 * freedom)  # first term of Cornish and Fisher's expansion


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _generator(name: str) -> np.random.Generator:
    return np.random.default_rng([SEED, zlib.crc32(name.encode())])
