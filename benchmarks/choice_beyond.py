"""What a package's choice loses on shapes beyond the measured ones: `python benchmarks/choice_beyond.py`, no GPU.

Cuts each operator's recorded shapes in two along each axis, at each size. The shapes of each side choose for those of
the other, once among all solutions and once among libraries alone, as a package does outside of its region. Each row is
for shapes at one distance beyond the cut: the mean over operators of the loss to the fastest solution, and the worst.
`SLACK` of kernelderby/deploy/runtime/selector.py follows from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import log2
from pathlib import Path
from statistics import mean

from kernelderby.catalog import Catalog
from kernelderby.deploy.runtime.selector import Selector
from kernelderby.deploy.winners import TimedShape, Winners, winners

LEAST = 3  # shapes that choose
MOST = 17  # octaves: the last row holds all beyond


def main() -> None:
    catalog = Catalog.open(Path(__file__).resolve().parent.parent)
    found: dict[int, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for operator in winners(catalog, list(catalog.definitions.values())).operators:
        for known, held in cuts(operator.shapes):
            choice = selector(operator, known)
            for shape in held:
                if losses := lost(choice, shape):
                    found[min(int(beyond(choice, shape)), MOST)][operator.definition.name].append(losses)
    print("octaves beyond  operators    all: mean  worst    libraries: mean  worst")
    for octaves, operators in sorted(found.items()):
        columns = [[[each[side] for each in own] for own in operators.values()] for side in (0, 1)]
        ours, theirs = ((mean(map(mean, column)), max(map(max, column))) for column in columns)
        most = "or more" if octaves == MOST else f"to {octaves + 1}"
        print(
            f"{octaves:3} {most:10} {len(operators):10} {ours[0]:12.2%} {ours[1]:6.0%} {theirs[0]:18.1%} "
            f"{theirs[1]:6.0%}"
        )


def cuts(shapes: tuple[TimedShape, ...]) -> Iterator[tuple[list[TimedShape], list[TimedShape]]]:
    """(shapes that choose, shapes held out)."""
    for axis in range(len(shapes[0].sizes)):
        for size in {each.sizes[axis] for each in shapes}:
            for side in (1, -1):
                known = [each for each in shapes if side * each.sizes[axis] <= side * size]
                if len(known) >= LEAST and len(known) < len(shapes):
                    yield known, [each for each in shapes if side * each.sizes[axis] > side * size]


def selector(operator: Winners, known: list[TimedShape]) -> Selector:
    names = [each.name for each in operator.solutions]
    points = [[each.sizes, [each.us.get(name) for name in names]] for each in known]
    data = operator.data()
    return Selector({**data, "points": [each for each in points if any(each[1])]})


def beyond(choice: Selector, shape: TimedShape) -> float:
    """Octaves, of the axis that is furthest off."""
    ends = zip(shape.sizes, choice.ranges.values(), strict=True)
    return max(
        max(log2(max(least, 1) / max(size, 1)), log2(max(size, 1) / max(most, 1)), 0) for size, (least, most) in ends
    )


def lost(choice: Selector, shape: TimedShape) -> tuple[float, float] | None:
    """With ours, and with libraries alone; None where no library has a time."""
    own = {name: us for name, us in shape.us.items() if name in choice.kinds}
    libraries = {name for name in own if choice.kinds[name] == "library"}
    if not libraries:
        return None
    first = [choice.expected(shape.sizes, names)[0] for names in (own, libraries)]
    return own[first[0]] / min(own.values()) - 1, own[first[1]] / min(own.values()) - 1


if __name__ == "__main__":
    main()
