"""What other rules of choice would lose: `python benchmarks/choice_rules.py`, no GPU; needs NumPy.

For each recorded shape a rule chooses by the shapes that are at least a number of octaves away, all sizes together.
Each row is a rule: the mean over operators of the loss to the fastest solution, and the worst shape. The first rule is
the package's (runtime/selector.py), wherever the shape lies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import log2
from pathlib import Path
from statistics import mean

import numpy as np

from kernelderby.catalog import Catalog
from kernelderby.deploy.runtime.selector import DOUBT
from kernelderby.deploy.winners import TimedShape, winners

DISTANCES = (0, 1, 2, 4)  # octaves
LEAST = 2  # shapes that choose
RIDGE = 0.3
Rule = Callable[[Sequence[TimedShape], TimedShape], Mapping[str, float]]  # -> solution: the least one is chosen


def loss_by(power: float) -> Rule:
    """The expected loss: a shape counts 2 ** -power as much an octave further off, and DOUBT is added if no time is
    near."""

    def values(known: Sequence[TimedShape], shape: TimedShape) -> dict[str, float]:
        every = sum(2.0 ** (-power * float(np.abs(_away(each, shape)).sum())) for each in known)
        return {
            name: float(np.average(logs, weights=weights)) + DOUBT * (every - float(weights.sum())) / max(every, 1.0)
            for name, _, logs, weights in _each(known, shape, power, True)
        }

    return values


def fit_of(is_loss: bool) -> Rule:
    """A local linear fit over the logarithms of sizes, of a solution's loss or of its time."""

    def values(known: Sequence[TimedShape], shape: TimedShape) -> dict[str, float]:
        found = {}
        for name, away, logs, weights in _each(known, shape, 1.0, is_loss):
            share = weights / weights.sum()
            centre, level = share @ away, share @ logs
            spread = (away - centre).T * share
            slopes = np.linalg.solve(spread @ (away - centre) + RIDGE * np.eye(len(centre)), spread @ (logs - level))
            found[name] = float(level - centre @ slopes)
        return found

    return values


RULES = {
    "expected loss, half an octave": loss_by(1.0),
    "expected loss, a quarter an octave": loss_by(2.0),
    "expected loss, a sixteenth an octave": loss_by(4.0),
    "local fit of losses": fit_of(True),
    "local fit of times": fit_of(False),
}


def _each(known: Sequence[TimedShape], shape: TimedShape, power: float, is_loss: bool):  # type: ignore[no-untyped-def]
    for name in shape.us:
        timed = [each for each in known if name in each.us]
        if timed:
            away = np.array([_away(each, shape) for each in timed])
            logs = np.array([log2(each.us[name] / (min(each.us.values()) if is_loss else 1)) for each in timed])
            yield name, away, logs, 2.0 ** (-power * np.abs(away).sum(1))


def _away(one: TimedShape, other: TimedShape) -> list[float]:
    return [log2(max(a, 1) / max(b, 1)) for a, b in zip(one.sizes, other.sizes, strict=True)]


def main() -> None:
    catalog = Catalog.open(Path(__file__).resolve().parent.parent)
    operators = winners(catalog, list(catalog.definitions.values())).operators
    print(
        f"{'loss: mean of operators, worst shape; at least':46}",
        *(f"{each} octaves off" for each in DISTANCES),
        sep="  ",
    )
    for title, rule in RULES.items():
        columns = []
        for distance in DISTANCES:
            losses: dict[str, list[float]] = defaultdict(list)
            for operator in operators:
                for shape in operator.shapes:
                    known = [
                        each
                        for each in operator.shapes
                        if each.sizes != shape.sizes and sum(map(abs, _away(each, shape))) >= distance
                    ]
                    values = rule(known, shape) if len(known) >= LEAST else {}
                    if values:
                        chosen = min(values, key=lambda name: (values[name], name))
                        losses[operator.definition.name].append(shape.us[chosen] / min(shape.us.values()) - 1)
            columns.append(f"{mean(map(mean, losses.values())):6.2%} {max(map(max, losses.values())):6.0%}")
        print(f"{title:46}", *columns, sep="  ")


if __name__ == "__main__":
    main()
