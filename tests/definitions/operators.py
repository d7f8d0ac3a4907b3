"""Definitions by name for the tests: module, contract, workloads, inputs as `derby check` draws them."""

from functools import cache
from pathlib import Path

import torch

from kernelderby.catalog import Catalog
from kernelderby.measure.judge.cases import Case
from kernelderby.measure.judge.definition import load_definition_module
from kernelderby.measure.judge.inputs import InputMaker

ROOT = Path(__file__).resolve().parents[2]
CATALOG = Catalog.open(ROOT)


@cache
def load(name):
    """The definition's module: run, count_cost, SMALL_AXES."""
    return load_definition_module(CATALOG.definition(name))


def inputs_at(name, seed=0, **changes):
    """All inputs by name at SMALL_AXES with `changes` (of axes and of scalars)."""
    definition, module = CATALOG.definition(name), load(name)
    values = {**module.SMALL_AXES, **changes}
    scalars = {key: value for key, value in values.items() if key not in definition.axes}
    case = Case("", {axis: values[axis] for axis in definition.axes}, scalars, seed)
    return InputMaker(definition, module, case, torch.device("cpu"), ROOT).make()


def outputs_of(name, inputs):
    """The reference's outputs as a tuple, of the contract's shapes and dtypes; the inputs are unchanged."""
    before = {key: value.clone() for key, value in inputs.items() if isinstance(value, torch.Tensor)}
    found = load(name).run(**inputs)
    found = found if isinstance(found, tuple) else (found,)
    definition = CATALOG.definition(name)
    sizes = {axis: size for axis, size in definition.axes.items() if size is not None}
    for key, spec in definition.inputs.items():
        if spec.shape is not None:
            sizes.update(zip(spec.shape, inputs[key].shape, strict=True))
    assert len(found) == len(definition.outputs)
    for tensor, spec in zip(found, definition.outputs.values(), strict=True):
        assert tuple(tensor.shape) == tuple(sizes[axis] for axis in spec.shape)
        assert str(tensor.dtype) == f"torch.{spec.dtype}"
    assert all(torch.equal(inputs[key].view(torch.uint8), value.view(torch.uint8)) for key, value in before.items())
    return found


def small_variants(*names):
    """(name, changes) of every SMALL_VARIANTS entry, for parametrize."""
    return [(name, changes) for name in names for changes in load(name).SMALL_VARIANTS]


def close(found, expected, dtype=torch.bfloat16):
    """One rounding of the float64 `expected` to dtype: half a unit in the last place, and float32's sums."""
    unit = torch.finfo(dtype).eps / 2
    torch.testing.assert_close(found.double(), expected, rtol=1.01 * unit, atol=1e-6)
