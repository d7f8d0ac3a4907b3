"""Times of a series of calls, in the measuring process and on their way to the judge."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from kernelderby.store.fields import must_be

_NOTES = 20
# A picosecond to eleven days: other values are no times of calls, and have no place in medians or rows.
Microseconds = Annotated[float, must_be("a time, in us", ge=1e-6, le=1e12)]
Records = Annotated[int, must_be("a number of records, or -1", ge=-1, le=2**53)]


class Spans(Struct):
    """One entry per iteration, in us (see timing.py); busy_us and outside may be empty. notes: remarks for readers of
    the row."""

    spans_us: list[Microseconds]
    notes: Annotated[list[str], Meta(max_length=_NOTES)] = []
    busy_us: list[Microseconds] = []
    host_us: list[Microseconds] = []
    wall_us: list[Microseconds] = []
    outside: list[Records] = []
