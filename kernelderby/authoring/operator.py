"""An operator's files: the contract, the source of its reference, its shapes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelderby.authoring.formulas import Formula
from kernelderby.authoring.measured import shapes
from kernelderby.authoring.words import Part, Tensor, axis_names, axis_of, demands_of, formulas_of, untold
from kernelderby.catalog import Catalog, Definition
from kernelderby.catalog.spaces import Sizes, line_of
from kernelderby.errors import DerbyError
from kernelderby.store.files import json_text, write_jsonl, write_whole

OWN = "own"  # origin of the shapes
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")

# dtype of an output -> rtol, atol as a share of the output's root mean square, error of a row as a share of its norm,
# reason. At large sizes the values of a softmax are smaller than atol; the bound of the rows still holds there.
_TOLERANCES = {
    "float32": (1e-3, 1e-3, 0.01, "other orders of summation in float32, and TF32 products"),
    "float16": (4e-3, 2e-3, 0.02, "a few roundings to float16, each up to 2**-11 of the value"),
    "bfloat16": (1.6e-2, 8e-3, 0.05, "a few roundings to bfloat16, each up to 2**-8 of the value"),
    "float8_e4m3fn": (0.15, 0.07, 0.15, "one step of e4m3, up to 2**-3 of the value"),
    "float8_e5m2": (0.3, 0.15, 0.3, "one step of e5m2, up to 2**-2 of the value"),
}


@dataclass(frozen=True, slots=True)
class NewOperator:
    """What `derby new operator` was told and found out. source: the module with run(). sizes: axis -> sizes to measure.
    small: one set of small sizes, and the changes to it for the further checks on a CPU. magnitude: output -> its root
    mean square at small sizes."""

    name: str
    op_type: str
    description: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    source: str
    sizes: dict[str, tuple[int, ...]]
    small: dict[str, int]
    variants: tuple[dict[str, int], ...]
    magnitude: dict[str, float] = field(default_factory=dict)
    constants: tuple[str, ...] = ()

    @property
    def axes(self) -> dict[str, int | None]:
        return axis_names((*self.inputs, *self.outputs))

    @property
    def formulas(self) -> dict[str, Formula]:
        return formulas_of(self.inputs)


def expect_new(catalog: Catalog, what: str, name: str, folder: tuple[str, str]) -> None:
    """DerbyError for a name that is taken or not allowed. folder: an option and its value, which must be an allowed
    name too."""
    for told, word in ((what, name), folder):
        if not _NAME.fullmatch(word):
            raise DerbyError(f"{told}: {word!r:.80} is no name; write a-z, digits and _, a letter first")
    taken = {each.casefold(): each for each in (*catalog.definitions, *catalog.solutions)}
    if name.casefold() in taken:
        known = taken[name.casefold()]
        place = next((each.path for each in catalog.definitions.values() if each.name == known), None)
        mend = f"edit {place.with_suffix('.py')} and run `derby pack`" if place and what == "operator" else ""
        raise DerbyError(f"{known}: is in the set already; choose another name{f', or {mend}' if mend else ''}")


def write_operator(catalog: Catalog, operator: NewOperator) -> tuple[list[Path], list[str]]:
    """Writes the three files. Returns their paths, and a line for each shape left out. DerbyError if all are."""
    root, axes = catalog.root, operator.axes
    found, left_out = shapes((*operator.inputs, *operator.outputs), operator.sizes)
    if not found:
        raise DerbyError(left_out[0])
    source = operator.source.rstrip("\n") + "\n" + _small(operator)
    place = root / "definitions" / operator.op_type / f"{operator.name}.json"
    contract = {
        "name": operator.name,
        "op_type": operator.op_type,
        "description": operator.description,
        "axes": {name: _axis(operator, name, size) for name, size in axes.items()},
        "inputs": {each.name: _described(each, operator.constants) for each in operator.inputs},
        "outputs": {each.name: _described(each, ()) for each in operator.outputs},
        "tolerances": [_tolerance(each, operator.magnitude.get(each.name, 1.0)) for each in operator.outputs],
        "baseline": "reference",
        "reference": source,
    }
    demands = [f"{axis} == {each}" for axis, each in operator.formulas.items()] + demands_of(operator.inputs)
    if demands:
        contract["constraints"] = demands
    if generated := _generated(operator):
        contract["custom_inputs_entrypoint"] = "generate_inputs"
    write_whole(place.with_suffix(".py"), source)
    write_whole(place, json_text(contract))
    definition = Catalog.open(root).definition(operator.name)
    workloads = root / "workloads" / operator.op_type / f"{operator.name}.jsonl"
    lines = [_line(operator, definition, generated, each) for each in found]
    write_jsonl(workloads, lines)
    return [place, place.with_suffix(".py"), workloads], left_out


def _axis(operator: NewOperator, name: str, size: int | None) -> dict[str, Any]:
    if size is not None:
        return {"type": "const", "value": size, "description": f"Always {size}."}
    if name in operator.formulas:
        return {"type": "var", "description": f"{operator.formulas[name]}."}
    measured = ", ".join(map(str, operator.sizes.get(name, ())))
    return {"type": "var", "description": f"Measured at {measured}." if measured else f"Size {name}."}


def _described(each: Tensor, constants: Sequence[str]) -> dict[str, Any]:
    shape = None if each.shape is None else [axis_of(part) for part in each.shape]
    values = {
        "offsets": f"Rising from 0 to {each.high}.",
        "parts": f"Sizes that sum to {each.high}.",
        "distinct": f"Distinct values below {each.high}.",
        "": f"Values from {each.low} to {each.high}.",
    }[each.rule]
    said = values if each.low is not None else str(each)
    constant = {"constant": True} if each.name in constants else {}
    return {"shape": shape, "dtype": each.dtype, "description": said, **constant}


def _tolerance(each: Tensor, magnitude: float) -> dict[str, Any]:
    found = {"name": f"{each.name}_tolerance", "required_matched_ratio": 1.0, "outputs": [each.name]}
    if each.dtype not in _TOLERANCES:
        return {**found, "atol": 0.0, "rtol": 0.0, "reason": "whole numbers: equal"}
    rtol, share, row, reason = _TOLERANCES[each.dtype]
    atol = float(f"{share * (magnitude or 1.0):.0e}")
    reason = f"{reason[0].upper()}{reason[1:]}; atol is {share:g} of the root mean square at small sizes."
    return {**found, "atol": atol, "rtol": rtol, "row_error": row, "reason": reason}


def _small(operator: NewOperator) -> str:
    """The small sizes for a check on a CPU, and the generator of inputs that have a range of values."""
    scalars = {each.name: each.value for each in operator.inputs if each.shape is None}
    text = f"\n\n# What a CPU checks: `derby check {operator.name}`.\n"
    text += f"SMALL_AXES = {operator.small | scalars!r}\nSMALL_VARIANTS = {list(operator.variants)!r}\n"
    ranged = [each for each in operator.inputs if each.low is not None]
    text += "".join(_RULES[rule][1] for rule in sorted({each.rule for each in ranged if each.rule}))
    if ranged:
        text += "\n\ndef generate_inputs(axes_and_scalars, device):\n"
        text += "    axes = axes_and_scalars\n"
        text += '    generator = torch.Generator().manual_seed(axes["seed"])\n    return {\n'
        text += "".join(f"        {each.name!r}: {_drawn(each)},\n" for each in ranged) + "    }\n"
    return text


_RULES = {
    "offsets": (
        "rising",
        '''

def rising(size, end, generator):
    """From 0 to end."""
    offsets = torch.randint(0, end + 1, (size,), generator=generator).sort().values
    offsets[-1:] = end
    offsets[:1] = 0
    return offsets
''',
    ),
    "parts": (
        "parts_of",
        '''

def parts_of(size, whole, generator):
    """Sizes that sum to the whole."""
    inner = torch.randint(0, whole + 1, (max(0, size - 1),), generator=generator).sort().values
    return torch.cat([torch.tensor([0]), inner, torch.tensor([whole])]).diff()[:size]
''',
    ),
    "distinct": (
        "distinct",
        '''

def distinct(shape, end, generator):
    """Below end, each once."""
    return torch.randperm(end, generator=generator)[: torch.Size(shape).numel()].reshape(shape)
''',
    ),
}


def _drawn(each: Tensor) -> str:
    shape = "".join(f'axes["{axis_of(part)}"], ' for part in each.shape or ()).rstrip(" ")
    high = f'axes["{each.high}"]' if isinstance(each.high, str) else repr(each.high)
    low = each.low or 0
    if each.rule:
        size = f"({shape})," if each.rule == "distinct" else shape
        return f"{_RULES[each.rule][0]}({size} {high}, generator).to(torch.{each.dtype})"
    if each.dtype.startswith("int"):
        high = high if isinstance(each.high, str) else str(int(each.high or 1))
        bounds = f"{int(low)}, max({int(low)} + 1, {high})"
        return f"torch.randint({bounds}, ({shape}), generator=generator).to(torch.{each.dtype})"
    return f"(torch.rand(({shape}), generator=generator) * ({high} - {low}) + {low}).to(torch.{each.dtype})"


def _generated(operator: NewOperator) -> tuple[str, ...]:
    return tuple(each.name for each in operator.inputs if each.low is not None)


def _line(operator: NewOperator, definition: Definition, generated: Sequence[str], var: dict[str, int]) -> Any:
    scalars = {each.name: each.value for each in operator.inputs if each.shape is None and each.value is not None}
    axes = {name: var[name] if size is None else size for name, size in definition.axes.items()}
    return line_of(definition, Sizes(axes, scalars, {}), generated, OWN)


def stub(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    """A body for run() until somebody writes it. Each output is a copy of the first input of the same shape and dtype,
    or zeros if there is none."""
    parts = []
    for output in outputs:
        same = [each.name for each in inputs if (each.shape, each.dtype) == (output.shape, output.dtype)]
        sizes = ", ".join(_size_of(part, inputs) for part in output.shape or ())
        tensors = [each.name for each in inputs if each.shape is not None]
        zeros = f"{tensors[0]}.new_zeros(({sizes},), dtype=torch.{output.dtype})" if tensors else "torch.zeros(())"
        parts.append(f"{same[0]}.clone()" if same else zeros)
    return f"return {', '.join(parts)}  # TODO: what the operator computes"


def _size_of(part: Part, inputs: Sequence[Tensor]) -> str:
    if isinstance(part, int):
        return str(part)
    for each in inputs:
        if part in (each.shape or ()):
            return f"{each.name}.shape[{(each.shape or ()).index(part)}]"
    size = part if isinstance(part, Formula) else Formula(part)
    raise DerbyError(f"{part}: is not the size of an input, so no call gives it; {untold(size, inputs)}")


def source_of(name: str, description: str, inputs: Sequence[Tensor], body: str) -> str:
    """The module of a reference with the given body."""
    signature = ", ".join(each.name for each in inputs)
    documented = ", ".join(map(str, inputs))
    return (
        f'"""{description or name}"""\n\nimport torch\nimport torch.nn.functional as F\n\n\n@torch.no_grad()\n'
        f'def run({signature}):\n    """{documented}"""\n    {body}\n'
    )
