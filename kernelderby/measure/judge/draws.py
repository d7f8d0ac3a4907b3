"""Inputs other than normal numbers, for one more round of the check each: a definition's INPUT_DRAWS.

A draw is a dict. The name of an input goes with a factor, "plus N" or "same" (every element as the first); any other
name is a value for generate_inputs, such as {"routing": "few"}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from msgspec import structs

from kernelderby.catalog import Definition
from kernelderby.measure.judge.checksums import bytes_of
from kernelderby.measure.judge.definition import DefinitionFailed

Draw = Mapping[str, float | str]
NORMAL: Draw = MappingProxyType({})
# A round of every check, whatever the definition names: among normal rows one of zeros, one of a single value, and one
# so large that little of an error is rounding's.
ODD_ROWS: Draw = MappingProxyType({"odd rows": ""})  # no name of an input
_VALUE, _LARGE = 1.0, 4.0


def of_definition(definition: Definition, module: ModuleType) -> tuple[Draw, ...]:
    """Its INPUT_DRAWS. DefinitionFailed if they are none."""
    found = getattr(module, "INPUT_DRAWS", ())
    for draw in found if isinstance(found, (list, tuple)) else [found]:
        if not isinstance(draw, Mapping):
            raise _failed(definition, f"{draw!r:.40} is no dict of draws")
        for name, how in draw.items():
            spec = definition.inputs.get(name)
            if not isinstance(how, (int, float, str)) or (spec is not None and spec.shape is None):
                raise _failed(definition, f"{name!r:.40}: {how!r:.40} changes no tensor")
            if spec is not None and isinstance(how, str) and how != "same":
                _summand(definition, name, how)
    return tuple(found)


def _summand(definition: Definition, name: str, how: str) -> float:
    try:
        if how.startswith("plus "):
            return float(how.removeprefix("plus "))
    except ValueError:
        pass
    raise _failed(definition, f'{name}: {how!r:.40} is neither a number nor "plus N" nor "same"')


def _failed(definition: Definition, told: str) -> DefinitionFailed:
    return DefinitionFailed(f"{definition.place}: INPUT_DRAWS: {told}; mend the definition")


def told(draw: Draw) -> str:
    if draw is ODD_ROWS:
        return "rows of zeros, of one value and of large numbers"
    return ", ".join(
        f"{name} x {how:g}" if isinstance(how, (int, float)) else f"{name} {how}" for name, how in draw.items()
    )


def of_generator(definition: Definition, draw: Draw) -> dict[str, float | str]:
    """The part that generate_inputs gets."""
    return {name: how for name, how in draw.items() if name not in definition.inputs and draw is not ODD_ROWS}


def bounded(definition: Definition, draw: Draw) -> Definition:
    """With the bounds of that draw. Among rows so large, what rounding leaves where terms cancel is as much larger: an
    honest bfloat16 state stage would fail one draw in seven by the bounds of normal numbers."""
    if draw is not ODD_ROWS:
        return definition
    return replace(
        definition, tolerances=tuple(structs.replace(each, atol=each.atol * _LARGE) for each in definition.tolerances)
    )


def odd_rows(definition: Definition, inputs: dict[str, Any], names: Iterable[str]) -> None:
    """Of these inputs, the random ones, the first rows of those that are no constants: zeros, a value, large numbers;
    of one row it is zeros. Eight bits have no large numbers to spare."""
    for name in names:
        tensor = inputs[name]
        if definition.inputs[name].constant or tensor.dim() < 2 or not tensor.is_floating_point():
            continue
        if len(tensor):
            bytes_of(tensor[0]).zero_()
        if len(tensor) > 1:
            tensor[1].copy_(torch.full(tensor[1].shape, _VALUE, device=tensor.device))
        if len(tensor) > 2 and tensor[2].numel() and tensor.element_size() > 1:
            _enlarge(tensor[2])


def _enlarge(row: torch.Tensor) -> None:
    """_LARGE times as large. A short row of either sign may still hold nothing unusual: then its largest becomes so."""
    row.mul_(_LARGE)
    largest = row.abs().amax()
    if bool((row > 0).any()) and bool((row < 0).any()) and float(largest) < 2 * _LARGE:
        row.copy_(torch.where(row.abs() == largest, row.sign() * 2 * _LARGE, row))


def apply(definition: Definition, draw: Draw, inputs: dict[str, Any]) -> None:
    """The part that changes what was drawn, in place. DefinitionFailed where it cannot."""
    for name, how in draw.items():
        if name not in definition.inputs:
            continue
        if isinstance(how, (int, float)):
            inputs[name].mul_(how)
        elif how == "same":
            inputs[name].copy_(inputs[name].flatten()[:1].clone().expand(inputs[name].shape))
        else:
            inputs[name].add_(_summand(definition, name, how))
