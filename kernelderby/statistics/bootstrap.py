"""The uncertainty of a ratio of two times: bootstrap deviations of its logarithm, as if the rounds were measured again.

All values are deviations from the measured value. So they can be subtracted between solutions (a ratio), averaged over
workloads (a geomean) and put around the measured ratio. docs/scoring.md has the formulas.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

import numpy as np
from numpy.typing import NDArray

from kernelderby.rows.measurement import Measurement
from kernelderby.rows.samples import Samples
from kernelderby.statistics import student
from kernelderby.statistics.ratio import Ratio

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
RESAMPLES = 1000
SEED = 19  # any fixed number: the same rows give the same intervals
FEWEST_ROUNDS = 3  # with fewer, the spread between rounds says hardly anything
_LOWER, _UPPER = round(0.025 * RESAMPLES), round(0.975 * RESAMPLES) - 1  # places in sorted values
CHUNK = 256  # pairs at a time: 2 MB of resamples stay in the cache


@dataclass(frozen=True, slots=True)
class Differences:
    """For several pairs of rows. values: float64 [pairs, RESAMPLES], log(resampled ratio) - log(ratio), 0 if unknown.
    freedom: int64 [pairs], their degrees of freedom, 0 if unknown. paired: bool [pairs].
    """

    values: Floats
    freedom: Integers
    paired: Booleans


@dataclass(frozen=True, slots=True)
class Intervals:
    """The 95 % intervals of several ratios. freedom and paired as in Differences; with freedom 0 the interval is
    unknown."""

    values: Floats
    low: Floats
    high: Floats
    freedom: Integers
    paired: Booleans

    @classmethod
    def of(cls, values: Floats, found: Differences) -> Intervals:
        """Overwrites the differences' values (see bounds)."""
        low, high = bounds(found.values)
        wider = widening(found.freedom)
        return cls(values, values * np.exp(wider * low), values * np.exp(wider * high), found.freedom, found.paired)

    def ratios(self, which: slice | Integers = slice(None)) -> list[Ratio]:
        """All ratios, or some of them."""
        rows = zip(
            *(each[which].tolist() for each in (self.values, self.low, self.high, self.freedom, self.paired)),
            strict=True,
        )
        return [
            Ratio(value, least, most, "paired" if paired else "unpaired") if freedom else Ratio(value)
            for value, least, most, freedom, paired in rows
        ]


class Scratch(threading.local):
    """Memory for ResampledRows, separate for every thread. Made once for all workloads, since touching new pages takes
    longer than the arithmetic."""

    def __init__(self) -> None:
        self.memory: Floats = np.empty((2, CHUNK, RESAMPLES))


class ResampledRows:
    """The rows of one workload, whose rounds are resampled together. Draws are kept, so a ratio is one subtraction."""

    def __init__(self, rows: Sequence[Measurement], kind: str = "eager", scratch: Scratch | None = None) -> None:
        """kind: the compared kind of time; all rows have it. scratch: may be shared by several objects."""
        self._rows = rows
        self._times = [Samples.of(time.samples_us) for row in rows if (time := row.time(kind))]
        self._scratch = scratch or Scratch()
        sessions: dict[tuple[object, ...], int] = {}  # no pair across cards, or with a row measured alone
        keys = [(row.session, row.environment.get("gpu_uuid"), row.environment.get("apart")) for row in rows]
        self._sessions = np.array(
            [  # rows without a session pair with nobody
                -1 - place if key[0] is None else sessions.setdefault(key, len(sessions))
                for place, key in enumerate(keys)
            ],
            dtype=np.int64,
        )
        self._rounds = np.array([len(samples) for samples in self._times], dtype=np.int64)
        self._samples = np.array([len(samples.flat) for samples in self._times], dtype=np.int64)
        self._logs = _log_medians(self._times)
        self._of_rounds: dict[int, Floats] = {}
        self._of_samples: dict[int, Floats] = {}

    def differences(self, first: Integers, second: Integers) -> Differences:
        """The differences for time of first over time of second. first, second: places of rows, at most CHUNK of them.
        A pair is unknown if a row has fewer than three samples in all. The values are valid until the thread's next
        call."""
        rounds = np.minimum(self._rounds[first], self._rounds[second])
        paired = (self._sessions[first] == self._sessions[second]) & (rounds >= FEWEST_ROUNDS)
        freedom = np.where(paired, rounds - 1, 0)
        numbers = set(rounds[paired].tolist())
        values, other = self._scratch.memory[:, : len(first)]
        if len(numbers) == 1 and paired.all():  # the usual form from `derby bench`
            drawn = self._drawn_rounds(numbers.pop())
            np.subtract(drawn.take(first, 0, values, "clip"), drawn.take(second, 0, other, "clip"), out=values)
            return Differences(values, freedom, paired)
        values[:] = 0
        for number in numbers:
            which = np.flatnonzero(paired & (rounds == number))
            drawn = self._drawn_rounds(number)
            values[which] = drawn[first[which]] - drawn[second[which]]
        enough = np.minimum(self._samples[first], self._samples[second]) >= FEWEST_ROUNDS
        for pair in np.flatnonzero(~paired & enough).tolist():
            one, two = int(first[pair]), int(second[pair])
            values[pair] = self._drawn_samples(one) - self._drawn_samples(two)
            freedom[pair] = self._samples[one] + self._samples[two] - 2
        return Differences(values, freedom, paired)

    def ratios(self, times: Floats, places: Integers, base: int) -> list[Ratio]:
        """The ratios of the rows at these places to the row at base, with 95 % intervals. times: the times of all
        rows."""
        found = []
        for start in range(0, len(places), CHUNK):
            which = places[start : start + CHUNK]
            difference = self.differences(which, np.full(len(which), base))
            found += Intervals.of(times[which] / times[base], difference).ratios()
        return found

    def _drawn_rounds(self, rounds: int) -> Floats:
        """[rows, RESAMPLES]: mean log of the round medians. All rows resample the same rounds. 0 for a row with fewer
        rounds."""
        if rounds not in self._of_rounds:
            nothing = np.zeros(rounds)
            logs = np.array([each[:rounds] if len(each) >= rounds else nothing for each in self._logs])
            counts = _counts(self._rows[0].uuid, rounds)
            # Not with BLAS: its result is the same to the last bit, but its threads spin afterwards.
            drawn = np.einsum("rk,kd->rd", logs, counts) / rounds - logs.mean(axis=1, keepdims=True)
            # A bootstrap of n values spreads sqrt((n - 1) / n) times too little.
            drawn *= np.sqrt(rounds / (rounds - 1))
            self._of_rounds[rounds] = drawn
        return self._of_rounds[rounds]

    def _drawn_samples(self, place: int) -> Floats:
        """[RESAMPLES]: deviations from all samples of one row, drawn independently of other rows."""
        if place not in self._of_samples:
            samples = np.sort(np.array(self._times[place].flat))
            self._of_samples[place] = _median_deviations(self._rows[place], samples)
        return self._of_samples[place]


@lru_cache(256)  # every kind of time of a workload has the same draws
def _counts(uuid: str, rounds: int) -> Floats:
    """[rounds, RESAMPLES]: the number of times that each round is drawn; independent between workloads."""
    drawn = _generator(uuid).integers(0, rounds, size=(RESAMPLES, rounds))
    flat = (drawn + rounds * np.arange(RESAMPLES)[:, None]).ravel()
    counts = np.bincount(flat, minlength=RESAMPLES * rounds)
    return np.ascontiguousarray(counts.reshape(RESAMPLES, rounds).T.astype(np.float64))


def _log_medians(times: Sequence[Samples]) -> list[Floats]:
    """For each row [rounds], the logarithm of each round's median. Rows of one shape are processed together."""
    found: list[Floats] = [np.empty(0)] * len(times)
    alike: dict[tuple[int, ...], list[int]] = {}
    for place, samples in enumerate(times):
        alike.setdefault(samples.lengths, []).append(place)
    for lengths, places in alike.items():
        if not lengths:
            continue
        flat = np.array([times[place].flat for place in places])
        if len({*lengths}) == 1:
            medians = np.median(flat.reshape(len(places), len(lengths), -1), axis=2)
        else:
            rounds = np.split(flat, np.cumsum(lengths)[:-1], axis=1)
            medians = np.stack([np.median(each, axis=1) for each in rounds], axis=1)
        for place, logs in zip(places, np.log(medians), strict=True):
            found[place] = logs
    return found


def _median_deviations(row: Measurement, samples: Floats) -> Floats:
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
    drawn: Floats = np.log(medians) - np.log(median(samples.tolist()))
    return drawn


def bounds(values: Floats) -> tuple[Floats, Floats]:
    """[pairs]: the 2.5 and 97.5 percentiles of each row of [pairs, RESAMPLES], kept below and above 0. Sorts the values
    in place."""
    values.sort(axis=1)  # five times as fast as numpy's partition, which has no vector instructions
    return np.minimum(values[:, _LOWER], 0.0), np.maximum(values[:, _UPPER], 0.0)


def widening(freedom: Integers) -> Floats:
    """A factor for percentiles, which are too narrow for few rounds: Student's quantile over the normal one
    (Hesterberg, "What Teachers Should Know about the Bootstrap", The American Statistician 69 (2015), expanded
    percentiles)."""
    quantiles = [student.quantile(max(degrees, 1)) for degrees in freedom.tolist()]
    return np.array(quantiles) / student.NORMAL


def _generator(name: str) -> np.random.Generator:
    return np.random.default_rng([SEED, zlib.crc32(name.encode())])
