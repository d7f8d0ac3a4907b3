"""Profiles in memory, for tests of arithmetic on spans and sums."""

from collections.abc import Iterable
from pathlib import Path

from kernelderby.profile.spans import ApiSum, KernelSum, Profile, Span, SpanKind


def kind_of(name):
    if name.startswith("[CUDA memcpy"):
        return SpanKind.MEMCPY
    return SpanKind.MEMSET if name.startswith("[CUDA memset") else SpanKind.KERNEL


class EventProfile(Profile):
    has_events = True

    def __init__(
        self,
        events: Iterable[Span] = (),
        calls: Iterable[ApiSum] = (),
        path: Path = Path("memory.sqlite"),
        form: str = "events in memory",
        gpu: str | None = "NVIDIA H200",
    ):
        super().__init__(path, form, gpu)
        self.events, self.calls = list(events), list(calls)

    def spans(self):
        yield from sorted(self.events, key=lambda span: (span.start_ns, span.end_ns))

    def sums(self):
        rows = {}
        for span in self.events:
            rows.setdefault((span.kind, span.name), []).append(span)
        sums = [
            KernelSum(
                kind,
                name,
                len(spans),
                sum(span.end_ns - span.start_ns for span in spans),
                bytes=sum(span.bytes for span in spans) or None,
            )
            for (kind, name), spans in rows.items()
        ]
        return sorted(sums, key=lambda row: -row.total_ns)

    def api_sums(self):
        return self.calls


class SumProfile(Profile):
    def __init__(
        self,
        rows: Iterable[KernelSum] = (),
        path: Path = Path("sums.csv"),
        form: str = "sums in memory",
        gpu: str | None = None,
    ):
        super().__init__(path, form, gpu)
        self.rows = list(rows)

    def sums(self):
        return sorted(self.rows, key=lambda row: -row.total_ns)


def timed(*work, gap=5, start=1000, **fields):
    """Spans one after another, gap ns apart. work: (name, ns) or (name, ns, ranges)."""
    spans, now = [], start
    for name, duration, *ranges in work:
        around = tuple(ranges[0]) if ranges else ()
        spans.append(Span(kind_of(name), name, now, now + duration, ranges=around, **fields))
        now += duration + gap
    return spans


def events(*work, gap=5, **fields):
    return EventProfile(events=timed(*work, gap=gap, **fields))


def sums(rows):
    """rows: name -> (instances, total ns)."""
    return SumProfile(rows=[KernelSum(kind_of(name), name, *row) for name, row in rows.items()])
