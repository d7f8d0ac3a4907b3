"""The competitors on a machine without a GPU.

moe_baseline runs as it is. The others' library ops are replaced by fakes in plain torch, which take the arguments of
the real ops (schemas and signatures of sglang-kernel 0.4.3, sgl-deep-gemm 0.1.3, flashinfer 0.6.13), leave alone the
memory that the real ones leave alone, and so test the index arithmetic around them; buffers start as NaN. Triton
kernels run in the interpreter, in a process of its own, and compile for sm_90 and sm_100 in this one.
"""

import functools
import importlib.util
import inspect
import math
import os
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
NAME = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
FOLDERS = {
    "moe_baseline": "baseline", "triton_fused_v2": "sgl-kernel", "cutlass_grouped": "sgl-kernel",
    "flashinfer_moe": "flashinfer", "deepgemm_grouped": "deepgemm",
}
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
in_interpreter = pytest.mark.skipif(not INTERPRETED, reason="run by test_under_the_interpreter")
compiled = pytest.mark.skipif(INTERPRETED, reason="needs a process without TRITON_INTERPRET")


def load(path):
    """The module at `path`, under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def solution(name):
    return load(folder(name) / "main.py")


def folder(name):
    return ROOT / "solutions" / FOLDERS[name] / "moe" / NAME / name


definition = load(ROOT / "definitions" / "moe" / f"{NAME}.py")


# Inputs ---------------------------------------------------------------------------------------------------------------

def make_inputs(seed=0, **changes):
    """The definition's inputs at SMALL_AXES with `changes`, random ones as flashinfer-bench makes them."""
    size = {**definition.SMALL_AXES, "seed": seed, **changes}
    generator = torch.Generator().manual_seed(1000 + seed)
    hidden, intermediate, local = size["hidden_size"], size["intermediate_size"], size["num_local_experts"]

    def fp8(*shape):
        return torch.randn(*shape, generator=generator).clamp(-2, 2).to(torch.float8_e4m3fn)

    made = definition.generate_inputs(size, "cpu")
    return {
        "routing_logits": made["routing_logits"], "routing_bias": made["routing_bias"],
        "hidden_states": fp8(size["seq_len"], hidden), "hidden_states_scale": made["hidden_states_scale"],
        "gemm1_weights": fp8(local, size["gemm1_out_size"], hidden),
        "gemm1_weights_scale": made["gemm1_weights_scale"], "gemm2_weights": fp8(local, hidden, intermediate),
        "gemm2_weights_scale": made["gemm2_weights_scale"], "local_expert_offset": size["local_expert_offset"],
        "routed_scaling_factor": size["routed_scaling_factor"],
    }


def favour(inputs, experts):
    """Inputs whose every token chooses the given 8 experts of the 64."""
    inputs["routing_logits"] = torch.full_like(inputs["routing_logits"], -8.0)
    inputs["routing_logits"][:, experts] = 2.0 + 0.1 * torch.arange(len(experts))
    return inputs


# The offset of SMALL_AXES is 12, its 8 local experts are 12 to 19, its groups have 8 experts each.
CASES = {
    "seed 0": lambda: make_inputs(0),
    "seed 1": lambda: make_inputs(1),
    "seed 2": lambda: make_inputs(2),
    "one token": lambda: make_inputs(3, seq_len=1),
    "many tokens": lambda: make_inputs(4, seq_len=70),
    "offset 0": lambda: make_inputs(5, local_expert_offset=0),
    "last experts": lambda: make_inputs(6, local_expert_offset=56),
    "no local expert": lambda: favour(make_inputs(7), [0, 1, 24, 25, 40, 41, 56, 57]),
    "one local expert for all": lambda: favour(make_inputs(8), [13, 8, 24, 25, 40, 41, 56, 57]),
    "all to the local experts": lambda: favour(make_inputs(9), list(range(12, 20))),
    "equal scores": lambda: make_equal(make_inputs(10)),
}


def make_equal(inputs):
    inputs["routing_logits"].zero_()
    inputs["routing_bias"].zero_()
    inputs["local_expert_offset"] = 4
    return inputs


def check(name, inputs, rtol, atol, misses=0.0):
    """Runs the solution twice, on poisoned output; compares with the definition, and the inputs with themselves.

    atol is in standard deviations of the output; a share `misses` of the elements may fail, by 1 of them at most."""
    expected = definition.run(**inputs).float()
    unit = max(1.0, expected.std().item())
    before = {key: value.clone() for key, value in inputs.items() if isinstance(value, torch.Tensor)}
    for _ in range(2):
        output = torch.full(expected.shape, math.nan, dtype=torch.bfloat16)
        solution(name).run(**inputs, output=output)
        error = (output.float() - expected).abs()
        failed = ~(error <= atol * unit + rtol * expected.abs())  # NaN fails
        assert failed.float().mean() <= misses and (error <= unit).logical_or(~failed).all(), f"{error.max() / unit}"
    for key, value in before.items():
        assert torch.equal(inputs[key].view(torch.uint8), value.view(torch.uint8)), f"{key} has changed"


# Files ----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", FOLDERS)
def test_files_agree(name):
    declared = tomllib.loads((folder(name) / "solution.toml").read_text())
    assert (declared["name"], declared["author"], declared["definition"]) == (name, FOLDERS[name], NAME)
    assert declared["entry_point"] == "main.py::run" and declared["destination_passing_style"]
    inputs = list(inspect.signature(definition.run).parameters)
    assert list(inspect.signature(solution(name).run).parameters) == [*inputs, "output"]


# Names as cuobjdump and c++filt give them for the libraries' binaries.
KERNELS = {
    "triton_fused_v2": {
        "void moe_fused_gate_kernel<float, 32, 256, 8, 4, 24, 6>(void*, void*, float*, int*, long)": "K1",
        "void moe_fused_gate_kernel_dynamic<float>(void*, void*, float*, int*, long, long)": "K1",
        "compute_expert_offsets(int const*, int*, int*, long)": "K2a",
        "void shuffleRowsKernel<__nv_fp8_e4m3>(__nv_fp8_e4m3 const*, int const*)": "K2b",
        "void shuffleRowsKernel<float>(float const*, int const*, float*, long, long, long)": "K2b",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape>>": "K3+K5",
        "void get_group_gemm_starts<cutlass::float_e4m3_t, cutlass::bfloat16_t, float>(int*)": "K3'+K5'",
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
        "route_kernel": "route", "gather_kernel": "gather", "swiglu_quant_kernel": "swiglu",
        "combine_kernel": "combine", "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u>": "gemm",
    },
    "flashinfer_moe": {
        "void tensorrt_llm::kernels::deepseek_v3_topk_kernel<float, __nv_bfloat16, float, int>": "routing",
        "dequantize_kernel": "dequantize",
        "void deep_gemm::fp8_gemm_kernel_swapAB<0u, 4096u>": "gemm",
        "void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<__nv_bfloat16>": "finalize",
    },
}


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_name_has_one_stage(name):
    import re

    stages = tomllib.loads((folder(name) / "solution.toml").read_text())["stages"]
    for kernel, expected in KERNELS[name].items():
        found = [stage["name"] for stage in stages if any(re.search(p, kernel) for p in stage["kernels"])]
        assert found == [expected], kernel


# moe_baseline ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("case", CASES)
def test_baseline(case):
    check("moe_baseline", CASES[case](), rtol=0.03, atol=0.03)


def test_baseline_in_chunks(monkeypatch):
    monkeypatch.setattr(solution("moe_baseline"), "CHUNK", 4)
    check("moe_baseline", make_inputs(11), rtol=0.03, atol=0.03)


@pytest.mark.parametrize("name", FOLDERS)
def test_no_token_returns_at_once(name, monkeypatch):
    for module in ("sgl_kernel", "deep_gemm", "flashinfer"):
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    inputs = make_inputs(12, seq_len=0)
    solution(name).run(**inputs, output=torch.empty(0, inputs["hidden_states"].shape[1], dtype=torch.bfloat16))


# Fakes ----------------------------------------------------------------------------------------------------------------

def dequantized(rows, scale):
    """rows fp8 [rows, K], scale float32 [rows, K / 128] -> float32."""
    return rows.float() * scale.repeat_interleave(128, dim=1)


def fake_silu_and_mul(out, source):
    half = source.shape[1] // 2
    out.copy_(torch.nn.functional.silu(source[:, :half].float()) * source[:, half:].float())


def fake_group_quant(source, out, scale, group_size, eps, low, high, scale_ue8m0, fuse_silu_and_mul, masked_m):
    assert group_size == 128 and not scale_ue8m0 and not fuse_silu_and_mul and masked_m is None
    blocks = source.float().view(source.shape[0], -1, group_size)
    scale.copy_(blocks.abs().amax(-1).clamp(min=eps) / high)
    out.copy_((blocks / scale.unsqueeze(-1)).clamp(low, high).view(source.shape).to(out.dtype))


def fake_gate(logits, bias, num_expert_group, topk_group, topk, num_fused_shared_experts, factor, apply_on_output):
    assert logits.dtype == bias.dtype, "input and bias should have the same dtype"
    assert (num_expert_group, topk_group, topk, num_fused_shared_experts) == (8, 4, 8, 0)
    experts, weights = definition.route(logits, bias, factor if apply_on_output else 1.0)
    return [weights, experts.int()]


def fake_prepare(ids, offsets, blockscale_offsets, sizes1, sizes2, source_of_row, row_of_pair, num_experts, n, k):
    assert ids.dtype == torch.int32
    flat, row = ids.flatten().tolist(), 0
    offsets[0] = 0
    for expert in range(num_experts):
        # Highest pair first: the real op takes its rows in any order.
        for pair in reversed([i for i, value in enumerate(flat) if value == expert]):
            source_of_row[row], row_of_pair[pair] = pair // ids.shape[1], row
            row += 1
        offsets[expert + 1] = row
        count = row - offsets[expert]
        sizes1[expert] = torch.tensor([count, 2 * n, k])
        sizes2[expert] = torch.tensor([count, k, n])


def fake_shuffle_rows(source, source_of_row, out):
    """The real op copies 16 bytes at a time without a tail. At SMALL_AXES a row of scales is shorter than that: here
    whole rows are copied, see the solutions' docstrings."""
    assert source.is_contiguous() and out.is_contiguous() and source.dtype == out.dtype
    assert source_of_row.numel() == out.shape[0] and int(source_of_row.max()) < source.shape[0]
    out.view(torch.uint8).copy_(source.view(torch.uint8)[source_of_row.long()])


def fake_grouped_mm(output, a_ptrs, b_ptrs, out_ptrs, a_scales_ptrs, b_scales_ptrs, a, b, scales_a, scales_b, stride_a,
                    stride_b, stride_c, layout_sfa, layout_sfb, problem_sizes, expert_offsets, workspace):
    """From the base addresses, sizes and strides, as the real op; rows of no problem stay as they are."""
    experts = problem_sizes.shape[0]
    assert a.is_contiguous() and scales_a.is_contiguous() and output.is_contiguous() and workspace.numel() >= 90_000
    assert b.transpose(1, 2).is_contiguous() and scales_b.transpose(1, 2).is_contiguous()
    assert expert_offsets.numel() == experts and layout_sfa.shape == layout_sfb.shape == (experts, 5)
    assert all(pointers.numel() == experts and pointers.dtype == torch.int64
               for pointers in (a_ptrs, b_ptrs, out_ptrs, a_scales_ptrs, b_scales_ptrs))
    weights, weights_scale = b.transpose(1, 2).flatten(), scales_b.transpose(1, 2).flatten()
    for expert, (m, n, k) in enumerate(problem_sizes.tolist()):
        assert stride_a[expert] == stride_b[expert] == k == a.shape[1] and stride_c[expert] == n == output.shape[1]
        rows = slice(int(expert_offsets[expert]), int(expert_offsets[expert]) + m)
        weight = weights[expert * n * k : (expert + 1) * n * k].view(n, k)
        blocks = n * k // 128 // 128
        scale = weights_scale[expert * blocks : (expert + 1) * blocks].view(n // 128, k // 128)
        product = dequantized(a[rows], scales_a[rows]) @ definition.dequantize_weight(weight, scale).t()
        output[rows] = product.to(output.dtype)


def fake_apply_shuffle_mul_sum(source, output, permutation, factors):
    assert factors.dtype == output.dtype and permutation.numel() == factors.numel()
    tokens = output.shape[0]
    picked = source[permutation.long()].view(tokens, -1, output.shape[1]).float()
    output.copy_((factors.float().view(tokens, -1, 1) * picked).sum(1))


SGL_KERNEL_OPS = {
    "silu_and_mul(Tensor(a!) out, Tensor input) -> ()": fake_silu_and_mul,
    "sgl_per_token_group_quant_8bit_v2(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s, int group_size, "
    "float eps, float fp8_min, float fp8_max, bool scale_ue8m0, bool fuse_silu_and_mul, Tensor? masked_m) -> ()":
        fake_group_quant,
    "moe_fused_gate(Tensor input, Tensor bias, int num_expert_group, int topk_group, int topk, "
    "int num_fused_shared_experts, float routed_scaling_factor, bool apply_routed_scaling_factor_on_output) "
    "-> (Tensor[])": fake_gate,
    "prepare_moe_input(Tensor topk_ids, Tensor expert_offsets, Tensor? blockscale_offsets, Tensor problem_sizes1, "
    "Tensor problem_sizes2, Tensor input_permutation, Tensor output_permutation, int num_experts, int n, int k) -> ()":
        fake_prepare,
    "shuffle_rows(Tensor input, Tensor dst2src_map, Tensor output) -> ()": fake_shuffle_rows,
    "fp8_blockwise_scaled_grouped_mm(Tensor output, Tensor a_ptrs, Tensor b_ptrs, Tensor out_ptrs, "
    "Tensor a_scales_ptrs, Tensor b_scales_ptrs, Tensor a, Tensor b, Tensor scales_a, Tensor scales_b, "
    "Tensor stride_a, Tensor stride_b, Tensor stride_c, Tensor layout_sfa, Tensor layout_sfb, Tensor problem_sizes, "
    "Tensor expert_offsets, Tensor workspace) -> ()": fake_grouped_mm,
    "apply_shuffle_mul_sum(Tensor input, Tensor output, Tensor permutation, Tensor? factors) -> ()":
        fake_apply_shuffle_mul_sum,
}


@functools.cache
def fake_sgl_kernel():
    """A module that stands for sgl_kernel, its ops registered in torch.ops.sgl_kernel for CPU tensors."""
    library = torch.library.Library("sgl_kernel", "DEF")
    for schema, function in SGL_KERNEL_OPS.items():
        library.impl(library.define(schema), function, "CPU")
    ops = torch.ops.sgl_kernel
    module = types.ModuleType("sgl_kernel")
    module.library = library  # ops live as long as it

    def prepare_moe_input(topk_ids, expert_offsets, problem_sizes1, problem_sizes2, input_permutation,
                          output_permutation, num_experts, n, k, blockscale_offsets=None):
        ops.prepare_moe_input.default(topk_ids, expert_offsets, blockscale_offsets, problem_sizes1, problem_sizes2,
                                      input_permutation, output_permutation, num_experts, n, k)

    def quant(source, out, scale, group_size, eps, fp8_min, fp8_max):
        ops.sgl_per_token_group_quant_8bit_v2.default(source, out, scale, group_size, eps, fp8_min, fp8_max, False,
                                                      False, None)

    module.moe_fused_gate = ops.moe_fused_gate.default
    module.prepare_moe_input = prepare_moe_input
    module.silu_and_mul = lambda source, out: ops.silu_and_mul.default(out, source)
    module.sgl_per_token_group_quant_8bit = quant
    module.apply_shuffle_mul_sum = ops.apply_shuffle_mul_sum.default
    return module


def fake_masked(a, b, d, masked_m, expected_m, recipe=None, recipe_a=None, recipe_b=None, compiled_dims="nk",
                disable_ue8m0_cast=False):
    """Rows past an expert's count, up to the next multiple of 128, become garbage, as a tile's do."""
    (rows, scale), (weights, weights_scale) = a, b
    experts, capacity, k = rows.shape
    check_deep_gemm(rows, scale, weights, weights_scale, d, disable_ue8m0_cast)
    assert capacity % 128 == 0 and expected_m > 0 and masked_m.dtype == torch.int32
    assert scale.stride() == (capacity * (k // 128), 1, capacity)
    for expert, count in enumerate(masked_m.tolist()):
        weight = definition.dequantize_weight(weights[expert], weights_scale[expert])
        d[expert, :count] = (dequantized(rows[expert, :count], scale[expert, :count]) @ weight.t()).to(d.dtype)
        d[expert, count : -(-count // 128) * 128] = math.nan


def fake_contiguous(a, b, d, grouped_layout, recipe=None, recipe_a=None, recipe_b=None, compiled_dims="nk",
                    disable_ue8m0_cast=False, use_psum_layout=False, expected_m_for_psum_layout=None):
    (rows, scale), (weights, weights_scale) = a, b
    check_deep_gemm(rows, scale, weights, weights_scale, d, disable_ue8m0_cast)
    assert use_psum_layout and grouped_layout.dtype == torch.int32 and grouped_layout.numel() == weights.shape[0]
    assert scale.stride() == (1, rows.shape[0]) and rows.shape[0] % 4 == 0
    start = 0
    for expert, end in enumerate(grouped_layout.tolist()):
        assert start <= end <= d.shape[0]
        weight = definition.dequantize_weight(weights[expert], weights_scale[expert])
        d[start:end] = (dequantized(rows[start:end], scale[start:end]) @ weight.t()).to(d.dtype)
        start = -(-end // 128) * 128
        d[end:start] = math.nan


def check_deep_gemm(rows, scale, weights, weights_scale, d, disable_ue8m0_cast):
    assert disable_ue8m0_cast and d.dtype == torch.bfloat16 and d.is_contiguous()
    assert rows.is_contiguous() and weights.is_contiguous() and weights_scale.is_contiguous()
    assert rows.dtype == weights.dtype == torch.float8_e4m3fn
    assert scale.shape == (*rows.shape[:-1], rows.shape[-1] // 128)
    assert d.shape == (*rows.shape[:-1], weights.shape[1])


def fake_deep_gemm():
    module = types.ModuleType("deep_gemm")
    module.m_grouped_fp8_fp4_gemm_nt_masked = fake_masked
    module.m_grouped_fp8_fp4_gemm_nt_contiguous = fake_contiguous
    return module


def fake_topk(scores, bias, n_group, topk_group, topk, routed_scaling_factor, topk_values, topk_indices,
              launch_with_pdl=True, routing_replay_out=None):
    assert (n_group, topk_group, topk) == (8, 4, 8) and topk_indices.dtype == torch.int32
    experts, weights = definition.route(scores, bias, routed_scaling_factor)
    topk_values.copy_(weights)
    topk_indices.copy_(experts)


def fake_cutlass_fused_moe(input, token_selected_experts, token_final_scales, fc1_expert_weights, fc2_expert_weights,
                           output_dtype, quant_scales, output=None, ep_size=1, ep_rank=0,
                           use_deepseek_fp8_block_scale=False):
    assert use_deepseek_fp8_block_scale and input.dtype == output_dtype == torch.bfloat16
    assert token_final_scales.dtype == torch.float32 and token_selected_experts.dtype == torch.int32
    half, local = fc2_expert_weights.shape[2], fc1_expert_weights.shape[0]
    total = torch.zeros(output.shape)
    for expert in range(local):
        weight = (token_final_scales * (token_selected_experts == expert + ep_rank * local)).sum(1, keepdim=True)
        gemm1 = input.float() @ definition.dequantize_weight(fc1_expert_weights[expert], quant_scales[0][expert]).t()
        activated = torch.nn.functional.silu(gemm1[:, half:]) * gemm1[:, :half]
        total += weight * (activated @ definition.dequantize_weight(fc2_expert_weights[expert],
                                                                    quant_scales[1][expert]).t())
    output.copy_(total)


def fake_trtllm(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
                gemm2_weights, gemm2_weights_scale, num_experts, top_k, n_group, topk_group, intermediate_size,
                local_expert_offset, local_num_experts, routed_scaling_factor, routing_method_type=0,
                use_shuffled_weight=False):
    assert (num_experts, top_k, n_group, topk_group) == (routing_logits.shape[1], 8, 8, 4)
    assert routing_method_type == 2 and (local_num_experts, intermediate_size) == tuple(gemm2_weights.shape)[::2]
    return definition.run(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights,
                          gemm1_weights_scale, gemm2_weights, gemm2_weights_scale, local_expert_offset,
                          routed_scaling_factor)


def fake_flashinfer():
    module = types.ModuleType("flashinfer")
    module.fused_moe = types.SimpleNamespace(
        fused_topk_deepseek=fake_topk, cutlass_fused_moe=fake_cutlass_fused_moe,
        trtllm_fp8_block_scale_moe=fake_trtllm, RoutingMethodType=types.SimpleNamespace(DeepSeekV3=2))
    return module


def poison(name, monkeypatch):
    """Buffers of the solution come as NaN, not as whatever the memory holds, and only zeros that it asks for are."""
    module = solution(name)
    empty = torch.empty

    def poisoned(*shape, **options):
        tensor = empty(*shape, **options)
        bytes_of = tensor.view(torch.uint8) if tensor.numel() else tensor
        # 0xFF is NaN in fp8, bf16 and float32, and -1 in an integer.
        bytes_of.fill_(255)
        return tensor

    names = {key: getattr(torch, key) for key in dir(torch) if not key.startswith("__")}
    monkeypatch.setattr(module, "torch", types.SimpleNamespace(**{**names, "empty": poisoned}))
    module.buffers.cache_clear()


@pytest.fixture
def ready(monkeypatch):
    """Makes a solution ready for the CPU: fakes for its library, poisoned buffers."""
    made = {"sgl_kernel": fake_sgl_kernel, "deep_gemm": fake_deep_gemm, "flashinfer": fake_flashinfer}

    def prepare(name):
        for module, make in made.items():
            monkeypatch.setitem(sys.modules, module, make())
        poison(name, monkeypatch)
        return solution(name)

    yield prepare
    for name in FOLDERS:
        if hasattr(solution(name), "buffers"):
            solution(name).buffers.cache_clear()


# fp8 between the GEMMs costs 1/16 of a value at most. In the interpreter (triton 3.7) it costs some values a half, as
# rounding up to a power of two loses the carry (1.97 becomes 1). The kernels' own tests look at values before rounding.
TOLERANCE = {"rtol": 0.1, "atol": 0.15, "misses": 0.05 if INTERPRETED else 0.0}


@pytest.mark.skipif(importlib.util.find_spec("sgl_kernel") is not None, reason="the real ops would be shadowed")
@pytest.mark.parametrize("case", CASES)
def test_cutlass_grouped_around_fakes(case, ready):
    ready("cutlass_grouped")
    check("cutlass_grouped", CASES[case](), **TOLERANCE)


@in_interpreter
@pytest.mark.parametrize("case", CASES)
def test_triton_fused_v2_around_fakes(case, ready):
    ready("triton_fused_v2")
    check("triton_fused_v2", CASES[case](), **TOLERANCE)


@in_interpreter
@pytest.mark.parametrize("masked_limit", [1024, 0], ids=["masked", "contiguous"])
@pytest.mark.parametrize("case", CASES)
def test_deepgemm_grouped_around_fakes(case, masked_limit, ready, monkeypatch):
    module = ready("deepgemm_grouped")
    monkeypatch.setattr(module, "MASKED_LIMIT", masked_limit)
    check("deepgemm_grouped", CASES[case](), **TOLERANCE)


@in_interpreter
@pytest.mark.parametrize("masked_limit", [1024, 0], ids=["masked", "contiguous"])
def test_deepgemm_grouped_with_more_rows_than_a_tile(masked_limit, ready, monkeypatch):
    """150 tokens to one expert: two row tiles of it, and other experts behind them."""
    module = ready("deepgemm_grouped")
    monkeypatch.setattr(module, "MASKED_LIMIT", masked_limit)
    inputs = make_inputs(13, seq_len=150)
    inputs["routing_logits"][:, 14] = 9.0
    check("deepgemm_grouped", inputs, **TOLERANCE)


@in_interpreter
@pytest.mark.parametrize("capability", [(9, 0), (10, 0)])
@pytest.mark.parametrize("case", CASES)
def test_flashinfer_around_fakes(case, capability, ready, monkeypatch):
    module = ready("flashinfer_moe")
    monkeypatch.setattr(module, "has_sm100", lambda device: capability >= (10, 0))
    check("flashinfer_moe", CASES[case](), **TOLERANCE)


# Kernels alone, in the interpreter ------------------------------------------------------------------------------------

def swiglu_expected(gemm1):
    up, gate = gemm1.float().chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


@in_interpreter
@pytest.mark.parametrize("intermediate", [128, 256, 384])
def test_swiglu_quant_kernel(intermediate):
    gemm1 = torch.randn(5, 2 * intermediate, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16) * 4
    gemm1[2] = 0
    out = torch.empty(5, intermediate)  # the kernel casts to the output's type: float32 keeps the values unrounded
    scale = torch.empty(5, intermediate // 128)
    solution("triton_fused_v2").swiglu_quant(gemm1, out, scale)
    expected = swiglu_expected(gemm1)
    torch.testing.assert_close(dequantized(out, scale), expected)
    torch.testing.assert_close(scale * 448, expected.view(5, -1, 128).abs().amax(-1).clamp(min=1e-10))


@in_interpreter
@pytest.mark.parametrize("split", [1, 8])
@pytest.mark.parametrize("panels", [1, 2])
def test_swiglu_quant_kernel_of_deepgemm(panels, split):
    """Rows of local pairs only, the others keep what they held; scales in panels [blocks, rows]."""
    in_panel, intermediate = 6, 384
    gemm1 = torch.randn(panels * in_panel, 2 * intermediate, generator=torch.Generator().manual_seed(2))
    gemm1 = gemm1.to(torch.bfloat16)
    rows = torch.full((3, 8), -1, dtype=torch.int32)
    owned = [0, 4, panels * in_panel - 1]
    rows[0, 2], rows[0, 7], rows[2, 0] = owned
    out, scale = torch.full((len(gemm1), intermediate), -7.0), torch.full((panels, 3, in_panel), -7.0)
    solution("deepgemm_grouped").swiglu_quant_kernel[(3, split)](
        gemm1, rows, out, scale, in_panel, INTERMEDIATE=intermediate, NUM_BLOCKS=3, BLOCKS_TILE=4, BLOCK=128, TOP_K=8,
        SPLIT=split)
    by_row = scale.transpose(1, 2).reshape(len(gemm1), 3)
    torch.testing.assert_close(dequantized(out, by_row)[owned], swiglu_expected(gemm1)[owned])
    others = [row for row in range(len(gemm1)) if row not in owned]
    assert (out[others] == -7).all() and (by_row[others] == -7).all()


@in_interpreter
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_experts", [64, 256])
def test_route_kernel(seed, num_experts):
    module = solution("deepgemm_grouped")
    tokens, offset, local = 17, 3, num_experts // 8
    inputs = make_inputs(seed, seq_len=tokens, num_experts=num_experts)
    experts, ranks = torch.empty(tokens, 8, dtype=torch.int32), torch.empty(tokens, 8, dtype=torch.int32)
    weights, counts = torch.empty(tokens, 8), torch.zeros(local, dtype=torch.int32)
    module.route_kernel[(tokens,)](
        inputs["routing_logits"], inputs["routing_bias"], experts, ranks, weights, counts, offset, 2.5,
        NUM_LOCAL=local, NUM_GROUPS=8, GROUP=num_experts // 8, TOP_GROUPS=4, TOP_K=8)
    chosen, expected_weights = definition.route(inputs["routing_logits"], inputs["routing_bias"], 2.5)
    expected = chosen - offset
    expected[(expected < 0) | (expected >= local)] = -1
    assert torch.equal(experts.long(), expected)
    torch.testing.assert_close(weights, expected_weights)
    for expert in range(local):
        assert sorted(ranks[experts == expert].tolist()) == list(range(int(counts[expert])))
    assert int(counts.sum()) == int((expected >= 0).sum())


@in_interpreter
def test_combine_kernel():
    module = solution("deepgemm_grouped")
    gemm2 = torch.randn(6, 384, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    gemm2[5] = math.nan  # a row that no pair owns
    rows = torch.full((2, 8), -1, dtype=torch.int32)
    rows[0, [1, 6]] = torch.tensor([4, 0], dtype=torch.int32)
    weights = torch.full((2, 8), math.nan)
    weights[0, [1, 6]] = torch.tensor([0.5, 2.0])
    output = torch.full((2, 384), math.nan, dtype=torch.bfloat16)
    module.combine_kernel[(2, 2)](gemm2, rows, weights, output, HIDDEN=384, TILE=256, TOP_K=8)
    torch.testing.assert_close(output[0], (0.5 * gemm2[4].float() + 2 * gemm2[0].float()).to(torch.bfloat16))
    assert (output[1] == 0).all()


@in_interpreter
def test_dequantize_kernel():
    inputs = make_inputs(14)
    out = torch.empty(inputs["hidden_states"].shape, dtype=torch.bfloat16)
    solution("flashinfer_moe").dequantize(inputs["hidden_states"], inputs["hidden_states_scale"], out)
    expected = dequantized(inputs["hidden_states"], inputs["hidden_states_scale"].t())
    torch.testing.assert_close(out, expected.to(torch.bfloat16))


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


# Ahead of time --------------------------------------------------------------------------------------------------------

def aot_cases():
    """(solution, kernel, signature, constants, options) at the full sizes and, where tiles differ, at SMALL_AXES."""
    for blocks in (16, 2):
        yield "triton_fused_v2", "swiglu_quant_kernel", {
            "gemm1_ptr": "*bf16", "out_ptr": "*fp8e4nv", "scale_ptr": "*fp32"}, {
            "INTERMEDIATE": 128 * blocks, "NUM_BLOCKS": blocks, "BLOCKS": blocks, "BLOCK": 128}, {"num_warps": 8}
        for split in (1, 8):
            yield "deepgemm_grouped", "swiglu_quant_kernel", {
                "gemm1_ptr": "*bf16", "rows_ptr": "*i32", "out_ptr": "*fp8e4nv", "out_scale_ptr": "*fp32",
                "rows_per_panel": "i32"}, {
                "INTERMEDIATE": 128 * blocks, "NUM_BLOCKS": blocks, "BLOCKS_TILE": blocks, "BLOCK": 128, "TOP_K": 8,
                "SPLIT": split}, {"num_warps": 8}
    for group, local in ((32, 32), (8, 8)):
        yield "deepgemm_grouped", "route_kernel", {
            "logits_ptr": "*fp32", "bias_ptr": "*bf16", "experts_ptr": "*i32", "ranks_ptr": "*i32",
            "weights_ptr": "*fp32", "counts_ptr": "*i32", "local_expert_offset": "i32",
            "routed_scaling_factor": "fp32"}, {
            "NUM_LOCAL": local, "NUM_GROUPS": 8, "GROUP": group, "TOP_GROUPS": 4, "TOP_K": 8}, {"num_warps": 1}
    for masked in (True, False):
        yield "deepgemm_grouped", "gather_kernel", {
            "hidden_ptr": "*i32", "hidden_scale_ptr": "*fp32", "experts_ptr": "*i32", "ranks_ptr": "*i32",
            "counts_ptr": "*i32", "rows_ptr": "*i32", "ends_ptr": "*i32", "out_ptr": "*i32", "out_scale_ptr": "*fp32",
            "num_tokens": "i32", "rows_per_panel": "i32"}, {
            "MASKED": masked, "NUM_LOCAL": 32, "EXPERTS": 32, "WORDS": 1792, "WORDS_TILE": 2048, "NUM_BLOCKS": 56,
            "BLOCKS_TILE": 64, "ALIGNMENT": 128, "TOP_K": 8}, {"num_warps": 4}
    yield "deepgemm_grouped", "combine_kernel", {
        "gemm2_ptr": "*bf16", "rows_ptr": "*i32", "weights_ptr": "*fp32", "output_ptr": "*bf16"}, {
        "HIDDEN": 7168, "TILE": 1024, "TOP_K": 8}, {"num_warps": 4}
    yield "flashinfer_moe", "dequantize_kernel", {
        "values_ptr": "*fp8e4nv", "scale_ptr": "*fp32", "out_ptr": "*bf16", "num_tokens": "i32"}, {
        "COLUMNS": 7168, "TILE": 1024, "BLOCK": 128}, {"num_warps": 4}


@compiled
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("case", list(aot_cases()), ids=lambda case: f"{case[0]}-{case[1]}")
def test_kernel_compiles(case, target):
    name, kernel, signature, constants, options = case
    compile_kernel = load(ROOT / "tests" / "aot.py").compile_kernel
    binary = compile_kernel(getattr(solution(name), kernel), signature, constants, target, **options)
    assert f".target {target}" in binary.asm["ptx"]


@compiled
def test_under_the_interpreter():
    """Triton reads TRITON_INTERPRET when it is imported, hence the second process."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", __file__, "-k",
               "kernel or around_fakes or tile"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
