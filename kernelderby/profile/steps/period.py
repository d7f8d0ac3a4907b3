"""The period of a run of kernels: how many of them repeat, and where in it a repetition begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEAST = 3  # kernels of a period, and repetitions that make one
_LONGEST = 2_000  # kernels of a layer
_LOOKED_AT = 20_000  # kernels of a stream; more say nothing new of a layer
ALIKE = 0.80  # of the kernels, the same one period later
PRESENT = 0.85  # of the names, in nearly every step: of a layer's repetitions those between steps are in few
_TRIED = 60  # kernels that may mark a step
_CELLS = 20_000_000  # steps times names that are counted at once
_HALF = 0.5  # of all kernels: what repeats less is no layer


@dataclass(frozen=True, slots=True)
class Period:
    """length: kernels. match: share of the kernels that stand again one period later. first, repetitions: where the
    stretch that repeats begins, and how often."""

    length: int
    match: float
    first: int
    repetitions: int


def layer_period(names: np.ndarray) -> Period | None:
    """The shortest period of a sequence of numbers of names: of a served model its layer. None where nothing repeats.

    A layer repeats until a step ends, so the match stays below 1 by what stands between steps.
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
    """The longest run in which nearly every kernel stands again one period later; None where all such runs together
    are less than half of the kernels."""
    if len(same) < lag:
        return None
    window = np.convolve(same.astype(np.int64), np.ones(lag, np.int64), "valid") >= ALIKE * lag
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
    """Places at which steps begin, by a kernel that runs once in each. None where nothing like a step repeats.

    Cut at a kernel of the layer, the stretches lack what stands between steps, all but one in each step; cut at every
    other step, they are as alike but fewer. So the most stretches count that have nearly all names.
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
    """Whether the stretches from each start to the next are alike, in any order, and have nearly all names."""
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
