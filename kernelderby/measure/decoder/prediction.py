"""Predicts from a package's recorded times how much time the winners save in a step compared with the libraries, and
the error of the prediction.

The doubt of a call comes from the errors of the same rule on the operator's own rows. Each row is left out in turn,
together with all rows nearer to it than the call's nearest row is to the call, and predicted from the others. SHARE of
these errors are smaller than the doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log2, sqrt
from typing import Any

import torch

from kernelderby.measure.decoder.variants import INSTEAD, served_name

NEAR = 4.0  # octaves, all sizes together: beyond it, no saving is the better guess (benchmarks/predictions.py)
RIDGE = 0.03  # penalty of the slopes, since many axes have few shapes
SHARE = 0.9
LEAST = 5  # errors that give an operator its own doubt; with fewer, the errors of all operators count


@dataclass(frozen=True, slots=True)
class TimedPoint:
    """octaves: log2 of the sizes. us: times of the fastest library and of the fastest solution."""

    octaves: torch.Tensor
    library: float
    fastest: float


@dataclass(frozen=True, slots=True)
class OperatorPrediction:
    """The prediction for an operator's calls in a step. away: octaves from the furthest call to its nearest row.
    library_us: the libraries' time. saved_us: the winners' saving, plus or minus doubt_us."""

    name: str
    away: float
    library_us: float
    saved_us: float
    doubt_us: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """unknown: operators without a library's row; they count as no saving without doubt."""

    saved_us: float
    doubt_us: float
    operators: tuple[OperatorPrediction, ...]
    unknown: tuple[str, ...]


def predicted(
    winners: Any, calls: Iterable[tuple[str, dict[str, int], int]], step_us: float, without_library: Sequence[str] = ()
) -> Prediction:
    """winners: the package. calls: the result of calls_of(). step_us: the libraries' step. without_library: operators
    that plain torch computed in it, of which rows of libraries tell nothing. All calls together take at
    most this time: if the rows give more, measured calls keep their time, and the others share the rest. Doubts of one
    operator's calls add up, since one model of its rows gives them all. Doubts of different operators add by
    squares."""
    rows = Rows(winners)
    unknown = []
    timed: list[tuple[str, int, float, float, float]] = []
    for name, axes, count in calls:
        points = rows.of(name)
        if name in without_library:
            unknown.append(f"{name}: plain torch ran in the libraries' step")
        elif points:
            timed.append((name, count, *estimate(points, _octaves([axes[axis] for axis in rows.axes(name)]))))
        else:
            unknown.append(f"{name}: no row of a library in the package")
    measured, others = (
        sum(count * library for _, count, library, _, away in timed if (away == 0) is of_row)
        for of_row in (True, False)
    )
    fits = min(1.0, step_us / measured) if measured else 1.0
    left = min(1.0, (step_us - fits * measured) / others) if others else 1.0
    found: dict[str, OperatorPrediction] = {}
    for name, count, library, saved, away in timed:
        scale = count * (fits if away == 0 else left)
        before = found.get(name, OperatorPrediction(name, 0.0, 0.0, 0.0, 0.0))
        found[name] = OperatorPrediction(
            *(name, max(before.away, away), before.library_us + scale * library, before.saved_us + scale * saved),
            before.doubt_us + scale * library * rows.doubt(name, away),
        )
    operators = tuple(found.values())
    doubt = sqrt(sum(each.doubt_us**2 for each in operators))
    return Prediction(sum(each.saved_us for each in operators), doubt, operators, tuple(dict.fromkeys(unknown)))


def estimate(points: Sequence[TimedPoint], call: torch.Tensor) -> tuple[float, float, float]:
    """(us of the fastest library, us saved by the fastest solution, octaves to the nearest point). The measured times,
    otherwise a linear fit of log times over log sizes. A point counts a quarter for each octave of distance. No time
    grows faster than a size, or falls with it."""
    offsets = torch.stack([each.octaves for each in points]) - call
    away = offsets.abs().sum(1)
    nearest = float(away.min())
    logs = torch.tensor([[each.library, each.fastest] for each in points], dtype=torch.float64).log2()
    if nearest == 0:
        library, fastest = (2 ** logs[away == 0].mean(0)).tolist()
        return library, library - fastest, nearest
    weights = 4.0 ** -(away - nearest)
    weights /= weights.sum()
    centre, level = weights @ offsets, weights @ logs
    spread = (offsets - centre).T * weights
    slopes = torch.linalg.solve(
        spread @ (offsets - centre) + RIDGE * torch.eye(len(centre), dtype=torch.float64), spread @ (logs - level)
    ).clamp(0, 1)
    library, fastest = (2 ** (level - centre @ slopes)).tolist()
    return library, max(library - fastest, 0.0) if nearest <= NEAR else 0.0, nearest


class Rows:
    """The points of a package's operators with a library's time, and the errors with which they predict each other."""

    def __init__(self, winners: Any) -> None:
        self.winners = winners
        self._points: dict[str, list[TimedPoint]] = {}
        self._misses: dict[tuple[str, float], list[float]] = {}

    def axes(self, name: str) -> Sequence[str]:
        found: Sequence[str] = self.winners.OPERATORS[served_name(self.winners, name)].selector.axes
        return found

    def of(self, name: str) -> list[TimedPoint]:
        """The points of an operator. One with a bfloat16 output also has the points of its float32 form, since both do
        the same work, at sizes at which it has none of its own."""
        if name not in self._points:
            names = dict.fromkeys((served_name(self.winners, name), INSTEAD.get(name, name)))
            operators = [self.winners.OPERATORS[each] for each in names if each in self.winners.OPERATORS]
            found: list[TimedPoint] = []
            for operator in operators:
                own = {tuple(each.octaves.tolist()) for each in found}
                found += [each for each in _points(operator) if tuple(each.octaves.tolist()) not in own]
            self._points[name] = found
        return self._points[name]

    def doubt(self, name: str, away: float) -> float:
        """The doubt of a saving at this distance from the nearest point, as a share of the library's predicted time."""
        step = round(2 * away) / 2
        misses = self._missed(name, step)
        if len(misses) < LEAST:
            misses = [each for other in self.winners.OPERATORS for each in self._missed(other, step)]
        if not misses:
            return 1.0
        return float(torch.tensor(misses, dtype=torch.float64).abs().quantile(SHARE))

    def _missed(self, name: str, away: float) -> list[float]:
        if (name, away) not in self._misses:
            points, found = self.of(name), []
            for point in points:
                others = [
                    each
                    for each in points
                    if each is not point and float((each.octaves - point.octaves).abs().sum()) >= away
                ]
                if others:
                    library, saved, nearest = estimate(others, point.octaves)
                    if nearest <= away + 2:
                        found.append((saved - (point.library - point.fastest)) / library)
            self._misses[name, away] = found
        return self._misses[name, away]


def _points(operator: Any) -> list[TimedPoint]:
    """The points for the form that the decoder calls: in place if there is such a form, with the copies that it costs
    other solutions."""
    recorded = getattr(operator, "points", {}).get(bool(getattr(operator, "in_place", {})), operator.about["points"])
    found = []
    for sizes, times in recorded:
        known = {name: us for name, us in zip(operator.selector.kinds, times, strict=True) if us is not None}
        libraries = [us for name, us in known.items() if operator.selector.kinds[name] == "library"]
        if libraries:
            found.append(TimedPoint(_octaves(sizes), min(libraries), min(known.values())))
    return found


def _octaves(sizes: Sequence[int]) -> torch.Tensor:
    return torch.tensor([log2(max(size, 1)) for size in sizes], dtype=torch.float64)
