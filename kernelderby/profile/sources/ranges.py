"""The ranges that are open at a time on one thread, as numbers of nestings: 12 bytes for each start or end of a
range."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

NEVER = (1 << 63) - 1  # the end of a range that was never closed
_DEEPEST = 256  # names of one nesting


@dataclass(slots=True)
class RangeTimeline:
    """The nesting on one thread: nesting[i], an index into paths, holds from times[i] to times[i + 1]."""

    times: array[int]
    nesting: array[int]

    def at(self, times: np.ndarray) -> np.ndarray:
        known = np.frombuffer(self.times, dtype=np.int64)
        nesting = np.concatenate(([0], np.frombuffer(self.nesting, dtype=np.int32)))
        return nesting[np.searchsorted(known, times, side="right")]

    def change(self, time: int, nesting: int) -> None:
        if self.times and self.times[-1] == time:
            self.nesting[-1] = nesting
        else:
            self.times.append(time)
            self.nesting.append(nesting)


class Paths:
    """Numbers for nestings: 0 is "no range"; a child is its parent nesting with one more name. Ranges nested
    deeper than in any program count as the range around them, because each nesting stores all its names."""

    def __init__(self) -> None:
        self.names: list[tuple[str, ...]] = [()]
        self.children: dict[tuple[int, str], int] = {}

    def child(self, parent: int, name: str) -> int:
        if len(self.names[parent]) == _DEEPEST:
            return parent
        number = self.children.get((parent, name))
        if number is None:
            number = self.children[parent, name] = len(self.names)
            self.names.append((*self.names[parent], name))
        return number


class OpenRanges:
    """Sweeps over one thread. Ranges come in order of start; earlier ends are processed before each start, the earliest
    first. Push/pop ranges nest, so the last one ends first. Start/end ranges may overlap in any way; then the ending
    range is searched for, and the later ones get new numbers.
    """

    def __init__(self, paths: Paths):
        self.paths, self.timeline = paths, RangeTimeline(array("q"), array("i"))
        self.stack: list[tuple[int, str, int]] = []  # (end, name, number of the nesting down to here)
        self.soonest = NEVER
        self.nested = True

    def push(self, start: int, end: int, name: str) -> None:
        if self.soonest <= start:
            self.close(start)
        stack = self.stack
        self.nested = not stack or (self.nested and end <= stack[-1][0])
        number = self.paths.child(stack[-1][2] if stack else 0, name)
        stack.append((end, name, number))
        self.soonest = min(self.soonest, end)
        self.timeline.change(start, number)

    def finish(self) -> RangeTimeline:
        """Ends all ranges that have an end. The timeline is then complete."""
        self.close(NEVER - 1)
        return self.timeline

    def close(self, until: int) -> None:
        """Closes every range that ends at `until` or earlier."""
        stack = self.stack
        while stack and self.soonest <= until:
            ended = self.soonest
            if stack[-1][0] == ended:
                stack.pop()
            else:
                index = next(place for place, item in enumerate(stack) if item[0] == ended)
                rest = stack[index + 1 :]
                del stack[index:]
                for end, name, _ in rest:
                    stack.append((end, name, self.paths.child(stack[-1][2] if stack else 0, name)))
            if self.nested:
                self.soonest = stack[-1][0] if stack else NEVER
            else:
                self.soonest = min((item[0] for item in stack), default=NEVER)
            self.timeline.change(ended, stack[-1][2] if stack else 0)


def swept_timeline(ranges: Iterable[tuple[int, int, str]], paths: Paths) -> RangeTimeline:
    """The timeline of one thread's ranges (start, end, name), sorted by start, outer before inner. Any overlap is
    allowed."""
    active = OpenRanges(paths)
    for start, end, name in ranges:
        active.push(start, end, name)
    return active.finish()


def nested_timeline(
    starts: np.ndarray, ends: np.ndarray, names: np.ndarray, texts: Sequence[str], paths: Paths
) -> RangeTimeline | None:
    """The same timeline by array operations, if every range lies wholly inside its outer range (push/pop); otherwise
    None. names: places in texts. Arrays are in order of start, outer before inner.

    A range's depth is the number of ranges that began before it minus the number that had ended. Its outer range is the
    last earlier one of one depth less.
    """
    count = len(starts)
    depth = (np.arange(count) - np.searchsorted(np.sort(ends), starts, side="right")).astype(np.int32)
    inside = np.zeros(count, dtype=np.int32)  # nesting around each range, then the one down to it
    within = np.zeros(count, dtype=np.int32)
    above = np.empty(0, dtype=np.int64)
    for level in range(int(depth.max(initial=-1)) + 1):
        mine = np.flatnonzero(depth == level)
        if level:
            around = np.searchsorted(above, mine) - 1
            parents = above[around]
            if (around < 0).any() or (ends[mine] > ends[parents]).any() or (ends[parents] <= starts[mine]).any():
                return None
            inside[mine] = within[parents]
        pairs, numbers = np.unique(inside[mine].astype(np.int64) * len(texts) + names[mine], return_inverse=True)
        known = [paths.child(int(pair) // len(texts), texts[int(pair) % len(texts)]) for pair in pairs]
        within[mine] = np.array(known, dtype=np.int32)[numbers]
        above = mine
    closed = ends < NEVER
    times = np.concatenate((ends[closed], starts))
    nesting = np.concatenate((inside[closed], within))
    # At one moment the last entry counts. The order is: ends before starts, inner ends before outer ends, outer starts
    # before inner starts.
    rank = np.concatenate((-np.flatnonzero(closed) - 1, np.arange(count)))
    order = np.lexsort((rank, times))
    times, nesting = times[order], nesting[order]
    last = np.append(times[1:] != times[:-1], True)
    return RangeTimeline(array("q", times[last].tobytes()), array("i", nesting[last].astype(np.int32).tobytes()))
