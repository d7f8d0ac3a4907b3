"""Is a captured call still right once larger ones have been made? A graph holds addresses; a solution that frees or
moves what it keeps between calls leaves its graphs writing over foreign memory."""

from __future__ import annotations

import math

from kernelderby.catalog import Catalog, Definition
from kernelderby.measure.judge.cases import Case, case_of_workload

_TIMES = 4  # as many output elements: more than what a solution's workspace may have to spare


def larger_case(catalog: Catalog, definition: Definition, case: Case) -> Case | None:
    """A workload of the definition with more outputs: rather _TIMES as many, rather with the case's widths, rather a
    small one. None where the case is the largest."""
    own = _output_elements(definition, case)
    found = []
    for workload in catalog.workloads(definition.name):
        other = case_of_workload(definition, workload)
        elements = _output_elements(definition, other)
        if elements > own:
            same = sum(other.sizes[axis] == case.sizes[axis] for axis in definition.axes)
            found.append(((elements < _TIMES * own, -same, elements), other))
    return min(found, key=lambda each: each[0])[1] if found else None


def _output_elements(definition: Definition, case: Case) -> int:
    return sum(math.prod(case.sizes[axis] for axis in spec.shape or ()) for spec in definition.outputs.values())
