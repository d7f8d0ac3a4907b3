"""Attention of head sizes and scales that the CUDA kernels are not made for: Triton's, through both solutions of an
operator. In the interpreter, and on a GPU."""

import pytest
import torch
from on_host import interpreter, recalled_for
from rowwise_cases import CATALOG, case_of, inputs_of, outputs_of, reference

from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

FORWARD, UNIFIED, DECODE = "attention_forward", "unified_attention", "paged_attention_decode"
CASES = [
    (operator, {"head_dim": size, "sm_scale": size**-0.5})
    for operator in (FORWARD, UNIFIED, DECODE)
    for size in (264, 300, 512)
]
CASES += [
    (operator, changes)
    for operator in (FORWARD, UNIFIED)
    for changes in ({"head_dim": 12}, {"sm_scale": -0.1}, {"sm_scale": 0.0})
]


def status(operator, through, changes, device):
    definition = CATALOG.definition(operator)
    run = load_solution(definition, CATALOG.solution(f"derby_{operator}_{through}"))
    case = case_of(operator, **changes)
    inputs, outputs = inputs_of(operator, case, device), outputs_of(operator, case, device)
    run(*inputs.values(), *outputs.values())
    return judge(definition, reference(operator), inputs, outputs).status


@pytest.mark.interpreted
@pytest.mark.parametrize("through", ["triton", "sm90"])
@pytest.mark.parametrize("operator, changes", CASES, ids=str)
@recalled_for("derby_{operator}_{through}", compiler=interpreter())
def test_in_the_interpreter(operator, through, changes):
    assert status(operator, through, changes, "cpu") is Status.PASSED


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("through", ["triton", "sm90"])
@pytest.mark.parametrize("operator, changes", CASES, ids=str)
def test_on_a_gpu(operator, through, changes):
    assert status(operator, through, changes, "cuda") is Status.PASSED
    torch.cuda.synchronize()
