"""Stand-ins in plain torch for the libraries of the competitors.

They take the arguments of the real ops (schemas and signatures of sglang-kernel 0.4.3, sgl-deep-gemm 0.1.3, flashinfer
0.6.13), leave alone the memory that the real ones leave alone, and so test the index arithmetic around them.
"""

import functools
import math
import types

import torch
from moe_cases import definition, dequantized, quantized

# sgl_kernel -----------------------------------------------------------------------------------------------------------


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


def fake_grouped_mm(
    output,
    a_ptrs,
    b_ptrs,
    out_ptrs,
    a_scales_ptrs,
    b_scales_ptrs,
    a,
    b,
    scales_a,
    scales_b,
    stride_a,
    stride_b,
    stride_c,
    layout_sfa,
    layout_sfb,
    problem_sizes,
    expert_offsets,
    workspace,
):
    """From the base addresses, sizes and strides, as the real op; rows of no problem stay as they are."""
    experts = problem_sizes.shape[0]
    assert a.is_contiguous() and scales_a.is_contiguous() and output.is_contiguous() and workspace.numel() >= 90_000
    assert b.transpose(1, 2).is_contiguous() and scales_b.transpose(1, 2).is_contiguous()
    assert expert_offsets.numel() == experts and layout_sfa.shape == layout_sfb.shape == (experts, 5)
    assert all(
        pointers.numel() == experts and pointers.dtype == torch.int64
        for pointers in (a_ptrs, b_ptrs, out_ptrs, a_scales_ptrs, b_scales_ptrs)
    )
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
    "float eps, float fp8_min, float fp8_max, bool scale_ue8m0, bool fuse_silu_and_mul, Tensor? masked_m) -> ()": fake_group_quant,
    "moe_fused_gate(Tensor input, Tensor bias, int num_expert_group, int topk_group, int topk, "
    "int num_fused_shared_experts, float routed_scaling_factor, bool apply_routed_scaling_factor_on_output) "
    "-> (Tensor[])": fake_gate,
    "prepare_moe_input(Tensor topk_ids, Tensor expert_offsets, Tensor? blockscale_offsets, Tensor problem_sizes1, "
    "Tensor problem_sizes2, Tensor input_permutation, Tensor output_permutation, int num_experts, int n, int k) -> ()": fake_prepare,
    "shuffle_rows(Tensor input, Tensor dst2src_map, Tensor output) -> ()": fake_shuffle_rows,
    "fp8_blockwise_scaled_grouped_mm(Tensor output, Tensor a_ptrs, Tensor b_ptrs, Tensor out_ptrs, "
    "Tensor a_scales_ptrs, Tensor b_scales_ptrs, Tensor a, Tensor b, Tensor scales_a, Tensor scales_b, "
    "Tensor stride_a, Tensor stride_b, Tensor stride_c, Tensor layout_sfa, Tensor layout_sfb, Tensor problem_sizes, "
    "Tensor expert_offsets, Tensor workspace) -> ()": fake_grouped_mm,
    "apply_shuffle_mul_sum(Tensor input, Tensor output, Tensor permutation, Tensor? factors) -> ()": fake_apply_shuffle_mul_sum,
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

    def prepare_moe_input(
        topk_ids,
        expert_offsets,
        problem_sizes1,
        problem_sizes2,
        input_permutation,
        output_permutation,
        num_experts,
        n,
        k,
        blockscale_offsets=None,
    ):
        ops.prepare_moe_input.default(
            topk_ids,
            expert_offsets,
            blockscale_offsets,
            problem_sizes1,
            problem_sizes2,
            input_permutation,
            output_permutation,
            num_experts,
            n,
            k,
        )

    def quant(source, out, scale, group_size, eps, fp8_min, fp8_max):
        ops.sgl_per_token_group_quant_8bit_v2.default(
            source, out, scale, group_size, eps, fp8_min, fp8_max, False, False, None
        )

    module.moe_fused_gate = ops.moe_fused_gate.default
    module.prepare_moe_input = prepare_moe_input
    module.silu_and_mul = lambda source, out: ops.silu_and_mul.default(out, source)
    module.sgl_per_token_group_quant_8bit = quant
    module.apply_shuffle_mul_sum = ops.apply_shuffle_mul_sum.default
    return module


# deep_gemm ------------------------------------------------------------------------------------------------------------


def fake_masked(
    a,
    b,
    d,
    masked_m,
    expected_m,
    recipe=None,
    recipe_a=None,
    recipe_b=None,
    compiled_dims="nk",
    disable_ue8m0_cast=False,
):
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


def fake_contiguous(
    a,
    b,
    d,
    grouped_layout,
    recipe=None,
    recipe_a=None,
    recipe_b=None,
    compiled_dims="nk",
    disable_ue8m0_cast=False,
    use_psum_layout=False,
    expected_m_for_psum_layout=None,
):
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


# flashinfer -----------------------------------------------------------------------------------------------------------


def fake_topk(
    scores,
    bias,
    n_group,
    topk_group,
    topk,
    routed_scaling_factor,
    topk_values,
    topk_indices,
    launch_with_pdl=True,
    routing_replay_out=None,
):
    assert (n_group, topk_group, topk) == (8, 4, 8) and topk_indices.dtype == torch.int32
    experts, weights = definition.route(scores, bias, routed_scaling_factor)
    topk_values.copy_(weights)
    topk_indices.copy_(experts)


def fake_cutlass_fused_moe(
    input,
    token_selected_experts,
    token_final_scales,
    fc1_expert_weights,
    fc2_expert_weights,
    output_dtype,
    quant_scales,
    output=None,
    ep_size=1,
    ep_rank=0,
    use_deepseek_fp8_block_scale=False,
):
    assert use_deepseek_fp8_block_scale and input.dtype == output_dtype == torch.bfloat16
    assert token_final_scales.dtype == torch.float32 and token_selected_experts.dtype == torch.int32
    half, local = fc2_expert_weights.shape[2], fc1_expert_weights.shape[0]
    total = torch.zeros(output.shape)
    for expert in range(local):
        weight = (token_final_scales * (token_selected_experts == expert + ep_rank * local)).sum(1, keepdim=True)
        gemm1 = input.float() @ definition.dequantize_weight(fc1_expert_weights[expert], quant_scales[0][expert]).t()
        activated = torch.nn.functional.silu(gemm1[:, half:]) * gemm1[:, :half]
        total += weight * (
            activated @ definition.dequantize_weight(fc2_expert_weights[expert], quant_scales[1][expert]).t()
        )
    output.copy_(total)


def fake_trtllm(
    routing_logits,
    routing_bias,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    num_experts,
    top_k,
    n_group,
    topk_group,
    intermediate_size,
    local_expert_offset,
    local_num_experts,
    routed_scaling_factor,
    routing_method_type=0,
    use_shuffled_weight=False,
):
    assert (num_experts, top_k, n_group, topk_group) == (routing_logits.shape[1], 8, 8, 4)
    assert routing_method_type == 2 and (local_num_experts, intermediate_size) == tuple(gemm2_weights.shape)[::2]
    return definition.run(
        routing_logits,
        routing_bias,
        hidden_states,
        hidden_states_scale,
        gemm1_weights,
        gemm1_weights_scale,
        gemm2_weights,
        gemm2_weights_scale,
        local_expert_offset,
        routed_scaling_factor,
    )


def fake_flashinfer():
    module = types.ModuleType("flashinfer")
    module.fused_moe = types.SimpleNamespace(
        fused_topk_deepseek=fake_topk,
        cutlass_fused_moe=fake_cutlass_fused_moe,
        trtllm_fp8_block_scale_moe=fake_trtllm,
        RoutingMethodType=types.SimpleNamespace(DeepSeekV3=2),
    )
    return module


# hpc-ops --------------------------------------------------------------------------------------------------------------


def fake_fuse_moe_blockwise(
    x,
    x_scale,
    gate_up_weight,
    gate_up_weight_scale,
    down_weight,
    down_weight_scale,
    topk_ids,
    topk_scale,
    rank_ep,
    num_expert_total,
    shared_output=None,
    output=None,
):
    """Gate before up; ids outside of this rank's experts are passed over; a pair's row is bfloat16."""
    tokens, hidden = x.shape
    local, columns, _ = gate_up_weight.shape
    half = columns // 2
    tensors = (x, x_scale, gate_up_weight, gate_up_weight_scale, down_weight, down_weight_scale, topk_ids, topk_scale)
    assert all(tensor.is_contiguous() for tensor in tensors) and shared_output is None and rank_ep == 0
    assert topk_ids.dtype == torch.int32 and topk_scale.dtype == x_scale.dtype == torch.float32
    assert x_scale.shape == (tokens, hidden // 128) and down_weight.shape == (local, hidden, half)
    assert gate_up_weight_scale.shape == (local, columns // 128, -(-hidden // 128 // 4) * 4)
    assert down_weight_scale.shape == (local, hidden // 128, -(-half // 128 // 4) * 4)
    rows = dequantized(x, x_scale)
    total = torch.zeros(tokens, hidden)
    for expert in range(local):
        first = definition.dequantize_weight(
            gate_up_weight[expert], gate_up_weight_scale[expert, :, : hidden // 128].contiguous()
        )
        second = definition.dequantize_weight(
            down_weight[expert], down_weight_scale[expert, :, : half // 128].contiguous()
        )
        token, slot = (topk_ids == expert).nonzero(as_tuple=True)
        if token.numel() == 0:
            continue
        gate, up = (rows[token] @ first.t()).to(torch.bfloat16).float().chunk(2, dim=1)
        activated = dequantized(*quantized(torch.nn.functional.silu(gate) * up))
        total.index_add_(0, token, (activated @ second.t()).to(torch.bfloat16) * topk_scale[token, slot, None])
    output.copy_(total)


def fake_hpc():
    module = types.ModuleType("hpc")
    module.fuse_moe_blockwise = fake_fuse_moe_blockwise
    return module


MODULES = {
    "hpc": fake_hpc,
    "sgl_kernel": fake_sgl_kernel,
    "deep_gemm": fake_deep_gemm,
    "flashinfer": fake_flashinfer,
    "flashinfer_jit_cache": lambda: types.ModuleType("flashinfer_jit_cache"),
}
