"""The line of a workloads file that describes a shape, as it is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kernelderby.catalog.model import Definition
from kernelderby.catalog.spaces import Sizes


def line_of(
    definition: Definition,
    sizes: Sizes,
    generated: Collection[str],
    origin: str,
    source: Mapping[str, str | int] | None = None,
) -> dict[str, Any]:
    """generated: the inputs that generate_inputs makes; `derby pack` writes them into the file that is named here."""
    uuid = sizes.uuid(definition)
    place = f"blob/workloads/{definition.op_type}/{definition.name}/{definition.name}_{uuid}.safetensors"
    inputs: dict[str, dict[str, Any]] = {}
    for name in definition.inputs:
        if name in sizes.scalars:
            inputs[name] = {"type": "scalar", "value": sizes.scalars[name]}
        elif name in generated:
            inputs[name] = {"type": "safetensors", "path": place, "tensor_key": name}
        else:
            inputs[name] = {"type": "random"}
    axes = {name: size for name, size in sizes.axes.items() if definition.axes[name] is None}
    line: dict[str, Any] = {
        "definition": definition.name,
        "workload": {"axes": axes, "inputs": inputs, "uuid": uuid},
    }
    if sizes.generator:
        line["generator"] = sizes.generator
    line["origin"] = origin
    if source:
        line["source"] = dict(source)
    return line
