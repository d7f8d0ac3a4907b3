"""The kernels for a model: for every shape that it implies, the fastest solution at the nearest measured shape."""

from __future__ import annotations

from dataclasses import dataclass

from kernelderby.roofline.selection import Group
from kernelderby.store.counts import counted


@dataclass(frozen=True, slots=True)
class ShapeKernel:
    """label: the sizes that tell the operator's shapes apart. shape: as for `derby rank OPERATOR --shape`. away: the
    product of the ratios of its sizes to those of the measured shape, 1 at the same sizes. measured_at, workload: the
    measured shape and its uuid. library: the author of the best library's solution. ratio: the library's time over that
    of the fastest solution. has_faster_former: former code was faster there. missing: why there is no solution; then
    the later fields are empty."""

    operator: str
    label: str
    shape: str
    missing: str = ""
    away: float | None = None
    measured_at: str = ""
    workload: str = ""
    solution: str = ""
    time_us: float | None = None
    library: str = ""
    library_solution: str = ""
    library_us: float | None = None
    ratio: float | None = None
    has_faster_former: bool = False


@dataclass(frozen=True, slots=True)
class ModelKernels:
    """time: the kind of time. shapes: operator by operator."""

    model: str
    tensor_parallel: int
    group: Group
    time: str
    shapes: tuple[ShapeKernel, ...]

    def __repr__(self) -> str:
        shapes = counted(len(self.shapes), "shape")
        return f"ModelKernels({self.model!r} on {self.tensor_parallel}, {self.group.gpu}: {shapes})"
