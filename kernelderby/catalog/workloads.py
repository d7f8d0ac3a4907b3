"""Workloads: workloads/<op_type>/<definition>.jsonl, one shape a line (a flashinfer-bench Trace without a solution)."""

from __future__ import annotations

import math
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from kernelderby.catalog import constraints
from kernelderby.catalog.model import Definition, TensorSpec, Workload
from kernelderby.errors import DerbyError
from kernelderby.rows.measurement import Cost
from kernelderby.store.fields import Count, Importance, Name, Size, agree, convert, expect_inner_path, read_jsonl
from kernelderby.store.files import expect_folders

BITS = {
    "bool": 8,
    "float4_e2m1": 4,
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "int8"), 8),
    **dict.fromkeys(("float16", "bfloat16", "int16"), 16),
    **dict.fromkeys(("float32", "int32"), 32),
    "int64": 64,
}
SERVING = "serving"  # origin of the shapes of servers, for contracts and loads that the published ones lack
MODELS = "models"  # origin of the shapes of named models, made by rules (shapes/)
FRESH = "fresh"  # origin of shapes that no file lists: they are described in their rows


class _Input(Struct):
    type: Literal["random", "scalar", "safetensors"]
    value: int | float | bool | None = None
    path: str | None = None
    tensor_key: Name | None = None

    def __post_init__(self) -> None:
        if self.type == "scalar" and self.value is None:
            raise ValueError("value: is missing; add the number")
        if self.type == "scalar" and isinstance(self.value, float) and abs(self.value) > 1.8e308:
            raise ValueError("value: is not finite; mend it")
        if self.type == "safetensors":
            for field in ("path", "tensor_key"):
                if getattr(self, field) is None:
                    raise ValueError(f"{field}: is missing; add where the tensor lies")
            expect_inner_path("path", self.path or "")


class _Shape(Struct):
    uuid: Name
    axes: dict[str, Size]
    inputs: dict[str, _Input]


class _Line(Struct):
    definition: Name
    workload: _Shape
    cost: Cost | None = None
    shape_id: Size | None = None
    importance: Importance | None = None
    framework: Name | None = None
    call_count: Count | None = None
    origin: Name | None = None
    generator: dict[Name, str | int | float] | None = None
    source: dict[Name, str | int] | None = None


def load_workloads(path: Path, definition: Definition, left_out: Callable[[str], None]) -> list[Workload]:
    """The workloads of a definition, in the file's order; empty without a file. left_out gets a line for a broken line,
    which is skipped."""
    expect_folders(path.parents[1], path.parent)
    if not os.path.lexists(path):
        return []
    workloads: dict[str, Workload] = {}
    for where, raw in read_jsonl(path, dict[str, Any], left_out):
        try:
            workload = workload_of(where, raw, definition)
            if workload.uuid in workloads:
                raise DerbyError(f"{where}: workload.uuid: {workload.uuid} is there already; give this line its own")
        except DerbyError as error:
            left_out(str(error))
            continue
        workloads[workload.uuid] = workload
    return list(workloads.values())


def shared(path: Path, workloads: Iterable[Workload], definition: Definition) -> Iterator[str]:
    """A line for each value that must be unique and that two workloads of a file share. Only `derby pack --check` does
    this."""
    taken: dict[object, str] = {}
    for workload in workloads:
        for field, value, among in _of_its_own(workload, definition):
            other = taken.setdefault((field, value, among), workload.uuid)
            if other != workload.uuid:
                yield (
                    f"{path}: {field}: workloads {other} and {workload.uuid} both have {value!r:.120}; "
                    "give one of them its own"
                )


def _of_its_own(workload: Workload, definition: Definition) -> Iterator[tuple[str, object, str | None]]:
    """Field, value and origin of everything that must be unique: the number in a published list (unique within the
    origin), and the files into which `derby pack` writes generated inputs."""
    if workload.shape_id is not None:
        yield "shape_id", workload.shape_id, workload.origin
    if definition.source_path is not None:
        for name, spec in workload.inputs.items():
            if spec["type"] == "safetensors":
                yield f"workload.inputs.{name}.path", posixpath.normpath(spec["path"]), None


def workload_of(where: str, raw: dict[str, Any], definition: Definition) -> Workload:
    """The workload that a line describes. where: for the DerbyError."""
    line = convert(where, raw, _Line)
    agree(where, "definition", line.definition, definition.name)
    axes, inputs = line.workload.axes, line.workload.inputs
    _same_names(where, "workload.axes", axes, {name for name, size in definition.axes.items() if size is None})
    _same_names(where, "workload.inputs", inputs, set(definition.inputs))
    for name, given in inputs.items():
        _check_input(f"{where}: workload.inputs.{name}", given, definition.inputs[name])
    sizes = definition.sizes(axes)
    for text in definition.constraints:
        if constraints.relation_holds(text, sizes) is False:
            raise DerbyError(
                f"{where}: workload.axes: {text!r:.80}, which {definition.path.name} demands, does not "
                "hold; mend the sizes"
            )
    return Workload(
        definition.name,
        line.workload.uuid,
        axes,
        raw["workload"]["inputs"],
        line.cost,
        raw,
        shape_id=line.shape_id,
        importance=line.importance,
        framework=line.framework,
        call_count=line.call_count,
        origin=line.origin,
        generator=line.generator or {},
        source=line.source or {},
    )


def tensor_bytes(definition: Definition, sizes: dict[str, int]) -> int:
    """Bytes of all inputs and outputs together. sizes: the size of every axis."""
    return sum(
        -(-math.prod(sizes[name] for name in spec.shape) * BITS[spec.dtype] // 8)
        for spec in (*definition.inputs.values(), *definition.outputs.values())
        if spec.shape is not None
    )


def _check_input(where: str, given: _Input, spec: TensorSpec) -> None:
    if given.type != "scalar":
        return
    if spec.shape is not None:
        raise DerbyError(f"{where}.type: is scalar, but the definition says a tensor; mend one of them")
    fitting = int if spec.dtype.startswith("int") else bool if spec.dtype == "bool" else (int, float)
    if not isinstance(given.value, fitting) or (isinstance(given.value, bool) and spec.dtype != "bool"):
        raise DerbyError(f"{where}.value: {given.value!r} is no {spec.dtype}; mend it")


def _same_names(where: str, field: str, found: dict[str, Any], wanted: set[str]) -> None:
    if found.keys() != wanted:
        missing, extra = sorted(wanted - found.keys()), sorted(found.keys() - wanted)
        problem = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(extra)}, which the definition has not"
        raise DerbyError(f"{where}: {field}: {problem}; mend the line")
