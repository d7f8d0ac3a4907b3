"""Which solution runs one operator at one shape, from recorded times. Needs neither torch nor a GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import log2
from typing import Any

# The measured region reaches 16 octaves further on each side, in every axis. At every distance beyond the measured
# shapes that could be tested, choosing among all solutions loses at most 2 % in the mean, and choosing among libraries
# alone 74 to 132 % (benchmarks/choice_beyond.py). So no distance that rows can tell of is a reason to leave the choice
# to libraries.
SLACK = 65536.0
# What is added to a solution's expected loss if near shapes have no time of it, in octaves of time: 3.5 %. It decides
# only near ties: of 20 measured shapes that got a solution without a time there, 7 still do, and shapes left out in
# turn lose the same. Far off, where every shape counts next to nothing, the doubt does too.
DOUBT = 0.05


class Selector:
    """The choice for one operator. data: {"axes": names, "solutions": {name: {"kind": "own" | "library" | "plain",
    ...}}, "points": [[sizes, [us of each solution, or null]], ...]}; both lists in the order of `axes` and
    `solutions`."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.axes: tuple[str, ...] = tuple(data["axes"])
        self.kinds: dict[str, str] = {name: about["kind"] for name, about in data["solutions"].items()}
        self.points: list[tuple[Sequence[int], dict[str, float]]] = []
        for sizes, times in data["points"]:
            known = {name: us for name, us in zip(self.kinds, times, strict=True) if us is not None}
            least = min(known.values())
            self.points.append((sizes, {name: log2(us / least) for name, us in known.items()}))
        columns = zip(self.axes, zip(*(sizes for sizes, _ in self.points), strict=True), strict=True)
        self.ranges = {axis: (min(column), max(column)) for axis, column in columns} if self.points else {}

    def inside(self, sizes: Sequence[int]) -> bool:
        """Whether the shape lies in the measured region: each size within its measured range, and SLACK beyond it."""
        return self.reaches(dict(zip(self.axes, sizes, strict=True)))

    def reaches(self, sizes: Mapping[str, int]) -> bool:
        """The same for some axes only. KeyError for an axis that the operator does not have. It is a plain loop because
        torch.compile traces it: the vLLM plugin asks within a model."""
        if len(self.ranges) == 0:
            return False
        for axis, size in sizes.items():
            least, most = self.ranges[axis]
            if size < least / SLACK or size > most * SLACK:
                return False
        return True

    def order(self, sizes: Sequence[int], available: Collection[str]) -> list[str]:
        """Of the available solutions those that may run, best first; plain torch is always among them.

        Inside the region they are ordered by their expected loss: the mean of a solution's losses at the measured
        shapes, of which one an octave further off counts half as much, with DOUBT for near shapes at which it has no
        time. Outside: libraries in that order, then plain torch."""
        is_inside = self.inside(sizes)
        found = self.expected(sizes, [name for name in available if is_inside or self.kinds.get(name) == "library"])
        return found + [name for name, kind in self.kinds.items() if kind == "plain" and name not in found]

    def expected(self, sizes: Sequence[int], names: Collection[str]) -> list[str]:
        """These solutions by their expected loss, the least first, wherever the shape lies."""
        weights = [2.0 ** -_octaves(sizes, point) for point, _ in self.points]
        losses = {name: self._expected(name, weights) for name in self.kinds if name in names}
        return sorted(losses, key=lambda name: (losses[name], name))

    def _expected(self, name: str, weights: Sequence[float]) -> float:
        total = loss = 0.0
        for weight, (_, losses) in zip(weights, self.points, strict=True):
            if name in losses:
                total, loss = total + weight, loss + weight * losses[name]
        return loss / total + DOUBT * (sum(weights) - total) / max(sum(weights), 1.0) if total else float("inf")


def _octaves(sizes: Sequence[int], others: Sequence[int]) -> float:
    return sum(abs(log2(max(size, 1) / max(other, 1))) for size, other in zip(sizes, others, strict=True))
