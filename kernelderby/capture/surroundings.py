"""Work whose launch is cut off a trace: what ran between the same kernels elsewhere.

A model runs the same layers again and again, so the kernels around one tell its operator where its own name and grid do
not: an elementwise kernel between the same neighbours belongs to the same operator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

# Neighbours before and after, most telling first; the last ones serve the ends of a trace.
WINDOWS = ((6, 6), (3, 3), (0, 9), (9, 0), (2, 2))


def alike(kernels: Sequence[Hashable], known: Sequence[Hashable | None]) -> dict[int, int]:
    """Place without an operator -> a place with one, where all places of one window agree. kernels: of one stream in
    their order, name with grid. known: the operator of each, None where nothing tells it."""
    missing = {place for place, operator in enumerate(known) if operator is None}
    wanted = {kernels[place] for place in missing}
    found: dict[int, int] = {}
    for before, after in WINDOWS:
        seen: dict[tuple[Hashable, ...], dict[Hashable, int]] = defaultdict(dict)
        for place, window in _windows(kernels, before, after):
            operator = known[place]
            if operator is not None and kernels[place] in wanted:
                seen[window].setdefault(operator, place)
        for place, window in _windows(kernels, before, after):
            if place in missing and len(seen.get(window, ())) == 1:
                found[place] = next(iter(seen[window].values()))
        missing -= found.keys()
        if not missing:
            break
    return found


def _windows(kernels: Sequence[Hashable], before: int, after: int) -> Iterator[tuple[int, tuple[Hashable, ...]]]:
    """Every place that has so many neighbours, with them."""
    for place in range(before, len(kernels) - after):
        yield place, tuple(kernels[place - before : place + after + 1])
