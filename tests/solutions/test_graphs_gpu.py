"""On a GPU: every solution's graphs after larger calls and beside others (graphs_on_gpu.py), each in its own process,
since a context may be lost; experts of any number and width."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rowwise_cases import CATALOG

from kernelderby.measure.judge.cases import small_cases
from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.judge.definition import load_definition_module
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.machine.probe import find_machine
from kernelderby.measure.machine.requirements import why_not
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def machine():
    return find_machine(CATALOG.root, "cuda")


@pytest.mark.parametrize("name", sorted(CATALOG.solutions))
def test_graphs_stay_right_whatever_is_called_later(name, machine):
    if reason := why_not(CATALOG.solution(name), machine):
        pytest.skip(reason)
    script = Path(__file__).with_name("graphs_on_gpu.py")
    done = subprocess.run([sys.executable, script, name], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


@pytest.mark.parametrize("experts, hidden", [(1, 131), (7, 136), (257, 136), (384, 131), (512, 136)])
@pytest.mark.parametrize("through", ["triton", "sm90"])
def test_experts_of_any_number_and_width(experts, hidden, through, machine):
    definition, solution = CATALOG.definition("fused_moe"), CATALOG.solution(f"derby_fused_moe_{through}")
    if reason := why_not(solution, machine):
        pytest.skip(reason)
    source = load_definition_module(definition)
    for tokens in (0, 1, 33):
        sizes = {**source.SMALL_AXES, "num_tokens": tokens, "num_experts": experts, "top_k": min(8, experts)}
        sizes |= {"hidden_size": hidden, "intermediate_size": hidden - 8, "gate_up_size": 2 * (hidden - 8)}
        device, (case,) = torch.device("cuda", 0), small_cases(definition, sizes, [{}], 1)
        inputs = InputMaker(definition, source, case, device, CATALOG.root).make(0)
        output = torch.full(inputs["hidden_states"].shape, float("nan"), device=device)
        load_solution(definition, solution)(*inputs.values(), output)
        torch.cuda.synchronize()
        assert judge(definition, source, inputs, {"output": output}).status is Status.PASSED, tokens
