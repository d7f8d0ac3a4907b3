"""common/contract.py: its refusals, in one line each; and that each solution's contract is its definition's."""

import inspect
import re
import sys

import pytest
import torch
from rowwise_cases import CATALOG

from kernelderby.measure.worker.build import load_solution

SOLUTIONS = sorted(name for name, solution in CATALOG.solutions.items() if solution.author == "kernelderby")


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
        ("both", lambda b: b[:40].clone(), "both has wide 40 and columns 24, must have wide == 2 * columns"),
        ("output", lambda o: o.to("meta"), "output is on meta, must be on a CUDA device"),
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


def test_right_tensors_pass_and_their_shapes_are_remembered(check):
    for rows, columns in ((3, 24), (3, 24), (0, 24), (5, 8), (0, 0)):
        check(*tensors(rows, columns).values())
    assert len(check.known) == 4


def test_layouts_are_not_kept_without_end(check, monkeypatch):
    monkeypatch.setattr(sys.modules[type(check).__module__], "_MOST_KNOWN", 3)
    for rows in range(10):
        for _ in range(3):
            check(*tensors(rows).values())
    assert len(check.known) <= 3 and len(check.guarded) <= 4


@pytest.mark.parametrize("guarded", [True, False])
def test_a_layout_is_one_object_and_what_came_twice_is_not_looked_up(check, monkeypatch, guarded):
    """With torch's guards; without them each call is looked up."""
    if not guarded:
        monkeypatch.setattr(sys.modules[type(check).__module__], "TensorGuards", None)
    looked, look_up = [], check._look_up
    monkeypatch.setattr(check, "_look_up", lambda given: (looked.append(len(given[0])), look_up(given))[1])
    layouts = {rows: {id(check(*tensors(rows).values())) for _ in range(4)} for rows in (3, 4, 5)}
    assert all(len(each) == 1 for each in layouts.values()) and len(set.union(*layouts.values())) == 3
    assert looked == ([3, 3, 4, 4, 5, 5] if guarded else [3] * 4 + [4] * 4 + [5] * 4)


def test_an_output_in_an_input_has_its_own_guard(check):
    """Torch's guards take no tensor twice."""
    apart, shared = tensors(), tensors()
    shared["output"] = shared["x"]
    for given in (shared, shared, apart, apart, shared, apart):
        layout = check(*given.values())
        assert layout is check(*tensors().values())
    other = tensors()
    other["output"] = strided(other["x"])
    with pytest.raises(ValueError, match="output has strides"):
        check(*other.values())


def test_a_size_may_have_to_be_a_multiple_of_another(check):
    contract = sys.modules[type(check).__module__]
    heads = contract.Contract("derby_toy", where=("heads a multiple of groups",), q="float32 heads", k="float32 groups")
    for many, few in ((6, 3), (0, 3), (0, 0)):
        heads(torch.zeros(many), torch.zeros(few))
    for many, few in ((7, 3), (3, 0)):
        with pytest.raises(
            ValueError, match=rf"^derby_toy: q has heads {many} and groups {few}, must have heads a mul"
        ):
            heads(torch.zeros(many), torch.zeros(few))


def test_another_gpu_than_the_current_one_is_refused(check, monkeypatch):
    check.on_current = True
    layout = check(*tensors().values())
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    check(*tensors().values())
    layout.device = 0
    check(*tensors().values())
    layout.device = 1
    with pytest.raises(ValueError, match=r"^derby_toy: x is on cuda:1, the current GPU is another; call within torch"):
        check(*tensors().values())


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
    called = re.search(r"\n    (?:layout = )?check\((.*?)\)", source, re.DOTALL)
    assert [each.strip() for each in called[1].split(",")] == list(wanted)
