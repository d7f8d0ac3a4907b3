"""Stretches of time: unions of intervals, and their overlap with windows. Times in ns."""

from __future__ import annotations

import numpy as np


def union(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The union as disjoint stretches [n, 2], sorted by start."""
    if not len(starts):
        return np.empty((0, 2), np.int64)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    begins = np.ones(len(starts), bool)
    begins[1:] = starts[1:] > ends[:-1]
    first = np.flatnonzero(begins)
    return np.stack((starts[first], ends[np.append(first[1:], len(starts)) - 1]), axis=1)


def length(stretches: np.ndarray) -> int:
    return int((stretches[:, 1] - stretches[:, 0]).sum()) if len(stretches) else 0


def common(one: np.ndarray, other: np.ndarray) -> int:
    """The time that is in both."""
    if not len(one) or not len(other):
        return 0
    both = np.concatenate((one, other))
    return length(one) + length(other) - length(union(both[:, 0], both[:, 1]))


def within(stretches: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """For each window between two cuts the time that the stretches cover. cuts: ascending."""
    if not len(stretches):
        return np.zeros(max(len(cuts) - 1, 0), np.int64)
    ahead = np.concatenate(([0], np.cumsum(stretches[:, 1] - stretches[:, 0])))
    place = np.searchsorted(stretches[:, 0], cuts, side="right")
    inside = np.minimum(cuts, stretches[np.maximum(place - 1, 0), 1]) - stretches[np.maximum(place - 1, 0), 0]
    covered = np.where(place > 0, ahead[np.maximum(place - 1, 0)] + inside, 0)
    return np.diff(covered)
