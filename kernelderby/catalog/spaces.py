"""Fresh shapes: drawn from a definition's AXES_SPACE, the sizes that models in servers may have.

AXES_SPACE is a dict beside SMALL_AXES: name of an axis, a plain number of the inputs or a value for generate_inputs ->
rule, in the order in which they are drawn. A rule is

    (low, high), (low, high, step)   a whole number between the two, evenly in its logarithm, a multiple of step; one of
                                     four without a step is a power of two or one beside it, where tiles end
    [rule, rule, ...]                one of these, each as likely: a grid, with ranges for odd values among them
    "2 * intermediate_size"          a formula of what stands before it: + - * / // % ** min max, `a if b else c`
    128, 1e-6, True                  itself
    None                             the value is left out (for generate_inputs)

A name that begins with _ is only there for the formulas. For a name that is none of the definition's (a value for
generate_inputs) a text is itself. SMALL_SPACE, where there is one, replaces rules for a CPU; there the const axes are
those of SMALL_AXES.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

from kernelderby.catalog import constraints
from kernelderby.catalog.model import Definition
from kernelderby.errors import DerbyError

_NAMESPACE = UUID("d3b07384-d9a0-5f2c-9c5e-6f1f2b8a4c11")
_POWERS = 0.25  # share of draws from a range that give a power of two, or a number next to one
Uniform = Callable[[], float]  # a number from 0 to below 1


class UnfitDraw(Exception):
    """This draw gives no shape; another one may."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """One shape. axes: every axis, const and var alike. scalars: the inputs that are plain numbers. generator: further
    values for generate_inputs."""

    axes: dict[str, int]
    scalars: dict[str, int | float | bool]
    generator: dict[str, str | int | float]

    def uuid(self, definition: Definition) -> str:
        """A uuid that depends on the operator and the shape only, not on the shape's source."""
        told = json.dumps([definition.name, self.axes, self.scalars, self.generator], sort_keys=True)
        return str(uuid5(_NAMESPACE, told))


def draw(
    definition: Definition, space: Mapping[str, Any], uniform: Uniform, const: Mapping[str, Any] | None = None
) -> Sizes:
    """One shape of the space. const: other sizes for const axes (SMALL_AXES). UnfitDraw if a range is empty, or a
    constraint of the definition does not hold. DerbyError if the space does not belong to this definition."""
    values: dict[str, Any] = {}
    for name, size in definition.axes.items():
        if size is not None:
            values[name] = (const or {}).get(name, size)
    for name, rule in space.items():
        is_text = name not in definition.axes and name not in definition.inputs and not name.startswith("_")
        try:
            values[name] = _drawn(rule, values, uniform, is_text)
        except (constraints.NotArithmetic, TypeError, ValueError) as problem:
            raise DerbyError(f"{definition.place}: AXES_SPACE: {name}: {problem}; mend the rule") from None
    return sizes_of(definition, values)


def sizes_of(definition: Definition, values: Mapping[str, Any]) -> Sizes:
    """Sorts the values into axes, numbers and values for the generator. UnfitDraw and DerbyError as in draw()."""
    axes = {}
    for axis in definition.axes:
        size = values.get(axis)
        if not isinstance(size, int) or isinstance(size, bool):
            raise DerbyError(f"{definition.place}: AXES_SPACE: {axis}: is {size!r:.60}, no whole number; add a rule")
        if size < 0:
            raise UnfitDraw
        axes[axis] = size
    scalars = {}
    for name, spec in definition.inputs.items():
        if spec.shape is None:
            if values.get(name) is None:
                raise DerbyError(f"{definition.place}: AXES_SPACE: lacks {name}; add a rule")
            scalars[name] = values[name]
    if any(constraints.relation_holds(text, axes) is False for text in definition.constraints):
        raise UnfitDraw
    own = {*definition.axes, *definition.inputs}
    further = {name: value for name, value in values.items() if name not in own and not name.startswith("_")}
    return Sizes(axes, scalars, {name: value for name, value in further.items() if value is not None})


def _drawn(rule: Any, values: Mapping[str, Any], uniform: Uniform, is_text: bool) -> Any:
    match rule:
        case [*choices] if isinstance(rule, list) and choices:
            return _drawn(choices[int(uniform() * len(choices))], values, uniform, is_text)
        case (low, high):
            return _whole(_number(low, values), _number(high, values), None, uniform)
        case (low, high, step):
            return _whole(_number(low, values), _number(high, values), _number(step, values), uniform)
        case str() if not is_text:
            return constraints.formula_value(rule, values)
        case None | bool() | int() | float() | str():
            return rule
    raise constraints.NotArithmetic(f"{rule!r:.60} is no rule")


def _number(end: Any, values: Mapping[str, Any]) -> int:
    return int(constraints.formula_value(end, values) if isinstance(end, str) else end)


def _whole(low: int, high: int, step: int | None, uniform: Uniform) -> int:
    """A whole number, evenly distributed in its logarithm (of the number plus one if 0 is possible). It always draws
    two random numbers, so later draws do not depend on the rule."""
    place, whether = uniform(), uniform()
    if high < low or low < 0:
        raise UnfitDraw
    beside = 1 if low == 0 else 0
    found: int = round((low + beside) * ((high + beside) / (low + beside)) ** place) - beside
    if step is not None:
        first, last = -(-low // step), high // step
        if last < first:
            raise UnfitDraw
        return step * min(max(round(found / step), first), last)
    if whether < _POWERS and found > 0:
        found = 2 ** round(math.log2(found)) + int(whether / _POWERS * 3) - 1
    return min(max(found, low), high)


def line_of(
    definition: Definition,
    sizes: Sizes,
    generated: Collection[str],
    origin: str,
    source: Mapping[str, str | int] | None = None,
) -> dict[str, Any]:
    """The line of a workloads file that describes a shape. generated: the inputs that generate_inputs makes; `derby
    pack` writes them into the file that the line names."""
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
    line: dict[str, Any] = {"definition": definition.name, "workload": {"axes": axes, "inputs": inputs, "uuid": uuid}}
    if sizes.generator:
        line["generator"] = sizes.generator
    line["origin"] = origin
    if source:
        line["source"] = dict(source)
    return line
