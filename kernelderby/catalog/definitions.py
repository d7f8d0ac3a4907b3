"""Definitions and their workloads: definitions/<op_type>/<name>.json (+ .py), workloads/<op_type>/<name>.jsonl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernelderby.catalog.model import Definition, TensorSpec, Tolerance, Workload
from kernelderby.errors import DerbyError
from kernelderby.fields import agree, checked, read_json, read_text, suggestion, take, take_strings
from kernelderby.trace import Cost


def load_definition(path: Path) -> Definition:
    """The definition in a JSON file. DerbyError when its path and its fields do not agree, or a field is odd."""
    data = read_json(path)
    name, op_type = take(path, data, "name", str), take(path, data, "op_type", str)
    agree(path, "name", name, path.stem)
    agree(path, "op_type", op_type, path.parent.name)
    source = path.with_name(f"{name}.py")
    has_source = source.is_file()
    reference = read_text(source) if has_source else take(path, data, "reference", str, "")
    axes = {axis: _axis(path, axis, spec) for axis, spec in take(path, data, "axes", dict).items()}
    outputs = _tensors(path, data, "outputs", axes)
    return Definition(
        name=name, op_type=op_type, axes=axes, inputs=_tensors(path, data, "inputs", axes),
        outputs=outputs, tolerances=_tolerances(path, data, outputs),
        description=take(path, data, "description", str, ""), path=path, source_path=source if has_source else None,
        reference=reference, custom_inputs_entrypoint=take(path, data, "custom_inputs_entrypoint", str, None))


def _axis(path: Path, name: str, spec: Any) -> int | None:
    kind = take(path, checked(path, f"axes.{name}", spec, dict), "type", str, prefix=f"axes.{name}.")
    if kind == "var":
        return None
    if kind != "const":
        raise DerbyError(f"{path}: axes.{name}.type: {kind!r} is unknown; write \"const\" or \"var\"")
    return take(path, spec, "value", int, prefix=f"axes.{name}.")


def _tensors(path: Path, data: dict[str, Any], field: str, axes: dict[str, int | None]) -> dict[str, TensorSpec]:
    tensors = {}
    for name, spec in take(path, data, field, dict).items():
        prefix = f"{field}.{name}."
        shape = take(path, checked(path, f"{field}.{name}", spec, dict), "shape", list, None, prefix)
        for axis in shape or ():
            if axis not in axes:
                raise DerbyError(f"{path}: {prefix}shape: {axis!r} is no axis; add it to axes or mend the shape")
        dtype = take(path, spec, "dtype", str, prefix=prefix)
        constant = take(path, spec, "constant", bool, False, prefix)
        if constant and (field != "inputs" or shape is None):
            raise DerbyError(f"{path}: {prefix}constant: is for tensors among the inputs; remove it")
        tensors[name] = TensorSpec(None if shape is None else tuple(shape), dtype, constant)
    return tensors


def _tolerances(path: Path, data: dict[str, Any], outputs: dict[str, TensorSpec]) -> tuple[Tolerance, ...]:
    tolerances = []
    for position, spec in enumerate(take(path, data, "tolerances", list, [])):
        prefix = f"tolerances[{position}]."
        checked(path, prefix[:-1], spec, dict)
        numbers = {field: float(take(path, spec, field, float, prefix=prefix))
                   for field in ("atol", "rtol", "required_matched_ratio")}
        chosen = take_strings(path, spec, "outputs", prefix)
        for output in chosen:
            if output not in outputs:
                raise DerbyError(f"{path}: {prefix}outputs: {output!r} is no output; {suggestion(output, outputs)}")
        tolerances.append(Tolerance(name=take(path, spec, "name", str, prefix=prefix), **numbers,
                                    reason=take(path, spec, "reason", str, prefix=prefix), outputs=chosen))
    return tuple(tolerances)


def load_workloads(path: Path, definition: Definition) -> list[Workload]:
    """The workloads of a definition, in the file's order; none when the file does not exist."""
    if not path.is_file():
        return []
    workloads: dict[str, Workload] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            data = checked(where, "the line", json.loads(line), dict)
        except json.JSONDecodeError as error:
            raise DerbyError(f"{where}: not JSON ({error.msg}); mend that line") from None
        workload = _workload(where, data, definition)
        if workload.uuid in workloads:
            raise DerbyError(f"{where}: workload.uuid: {workload.uuid} is there already; give this line its own")
        workloads[workload.uuid] = workload
    return list(workloads.values())


def _workload(where: str, data: dict[str, Any], definition: Definition) -> Workload:
    agree(where, "definition", take(where, data, "definition", str), definition.name)
    spec = take(where, data, "workload", dict)
    axes = take(where, spec, "axes", dict, prefix="workload.")
    inputs = take(where, spec, "inputs", dict, prefix="workload.")
    variable = {name for name, size in definition.axes.items() if size is None}
    _same_names(where, "workload.axes", axes, variable)
    _same_names(where, "workload.inputs", inputs, definition.inputs)
    for name, how in inputs.items():
        kind = take(where, checked(where, f"workload.inputs.{name}", how, dict), "type", str,
                    prefix=f"workload.inputs.{name}.")
        if kind == "scalar" and "value" not in how:
            raise DerbyError(f"{where}: workload.inputs.{name}.value: is missing; add the number")
    cost = take(where, data, "cost", dict, None)
    return Workload(definition.name, take(where, spec, "uuid", str, prefix="workload."), axes, inputs,
                    cost and _cost(where, cost), data)


def _same_names(where: str, field: str, found: dict[str, Any], wanted) -> None:
    if found.keys() != set(wanted):
        missing, extra = sorted(set(wanted) - found.keys()), sorted(found.keys() - set(wanted))
        problem = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(extra)}, which the definition has not"
        raise DerbyError(f"{where}: {field}: {problem}; mend the line")


def _cost(where: str, spec: dict[str, Any]) -> Cost:
    return Cost(take(where, spec, "flops", dict, prefix="cost."), take(where, spec, "bytes_read", int, prefix="cost."),
                take(where, spec, "bytes_written", int, prefix="cost."), take(where, spec, "facts", dict, {}, "cost."),
                take(where, spec, "bytes_needed", int, None, "cost."),
                take(where, spec, "bytes_in_place", int, None, "cost."))
