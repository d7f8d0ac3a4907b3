"""Every operator of a set and its shapes compared with the floors of GPUs: the tables of `derby roofline`.

Times come from two places: published ones (catalog.published, on its hardware), and our own traces. docs/scoring.md
says how every number is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain

from kernelderby.catalog import Catalog, Definition, Workload, published
from kernelderby.catalog.selection import by_origin, of_origin
from kernelderby.hardware import Gpu
from kernelderby.roofline.floors import (
    Floors,
    OperatorShare,
    WeightedShare,
    arithmetic_intensity,
    floors,
    operator_regime,
    operator_share,
    weighted_share,
)
from kernelderby.roofline.recorded import RecordedTime, RecordedTimes, recorded, with_shares
from kernelderby.store.counts import counted

PUBLISHED, TRACES = "published", "traces"


@dataclass(frozen=True, slots=True)
class Shape:
    """One workload. scalars: its whole numbers. floors: GPU id -> floors, None if the GPU lacks a peak. times:
    PUBLISHED or TRACES -> its time there. origin: the workload's origin. counted: its work was counted from the
    reference. flops_per_byte: None if the work was not counted; then there are no floors."""

    uuid: str
    shape_id: int | None
    axes: dict[str, int]
    scalars: dict[str, int]
    facts: dict[str, int]
    dtypes: tuple[str, ...]
    flops_per_byte: float | None
    floors: dict[str, Floors | None]
    times: dict[str, RecordedTime]
    origin: str | None
    counted: bool


@dataclass(frozen=True, slots=True)
class Operator:
    """One definition with workloads. importance: in percent as published. regime: C, M or I. shapes: the shapes that
    count (selection.by_origin), ordered by shape_id, or by axes without one. others: shapes of other origins, which do
    not change the operator's numbers. shares: PUBLISHED or TRACES -> S over the shapes."""

    name: str
    importance: float | None
    regime: str
    shapes: tuple[Shape, ...]
    others: tuple[Shape, ...]
    shares: dict[str, OperatorShare]

    @property
    def every(self) -> tuple[Shape, ...]:
        return self.shapes + self.others

    @property
    def middle(self) -> Shape:
        """The shape in the middle of the list, which the published survey prints beside the S of another shape."""
        return self.shapes[len(self.shapes) // 2]

    def typical(self, source: str | None) -> Shape:
        """The shape whose S is the operator's S: a row shows its floor, time and S. Without an S the middle shape."""
        share = self.shares[source].measured if source else None
        for shape in self.shapes if source and share is not None else ():
            if source in shape.times and shape.times[source].share == share:
                return shape
        return self.middle


@dataclass(frozen=True, slots=True, eq=False)
class TimeSource:
    """A source of times. published: the times of PUBLISHED, by operator and shape_id. recorded: the times of TRACES."""

    key: str
    gpu: Gpu
    published: dict[tuple[str, int], float] = field(default_factory=dict)
    recorded: RecordedTimes | None = None

    def reached(self, definition: str, workloads: Sequence[Workload]) -> dict[str, RecordedTime]:
        """uuid -> the shape's time: the published time, or the fastest solution's."""
        found = (
            self.recorded.fastest(definition)
            if self.recorded is not None
            else {
                workload.uuid: RecordedTime(self.published[key])
                for workload in workloads
                if (key := (definition, workload.shape_id)) in self.published
            }
        )
        return with_shares(self.gpu, workloads, found)


@dataclass(frozen=True, slots=True)
class Survey:
    """importance: operator -> percent, including operators that the set lacks. weighted: source -> S over all of them;
    only if all operators of the set are in the survey."""

    gpus: tuple[Gpu, ...]
    sources: tuple[TimeSource, ...]
    operators: tuple[Operator, ...]
    importance: dict[str, float]
    weighted: dict[str, WeightedShare]
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Survey({', '.join(each.id for each in self.gpus)}: {counted(len(self.operators), 'operator')})"


def survey(
    catalog: Catalog,
    gpus: Sequence[Gpu],
    names: Sequence[str] = (),
    *,
    with_traces: bool = False,
    origins: Collection[str] = (),
    protocol: str | None = None,
) -> Survey:
    """names: definitions, all of the set if empty. with_traces: our times on the first GPU, of the newest protocol
    unless one is named. origins: only workloads of these origins, and only operators that have some.

    A workload without a counted cost is left out with a warning. In a foreign set it stays, without floors and S.
    DerbyError: an unknown name or origin, no traces on the first GPU.
    """
    catalog.check_origins(origins)
    importance = published.importance(catalog.root, catalog.left_out)
    chosen = [catalog.definition(name) for name in names or catalog.definitions]
    sources = _sources(catalog, gpus, with_traces, protocol)
    workloads = {each.name: _counted(catalog, each, origins) for each in chosen}
    found = [
        _operator(definition, workloads[definition.name], gpus, sources, importance.get(definition.name))
        for definition in chosen
        if workloads[definition.name]
    ]
    if not names:
        places = {name: place for place, name in enumerate(importance)}
        found.sort(key=lambda operator: (-(operator.importance or 0), places.get(operator.name, 0), operator.name))
    if origins:
        importance = {each.name: importance[each.name] for each in found if each.name in importance}
    weighted = (
        {}
        if names
        else {
            source.key: weighted_share({operator.name: operator.shares[source.key] for operator in found}, importance)
            for source in sources
            if importance
        }
    )
    return Survey(tuple(gpus), sources, tuple(found), importance, weighted, tuple(catalog.warnings))


def _counted(catalog: Catalog, definition: Definition, origins: Collection[str]) -> list[Workload]:
    """The workloads that have a cost. One warning names the others, except those of a foreign definition, which
    stay."""
    chosen = of_origin(catalog.workloads(definition.name), origins)
    if definition.source_path is None:
        return chosen
    without = [workload.uuid for workload in chosen if workload.cost is None]
    if without:
        more = f" and of {counted(len(without) - 1, 'other')}" if without[1:] else ""
        path = catalog.workloads_path(definition.name)
        catalog.left_out(f"{path}: workload {without[0]}: cost{more}: is missing; run derby pack")
    return [workload for workload in chosen if workload.cost is not None]


def _sources(catalog: Catalog, gpus: Sequence[Gpu], with_traces: bool, protocol: str | None) -> tuple[TimeSource, ...]:
    found = [
        TimeSource(PUBLISHED, gpu, published.times_us(catalog.root, catalog.left_out))
        for gpu in gpus
        if gpu.id == published.HARDWARE
    ]
    if with_traces:
        rows = recorded(catalog.traces(), catalog.solutions, gpus[0].id, protocol)
        found.append(TimeSource(TRACES, gpus[0], recorded=rows))
    return tuple(found)


def _operator(
    definition: Definition,
    workloads: Sequence[Workload],
    gpus: Sequence[Gpu],
    sources: Sequence[TimeSource],
    importance: float | None,
) -> Operator:
    times = {source.key: source.reached(definition.name, workloads) for source in sources}
    shapes, *others = (
        tuple(
            _shape(workload, gpus, {key: own[workload.uuid] for key, own in times.items() if workload.uuid in own})
            for workload in sorted(part, key=_place)
        )
        for part in by_origin(workloads)
    )
    timed = {source.key: [shape.times.get(source.key) for shape in shapes] for source in sources}
    return Operator(
        definition.name,
        importance,
        operator_regime([each.flops_per_byte for each in shapes if each.flops_per_byte is not None]),
        shapes,
        tuple(chain.from_iterable(others)),
        shares={key: operator_share([each.share if each else None for each in own]) for key, own in timed.items()},
    )


def _place(workload: Workload) -> tuple[int, ...]:
    return -1 if workload.shape_id is None else workload.shape_id, *workload.axes.values()


def _shape(workload: Workload, gpus: Sequence[Gpu], times: dict[str, RecordedTime]) -> Shape:
    cost = workload.cost
    return Shape(
        uuid=workload.uuid,
        shape_id=workload.shape_id,
        axes=workload.axes,
        scalars={name: value for name, value in workload.scalars.items() if type(value) is int},
        facts=cost.facts if cost else {},
        dtypes=tuple(dtype for dtype, count in cost.flops.items() if count) if cost else (),
        flops_per_byte=arithmetic_intensity(cost) if cost else None,
        floors={gpu.id: floors(cost, gpu) if cost else None for gpu in gpus},
        times=times,
        origin=workload.origin,
        counted=cost is not None and cost.counted,
    )
