"""The measured shapes of an operator that are nearest to a given shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelderby.authoring.scratch import values_of
from kernelderby.catalog import Catalog, Workload
from kernelderby.errors import DerbyError
from kernelderby.store.counts import counted

_NEAREST = 3


@dataclass(frozen=True, slots=True)
class Nearest:
    """workloads: each with its distance, the nearest first. The distance is the sum of the octaves between the
    sizes."""

    asked: str
    operator: str
    workloads: tuple[tuple[Workload, float], ...]

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
        command = f"derby bench --for {self.operator} --shape {self.asked}"
        return f"{self.asked} is not measured; nearest: {near}. `{command}` measures it"


def nearest(catalog: Catalog, operator: str, asked: str) -> Nearest:
    """asked: a shape such as num_tokens=64,hidden_size=4096. DerbyError if no shape of the operator was measured."""
    definition = catalog.definition(operator)
    values = values_of(definition, asked)
    rows = catalog.traces(operator)
    passed = {row.uuid for row in rows if row.status == "passed"}
    known = [each for each in catalog.shapes(operator, rows) if each.uuid in passed]
    if not known:
        raise DerbyError(
            f"{operator}: no shape is measured; `derby bench --for {operator} --shape {asked}` measures it"
        )

    def distance(workload: Workload) -> float:
        found = {**workload.axes, **workload.scalars}
        return sum(
            abs(math.log2((float(found[name]) + 1e-9) / (float(value) + 1e-9)))
            for name, value in values.items()
            if name in found and not isinstance(value, str)
        )

    ordered = sorted(((each, distance(each)) for each in known), key=lambda each: each[1])
    return Nearest(asked, operator, tuple(ordered[:_NEAREST]))
