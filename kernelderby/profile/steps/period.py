"""The period of a sequence of kernels: its length, and the beginning of a repetition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEAST = 3  # minimum kernels of a period, and minimum repetitions
_LONGEST = 2_000  # kernels of a layer
_LOOKED_AT = 20_000  # kernels of a stream; more give no new information about a layer
ALIKE = 0.80  # share of the kernels that recur one period later
PRESENT = 0.85  # of the names, in nearly every step: names between steps are in few repetitions of a layer
_TRIED = 60  # candidate kernels that may mark a step
_CELLS = 20_000_000  # steps times names counted at once
_HALF = 0.5  # share of all kernels that a layer's repetitions must cover


@dataclass(frozen=True, slots=True)
class Period:
    """length: kernels. match: share of the kernels that recur one period later. first: where the repeating stretch
    begins. repetitions: how often it repeats."""

    length: int
    match: float
    first: int
    repetitions: int


def layer_period(names: np.ndarray) -> Period | None:
    """The shortest period of a sequence of name numbers; in a served model it is the layer. None if nothing repeats.
    The kernels between steps keep the match below 1.
    """
    names = names[:_LOOKED_AT]
    longest = min(len(names) // LEAST, _LONGEST)
    for lag in range(LEAST, longest + 1):
        same = names[lag:] == names[:-lag]
        if same.mean() < _HALF:
            continue
        found = _stretch(same, lag, len(names))
        if found is not None and len(set(names[found.first : found.first + lag].tolist())) >= LEAST:
            return found
    return None


def _stretch(same: np.ndarray, lag: int, count: int) -> Period | None:
    """The longest run in which nearly every kernel recurs one period later. None if all such runs together hold less
    than half of the kernels."""
    if len(same) < lag:
        return None
    before = np.concatenate(([0], np.cumsum(same)))
    window = before[lag:] - before[:-lag] >= ALIKE * lag
    edges = np.flatnonzero(np.diff(np.concatenate(([0], window.astype(np.int8), [0]))))
    if not len(edges):
        return None
    starts, ends = edges[::2], edges[1::2]
    longest = int(np.argmax(ends - starts))
    first, last = int(starts[longest]), int(ends[longest]) + 2 * lag - 1
    shifted = np.flatnonzero(same[first:])
    first += int(shifted[0]) if len(shifted) else 0
    runs = ends - starts
    covered = int((runs[runs >= lag] + 2 * lag - 1).sum())
    repetitions = round((last - first) / lag)
    if repetitions < LEAST or covered < _HALF * count:
        return None
    return Period(lag, float(same[first : last - lag].mean()), first, repetitions)


def step_starts(names: np.ndarray) -> np.ndarray | None:
    """The places where steps begin, by a kernel that runs once in each. None if nothing like a step repeats. If the
    cuts are at a kernel of the layer, most stretches lack the kernels between steps. If they are at every other step,
    the stretches are as similar but fewer. So the cut with the most stretches that have nearly all names is chosen.
    """
    _, names, counts = np.unique(names, return_inverse=True, return_counts=True)
    first = np.full(len(counts), len(names))
    np.minimum.at(first, names, np.arange(len(names)))
    order = sorted(range(len(counts)), key=lambda name: (-counts[name], first[name]))
    tried = 0
    seen: dict[int, int] = {}
    for name in order:
        count = int(counts[name])
        if not LEAST <= count <= len(names) // LEAST or seen.get(count, 0) >= 2 or count * len(counts) > _CELLS:
            continue
        seen[count] = seen.get(count, 0) + 1
        tried += 1
        starts = np.flatnonzero(names == name)
        if _are_steps(names, starts, len(counts)):
            return starts
        if tried >= _TRIED:
            return None
    return None


def _are_steps(names: np.ndarray, starts: np.ndarray, kinds: int) -> bool:
    """Whether the stretches from each start to the next have the same kernels in any order, and nearly all names."""
    if 2 * (len(names) - starts[0]) < len(names):
        return False
    rest = names[starts[0] :]
    stretch = np.searchsorted(starts, np.arange(starts[0], len(names)), side="right") - 1
    tally = np.bincount(stretch * kinds + rest, minlength=len(starts) * kinds).reshape(len(starts), kinds)
    if len(tally) > LEAST:
        tally = tally[:-1]  # the recording may end within the last
    shared = np.minimum(tally[1:], tally[:-1]).sum()
    total = tally[1:].sum() + tally[:-1].sum()
    occurs = tally.sum(axis=0) > 0
    present = ((tally > 0).mean(axis=0) >= ALIKE)[occurs].mean() if occurs.any() else 0.0
    return bool(total and 2 * shared >= ALIKE * total and present >= PRESENT)
