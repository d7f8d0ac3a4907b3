"""common/contract.py: what it refuses, in one line each; and that each solution's contract is its definition's."""

import inspect
import re
import sys

import pytest
import torch
from rowwise_cases import CATALOG

from kernelderby.measure.worker.build import load_solution

# Solutions of kernelderby that refuse nothing by a contract yet: those of folders that are being rewritten.
WITHOUT = re.compile(
    r"rms|norm|quant|rope|silu|sum_reduce|gated_delta|chunk_|mla_|gemm|block_scaled_mm|"
    r"linear_sigmoid|derby_moe_sm90"
)
SOLUTIONS = sorted(
    name
    for name, solution in CATALOG.solutions.items()
    if solution.author == "kernelderby" and not WITHOUT.search(name)
)


def module_of(name):
    solution = CATALOG.solution(name)
    return sys.modules[load_solution(CATALOG.definition(solution.definition), solution).__module__]


@pytest.fixture
def check():
    contract = module_of("triton_compact").contract
    return contract.Contract(
        "derby_toy",
        aligned=16,
        where=("wide == 2 * columns",),
        x="bfloat16 rows columns",
        weight="bfloat16 columns",
        both="float32 wide 4",
        output="bfloat16 rows columns",
    )


def tensors(rows=3, columns=24):
    return {
        "x": torch.zeros(rows, columns, dtype=torch.bfloat16),
        "weight": torch.zeros(columns, dtype=torch.bfloat16),
        "both": torch.zeros(2 * columns, 4),
        "output": torch.zeros(rows, columns, dtype=torch.bfloat16),
    }


def strided(tensor):
    return tensor.new_zeros(tensor.shape[0], 2 * tensor.shape[1])[:, ::2]


def shifted(tensor):
    return tensor.new_zeros(tensor.numel() + 1)[1:].view(tensor.shape)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("x", strided, "x has strides (48, 2), must be contiguous; pass a .contiguous() one"),
        ("weight", shifted, "weight begins at an address that 16 does not divide; pass a .clone()"),
        ("weight", torch.Tensor.float, "weight is float32, must be bfloat16"),
        ("weight", lambda w: w[:-8].clone(), "weight has shape (16,), must have [columns], where columns is 24"),
        ("both", lambda b: b[:40].clone(), "both has wide 40, must have 2 * columns = 48"),
        ("output", lambda o: o.to("meta"), "output is on meta, what stands before it on cpu"),
        ("output", lambda o: o[0], "output has shape (24,), must have [rows, columns]"),
        ("output", lambda o: None, "output is a NoneType, not a tensor"),
    ],
)
def test_what_is_refused(check, known, name, change, told):
    """Whether the right layout came before or not."""
    given = tensors()
    if known:
        check(*given.values())
    given[name] = change(given[name])
    with pytest.raises(ValueError) as caught:
        check(*given.values())
    assert str(caught.value) == f"derby_toy: {told}"


def test_what_passes(check):
    for rows, columns in ((3, 24), (3, 24), (0, 24), (5, 8), (0, 0)):
        check(*tensors(rows, columns).values())
    assert len(check.known) == 4


def test_layouts_are_not_kept_without_end(check, monkeypatch):
    monkeypatch.setattr(sys.modules[type(check).__module__], "_MOST_KNOWN", 3)
    for rows in range(10):
        check(*tensors(rows).values())
    assert len(check.known) <= 3


@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_contract_is_the_definitions(name):
    """Names, order, types and axes: a name stands for one axis, a number is that axis' size."""
    module, solution = module_of(name), CATALOG.solution(name)
    definition = CATALOG.definition(solution.definition)
    assert module.check.name == name
    specs = {**definition.inputs, **definition.outputs}
    wanted = {tensor: spec for tensor, spec in specs.items() if spec.shape is not None}
    assert list(module.check.tensors) == list(wanted)
    for tensor, (dtype, *axes) in module.check.tensors.items():
        assert dtype == wanted[tensor].dtype and len(axes) == len(wanted[tensor].shape)
        for axis, defined in zip(axes, wanted[tensor].shape, strict=True):
            assert axis == defined or int(axis) == definition.axes[defined], (tensor, axis)
    source = inspect.getsource(module.run)
    called = re.search(r"\n    check\((.*?)\)", source, re.DOTALL)
    assert [each.strip() for each in called[1].split(",")] == list(wanted)


@pytest.mark.parametrize("name", SOLUTIONS)
def test_strides_are_refused_before_anything_is_launched(name):
    module, solution = module_of(name), CATALOG.solution(name)
    definition = CATALOG.definition(solution.definition)
    sizes = {axis: size or 16 for axis, size in definition.axes.items()}
    given, first = [], None
    for tensor, spec in {**definition.inputs, **definition.outputs}.items():
        if spec.shape is None:
            given.append(1)
            continue
        made = torch.zeros([sizes[axis] for axis in spec.shape], dtype=getattr(torch, spec.dtype))
        if first is None and made.dim() > 1:
            first, made = (
                tensor,
                strided(made) if made.dim() == 2 else made.transpose(0, 1).contiguous().transpose(0, 1),
            )
        given.append(made)
    with pytest.raises(ValueError, match=rf"^{name}: {first} (has strides|has shape)"):
        module.run(*given)
