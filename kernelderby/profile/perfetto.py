"""A profile as Chrome trace events, which ui.perfetto.dev opens: streams, roles and libraries as tracks of each GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernelderby.profile.kernels.attribution import attribute
from kernelderby.profile.names import short_name
from kernelderby.profile.spans import Profile, Span, SpanKind
from kernelderby.profile.steps.find import steps_of

# Thread numbers, which put the tracks in this order.
_STEPS, _STREAMS, _ROLES, _LIBRARIES = 1, 1_000, 1_000_000, 2_000_000


def trace_events(profile: Profile) -> Iterator[dict[str, Any]]:
    """Times in us from the first operation. DerbyError for a profile that has sums only.

    An operation appears on its stream, and again on the tracks of its role and its library.
    """
    tracks = _Tracks()
    origin: int | None = None
    shown: dict[tuple[SpanKind, str], tuple[str, str, str]] = {}
    for span in profile.spans():
        origin = span.start_ns if origin is None else origin
        key = span.kind, span.name
        if key not in shown:
            whose = attribute(span.name, span.kind)
            short = short_name(span.name) if span.kind is SpanKind.KERNEL else span.name
            shown[key] = short, str(whose.role), whose.library
        short, role, library = shown[key]
        gpu = tracks.gpu(profile, span)
        yield from tracks.new()
        args = {"name": span.name, "role": role, "library": library, "stream": span.stream}
        if span.bytes:
            args["bytes"] = span.bytes
        for thread in (
            tracks.thread(gpu, _STREAMS + span.stream % 100_000, f"stream {span.stream}"),
            tracks.named(gpu, _ROLES, f"role: {role}"),
            tracks.named(gpu, _LIBRARIES, f"library: {library}"),
        ):
            yield from tracks.new()
            yield _event(short, span.start_ns - origin, span.end_ns - span.start_ns, gpu, thread, args)
    found = steps_of(profile)
    for number, step in enumerate(found.steps if found.found_by else (), 1):
        gpu = tracks.keys[step.key]
        thread = tracks.thread(gpu, _STEPS, "steps")
        yield from tracks.new()
        told = {"busy_us": step.busy_ns / 1e3, "exposed_us": step.exposed_ns / 1e3, "operations": step.operations}
        yield _event(step.title or f"step {number}", step.start_ns - (origin or 0), step.wall_ns, gpu, thread, told)


def _event(name: str, start: int, length: int, gpu: int, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": start / 1e3, "dur": length / 1e3, "pid": gpu, "tid": thread, "args": args}


class _Tracks:
    """Assigns numbers to GPUs and tracks, and makes the events that name new ones."""

    def __init__(self) -> None:
        self.keys: dict[str, int] = {}
        self._threads: dict[tuple[int, str], int] = {}
        self._new: list[dict[str, Any]] = []

    def gpu(self, profile: Profile, span: Span) -> int:
        key = profile.gpu_of(span.process, span.device)
        if key not in self.keys:
            self.keys[key] = number = len(self.keys) + 1
            title = f"GPU {span.device} of process {span.process}" + (f" ({profile.gpu})" if profile.gpu else "")
            self._new.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": title}})
        return self.keys[key]

    def thread(self, gpu: int, number: int, title: str) -> int:
        known = self._threads.get((gpu, title))
        if known is None:
            known = self._threads[gpu, title] = number
            self._new.append({"ph": "M", "name": "thread_name", "pid": gpu, "tid": number, "args": {"name": title}})
            self._new.append(
                {"ph": "M", "name": "thread_sort_index", "pid": gpu, "tid": number, "args": {"sort_index": number}}
            )
        return known

    def named(self, gpu: int, base: int, title: str) -> int:
        return self.thread(gpu, base + len(self._threads), title)

    def new(self) -> list[dict[str, Any]]:
        events, self._new = self._new, []
        return events
