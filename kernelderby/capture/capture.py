"""The operators of one or more profiles by shape: how often, for how long; and the GPU time that nothing explains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelderby.capture.composed import composed
from kernelderby.capture.facts import facts_of
from kernelderby.capture.graphs import replayed
from kernelderby.capture.mapping import Mapped, Mapper, Refused, told
from kernelderby.catalog import Catalog, Definition
from kernelderby.catalog.spaces import Sizes
from kernelderby.profile.kernels.attribution import Role, attribute
from kernelderby.profile.operators import Issued, OperatorCall
from kernelderby.profile.spans import Profile, Span, SpanKind

HALF = ("bfloat16", "float16")
# Kernel and grid -> definition and uuid (None: no definition) -> its launches, and the calls that began with one.
_Known = dict[tuple[str, tuple[int, ...]], dict[tuple[str, str] | None, list[int]]]


@dataclass(slots=True)
class CapturedShape:
    """One definition at one size. operators: the framework's names of it. calls: how often. time_ns: of its kernels,
    one after another. inferred_ns: the part whose operator was taken from launches of the same kernel and grid."""

    definition: Definition
    sizes: Sizes
    uuid: str
    operators: dict[str, int] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    calls: float = 0.0
    time_ns: int = 0
    inferred_ns: int = 0
    note: str = ""


@dataclass(slots=True)
class Unmapped:
    """GPU work of one operator and shape that is no definition. operator: the kernel's role where none is known."""

    operator: str
    shape: str
    reason: str
    launches: int = 0
    time_ns: int = 0
    kernels: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capture:
    """Largest time first. total_ns: all GPU work of the profiles. shaped_ns: the part whose operator told its sizes,
    mapped or not. graph_ns: the part that ran in CUDA graphs; joined_ns: of it, what a recorded capture explains."""

    paths: tuple[Path, ...]
    gpu: str | None
    total_ns: int
    shaped_ns: int
    graph_ns: int
    joined_ns: int
    shapes: tuple[CapturedShape, ...]
    unmapped: tuple[Unmapped, ...]
    warnings: tuple[str, ...]

    @property
    def mapped_ns(self) -> int:
        return sum(each.time_ns for each in self.shapes)


@dataclass(frozen=True, slots=True)
class _Launched:
    """occurrence: which replay of a graph it is of, None outside of graphs."""

    span: Span
    chain: tuple[OperatorCall, ...]
    grid: tuple[int, ...] | None
    occurrence: int | None


def capture(
    catalog: Catalog, profiles: Sequence[Profile], facts: Mapping[str, Any], context: int | None = None
) -> Capture:
    """profiles: opened with operators; those that hold only a graph's capture explain the others' replays. facts: of a
    model. context: tokens of a decoding sequence, where no annotation tells them."""
    graphs = [graph for profile in profiles for graph in profile.captured_graphs()]
    tally = _Totals(catalog, facts, context)
    gpus = dict.fromkeys(profile.gpu for profile in profiles if profile.gpu)
    warnings = [f"{profile.path}: {each}" for profile in profiles for each in profile.warnings]
    for profile in profiles:
        both = list(zip(profile.spans(), profile.issued(), strict=True))
        chains, told_of_graphs = replayed(both, graphs)
        warnings += [f"{profile.path}: {each}" for each in told_of_graphs]
        tally.take(_work(both, chains))
    if len(gpus) > 1:
        warnings.append(f"the profiles are of several GPUs: {', '.join(gpus)}")
    return tally.result(tuple(profile.path for profile in profiles), next(iter(gpus), None), tuple(warnings))


def _work(both: Sequence[tuple[Span, Issued]], chains: Mapping[int, tuple[OperatorCall, ...]]) -> Iterator[_Launched]:
    for place, (span, issued) in enumerate(both):
        if issued.graph is None:
            yield _Launched(span, issued.chain, issued.grid, None)
        else:
            yield _Launched(span, chains.get(place, ()), issued.grid, issued.graph)


class _Totals:
    def __init__(self, catalog: Catalog, facts: Mapping[str, Any], context: int | None) -> None:
        self._catalog, self._mapper, self._facts, self._context = catalog, Mapper(catalog), facts, context
        self._shapes: dict[tuple[str, str], CapturedShape] = {}
        self._unmapped: dict[tuple[str, str, str], Unmapped] = {}
        self.total_ns = self.shaped_ns = self.graph_ns = self.joined_ns = 0

    def take(self, work: Iterator[_Launched]) -> None:
        """The kernels of one profile; those without an operator wait until all others are known."""
        alone: list[_Launched] = []
        inside: list[_Launched] = []
        for each in work:
            duration = each.span.end_ns - each.span.start_ns
            self.total_ns += duration
            if each.occurrence is not None:
                self.graph_ns += duration
                self.joined_ns += duration if each.chain else 0
            (inside if each.chain else alone).append(each)
        found = [self._found(each) for each in inside]
        eager = [place for place, each in enumerate(inside) if each.occurrence is None]
        parts = composed(self._catalog, [(inside[place].chain, found[place]) for place in eager])
        for number, mapped in parts.items():
            found[eager[number]] = mapped
        known: _Known = {}
        counted: set[tuple[int, int | None]] = set()
        for each, one in zip(inside, found, strict=True):
            is_new = isinstance(one, Mapped) and (id(one.call), each.occurrence) not in counted
            if isinstance(one, Mapped):
                counted.add((id(one.call), each.occurrence))
            key = self._add(each, one, each.span.end_ns - each.span.start_ns, is_new)
            if each.grid is not None:
                tally = known.setdefault((each.span.name, each.grid), {}).setdefault(key, [0, 0])
                tally[0] += 1
                tally[1] += is_new
        for each in alone:
            self._infer(each, known)

    def _found(self, work: _Launched) -> Mapped | Refused:
        known = {**self._facts, "replayed": int(work.occurrence is not None)}
        facts = facts_of(work.span.ranges, self._context, known)
        found = self._mapper.map(work.chain, facts)
        if isinstance(found, Refused) or any(each.type for each in found.call.operands):
            return found
        kind = attribute(work.span.name, work.span.kind).dtype  # ranges tell sizes alone
        wanted = {spec.dtype for spec in found.definition.inputs.values()}
        if kind is None or kind in wanted or (kind in HALF and wanted & set(HALF)):
            return found
        return Refused(found.call, f"{kind} elements")

    def _add(self, work: _Launched, found: Mapped | Refused, duration: int, is_new: bool) -> tuple[str, str] | None:
        if any(call.is_shaped for call in work.chain):
            self.shaped_ns += duration
        if isinstance(found, Refused):
            self._refuse(work.span, found, duration)
            return None
        key = found.definition.name, found.uuid
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = CapturedShape(found.definition, found.sizes, found.uuid, note=found.note)
        shape.time_ns += duration
        shape.kernels[work.span.name] = shape.kernels.get(work.span.name, 0) + duration
        if is_new:
            shape.calls += 1
            shape.operators[found.call.name] = shape.operators.get(found.call.name, 0) + 1
        return key

    def _infer(self, work: _Launched, known: _Known) -> None:
        """The operator of the launches of the same kernel with the same grid, where they agree on it."""
        duration = work.span.end_ns - work.span.start_ns
        likely = known.get((work.span.name, work.grid), {}) if work.grid is not None else {}
        keys = [key for key in likely if key is not None]
        if len(likely) != 1 or not keys:
            self._refuse(work.span, Refused(None, _why_alone(work)), duration)
            return
        shape = self._shapes[keys[0]]
        launches, calls = likely[keys[0]]
        shape.calls += calls / launches
        shape.time_ns += duration
        shape.inferred_ns += duration
        shape.kernels[work.span.name] = shape.kernels.get(work.span.name, 0) + duration
        self.shaped_ns += duration

    def _refuse(self, span: Span, found: Refused, duration: int) -> None:
        if found.call is None:
            role = attribute(span.name, span.kind).role
            name = (
                span.name if span.kind is not SpanKind.KERNEL else str(role if role is not Role.UNKNOWN else "kernels")
            )
            key = name, "", found.reason
        else:
            key = found.call.name, told(found.call), found.reason
        each = self._unmapped.setdefault(key, Unmapped(*key))
        each.launches += 1
        each.time_ns += duration
        each.kernels[span.name] = each.kernels.get(span.name, 0) + duration

    def result(self, paths: tuple[Path, ...], gpu: str | None, warnings: tuple[str, ...]) -> Capture:
        def largest(each: CapturedShape | Unmapped) -> tuple[Any, ...]:
            return -each.time_ns, str(getattr(each, "uuid", getattr(each, "operator", "")))

        return Capture(
            paths,
            gpu,
            self.total_ns,
            self.shaped_ns,
            self.graph_ns,
            self.joined_ns,
            tuple(sorted(self._shapes.values(), key=largest)),
            tuple(sorted(self._unmapped.values(), key=largest)),
            tuple(dict.fromkeys(warnings)),
        )


def _why_alone(work: _Launched) -> str:
    if work.occurrence is not None:
        return "in a CUDA graph whose capture is in no file"
    return "no operator around its launch in the file"
