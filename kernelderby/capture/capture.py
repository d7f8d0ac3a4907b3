"""The operators of one or more profiles by shape, with their number of calls and their time, and the unexplained GPU
time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelderby.capture.composed import composed
from kernelderby.capture.graphs import UnmappedReplays, replayed
from kernelderby.capture.mapping import MappedCall, Mapper, UnmappedLaunch, facts_of, told
from kernelderby.capture.rules import CLASSES
from kernelderby.catalog import Catalog, Definition
from kernelderby.catalog.spaces import Sizes
from kernelderby.profile.kernels.attribution import Role, attribute
from kernelderby.profile.operators import LaunchOrigin, OperatorCall
from kernelderby.profile.spans import Profile, Span, SpanKind
from kernelderby.store.counts import counted

# Numbers of neighbours before and after, the most telling first. The last ones are for the ends of a trace.
WINDOWS = ((6, 6), (3, 3), (0, 9), (9, 0), (2, 2))
_ALIKE = 2  # a kernel without a grid has the same size as another one if their times are within this factor


@dataclass(slots=True)
class CapturedShape:
    """One definition at one size. operators: the framework's names for it. calls: number of calls. time_ns: sum of its
    kernels' durations. inferred_ns: the part whose operator was inferred from launches of the same kernel and grid."""

    definition: Definition
    sizes: Sizes
    uuid: str
    operators: dict[str, int] = field(default_factory=dict)
    calls: float = 0.0
    time_ns: int = 0
    inferred_ns: int = 0
    note: str = ""


@dataclass(slots=True)
class Unmapped:
    """GPU work of one operator and shape that matches no definition. operator: the kernel's role if the operator is
    unknown."""

    operator: str
    shape: str
    reason: str
    launches: int = 0
    time_ns: int = 0
    kernels: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capture:
    """Largest time first. total_ns: all GPU work of the profiles. shaped_ns: the part whose operator and sizes are
    known, mapped or not. graph_ns: the part that ran in CUDA graphs; joined_ns: the part of it that a recorded capture
    explains. inferred_ns: work without a launch in the file, whose operator was inferred from similar launches.
    warnings: of the readers of the files."""

    paths: tuple[Path, ...]
    gpus: tuple[str, ...]
    total_ns: int
    shaped_ns: int
    graph_ns: int
    joined_ns: int
    inferred_ns: int
    shapes: tuple[CapturedShape, ...]
    unmapped: tuple[Unmapped, ...]
    warnings: tuple[str, ...]
    replays: tuple[UnmappedReplays, ...] = ()

    @property
    def gpu(self) -> str | None:
        return next(iter(self.gpus), None)

    @property
    def mapped_ns(self) -> int:
        return sum(each.time_ns for each in self.shapes)


@dataclass(frozen=True, slots=True)
class _Launched:
    """occurrence: number of the graph replay that contains it, None outside graphs."""

    span: Span
    chain: tuple[OperatorCall, ...]
    grid: tuple[int, ...] | None
    occurrence: int | None

    @property
    def duration_ns(self) -> int:
        return self.span.end_ns - self.span.start_ns


def capture(
    catalog: Catalog, profiles: Sequence[Profile], facts: Mapping[str, Any], context: int | None = None
) -> Capture:
    """profiles: opened with operators. Profiles that hold only a graph's capture explain the replays in the others.
    facts: facts of a model. context: tokens of a decoding sequence, for traces without an annotation that gives
    them."""
    graphs = [graph for profile in profiles for graph in profile.captured_graphs()]
    tally = _Totals(catalog, facts, context)
    warnings = tuple(f"{profile.path}: {each}" for profile in profiles for each in profile.warnings)
    replays = []
    for profile in profiles:
        both = list(zip(profile.spans(), profile.issued(), strict=True))
        chains, unmapped = replayed(profile.path, both, graphs)
        replays.append(unmapped)
        tally.take(_work(both, chains))
    if graphs and not tally.total_ns:
        shown = counted(len(graphs), "CUDA graph")
        warnings += (f"only the capture of {shown}, no GPU work; name the profile of the replay too",)
    return tally.result(profiles, warnings, tuple(replays))


def _work(
    both: Sequence[tuple[Span, LaunchOrigin]], chains: Mapping[int, tuple[OperatorCall, ...]]
) -> Iterator[_Launched]:
    for place, (span, issued) in enumerate(both):
        if issued.graph is None:
            yield _Launched(span, issued.chain, issued.grid, None)
        else:
            yield _Launched(span, issued.chain or chains.get(place, ()), issued.grid, issued.graph)


class _Totals:
    def __init__(self, catalog: Catalog, facts: Mapping[str, Any], context: int | None) -> None:
        self._catalog, self._mapper, self._facts, self._context = catalog, Mapper(catalog), facts, context
        self._shapes: dict[tuple[str, str], CapturedShape] = {}
        self._unmapped: dict[tuple[str, str, str], Unmapped] = {}
        self.total_ns = self.shaped_ns = self.graph_ns = self.joined_ns = self.inferred_ns = 0

    def take(self, work: Iterator[_Launched]) -> None:
        """Takes the kernels of one profile. Kernels without an operator wait until all others are known."""
        everything = list(work)
        for each in everything:
            self.total_ns += each.duration_ns
            if each.occurrence is not None:
                self.graph_ns += each.duration_ns
                self.joined_ns += each.duration_ns if each.chain else 0
        inside = [place for place, each in enumerate(everything) if each.chain]
        found = {place: self._found(everything[place]) for place in inside}
        eager = [place for place in inside if everything[place].occurrence is None]
        parts = composed(self._catalog, [(everything[place].chain, found[place]) for place in eager])
        found |= {eager[number]: mapped for number, mapped in parts.items()}
        launches = Counter(_call(everything[place], one) for place, one in found.items())
        seen = set[object]()
        for place, one in found.items():
            call = _call(everything[place], one)
            self._add(everything[place], one, 0 if call in seen else 1)
            seen.add(call)
        cut_off = _cut_off(everything, found)
        for place, each in enumerate(everything):
            if place in found:
                continue
            like = cut_off.get(place)
            if like is None:
                self._refuse(each, UnmappedLaunch(None, _why_alone(each)))
            else:
                self.inferred_ns += each.duration_ns
                chain, one = everything[like].chain, found[like]
                self._add(replace(each, chain=chain), one, 1 / launches[_call(everything[like], one)], True)

    def _found(self, work: _Launched) -> MappedCall | UnmappedLaunch:
        known = {**self._facts, "replayed": int(work.occurrence is not None)}
        facts = facts_of(work.span.ranges, self._context, known)
        found = self._mapper.map(work.chain, facts)
        if isinstance(found, UnmappedLaunch) or any(each.type for each in found.call.operands):
            return found
        kind = attribute(work.span.name, work.span.kind).dtype  # ranges give sizes only
        wanted = {spec.dtype for spec in found.definition.inputs.values()}
        if kind is None or kind in wanted or (kind in CLASSES["half"] and wanted & set(CLASSES["half"])):
            return found
        return UnmappedLaunch(found.call, f"{kind} elements")

    def _add(
        self, work: _Launched, found: MappedCall | UnmappedLaunch, calls: float, is_inferred: bool = False
    ) -> None:
        """calls: number of calls that begin with this launch; a fraction if the launches of the call are cut off."""
        duration = work.duration_ns
        if any(call.is_shaped for call in work.chain):
            self.shaped_ns += duration
        if isinstance(found, UnmappedLaunch):
            self._refuse(work, found)
            return
        key = found.definition.name, found.uuid
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = CapturedShape(found.definition, found.sizes, found.uuid, note=found.note)
        shape.time_ns += duration
        shape.inferred_ns += duration if is_inferred else 0
        shape.calls += calls
        if calls == 1 and not is_inferred:
            shape.operators[found.call.name] = shape.operators.get(found.call.name, 0) + 1

    def _refuse(self, work: _Launched, found: UnmappedLaunch) -> None:
        span = work.span
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
        each.time_ns += work.duration_ns
        each.kernels[span.name] = each.kernels.get(span.name, 0) + work.duration_ns

    def result(
        self, profiles: Sequence[Profile], warnings: tuple[str, ...], replays: tuple[UnmappedReplays, ...]
    ) -> Capture:
        def largest(each: CapturedShape | Unmapped) -> tuple[Any, ...]:
            return -each.time_ns, str(getattr(each, "uuid", getattr(each, "operator", "")))

        return Capture(
            tuple(profile.path for profile in profiles),
            tuple(dict.fromkeys(profile.gpu for profile in profiles if profile.gpu)),
            self.total_ns,
            self.shaped_ns,
            self.graph_ns,
            self.joined_ns,
            self.inferred_ns,
            tuple(sorted(self._shapes.values(), key=largest)),
            tuple(sorted(self._unmapped.values(), key=largest)),
            warnings,
            replays,
        )


def _call(work: _Launched, found: MappedCall | UnmappedLaunch) -> tuple[int, int | None]:
    return id(found.call), work.occurrence


def _cut_off(everything: Sequence[_Launched], found: Mapping[int, MappedCall | UnmappedLaunch]) -> dict[int, int]:
    """Place of a kernel whose launch is not in the trace -> place of a kernel with the same operator: one of the same
    name and grid, if all of those agree, otherwise one of the same name between the same neighbours."""
    operators = {place: _operator(one) for place, one in found.items()}
    same: dict[tuple[str, tuple[int, ...]], dict[object, int]] = defaultdict(dict)
    for place, operator in operators.items():
        if (grid := everything[place].grid) is not None:
            same[everything[place].span.name, grid].setdefault(operator, place)
    result: dict[int, int] = {}
    streams: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for place, each in enumerate(everything):
        likely = same.get((each.span.name, each.grid), {}) if each.grid is not None else {}
        if place not in found and len(likely) == 1:
            result[place] = next(iter(likely.values()))
        if each.occurrence is None:
            streams[each.span.process, each.span.device, each.span.stream].append(place)
    for places in streams.values():
        known = [operators.get(place) for place in places]
        if None not in known:
            continue
        own = [everything[place] for place in places]
        has_grids = all(each.grid is not None for each, operator in zip(own, known, strict=True) if operator is None)
        kernels = [(each.span.name, each.grid if has_grids else None) for each in own]
        for place, like in alike(kernels, known).items():
            if (
                has_grids
                or own[place].duration_ns <= _ALIKE * own[like].duration_ns <= _ALIKE**2 * own[place].duration_ns
            ):
                result.setdefault(places[place], places[like])
    return result


def _operator(found: MappedCall | UnmappedLaunch) -> object:
    if isinstance(found, MappedCall):
        return found.definition.name, found.uuid
    return (found.call.name, told(found.call), found.reason) if found.call else found.reason


def _why_alone(work: _Launched) -> str:
    if work.occurrence is not None:
        return "in a CUDA graph whose capture is in no file"
    return "no operator around its launch in the file"


def alike(kernels: Sequence[Hashable], known: Sequence[Hashable | None]) -> dict[int, int]:
    """Place without an operator -> a place with one, if all places in equal windows agree. kernels: name with grid, of
    one stream in order. known: the operator of each, None if unknown. A model repeats its layers, so the neighbours of
    a kernel determine its operator if its own name and grid do not."""
    missing = {place for place, operator in enumerate(known) if operator is None}
    wanted = {kernels[place] for place in missing}
    found: dict[int, int] = {}
    for before, after in WINDOWS:
        seen: dict[tuple[Hashable, ...], dict[Hashable, int]] = defaultdict(dict)
        for place, window in _windows(kernels, before, after):
            operator = known[place]
            if operator is not None and kernels[place] in wanted:
                seen[window].setdefault(operator, place)
        for place, window in _windows(kernels, before, after):
            if place in missing and len(seen.get(window, ())) == 1:
                found[place] = next(iter(seen[window].values()))
        missing -= found.keys()
        if not missing:
            break
    return found


def _windows(kernels: Sequence[Hashable], before: int, after: int) -> Iterator[tuple[int, tuple[Hashable, ...]]]:
    """Every place that has this many neighbours, with the neighbours."""
    for place in range(before, len(kernels) - after):
        yield place, tuple(kernels[place - before : place + after + 1])
