"""Reads hundreds of thousands of rows. It makes the checks of row.Row for many rows at once.

Samples are the largest part of a row, and most of their time goes into making Python numbers and sorting them. So they
stay text until a thousand rows are there. Then they become one array and are compared with the stated medians together.
A row with any irregularity is read again as a Row, which gives the reason.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from msgspec import Raw, Struct
from msgspec.json import Decoder

from kernelderby.rows.row import ROUNDING, ROUNDING_US, OwnFields, Row, Time
from kernelderby.rows.samples import LEAST_US, MOST_US, Samples
from kernelderby.store.fields import EXPLAINED, TextLine, lines_of, record_of

_AT_ONCE = 300  # rows
_NONE = Raw(b"[]")


class QuickTimes(Struct):
    """row.Times; samples_us is text, and Samples once they are checked."""

    median_us: Time
    samples_us: Raw


class QuickOwn(OwnFields):
    times: dict[str, QuickTimes] = {}  # type: ignore[assignment]  # noqa: RUF012
    samples_us: Raw = _NONE  # type: ignore[assignment]


class QuickRow(Row):
    """A checked Row. workload is its text in the file, since many rows share it."""

    workload: Raw  # type: ignore[assignment]
    measurement: QuickOwn | None = None


def read_rows(
    path: Path, left_out: Callable[[str], None], lines: Iterator[TextLine] | None = None
) -> Iterator[tuple[str, Row]]:
    """("path:line", row) for each line of a file of traces; left_out gets a line for each broken row. lines: some lines
    of the file (default: all). DerbyError if the file cannot be read."""
    decode, file = Decoder(QuickRow).decode, str(path)
    lines, broken = lines_of(path) if lines is None else lines, 0
    while some := list(islice(lines, _AT_ONCE)):
        rows: list[QuickRow | None] = []
        for line in some:
            try:
                rows.append(decode(line.text))
            except (ValueError, RecursionError):
                rows.append(None)
        doubtful = _check_samples(rows)
        for place, (line, row) in enumerate(zip(some, rows, strict=True)):
            if row and place not in doubtful:
                found: Row | None = row
            else:
                found = record_of(path, line, Row, left_out, brief=broken >= EXPLAINED)
                broken += found is None and bool(bytes(line.text[:99]).strip())
            if found is not None:
                yield f"{file}:{line.number}", found


def _check_samples(rows: Sequence[QuickRow | None]) -> set[int]:
    """Turns the rows' samples into Samples. Returns the places of the rows that Row has to check."""
    decode = Decoder(list[list[float]]).decode
    doubtful: set[int] = set()
    timed: list[_Timed] = []
    flat = array("d")
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}  # equal lengths share one tuple
    for place, row in enumerate(rows):
        for owner, stated in _owners(row):
            try:
                rounds = decode(owner.samples_us)
            except (ValueError, RecursionError):
                doubtful.add(place)
                continue
            start = len(flat)
            for one in rounds:
                flat.fromlist(one)
            shape = tuple(map(len, rounds))
            timed.append(_Timed(place, owner, stated, shapes.setdefault(shape, shape), start, len(flat)))
    for each in timed:
        each.owner.samples_us = Samples(flat[each.start : each.end], each.shape)  # type: ignore[assignment]
    return doubtful | _odd(timed, flat)


class _Timed(NamedTuple):
    """The samples of the row at a place. stated: the stated median. start, end: their range in the array of all
    samples."""

    place: int
    owner: QuickTimes | QuickOwn
    stated: float | None
    shape: tuple[int, ...]
    start: int
    end: int


def _owners(row: QuickRow | None) -> Iterator[tuple[QuickTimes | QuickOwn, float | None]]:
    """The records that hold samples, each with the median that it states."""
    own = row.measurement if row else None
    if own is None:
        return
    for times in own.times.values():
        yield times, times.median_us
    if own.samples_us is _NONE:  # empty, as in all rows of protocol 2
        own.samples_us = ()  # type: ignore[assignment]
    else:
        yield own, own.latency_us


def _odd(timed: Sequence[_Timed], flat: array[float]) -> set[int]:
    """Places of rows with an empty round, an impossible span, or a median other than the stated one."""
    odd = {each.place for each in timed if 0 in each.shape or (isinstance(each.owner, QuickTimes) and not each.shape)}
    stated = [math.nan if each.stated is None else each.stated for each in timed]
    found = odd_medians(flat, [each.start for each in timed], [each.end - each.start for each in timed], stated)
    odd.update(timed[at].place for at in found)
    return odd


def odd_medians(
    flat: array[float], starts: Sequence[int], counts: Sequence[int], stated: Sequence[float]
) -> Iterator[int]:
    """The stretches of the array that hold an impossible time, or whose median is not the stated one (NaN: none is
    stated)."""
    import numpy as np  # here: it takes a tenth of a second, and a set may have no rows

    values, begin, claimed = np.array(flat), np.array(starts), np.array(stated)
    for count in {*counts} - {0}:
        where = np.flatnonzero(np.array(counts) == count)
        spans = np.sort(values[begin[where][:, None] + np.arange(count)], axis=1)
        is_none = ~((spans[:, 0] >= LEAST_US) & (spans[:, -1] <= MOST_US))
        with np.errstate(over="ignore"):  # of values that are no times anyway
            medians = (spans[:, count // 2] + spans[:, ~(count // 2)]) / 2
        is_other = np.abs(medians - claimed[where]) > ROUNDING_US + ROUNDING * claimed[where]
        yield from where[is_other | is_none].tolist()  # comparisons with NaN are false
