"""The measured shapes of an operator that are nearest to a given shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelderby.authoring.scratch import free_axes, values_of, with_determined
from kernelderby.catalog import Catalog, Definition, Workload
from kernelderby.errors import DerbyError
from kernelderby.rows.measurement import Measurement
from kernelderby.store.counts import counted

_NEAREST = 3


@dataclass(frozen=True, slots=True)
class Nearest:
    """workloads: each with its distance, the nearest first. The distance is the sum of the octaves between the
    sizes."""

    asked: str
    operator: str
    workloads: tuple[tuple[Workload, float], ...]
    shape: str = ""  # as asked, with the sizes that it lacks from the nearest

    def __repr__(self) -> str:
        return f"Nearest({self.asked!r} of {self.operator}: {counted(len(self.workloads), 'workload')})"

    @property
    def is_measured(self) -> bool:
        return not self.workloads[0][1]

    @property
    def uuids(self) -> tuple[str, ...]:
        chosen = self.workloads[:1] if self.is_measured else self.workloads
        return tuple(workload.uuid for workload, _ in chosen)

    def __str__(self) -> str:
        if self.is_measured:
            return f"{self.asked} is measured"
        near = "; ".join(
            f"{' '.join(f'{name}={size}' for name, size in workload.axes.items())} ({2**distance:.2g} x away)"
            for workload, distance in self.workloads
        )
        command = f"derby bench --for {self.operator} --shape {self.shape}"
        return f"{self.asked} is not measured; nearest: {near}. `{command}` measures it"


def nearest(catalog: Catalog, operator: str, asked: str) -> Nearest:
    """asked: a shape such as num_tokens=64,hidden_size=4096. DerbyError if no shape of the operator was measured."""
    definition = catalog.definition(operator)
    values = values_of(definition, asked)
    known = measured(catalog, operator, catalog.traces(operator))
    if not known:
        shape = completed(definition, values, catalog.workloads(operator)[:1])
        raise DerbyError(
            f"{operator}: no shape is measured; `derby bench --for {operator} --shape {shape}` measures it"
        )

    found = nearest_of(known, values)
    return Nearest(asked, operator, found, completed(definition, values, [found[0][0]]))


def measured(catalog: Catalog, operator: str, rows: Sequence[Measurement]) -> list[Workload]:
    """The shapes of the operator that a solution passed. rows: all rows of the operator."""
    passed = {row.uuid for row in rows if row.status == "passed"}
    return [each for each in catalog.shapes(operator, rows) if each.uuid in passed]


def nearest_of(known: Sequence[Workload], values: Mapping[str, Any]) -> tuple[tuple[Workload, float], ...]:
    """The nearest shapes with their distances, as in Nearest; of equally near ones the first known."""

    def distance(workload: Workload) -> float:
        found = {**workload.axes, **workload.scalars}
        return sum(
            abs(math.log2((float(found[name]) + 1e-9) / (float(value) + 1e-9)))
            for name, value in values.items()
            if name in found and not isinstance(value, str)
        )

    return tuple(sorted(((each, distance(each)) for each in known), key=lambda each: each[1])[:_NEAREST])


def completed(definition: Definition, values: Mapping[str, Any], like: Sequence[Workload]) -> str:
    """A --shape of these values; the sizes that they lack are those of another workload."""
    sizes = dict.fromkeys(free_axes(definition), 64)
    sizes |= {name: size for each in like for name, size in each.axes.items() if name in sizes}
    told = with_determined(definition, values)
    needed = {name: value for name, value in {**sizes, **values}.items() if name in values or name not in told}
    return ",".join(f"{name}={value}" for name, value in needed.items())
