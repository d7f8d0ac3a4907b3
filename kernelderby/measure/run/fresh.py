"""Shapes that no file holds, drawn by a session's secret from the definitions' AXES_SPACE (catalog/spaces.py)."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelderby.catalog import Catalog, Definition, Workload
from kernelderby.catalog.spaces import Sizes, UnfitDraw, draw, line_of
from kernelderby.catalog.workloads import FRESH, tensor_bytes, workload_of
from kernelderby.errors import DerbyError
from kernelderby.measure.judge.blobs import count, generate
from kernelderby.measure.judge.cases import Case
from kernelderby.measure.judge.definition import Uncountable, module_of
from kernelderby.measure.judge.fenced import FencedDefinitions
from kernelderby.measure.run.plan import solutions_of_each
from kernelderby.measure.wire.replies import ShapesDrawn

_TRIES = 2000  # maximum draws for one shape
_LEAST_OUTPUTS = 16  # values: with fewer, it is chance whether most are within a tolerance


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one shape: bytes of inputs and outputs (the judge holds two sets, the reference copies in float32),
    and flops of one call, which the reference computes slowly."""

    nbytes: int
    flops: float


LIMITS = {"cuda": Limits(2 << 30, 1e13), "cpu": Limits(2 << 20, 2e8)}


@dataclass(frozen=True, slots=True)
class FreshShape:
    """workload: of origin `fresh`, with its cost. On a CPU its const axes may differ from the definition's."""

    sizes: Sizes
    workload: Workload

    def case(self) -> Case:
        sizes, told = self.sizes, self.workload.axes | self.sizes.scalars | self.sizes.generator
        label = " ".join(f"{name}={size}" for name, size in told.items() if type(size) is not float)
        label = f"{label} fresh {self.workload.uuid[:8]}"
        return Case(label, sizes.axes, sizes.scalars, self.workload.seed, generator=sizes.generator)


def fresh_shapes(
    catalog: Catalog, definition: Definition, module: ModuleType, secret: str, count: int, device: str
) -> tuple[FreshShape, ...]:
    """The first `count` shapes that the secret draws for the definition; a larger count begins with the same shapes.
    module: the definition's code. device: "cuda", or "cpu" for small shapes. DerbyError without an AXES_SPACE, or if it
    gives no shape."""
    space = getattr(module, "AXES_SPACE", None)
    if not isinstance(space, dict):
        raise DerbyError(
            f"{definition.place}: has no AXES_SPACE, so no fresh shape can be drawn; add it (docs/shapes.md)"
        )
    const: dict[str, Any] = {}
    if device == "cpu":
        const = getattr(module, "SMALL_AXES", {})
        space = {**space, **getattr(module, "SMALL_SPACE", {})}
    digest = hashlib.sha256(f"{secret}/fresh/{definition.name}/{device}".encode()).digest()
    uniform = random.Random(int.from_bytes(digest, "big")).random
    taken = {_place(each.axes, each.scalars, each.generator) for each in catalog.workloads(definition.name)}
    found: list[FreshShape] = []
    while len(found) < count:
        for _ in range(_TRIES):
            try:
                shape = fresh_shape(definition, module, draw(definition, space, uniform, const), LIMITS[device], taken)
            except UnfitDraw:
                continue
            found.append(shape)
            taken.add(_place(shape.workload.axes, shape.sizes.scalars, shape.sizes.generator))
            break
        else:
            raise DerbyError(
                f"{definition.place}: AXES_SPACE: {_TRIES} draws gave no shape that is new, keeps the constraints and "
                "fits into memory; widen it"
            )
    return tuple(found)


def fresh_workloads(
    catalog: Catalog, solutions: Collection[str], definitions: Collection[str], secret: str, count: int
) -> dict[str, list[Workload]]:
    """For a race on a GPU: `count` shapes of each definition (default: all) that one of the solutions (default: all)
    computes. Drawn in a worker behind the fences, since a cluster's driver has no fence."""
    wanted = map(catalog.definition, solutions_of_each(catalog, solutions, definitions))
    with FencedDefinitions(catalog) as fenced:
        return {each.name: [_workload(each, line) for line in fenced.fresh(each, secret, count)] for each in wanted}


def drawn_in_worker(root: Path, definition: str, secret: str, count: int) -> ShapesDrawn:
    """Called by FencedDefinitions.fresh()."""
    catalog = Catalog.open(root)
    chosen = catalog.definition(definition)
    shapes = fresh_shapes(catalog, chosen, module_of(chosen), secret, count, "cuda")
    return ShapesDrawn(tuple(shape.workload.raw for shape in shapes))


def _place(axes: dict[str, int], scalars: dict[str, Any], generator: dict[str, Any]) -> str:
    return repr([sorted(axes.items()), sorted(scalars.items()), sorted(generator.items())])


def fresh_shape(
    definition: Definition, module: ModuleType, sizes: Sizes, limits: Limits, taken: Collection[str] = ()
) -> FreshShape:
    """A fresh shape of these sizes. UnfitDraw if it is listed, too large or too small, or no inputs agree with it."""
    var = {name: size for name, size in sizes.axes.items() if definition.axes[name] is None}
    if _place(var, sizes.scalars, sizes.generator) in taken:
        raise UnfitDraw
    outputs = sum(math.prod(sizes.axes[axis] for axis in each.shape or ()) for each in definition.outputs.values())
    if outputs < _LEAST_OUTPUTS or tensor_bytes(definition, sizes.axes) > limits.nbytes:
        raise UnfitDraw
    workload = _workload(definition, line_of(definition, sizes, (), FRESH))
    try:
        tensors = generate(definition, module, workload, sizes.axes)
    except ValueError:
        raise UnfitDraw from None
    line = line_of(definition, sizes, tensors, FRESH)
    try:
        line["cost"] = count(definition, module, workload, tensors, sizes.axes)
    except Uncountable as error:
        raise DerbyError(f"{definition.place}: count_cost: is missing, and {error}; add it") from None
    if sum(line["cost"]["flops"].values()) > limits.flops:
        raise UnfitDraw
    return FreshShape(sizes, _workload(definition, line))


def _workload(definition: Definition, line: dict[str, Any]) -> Workload:
    return workload_of(f"a fresh shape of {definition.name}", line, definition)
