"""How far the clock of CUPTI's records is off the host's, by the timer's own flushes.

The host takes a timestamp before it launches a flush, and one when the GPU is idle again: the flush's record lies
between the two. A shift of the records fits a series if every flush then lies there. Whatever the shift, each record
still belongs to one iteration, and lies in its window or counts as outside of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter

MOST_NS = 2_000_000  # a clock that is further off is not understood
_DRIFT = 1000  # the clocks may drift apart by a thousandth of the time

Interval = tuple[int, int]  # in ns


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The shifts, in ns, with which an iteration's flush lies where it must. flush: its record, if there is one."""

    least: int = -MOST_NS
    most: int = MOST_NS
    flush: Interval | None = None

    def within(self, other: _Bounds, play: int) -> _Bounds:
        """What is left with another iteration's bounds, since the clocks may have drifted apart by `play`."""
        return replace(self, least=max(self.least, other.least - play), most=min(self.most, other.most + play))

    @property
    def nearest(self) -> int:
        return min(max(self.least, 0), self.most)


def shifts(
    fills: Sequence[Interval],
    flushes: Sequence[int],
    windows: Sequence[Interval],
    records: Sequence[Interval],
    slack_ns: int,
) -> list[int]:
    """For each iteration what to add to its records' times, so that they are the host's: of the shifts that fit, the
    one nearest to 0. If no record then lies in the window, it is the nearest one with which the first record behind the
    flush does. 0 everywhere if none fits, or the flushes leave open which one.

    fills: the records that look like a flush; fewer than half may be missing, or there may be others, but not both.
    flushes: timestamps before the flushes. windows, records, slack_ns: as for spans_of_records().
    """
    spots = [(begun, opened) for begun, (opened, _) in zip(flushes, windows, strict=True)]
    found = _fitting(sorted(fills), spots)
    if not found:
        return [0] * len(spots)
    known = sorted((start, end) for start, end in records if start and end)
    return [_shift(bounds, window, known, slack_ns) for bounds, window in zip(found, windows, strict=True)]


def _shift(bounds: _Bounds, window: Interval, known: Sequence[Interval], slack_ns: int) -> int:
    shift = bounds.nearest
    if bounds.flush is None or any(least <= shift <= most for least, most in _held(window, known, slack_ns)):
        return shift
    behind = known[bisect_left(known, bounds.flush[1], key=itemgetter(0)) :]
    for least, most in _held(window, behind[:1], slack_ns):
        least, most = max(least, bounds.least), min(most, bounds.most)
        if least <= most:
            return min(max(least, shift), most)
    return shift


def _held(window: Interval, records: Sequence[Interval], slack_ns: int) -> Iterator[Interval]:
    """The shifts with which each record lies in the window, as spans_of_records() has it."""
    opened, closed = window
    for start, end in records:
        yield opened - slack_ns - start, min(closed - start, closed + slack_ns - end)


def _fitting(fills: Sequence[Interval], spots: Sequence[Interval]) -> list[_Bounds]:
    """The bounds of each iteration; empty if no shift fits, or two that contradict each other. spots: the host's
    timestamps around each flush. Either each iteration has its flush, or each of the fills is one."""
    more, found = len(fills) - len(spots), []
    for apart in range(abs(more) + 1) if 2 * len(fills) > len(spots) else ():
        first = apart if more < 0 else 0  # this iteration has the first fill, or the first one has the fill at `apart`
        matched = _matched(fills[apart - first :], spots[first:])
        if len(matched) == min(len(fills), len(spots)):
            found.append(_together([matched.get(place - first, _Bounds()) for place in range(len(spots))], spots))
    fitting = [each for each in found if all(bounds.least <= bounds.most for bounds in each)]
    return fitting[0] if len(fitting) == 1 else []


def _bounds(fill: Interval, spot: Interval) -> _Bounds:
    return _Bounds(max(spot[0] - fill[0], -MOST_NS), min(spot[1] - fill[1], MOST_NS), fill)


def _matched(fills: Sequence[Interval], spots: Sequence[Interval]) -> dict[int, _Bounds]:
    """The iterations whose flush fits after the shift of the first one, which has the first fill."""
    found, last = {0: _bounds(fills[0], spots[0])}, 0
    for place, spot in enumerate(spots[1:], 1):
        play, near = _play(spot, spots[last]), found[last]
        for fill in _between(fills, spot[0] - near.most - play, spot[1] - near.least + play):
            bounds = _bounds(fill, spot).within(near, play)
            if bounds.least <= bounds.most:
                found[place], last = bounds, place
                break
    return found


def _between(records: Sequence[Interval], first: int, last: int) -> Sequence[Interval]:
    """The sorted records that start at these times, or between them."""
    return records[bisect_left(records, first, key=itemgetter(0)) : bisect_right(records, last, key=itemgetter(0))]


def _together(found: list[_Bounds], spots: Sequence[Interval]) -> list[_Bounds]:
    """Each iteration's bounds with those of all others."""
    for places in ([*range(len(spots))], [*reversed(range(len(spots)))]):
        for last, place in pairwise(places):
            found[place] = found[place].within(found[last], _play(spots[place], spots[last]))
    return found


def _play(one: Interval, other: Interval) -> int:
    return abs(one[0] - other[0]) // _DRIFT
