"""sgl-kernel's grouped FP8 GEMM between its own sorting, SwiGLU, quantisation and sum."""

import functools

import torch

BLOCK, WORKSPACE_BYTES = 128, 1 << 20


@functools.cache
def strides(columns, experts, device):
    """Elements of a row, one for each expert's product."""
    return torch.full((experts,), columns, dtype=torch.int64, device=device)


def grouped_gemm(out, rows, rows_scale, weights, weights_scale, sizes, offsets):
    """out[rows of expert] = rows @ weights[expert]^T. Weights go in as transposed views, which copies nothing."""
    experts, device = len(weights), out.device
    pointers = torch.empty(5, experts, dtype=torch.int64, device=device).unbind()
    layouts = torch.empty(2, experts, 5, dtype=torch.int32, device=device).unbind()
    rows_stride, out_stride = (strides(each.shape[1], experts, device) for each in (rows, out))
    torch.ops.sgl_kernel.fp8_blockwise_scaled_grouped_mm.default(
        out, *pointers, rows, weights.transpose(1, 2), rows_scale, weights_scale.transpose(1, 2), rows_stride,
        rows_stride, out_stride, *layouts, sizes, offsets,
        torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device))


@torch.no_grad()
def run(hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight, down_weight_scale,
        topk_ids, topk_weights, output):
    """hidden_states fp8 [tokens, hidden] with scales float32 [tokens, hidden / 128], weights fp8 [experts, 2 * inner,
    hidden] and [experts, hidden, inner] with 128x128 scales, topk_ids int32 and topk_weights float32 [tokens, top_k]
    -> output bf16 [tokens, hidden]."""
    import sgl_kernel

    if not hidden_states.numel():
        return
    (count, hidden, inner), rows, device = down_weight.shape, topk_ids.numel(), output.device
    empty = functools.partial(torch.empty, device=device)
    offsets, maps = empty(count + 1, dtype=torch.int32), empty(2, rows, dtype=torch.int32).unbind()
    sizes = empty(2, count, 3, dtype=torch.int32).unbind()
    sgl_kernel.prepare_moe_input(topk_ids, offsets, *sizes, *maps, count, inner, hidden)
    sorted_rows = empty(rows, hidden, dtype=hidden_states.dtype)
    sorted_scale = empty(rows, hidden // BLOCK, dtype=torch.float32)
    torch.ops.sgl_kernel.shuffle_rows.default(hidden_states, maps[0], sorted_rows)
    torch.ops.sgl_kernel.shuffle_rows.default(hidden_states_scale, maps[0], sorted_scale)

    both = empty(rows, 2 * inner, dtype=torch.bfloat16)
    grouped_gemm(both, sorted_rows, sorted_scale, gate_up_weight, gate_up_weight_scale, sizes[0], offsets[:-1])
    swiglu = empty(rows, inner, dtype=torch.bfloat16)
    sgl_kernel.silu_and_mul(both, swiglu)
    activated = empty(rows, inner, dtype=hidden_states.dtype)
    activated_scale = empty(rows, inner // BLOCK, dtype=torch.float32)
    sgl_kernel.sgl_per_token_group_quant_8bit(swiglu, activated, activated_scale, BLOCK, 1e-10, -448.0, 448.0)
    down = empty(rows, hidden, dtype=torch.bfloat16)
    grouped_gemm(down, activated, activated_scale, down_weight, down_weight_scale, sizes[1], offsets[:-1])
    sgl_kernel.apply_shuffle_mul_sum(down, output, maps[1], topk_weights.to(torch.bfloat16))
