"""Shared by the tests of the row-wise operators: their modules, sound or spoilt, inputs, and the comparison."""

import dataclasses
import functools
import sys
from pathlib import Path

import torch

from kernelderby.catalog import Catalog
from kernelderby.measure.judge.cases import Case, case_of_workload
from kernelderby.measure.judge.correctness import compare, judge
from kernelderby.measure.judge.definition import load_definition_module
from kernelderby.measure.judge.inputs import InputMaker, shape_of, torch_dtype
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

ROOT = Path(__file__).resolve().parents[2]
CATALOG = Catalog.open(ROOT)
OPERATORS = (
    "rms_norm",
    "fused_add_rms_norm",
    "layer_norm",
    "l2_norm",
    "gated_rms_norm",
    "fused_qk_rmsnorm",
    "silu_and_mul",
    "moe_sum_reduce",
    "fp8_dynamic_per_token_quant",
    "per_token_group_quant_fp8",
    "fused_rmsnorm_quant",
)


@functools.cache
def module(operator, *edits):
    """The module of derby_<operator>; edits are (old, new) in whichever of its sources holds `old`."""
    solution = CATALOG.solution(f"derby_{operator}")
    sources = dict(solution.sources)
    for old, new in edits:
        holders = [path for path, text in sources.items() if old in text]
        assert len(holders) == 1, f"{old!r} stands in {holders}"
        sources[holders[0]] = sources[holders[0]].replace(old, new)
    run = load_solution(CATALOG.definition(operator), dataclasses.replace(solution, sources=sources))
    return sys.modules[run.__module__]


def case_of(operator, **changes):
    """The definition's SMALL_AXES with changes."""
    definition, values = CATALOG.definition(operator), {**reference(operator).SMALL_AXES, **changes}
    sizes = {
        **{axis: size for axis, size in definition.axes.items() if size is not None},
        **{axis: values[axis] for axis in definition.axes if axis in values},
    }
    scalars = {name: values[name] for name, spec in definition.inputs.items() if spec.shape is None}
    return Case("", sizes, scalars, 7)


def inputs_of(operator, case, device="cpu"):
    return InputMaker(CATALOG.definition(operator), reference(operator), case, torch.device(device), ROOT).make()


@functools.cache
def reference(operator):
    return load_definition_module(CATALOG.definition(operator))


def outputs_of(operator, case, device="cpu"):
    """Empty outputs, full of NaN."""
    outputs = {
        name: torch.empty(shape_of(spec, case.sizes), dtype=torch_dtype(spec.dtype), device=device)
        for name, spec in CATALOG.definition(operator).outputs.items()
    }
    for tensor in outputs.values():
        tensor.view(torch.uint8).fill_(0xFF)
    return outputs


def verdict(operator, call, inputs, case, device="cpu"):
    """call(*inputs, *outputs) judged by the definition; its inputs must be as before."""
    outputs = outputs_of(operator, case, device)
    before = {name: value.clone() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    call(*inputs.values(), *outputs.values())
    assert all(torch.equal(inputs[name].view(torch.uint8), value.view(torch.uint8)) for name, value in before.items())
    expected = reference(operator).run(**inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    return compare(CATALOG.definition(operator), outputs, dict(zip(outputs, expected, strict=True)))


def in_place_verdict(operator, call, inputs):
    """call(*inputs, *outputs) judged where every output that its solution.toml names lies in an input."""
    shared = CATALOG.solution(f"derby_{operator}").in_place
    assert set(shared) == set(CATALOG.definition(operator).outputs)
    before = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
    outputs = {output: inputs[name] for output, name in shared.items()}
    call(*inputs.values(), *outputs.values())
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and name not in shared.values():
            assert torch.equal(value.view(torch.uint8), before[name].view(torch.uint8)), f"{name} has changed"
    return judge(CATALOG.definition(operator), reference(operator), before, outputs)


def meta_arguments(operator, workload):
    """Inputs and outputs of a workload at full shape, on the device meta."""
    definition, case = CATALOG.definition(operator), case_of_workload(CATALOG.definition(operator), workload)
    specs = {**definition.inputs, **definition.outputs}
    return [
        case.scalars[name]
        if spec.shape is None
        else torch.empty(shape_of(spec, case.sizes), dtype=torch_dtype(spec.dtype), device="meta")
        for name, spec in specs.items()
    ]


def spoil(operator, inputs):
    """Rows that tell an operator from its neighbours: of zeros, a thousandth as large, huge, all around one value."""
    for value in inputs.values():
        if isinstance(value, torch.Tensor) and value.dim() > 1 and len(value) > 3:
            value[0] = 0
            value[1] *= 1e-3
            value[2] *= 100
            value[3] += 4
    return inputs


def expect_every_candidate_right(operator):
    """derby_<operator> with each of its candidates on every workload, on a GPU."""
    definition, solution = CATALOG.definition(operator), module(operator)
    for workload in CATALOG.workloads(operator):
        case = case_of_workload(definition, workload)
        inputs = inputs_of(operator, case, "cuda")
        for config in solution.candidates(*inputs.values()):
            outputs = outputs_of(operator, case, "cuda")
            solution.run_with(config, *inputs.values(), *outputs.values())
            torch.cuda.synchronize()
            assert judge(definition, reference(operator), inputs, outputs).status is Status.PASSED, (case.label, config)
