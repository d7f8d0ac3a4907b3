"""A part of a profile: by time, NVTX range, GPU, process, stream, or repetition of a range. Needs events."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.profile.names import expression, fits
from kernelderby.profile.operators import LaunchOrigin
from kernelderby.profile.spans import KernelSum, Launched, Profile, RangesByTime, Span, sum_spans

_TIME = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?|\.\d+)\s*(?P<unit>ns|us|ms|s)?\s*")
_OPEN = 1 << 62  # ns; the end of an open window
_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


@dataclass(frozen=True, slots=True)
class Selection:
    """window: ns from the profile's first GPU operation, half open; an operation belongs to it if it starts in it.
    range: regular expression of NVTX ranges around the launch. repetitions: first and last repetition of those ranges,
    counted from 1, both inclusive."""

    window: tuple[int, int] | None = None
    range: re.Pattern[str] | None = None
    device: int | None = None
    process: int | None = None
    stream: int | None = None
    repetitions: tuple[int, int] | None = None

    @property
    def is_all(self) -> bool:
        return self == Selection()

    def __str__(self) -> str:
        parts = []
        if self.window:
            start, end = self.window
            parts.append(f"{_told(start)} to {_told(end)}" if end < _OPEN else f"from {_told(start)} on")
        if self.range:
            parts.append(f"ranges {self.range.pattern}")
        places = ("GPU", self.device), ("process", self.process), ("stream", self.stream)
        parts += [f"{name} {number}" for name, number in places if number is not None]
        if self.repetitions:
            first, last = self.repetitions
            parts.append(f"repetition {first}" if first == last else f"repetitions {first} to {last}")
        return ", ".join(parts)


def make_selection(
    window: str | None = None,
    within: str | None = None,
    device: int | None = None,
    process: int | None = None,
    stream: int | None = None,
    repetition: str | None = None,
) -> Selection:
    """The selection of words such as "1.5s:2s", "3" or "3-7". DerbyError: a word is wrong, or a repetition has no
    range."""
    if repetition is not None and within is None:
        raise DerbyError("--repetition: of which ranges? add --range REGEX")
    if within == "":
        raise DerbyError("--range: is empty; write an expression of the ranges' names, .* for any")
    return Selection(
        _window(window) if window is not None else None,
        expression("--range", within) if within is not None else None,
        device,
        process,
        stream,
        _repetitions(repetition) if repetition is not None else None,
    )


def _window(text: str) -> tuple[int, int]:
    first, separator, last = text.partition(":")
    ends = [_nanoseconds(each) if each.strip() else None for each in (first, last)]
    start, end = ends[0] or 0, ends[1] if ends[1] is not None else _OPEN
    if not separator or (first.strip() and ends[0] is None) or (last.strip() and ends[1] is None) or start >= end:
        raise DerbyError(f"--window: {text!r} is no FROM:TO; write for example 1.5s:2s or 300ms: or :20us")
    return start, end


def _told(nanoseconds: int) -> str:
    unit, worth = next((each for each in reversed(_UNITS.items()) if nanoseconds >= each[1]), ("ns", 1))
    return f"{nanoseconds / worth:.6g} {unit}"


def _nanoseconds(text: str) -> int | None:
    match = _TIME.fullmatch(text)
    return round(float(match["number"]) * _UNITS[match["unit"] or "s"]) if match else None


def _repetitions(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        raise DerbyError(f"--repetition: {text!r} is no N or N-M; the first is 1")
    return first, last


_OF_THE_WHOLE = ("api_sums", "captured_graphs", "gpu_of", "memory", "range_instances", "waits")


class SelectedProfile(Profile):
    """The operations of another profile that a selection takes. Calls on the host cannot be selected: api_sums() covers
    the whole profile, and `warnings` says so."""

    has_events = True

    def __init__(self, profile: Profile, selection: Selection) -> None:
        if not profile.has_events:
            raise DerbyError(
                f"{profile.path}: {profile.form} has sums only, so nothing can be chosen from it; give a profile with "
                "events (nsys SQLite, torch.profiler), or leave the choice out"
            )
        super().__init__(profile.path, f"{profile.form}, {selection}" if str(selection) else profile.form, profile.gpu)
        self.warnings = profile.warnings  # a separate list, since reading adds to it
        self.compute_capability = profile.compute_capability
        self.whole_graphs = profile.whole_graphs
        self.profile, self.selection, self.whole = profile, selection, profile
        pushed = profile.restricted(selection.window, selection.device, selection.process, selection.stream)
        self.rest = selection
        if pushed is not None:
            self.profile = pushed
            self.rest = replace(selection, window=None, device=None, process=None, stream=None)
            if self.rest.is_all and (timelines := getattr(pushed, "timelines", None)):
                self.timelines = timelines  # computed without spans
        for name in _OF_THE_WHOLE:
            setattr(self, name, getattr(self.profile, name))
        if not selection.is_all:
            self.warnings.append(f"only {selection}; host calls cover the whole profile")

    def spans(self) -> Iterator[Span]:
        if self.rest.is_all:
            return self.profile.spans()
        if self.rest.repetitions:
            return (span for span, _, _ in self.launched())
        return (span for span, _, _ in self._selected((span, None, None) for span in self.profile.spans()))

    def launched(self) -> Iterator[Launched]:
        return self._selected(self.profile.launched())

    def issued(self) -> Iterator[LaunchOrigin]:
        both = zip(self.profile.launched(), self.profile.issued(), strict=True)
        tagged: Iterator[Any] = ((span, launch, issued) for (span, launch, _), issued in both)
        chosen: Iterator[Any] = self._selected(tagged)
        return (issued for _, _, issued in chosen)

    def sums(self) -> list[KernelSum]:
        sums = self.profile.sums() if self.rest.is_all else sum_spans(self.spans())
        if not sums:
            raise DerbyError(f"{self.path}: nothing in it is {self.selection}; {self._what_there_is()}")
        return sums

    def modules(self) -> list[tuple[str, ...]]:
        paths = self.profile.modules()
        both = zip(self.profile.launched(), paths, strict=True) if paths else ()
        return [each[3] for each in self._selected((*launched, path) for launched, path in both)]

    @property
    def unlinked_launches(self) -> int:
        return self.profile.unlinked_launches

    def _selected(self, launched: Iterator[Any]) -> Iterator[Any]:
        chosen = self.rest
        origin: int | None = None
        repeated = None
        if chosen.repetitions and chosen.range:
            repeated = RangesByTime(self.profile.range_instances(chosen.range))
        wanted = ((name, getattr(chosen, name)) for name in ("device", "process", "stream"))
        places = [(name, number) for name, number in wanted if number is not None]
        for each in launched:
            span, launch = each[:2]
            origin = span.start_ns if origin is None else origin
            if chosen.window and not chosen.window[0] <= span.start_ns - origin < chosen.window[1]:
                continue
            if any(getattr(span, name) != number for name, number in places):
                continue
            if chosen.range and not any(fits(chosen.range, name) for name in span.ranges):
                continue
            if repeated and chosen.repetitions:
                number = 1 + repeated.place(span.process, span.start_ns if launch is None else launch)
                if not chosen.repetitions[0] <= number <= chosen.repetitions[1]:
                    continue
            yield each

    def _what_there_is(self) -> str:
        places: set[tuple[int, int, int]] = set()
        first = last = None
        for span in self.whole.spans():
            first, last = span.start_ns if first is None else first, span.start_ns
            places.add((span.device, span.process, span.stream))
        if first is None or last is None:
            return "it has no GPU work at all"
        numbers = zip(("GPUs", "processes", "streams"), map(set, zip(*places, strict=True)), strict=True)
        listed = "; ".join(f"{name} {', '.join(map(str, sorted(values)[:12]))}" for name, values in numbers)
        return f"there are {listed}, over {(last - first) / 1e6:.1f} ms"


def selected(profile: Profile, selection: Selection | None) -> Profile:
    """The selected part of the profile; the profile itself if the selection takes everything."""
    return profile if selection is None or selection.is_all else SelectedProfile(profile, selection)


class StepsOfKind(SelectedProfile):
    """Only the operations that start in one of the steps' windows. windows: GPU -> starts and ends, in order."""

    def __init__(
        self, profile: Profile, title: str, windows: Mapping[str, tuple[Sequence[int], Sequence[int]]]
    ) -> None:
        super().__init__(profile, Selection())
        self.warnings = list(profile.warnings)
        self.form = f"{profile.form}, {title}" if title else profile.form
        self.windows = windows

    def spans(self) -> Iterator[Span]:
        return (each[0] for each in self._selected((span,) for span in self.profile.spans()))

    def sums(self) -> list[KernelSum]:
        return sum_spans(self.spans())

    def _selected(self, launched: Iterator[Any]) -> Iterator[Any]:
        for each in launched:
            span = each[0]
            starts, ends = self.windows.get(self.profile.gpu_of(span.process, span.device), ((), ()))
            number = bisect_right(starts, span.start_ns) - 1
            if number >= 0 and span.start_ns < ends[number]:
                yield each
