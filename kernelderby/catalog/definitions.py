"""Definitions: definitions/<op_type>/<name>.json, and the reviewed source of its reference, <name>.py beside it."""

from __future__ import annotations

import ast
import keyword
import re
from pathlib import Path
from typing import Literal

from msgspec import Struct

from kernelderby.catalog import constraints
from kernelderby.catalog.model import Definition, TensorSpec, Tolerance
from kernelderby.errors import DerbyError
from kernelderby.store.bounds import expect_few
from kernelderby.store.fields import Identifier, Name, Size, agree, read_json, read_text, suggestion

Dtype = Literal[
    "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1", "int64", "int32", "int16", "int8",
    "bool",
]  # fmt: skip  # flashinfer-bench's


class _Axis(Struct):
    type: Literal["const", "var"]
    value: Size | None = None
    description: str | None = None

    def __post_init__(self) -> None:
        if self.type == "const" and self.value is None:
            raise ValueError("value: is missing; add it (an integer)")


class _Tensor(Struct):
    dtype: Dtype
    shape: tuple[str, ...] | None = None
    description: str | None = None
    constant: bool | Literal["step"] = False


class _Definition(Struct):
    name: Name
    op_type: Name
    axes: dict[str, _Axis]
    inputs: dict[str, _Tensor]
    outputs: dict[str, _Tensor]
    description: str | None = None
    reference: str | None = None
    tolerances: tuple[Tolerance, ...] | None = None
    constraints: tuple[str, ...] | None = None
    custom_inputs_entrypoint: Identifier | None = None
    baseline: Literal["reference"] | None = None


def load_definition(path: Path) -> Definition:
    """The definition in a JSON file. DerbyError if its path and its fields disagree, or a field is invalid."""
    data = read_json(path, _Definition)
    agree(path, "name", data.name, path.stem)
    agree(path, "op_type", data.op_type, path.parent.name)
    source = path.with_name(f"{data.name}.py")
    has_source = source.is_file()
    reference = read_text(source) if has_source else data.reference or ""
    if not re.search(r"^def run\s*\(", reference, re.MULTILINE):
        raise DerbyError(
            f"{source if has_source else f'{path}: reference'}: has no run(); add the reference, a "
            "function run with the inputs for parameters"
        )
    definition = Definition(
        name=data.name,
        op_type=data.op_type,
        description=data.description or "",
        axes={name: axis.value if axis.type == "const" else None for name, axis in data.axes.items()},
        inputs=_tensors(data.inputs),
        outputs=_tensors(data.outputs),
        tolerances=data.tolerances or (),
        path=path,
        source_path=source if has_source else None,
        reference=reference,
        custom_inputs_entrypoint=data.custom_inputs_entrypoint,
        constraints=data.constraints or (),
        races_reference=data.baseline is not None,
        descriptions={
            part: {name: spec.description or "" for name, spec in getattr(data, part).items()}
            for part in ("axes", "inputs", "outputs")
        },
    )
    for check in (_check_tensors, _check_tolerances, _check_constraints):
        check(definition)
    return definition


def check_reference(definition: Definition) -> None:
    """DerbyError if the reference is not Python. Parsing takes milliseconds, so only `derby pack` does it."""
    where = definition.source_path or f"{definition.path}: reference"
    try:
        tree = ast.parse(definition.reference)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DerbyError(f"{where}: is no Python ({str(error)[:80]}); mend it") from None
    if not any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body):
        raise DerbyError(f"{where}: has no run(); add the reference, a function run with the inputs for parameters")


def _tensors(specs: dict[str, _Tensor]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(spec.shape, spec.dtype, spec.constant) for name, spec in specs.items()}


def _check_tensors(definition: Definition) -> None:
    """Checks that names can be parameters and occur once, that shapes use known axes, and that every var axis is in an
    input's shape."""
    path = definition.path
    for field in ("axes", "inputs", "outputs", "constraints", "tolerances"):
        expect_few(str(path), field, len(getattr(definition, field)))
    for field in ("axes", "inputs", "outputs"):
        for name in getattr(definition, field):
            if not name.isidentifier() or keyword.iskeyword(name):
                raise DerbyError(f"{path}: {field}: {name!r:.60} is no Python name; rename it")
    if not definition.outputs:
        raise DerbyError(f"{path}: outputs: the list is empty; name the outputs of the operator")
    for name in definition.outputs:
        if name in definition.inputs:
            raise DerbyError(f"{path}: outputs.{name}: is an input too; rename one of them")
    for name in definition.axes:
        if name in definition.inputs and definition.inputs[name].shape is None:
            raise DerbyError(f"{path}: inputs.{name}: is an axis too, and both are numbers; rename one of them")
    for field in ("inputs", "outputs"):
        for name, spec in getattr(definition, field).items():
            expect_few(str(path), f"{field}.{name}.shape", len(spec.shape or ()))
            for axis in spec.shape or ():
                if axis not in definition.axes:
                    raise DerbyError(
                        f"{path}: {field}.{name}.shape: {axis!r} is no axis; add it to axes or mend the shape"
                    )
            if spec.constant and (field != "inputs" or spec.shape is None):
                raise DerbyError(f"{path}: {field}.{name}.constant: is for tensors among the inputs; remove it")
    used = {axis for spec in definition.inputs.values() for axis in spec.shape or ()}
    for axis, size in definition.axes.items():
        if size is None and axis not in used:
            raise DerbyError(
                f"{path}: axes.{axis}: is var but in no input's shape, so that no call tells its size; "
                "give it a value or use it"
            )


def _check_tolerances(definition: Definition) -> None:
    """Checks that names occur once, that the named outputs exist, and that every output has a tolerance."""
    path, outputs = definition.path, definition.outputs
    names = [tolerance.name for tolerance in definition.tolerances]
    judged: set[str] = set()
    for position, tolerance in enumerate(definition.tolerances):
        where = f"{path}: tolerances[{position}]"
        if names.index(tolerance.name) != position:
            raise DerbyError(f"{where}.name: {tolerance.name!r} is there already; rename one of them")
        for output in tolerance.outputs:
            if output not in outputs:
                raise DerbyError(f"{where}.outputs: {output!r} is no output; {suggestion(output, outputs)}")
        judged.update(tolerance.outputs or outputs)
    unjudged = [name for name in outputs if name not in judged]
    if definition.tolerances and unjudged:
        raise DerbyError(
            f"{path}: tolerances: none is for the output {' or '.join(unjudged)}, which could hold anything; add one"
        )


def _check_constraints(definition: Definition) -> None:
    const = {name: size for name, size in definition.axes.items() if size is not None}
    for position, text in enumerate(definition.constraints):
        where = f"{definition.path}: constraints[{position}]: {text!r:.80}"
        problem = constraints.syntax_problem(text)
        if problem:
            raise DerbyError(f"{where} {problem}; mend it")
        if constraints.relation_holds(text, const) is False:
            raise DerbyError(f"{where} does not hold for the const axes; mend them or the constraint")
