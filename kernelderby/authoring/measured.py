"""Which shapes of a new operator are measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress

from kernelderby.authoring.formulas import NoSize, all_sizes
from kernelderby.authoring.words import Tensor, axis_of, demands_of, formulas_of
from kernelderby.catalog import constraints
from kernelderby.catalog.workloads import BITS

USUAL_BYTES = 1 << 28  # of one shape with default sizes
_LARGEST = 4 << 30  # of one shape; the judge holds two sets of its inputs and outputs


def small_enough(
    tensors: Sequence[Tensor], sizes: Mapping[str, tuple[int, ...]], given: Container[str]
) -> dict[str, tuple[int, ...]]:
    """tensors: inputs and outputs. Shrinks the sizes that were not given until the largest shape needs at most
    USUAL_BYTES, the first axis first."""
    found, formulas = dict(sizes), formulas_of(tensors)
    free = [axis for axis in found if axis not in given]
    with suppress(NoSize):
        while _bytes(tensors, all_sizes({axis: max(each) for axis, each in found.items()}, formulas)) > USUAL_BYTES:
            several = [axis for axis in free if len(found[axis]) > 1]
            axis = several[0] if several else max(free, key=lambda each: max(found[each]), default="")
            if not axis or max(found[axis]) == 1:
                break
            found[axis] = tuple(dict.fromkeys(max(1, size // (4 if several else 2)) for size in found[axis]))
    return found


def shapes(tensors: Sequence[Tensor], sizes: Mapping[str, tuple[int, ...]]) -> tuple[list[dict[str, int]], list[str]]:
    """Every combination, with the sizes that follow. Also a line for each one that cannot be measured."""
    found, left_out = [], []
    for values in itertools.product(*sizes.values()):
        var = dict(zip(sizes, values, strict=True))
        told = " ".join(f"{name}={size}" for name, size in var.items())
        try:
            every = all_sizes(var, formulas_of(tensors))
        except NoSize as problem:
            left_out.append(f"{told}: {problem}; left out")
            continue
        broken = [demand for demand in demands_of(tensors) if constraints.relation_holds(demand, every) is False]
        if broken:
            left_out.append(f"{told}: {broken[0]} does not hold; left out, give other --size")
            continue
        if (nbytes := _bytes(tensors, every)) > _LARGEST:
            left_out.append(f"{told}: {nbytes / 1e9:.0f} GB of inputs and outputs; left out, give smaller --size")
        else:
            found.append(every)
    return found, left_out


def _bytes(tensors: Sequence[Tensor], sizes: Mapping[str, int]) -> int:
    return sum(
        math.prod(part if isinstance(part, int) else sizes[axis_of(part)] for part in each.shape)
        * BITS[each.dtype]
        // 8
        for each in tensors
        if each.shape is not None
    )
