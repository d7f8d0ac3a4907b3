"""The competitors on a machine without a GPU.

moe_baseline runs as it is. The others' library ops are replaced by fakes in plain torch (fakes.py); buffers start as
NaN. What they have in Triton kernels of their own runs in the interpreter.
"""

import importlib.util
import inspect
import re
import sys
import tomllib
import types
from pathlib import Path

import fakes
import pytest
import torch
from moe_cases import AUTHORS, CASES, FP8_AND_BF16, NAME, check, definition, folder, make_inputs, solution
from on_host import diagonal, interpreter, recalled_for

from kernelderby.catalog import Catalog
from kernelderby.measure.judge.cases import small_cases
from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.judge.definition import load_definition_module
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status


@pytest.mark.parametrize("name", AUTHORS)
def test_path_and_files_name_the_same_solution(name):
    declared = tomllib.loads((folder(name) / "solution.toml").read_text())
    assert (declared["name"], declared["author"], declared["definition"]) == (name, AUTHORS[name], NAME)
    assert declared["entry_point"] == "main.py::run" and declared["destination_passing_style"]
    inputs = list(inspect.signature(definition.run).parameters)
    parameters = list(inspect.signature(solution(name).run).parameters)
    assert parameters == [*inputs, "output", *(["prepared"] if "setup" in declared else [])]


# Names as cuobjdump and c++filt give them for the libraries' binaries.
KERNELS = {
    "triton_fused_v2": {
        "void moe_fused_gate_kernel<float, 32, 256, 8, 4, 24, 6>(void*, void*, float*, int*, long)": "K1",
        "void moe_fused_gate_kernel_dynamic<float>(void*, void*, float*, int*, long, long)": "K1",
        "compute_expert_offsets(int const*, int*, int*, long)": "K2a",
        "void shuffleRowsKernel<__nv_fp8_e4m3>(__nv_fp8_e4m3 const*, int const*)": "K2d",
        "void shuffleRowsKernel<float>(float const*, int const*, float*, long, long, long)": "K2e",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape>>": "K3 K5",
        "void get_group_gemm_starts<cutlass::float_e4m3_t, cutlass::bfloat16_t, float>(int*)": "K3' K5'",
        "swiglu_quant_kernel": "K4",
        "void apply_shuffle_mul_sum_kernel<__nv_bfloat16>(__nv_bfloat16 const*)": "K6",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>": "glue",
    },
    "cutlass_grouped": {
        "void shuffleRowsKernel<__nv_fp8_e4m3>(__nv_fp8_e4m3 const*, int const*)": "K2b",
        "void shuffleRowsKernel<__nv_bfloat16>(__nv_bfloat16 const*, int const*)": "K4a",
        "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &(float silu<float>(float const&))>": "K4b",
        "void per_token_group_quant_8bit_kernel<NaiveScheduler, 128, 8, __nv_bfloat16, c10::Float8_e4m3fn>": "K4c",
    },
    "deepgemm_grouped": {
        "route_kernel": "route",
        "gather_kernel": "gather",
        "swiglu_quant_kernel": "swiglu",
        "combine_kernel": "combine",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u>": "gemm1 gemm2",
    },
    "hpc_ops_moe": {
        "route_kernel": "route",
        "void hpc::fuse_moe::kernels::blockwise_count_kernel<256, 1, 8, true>(int const*, int*, int*)": "count",
        "void hpc::fuse_moe::kernels::blockwise_count_tokens_kernel<true>(int const*, int*, int*, int)": "count",
        "void hpc::fuse_moe::kernels::blockwise_count_cutokens_kernel<256, 1, 8, true>(int const*)": "count",
        "void hpc::fuse_moe::kernels::blockwise_gather_kernel<__nv_fp8_e4m3, __nv_bfloat16>": "gather",
        "void hpc::group_gemm::kernels::group_gemm_blockwise_fp8_kernel<8, 128, 128>": "gemm1 gemm2",
        "void hpc::activation::kernels::act_mul_and_blockwise_quant_fusemoe_kernel<true>": "swiglu",
        "void hpc::fuse_moe::kernels::reduce_kernel<__nv_bfloat16, 256, 8, 128, true>": "reduce",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>": "glue",
    },
    "triton_compact": {"moe_route": "K1", "moe_gemm1": "K2", "moe_gemm2": "K3", "moe_combine": "K4"},
    "flashinfer_moe": {
        "void tensorrt_llm::kernels::deepseek_v3_topk_kernel<float, __nv_bfloat16, float, int>": "routing",
        "dequantize_kernel": "dequantize",
        "void deep_gemm::fp8_gemm_kernel_swapAB<0u, 4096u>": "gemm",
        "void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<__nv_bfloat16>": "finalize",
    },
}


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_name_has_its_stages(name):
    stages = tomllib.loads((folder(name) / "solution.toml").read_text())["stages"]
    for kernel, expected in KERNELS[name].items():
        found = [stage["name"] for stage in stages if any(re.search(p, kernel) for p in stage["kernels"])]
        assert found == expected.split(), kernel


# moe_baseline ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_the_baseline_agrees_with_the_definition(case):
    check("moe_baseline", CASES[case](), rtol=0.03, atol=0.03)


def test_baseline_in_chunks(monkeypatch):
    monkeypatch.setattr(solution("moe_baseline"), "CHUNK", 4)
    check("moe_baseline", make_inputs(11), rtol=0.03, atol=0.03)


@pytest.mark.parametrize("name", AUTHORS)
def test_no_token_returns_at_once(name, monkeypatch):
    for module in ("sgl_kernel", "deep_gemm", "flashinfer", "flashinfer_jit_cache", "hpc"):
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    inputs = make_inputs(12, seq_len=0)
    solution(name).run(**inputs, output=torch.empty(0, inputs["hidden_states"].shape[1], dtype=torch.bfloat16))


# Around fakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("sgl_kernel") is not None, reason="the real ops would be shadowed")
@pytest.mark.parametrize("case", CASES)
def test_cutlass_grouped_around_fakes(case, ready):
    ready("cutlass_grouped")
    check("cutlass_grouped", CASES[case](), **{**FP8_AND_BF16, "atol": 0.15})  # its SwiGLU rounds to bfloat16 too


@pytest.mark.skipif(importlib.util.find_spec("sgl_kernel") is not None, reason="the real ops would be shadowed")
def test_sgl_kernels_block_scaled_experts_around_fakes(monkeypatch, poisoned):
    catalog = Catalog.open(Path(__file__).resolve().parents[2])
    one = catalog.solutions["sgl_kernel_fp8_blockscale_fused_moe"]
    described = catalog.definition(one.definition)
    module, run = load_definition_module(described), load_solution(described, one)
    monkeypatch.setitem(sys.modules, "sgl_kernel", fakes.fake_sgl_kernel())
    for case in small_cases(described, module.SMALL_AXES, module.SMALL_VARIANTS, 1):
        maker = InputMaker(described, module, case, torch.device("cpu"), catalog.root)
        inputs = maker.make()
        outputs = {name: torch.full(shape, 77, dtype=dtype) for name, (shape, dtype) in maker.output_places().items()}
        run(*inputs.values(), *outputs.values())
        verdict = judge(described, module, inputs, outputs)
        assert verdict.status is Status.PASSED, f"{case.label}: {verdict.message}"


@pytest.mark.interpreted
@pytest.mark.parametrize("case", CASES)
@recalled_for("triton_fused_v2", compiler=interpreter())
def test_triton_fused_v2_around_fakes(case, ready):
    ready("triton_fused_v2")
    check("triton_fused_v2", CASES[case](), **FP8_AND_BF16)


@pytest.mark.interpreted
@pytest.mark.parametrize("case, masked_limit", diagonal([*CASES], [1024, 0]))
@recalled_for("deepgemm_grouped", compiler=interpreter())
def test_deepgemm_grouped_around_fakes(case, masked_limit, ready, monkeypatch):
    module = ready("deepgemm_grouped")
    monkeypatch.setattr(module, "MASKED_LIMIT", masked_limit)
    check("deepgemm_grouped", CASES[case](), **FP8_AND_BF16)


@pytest.mark.interpreted
@pytest.mark.parametrize("masked_limit", [1024, 0], ids=["masked", "contiguous"])
@recalled_for("deepgemm_grouped", compiler=interpreter())
def test_deepgemm_grouped_with_more_rows_than_a_tile(masked_limit, ready, monkeypatch):
    """130 tokens to one expert: two row tiles of it, and other experts behind them."""
    module = ready("deepgemm_grouped")
    monkeypatch.setattr(module, "MASKED_LIMIT", masked_limit)
    inputs = make_inputs(13, seq_len=130)
    inputs["routing_bias"][14] = 4.0
    check("deepgemm_grouped", inputs, **FP8_AND_BF16, times=1)


@pytest.mark.interpreted
@pytest.mark.parametrize("case, prepared", diagonal([*CASES], [True, False]))
@recalled_for("hpc_ops_moe", compiler=interpreter())
def test_hpc_ops_moe_around_fakes(case, prepared, ready):
    module, inputs = ready("hpc_ops_moe"), CASES[case]()
    constants = {name: value for name, value in inputs.items() if name.startswith("gemm") or name == "routing_bias"}
    bound = module.setup(**constants) if prepared else {}
    check("hpc_ops_moe", inputs, **FP8_AND_BF16, prepared=bound)


@pytest.mark.skipif(importlib.util.find_spec("hpc") is not None, reason="the library is here")
def test_hpc_ops_moe_says_what_it_needs():
    with pytest.raises(ImportError, match=r"scripts/build_hpc_ops\.sh"):
        solution("hpc_ops_moe").library.__wrapped__()


@pytest.mark.interpreted
@pytest.mark.parametrize("case, capability", diagonal([*CASES], [(9, 0), (10, 0)]))
def test_flashinfer_around_fakes(case, capability, ready, monkeypatch):
    module = ready("flashinfer_moe")
    monkeypatch.setattr(module, "has_sm100", lambda device: capability >= (10, 0))
    check("flashinfer_moe", CASES[case](), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("seq_len", [1, 128, 129, 1024, 1025, 14107])
def test_deepgemm_layout_holds_any_routing(seq_len):
    masked, panels, rows = solution("deepgemm_grouped").layout(seq_len, 32)
    assert rows % 128 == 0 and panels == (32 if masked else 1)
    if masked:
        assert rows >= seq_len
        return
    # Worst cases: all pairs local, and every count one more than a multiple of 128, as far as seq_len * 8 reaches.
    pairs = seq_len * 8
    counts = [1] * 32
    while sum(counts) + 128 <= pairs:
        counts[counts.index(min(counts))] += 128
    assert rows >= sum(-(-count // 128) * 128 for count in counts)
