"""derby_fused_moe_triton and derby_fp8_blockscale_fused_moe_triton: against the definitions in Triton's interpreter,
with mutants that must fail, and every kernel at full shape compiled for sm_90 and sm_100."""

import sys

import pytest
import torch
import triton
from aot import compile_kernel
from interpreted import compiled
from moe_cases import ROOT
from on_host import interpreter, recalled_for
from test_triton_compact_compiles import resources
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelderby.catalog import Catalog
from kernelderby.measure.judge.cases import small_cases
from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.judge.definition import load_definition_module
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

CATALOG = Catalog.open(ROOT)
OPERATORS = ("fused_moe", "fp8_blockscale_fused_moe")
SM_COUNT = 132
TYPES = {torch.float8_e4m3fn: "fp8e4nv", torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32"}


def module_of(operator):
    solution = CATALOG.solution(f"derby_{operator}_triton")
    return sys.modules[load_solution(CATALOG.definition(operator), solution).__module__]


def judged(operator, config, variant, change=None):
    """The verdict on one small case; change(inputs) spoils the solution's inputs."""
    definition, module = CATALOG.definition(operator), module_of(operator)
    source = load_definition_module(definition)
    (case,) = small_cases(definition, {**source.SMALL_AXES, "num_tokens": 40}, [variant], 1)
    inputs = InputMaker(definition, source, case, torch.device("cpu"), ROOT).make(0)
    given = {name: value.clone() for name, value in inputs.items()}
    if change:
        change(given)
    dtype = torch.float32 if operator == "fused_moe" else torch.bfloat16
    output = torch.full(inputs["hidden_states"].shape, float("nan"), dtype=dtype)
    module.run_with(config(module, given), *given.values(), output)
    return judge(definition, source, inputs, {"output": output}).status


def of_pairs(pairs):
    return lambda module, inputs: next(c for c in module.candidates(*inputs.values()) if c["pairs"] == pairs)


@pytest.mark.interpreted
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("pairs", [16, 128])
@recalled_for("derby_{operator}_triton", compiler=interpreter())
def test_swapped_and_not_against_the_definition(operator, pairs):
    assert judged(operator, of_pairs(pairs), {"routing": "few"}) is Status.PASSED


@pytest.mark.interpreted
@pytest.mark.parametrize("operator", OPERATORS)
@recalled_for("derby_{operator}_triton", compiler=interpreter())
def test_a_wrong_weight_or_expert_is_seen(operator):
    def even(inputs):
        inputs["topk_weights"].fill_(1 / inputs["topk_weights"].shape[1])

    def shifted(inputs):
        inputs["topk_ids"][0::4] = (inputs["topk_ids"][0::4] + 1) % inputs["gate_up_weight"].shape[0]

    for change in (even, shifted):
        assert judged(operator, of_pairs(32), {}, change) is not Status.PASSED


ODD = [
    {"num_experts": 1, "top_k": 1},
    {"num_experts": 7, "hidden_size": 131, "intermediate_size": 77},
    {"num_experts": 257, "top_k": 9, "hidden_size": 136, "intermediate_size": 68},
    {"num_experts": 384},
    {"num_experts": 512, "num_tokens": 3},
    {"num_tokens": 0},
]


@pytest.mark.interpreted
@pytest.mark.parametrize("through", ["triton", "sm90"])
@pytest.mark.parametrize("changes", ODD, ids=str)
@recalled_for("derby_fused_moe_{through}", compiler=interpreter())
def test_any_width_and_number_of_experts(changes, through):
    """Also through derby_fused_moe_sm90, which takes these kernels where its own do not fit; no GPU is asked for."""
    definition, solution = CATALOG.definition("fused_moe"), CATALOG.solution(f"derby_fused_moe_{through}")
    source = load_definition_module(definition)
    sizes = {**source.SMALL_AXES, "num_tokens": 12, "hidden_size": 64, "intermediate_size": 32, **changes}
    sizes["gate_up_size"] = 2 * sizes["intermediate_size"]
    if through == "sm90" and sizes["num_experts"] <= 256 and sizes["hidden_size"] % 8 == 0 and sizes["num_tokens"]:
        pytest.skip("takes its own kernels")
    case = small_cases(definition, sizes, [{}], 1)[0]
    inputs = InputMaker(definition, source, case, torch.device("cpu"), ROOT).make(0)
    output = torch.full(inputs["hidden_states"].shape, float("nan"))
    load_solution(definition, solution)(*inputs.values(), output)
    assert judge(definition, source, inputs, {"output": output}).status is Status.PASSED


def full_size(operator, tokens):
    """The arguments of run() at a hot shape, on the device meta."""

    def empty(dtype, *shape):
        return torch.empty(shape, dtype=dtype, device="meta")

    fp8, bf16, f32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32
    routing = empty(torch.int32, tokens, 8), empty(f32, tokens, 8)
    if operator == "fused_moe":
        weights = empty(bf16, 128, 1536, 2048), empty(bf16, 128, 2048, 768)
        return empty(bf16, tokens, 2048), *weights, *routing, empty(f32, tokens, 2048)
    first = empty(fp8, 128, 3072, 4096), empty(f32, 128, 24, 32)
    second = empty(fp8, 128, 4096, 1536), empty(f32, 128, 32, 12)
    inputs = empty(fp8, tokens, 4096), empty(f32, tokens, 32)
    return *inputs, *first, *second, *routing, empty(bf16, tokens, 4096)


def triton_type(value):
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{TYPES[value.base.dtype]}{value.block_shape}>".replace(" ", "")
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    return {int: "i32", float: "fp32"}[type(value)]


@compiled
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("tokens", [1, 300, 8192])
@pytest.mark.parametrize("target, tensor_core", [("sm_90", "wgmma.mma_async"), ("sm_100", "tcgen05.mma")])
@recalled_for("derby_{operator}_triton", compiler=triton.__version__)
def test_every_kernel_compiles(monkeypatch, operator, tokens, target, tensor_core):
    """The GEMMs on the tensor cores, fed by TMA; on sm_90 without a register spilled."""
    module, seen = module_of(operator), []
    kernels = module.experts_triton_choice.experts_triton
    monkeypatch.setattr(kernels, "launch", lambda calls, compiled_for, stream: seen.extend(calls))
    kernels.workspace.cache_clear()
    arguments = full_size(operator, tokens)
    module.run_with(module.candidates(*arguments[:-1])[0], *arguments)
    assert len(seen) == 5
    for kernel, _, given, options in seen:
        constants = {**options, "PDL": True}
        num_warps = constants.pop("num_warps")
        signature = {name: triton_type(value) for name, value in zip(kernel.arg_names, given, strict=False)}
        binary = compile_kernel(kernel, signature, constants, target, num_warps=num_warps)
        if kernel.__name__.startswith("experts_gemm"):
            for instruction in (tensor_core, "cp.async.bulk.tensor", "griddepcontrol.wait"):
                assert instruction in binary.asm["ptx"], instruction
            if target == "sm_90":
                assert resources(binary)["STACK"] == 0, "registers are spilled"
