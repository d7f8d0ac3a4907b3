"""Every operator of a set and every shape of it against the floors of GPUs: the tables of `derby roofline`.

Times come from two places: as published (catalog.published, on its hardware) and from our own traces. docs/scoring.md
says how every number is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelderby.catalog import Catalog, Definition, Workload, published
from kernelderby.errors import DerbyError
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
from kernelderby.roofline.recorded import Reached, Recorded, recorded
from kernelderby.trace import Cost

PUBLISHED, TRACES = "published", "traces"


@dataclass(frozen=True, slots=True)
class Shape:
    """One workload. scalars: its whole numbers. floors: GPU id -> floors, None where the GPU lacks a peak.
    times: PUBLISHED or TRACES -> its time there."""

    uuid: str
    shape_id: int | None
    axes: dict[str, int]
    scalars: dict[str, int]
    facts: dict[str, int]
    dtypes: tuple[str, ...]
    flops_per_byte: float
    floors: dict[str, Floors | None]
    times: dict[str, Reached]


@dataclass(frozen=True, slots=True)
class Operator:
    """One definition with workloads. importance: in percent as published. regime: C, M or I. shapes: in the order of
    their shape_id, by axes where they have none. shares: PUBLISHED or TRACES -> S over the shapes; ceiling_shares: the
    same against measured ceilings, where there are any."""

    name: str
    importance: float | None
    regime: str
    shapes: tuple[Shape, ...]
    shares: dict[str, OperatorShare]
    ceiling_shares: dict[str, OperatorShare]

    @property
    def middle(self) -> Shape:
        """The shape in the middle of the list, whose floors and times stand for the operator's; S does not."""
        return self.shapes[len(self.shapes) // 2]


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Where times come from. published: of PUBLISHED, by operator and shape_id; recorded: of TRACES."""

    key: str
    gpu: Gpu
    published: dict[tuple[str, int], float] = field(default_factory=dict)
    recorded: Recorded | None = None

    def reached(self, definition: str, workloads: Sequence[Workload]) -> dict[str, Reached]:
        """uuid -> the shape's time: the published one, or that of the fastest solution."""
        found = (
            self.recorded.fastest(definition)
            if self.recorded is not None
            else {
                workload.uuid: Reached(self.published[key])
                for workload in workloads
                if (key := (definition, workload.shape_id)) in self.published
            }
        )
        return {
            workload.uuid: found[workload.uuid].against(self.gpu, workload.cost)
            for workload in workloads
            if workload.uuid in found
        }


@dataclass(frozen=True, slots=True)
class Survey:
    """importance: operator -> percent, also of operators that the set lacks. weighted: source -> S over all of them,
    only where every operator of the set was asked for."""

    gpus: tuple[Gpu, ...]
    sources: tuple[Source, ...]
    operators: tuple[Operator, ...]
    importance: dict[str, float]
    weighted: dict[str, WeightedShare]
    warnings: tuple[str, ...]


def survey(catalog: Catalog, gpus: Sequence[Gpu], names: Sequence[str] = (), *, with_traces: bool = False) -> Survey:
    """names: definitions, all of the set when empty. with_traces: our times on the first of the GPUs.

    DerbyError: an unknown name, a workload whose cost was not counted, no traces on the first GPU.
    """
    importance = published.importance(catalog.root, catalog.left_out)
    chosen = [catalog.definition(name) for name in names or catalog.definitions]
    sources = _sources(catalog, gpus, with_traces)
    found = [
        _operator(catalog, definition, gpus, sources, importance.get(definition.name))
        for definition in chosen
        if catalog.workloads(definition.name)
    ]
    if not names:
        places = {name: place for place, name in enumerate(importance)}
        found.sort(key=lambda operator: (-(operator.importance or 0), places.get(operator.name, 0), operator.name))
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


def _sources(catalog: Catalog, gpus: Sequence[Gpu], with_traces: bool) -> tuple[Source, ...]:
    found = [
        Source(PUBLISHED, gpu, published.times_us(catalog.root, catalog.left_out))
        for gpu in gpus
        if gpu.id == published.HARDWARE
    ]
    if with_traces:
        rows = recorded(catalog.traces(), catalog.solutions, gpus[0].id)
        found.append(Source(TRACES, gpus[0], recorded=rows))
    return tuple(found)


def _operator(
    catalog: Catalog, definition: Definition, gpus: Sequence[Gpu], sources: Sequence[Source], importance: float | None
) -> Operator:
    workloads = sorted(catalog.workloads(definition.name), key=_place)
    for workload in workloads:
        _cost(catalog, workload)
    times = {source.key: source.reached(definition.name, workloads) for source in sources}
    shapes = tuple(
        _shape(
            workload,
            _cost(catalog, workload),
            gpus,
            {key: own[workload.uuid] for key, own in times.items() if workload.uuid in own},
        )
        for workload in workloads
    )
    timed = {source.key: [shape.times.get(source.key) for shape in shapes] for source in sources}
    return Operator(
        definition.name,
        importance,
        operator_regime([shape.flops_per_byte for shape in shapes]),
        shapes,
        shares={key: operator_share([each.share if each else None for each in own]) for key, own in timed.items()},
        ceiling_shares={
            source.key: operator_share([each.share_of_ceilings if each else None for each in timed[source.key]])
            for source in sources
            if source.gpu.measured
        },
    )


def _cost(catalog: Catalog, workload: Workload) -> Cost:
    if workload.cost is None:
        path = catalog.workloads_path(workload.definition)
        raise DerbyError(f"{path}: workload {workload.uuid}: cost: is missing; run derby pack")
    return workload.cost


def _place(workload: Workload) -> tuple[int, ...]:
    return -1 if workload.shape_id is None else workload.shape_id, *workload.axes.values()


def _shape(workload: Workload, cost: Cost, gpus: Sequence[Gpu], times: dict[str, Reached]) -> Shape:
    return Shape(
        uuid=workload.uuid,
        shape_id=workload.shape_id,
        axes=workload.axes,
        scalars={name: value for name, value in workload.scalars.items() if type(value) is int},
        facts=cost.facts,
        dtypes=tuple(dtype for dtype, count in cost.flops.items() if count),
        flops_per_byte=arithmetic_intensity(cost),
        floors={gpu.id: floors(cost, gpu) for gpu in gpus},
        times=times,
    )
