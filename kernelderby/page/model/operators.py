"""Operators, their shapes and solutions, GPUs, and authors over all operators."""

from __future__ import annotations

from msgspec import Struct


class ShownGpu(Struct, frozen=True):
    """One GPU. rows: 0 if nothing was recorded on it; then only floors are known. ceilings: its measured rates."""

    id: str
    name: str
    rows: int
    memory_bytes_per_second: float | None = None
    flops_per_second: dict[str, float] = {}
    ceiling_bytes_per_second: float | None = None
    ceiling_flops_per_second: dict[str, float] = {}
    source: str = ""
    date: str = ""


class ShownShape(Struct, frozen=True, array_like=True):
    """One workload. label: short, see operators.labels; axes: all of them, and the scalars. floors: for each GPU of the
    page [us, regime] or None. floor_flops: flop/s at each floor."""

    uuid: str
    label: str
    axes: str
    shape_id: int | None
    origin: str
    flops: float | None
    bytes: float | None
    flops_per_byte: float | None
    floors: tuple[tuple[float, str] | None, ...]
    floor_flops: tuple[float | None, ...]


class ShownSolution(Struct, frozen=True):
    """needs: its requirements on a machine, in words. path: its folder in the set."""

    name: str
    definition: str
    author: str
    language: str
    description: str
    needs: str
    path: str


class ShownOperator(Struct, frozen=True):
    """One definition. regime: C, M or I; empty without counted costs. races: GPU -> places in the page's races, the
    default race first."""

    name: str
    op_type: str
    description: str
    dtypes: tuple[str, ...]
    importance: float | None
    regime: str
    shapes: tuple[ShownShape, ...]
    races: dict[str, tuple[int, ...]]


class ShownScore(Struct, frozen=True):
    """An author over all operators, weighted by importance. everywhere: missing operators count as 0."""

    gpu: str
    protocol: str
    author: str
    share: float | None
    share_everywhere: float
    fair: float | None
    fair_everywhere: float
    operators: int
    of_operators: int
    weight: float
    shapes: int
    of_shapes: int
