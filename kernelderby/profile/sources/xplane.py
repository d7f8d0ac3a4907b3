"""XLA's own traces (.xplane.pb, of jax.profiler and TensorFlow): the planes of GPUs, whose lines are streams.

The file is a protocol buffer, tsl's xplane.proto, read here without its library. Only these fields are used: XSpace
planes 1 XPlane  name 2, lines 3, event_metadata 4 (a map: key 1, value 2), stat_metadata 5, stats 6 XLine   id 1, name
2, timestamp_ns 3, events 4 XEvent  metadata_id 1, offset_ps 2, duration_ps 3, stats 4 XStat   metadata_id 1, uint64 3,
int64 4, str 5, ref 7
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.profile.sources.in_memory import NO_TIME, InMemoryProfile
from kernelderby.profile.sources.operations import operation
from kernelderby.profile.spans import Span, SpanKind
from kernelderby.store.files import unpacked

MEND = "record it again with jax.profiler.trace(...)"
_GPU = re.compile(r"^/device:GPU:(?P<number>\d{1,6})")
_STREAM = re.compile(r"^Stream #(?P<number>\d{1,9})\b")
_COPY = re.compile(r"^Memcpy(?P<from>[HDP])2(?P<to>[HDP])")
_BYTES = re.compile(r"\b(?:size|num_bytes):(?P<bytes>\d{1,18})\b")
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_Field = tuple[int, int | memoryview]


class _Cut(ValueError):
    """The message is cut off within a field, or is invalid."""


def open_xplane(path: Path, packed: bool = False) -> InMemoryProfile:
    """DerbyError for a cut-off or damaged file, or one without GPU work (such as a TPU's)."""
    try:
        data = unpacked(path, packed)
        planes = [value for number, value in _fields(memoryview(data)) if number == 1 and not isinstance(value, int)]
        named = [(_text(_only(plane, 2)), plane) for plane in planes]
        profile = InMemoryProfile(path, "XLA trace, xplane.pb")
        for name, plane in named:
            if match := _GPU.match(name):
                _take_plane(profile, plane, int(match["number"]))
    except (_Cut, OSError) as error:
        raise DerbyError(f"{path}: is no whole xplane.pb ({error}); copy it again, or {MEND}") from None
    if not profile.held:
        there = ", ".join(name for name, _ in named[:4]) or "no plane"
        raise DerbyError(f"{path}: no GPU work in it (it has {there}); {MEND} on a GPU")
    profile.settle()
    return profile


def _take_plane(profile: InMemoryProfile, plane: memoryview, device: int) -> None:
    lines: list[memoryview] = []
    names: dict[int, str] = {}
    stats: dict[int, str] = {}
    for number, value in _fields(plane):
        if isinstance(value, int):
            continue
        if number == 3:
            lines.append(value)
        elif number in (4, 5):
            (names if number == 4 else stats).update([_entry(value)])
    for line in lines:
        title, stamp, events = "", 0, []
        for number, value in _fields(line):
            if number == 2:
                title = _text(value)
            elif number == 3 and isinstance(value, int):
                stamp = value
            elif number == 4 and not isinstance(value, int):
                events.append(value)
        if match := _STREAM.match(title):
            for event in events:
                span = _span(event, stamp, names, stats, device, int(match["number"]))
                profile.held += [span] if span else []
                profile.untimed += span is None


def _entry(value: memoryview) -> tuple[int, str]:
    """An entry of a map from numbers to metadata: the number, and the name in the metadata."""
    key, name = 0, ""
    for number, part in _fields(value):
        if number == 1 and isinstance(part, int):
            key = part
        elif number == 2 and not isinstance(part, int):
            name = _text(_only(part, 2))
    return key, name


def _span(
    event: memoryview, stamp: int, names: dict[int, str], stats: dict[int, str], device: int, stream: int
) -> Span | None:
    identifier = offset = duration = 0
    said = ""
    for number, value in _fields(event):
        if isinstance(value, int):
            identifier = value if number == 1 else identifier
            offset = value if number == 2 else offset
            duration = value if number == 3 else duration
        elif number == 4:
            said = said or _memcpy_details(value, stats)
    start, end = stamp + round(offset / 1000), stamp + round((offset + duration) / 1000)
    if not 0 <= start <= end < NO_TIME:
        return None
    name = names.get(identifier) or "kernel without a name"
    copy, size = _COPY.match(name), _BYTES.search(said)
    shown = f"Memcpy {copy['from']}to{copy['to']}" if copy else name
    kind, shown = operation(shown)
    moved = int(size["bytes"]) if size and kind is not SpanKind.KERNEL else 0
    return Span(kind, shown, start, end, 0, device, stream, (), moved)


def _memcpy_details(stat: memoryview, stats: dict[int, str]) -> str:
    key, text = 0, ""
    for number, value in _fields(stat):
        if number == 1 and isinstance(value, int):
            key = value
        elif number == 5 and not isinstance(value, int):
            text = _text(value)
        elif number == 7 and isinstance(value, int):
            text = stats.get(value, "")
    return text if stats.get(key) in ("memcpy_details", "memset_details") else ""


def _only(message: memoryview, wanted: int) -> int | memoryview:
    return next((value for number, value in _fields(message) if number == wanted), memoryview(b""))


def _text(value: int | memoryview) -> str:
    return "" if isinstance(value, int) else bytes(value).decode("utf-8", errors="replace")


def _fields(message: memoryview) -> Iterator[_Field]:
    """Number and value of each field. A value is a number, or the bytes of a text or of an inner message."""
    place, end = 0, len(message)
    while place < end:
        key, place = _varint(message, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if kind == _LENGTH:
            size, place = _varint(message, place)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise _Cut(f"a field of kind {kind} at byte {place}")
        if place + size > end:
            raise _Cut(f"a field of {size:,} bytes where {end - place:,} are left")
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(message) and shift < 64:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place
        shift += 7
    raise _Cut("a number that does not end")
