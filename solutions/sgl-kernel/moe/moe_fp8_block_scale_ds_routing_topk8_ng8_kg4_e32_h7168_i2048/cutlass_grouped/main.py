"""sgl-kernel's CUTLASS grouped GEMM with the library's own SwiGLU and quantisation, not fused.

The pipeline of triton_fused_v2 with three library kernels in the place of its one Triton kernel. All seq_len * 8
(token, expert) pairs are sorted by expert and moved; only pairs of local experts are multiplied: an id outside
[0, num_local_experts) belongs to no problem of the grouped GEMM.

Stages
  K1  moe_fused_gate: sigmoid, groups, top 8, renormalised and scaled weights.
  K2  prepare_moe_input (expert offsets, problem sizes, permutations) and two shuffle_rows: fp8 rows, float scales.
  K3  fp8_blockwise_scaled_grouped_mm: [rows, hidden] x W1^T, bf16 out.
  K4a shuffle_rows on half rows: the library's silu_and_mul wants the gate first, this operator's weights give it last,
      and swapping the weights would copy them. A model built on the library stores them the other way round.
  K4b silu_and_mul, bf16 out.
  K4c sgl_per_token_group_quant_8bit: one scale for each 128 columns, fp8 out.
  K5  fp8_blockwise_scaled_grouped_mm: [rows, intermediate] x W2^T, bf16 out.
  K6  apply_shuffle_mul_sum: weighted sum of a token's 8 rows, back in token order.

Library ops: github.com/sgl-project/sglang, sgl-kernel/csrc/moe/{moe_fused_gate, prepare_moe_input,
fp8_blockwise_moe_kernel}.cu, csrc/elementwise/activation.cu, csrc/gemm/per_token_group_quant_8bit_v2.cu; order of the
calls as in python/sglang/srt/layers/moe/cutlass_moe.py.

Rows past the last local pair are moved like the others, but the GEMMs neither read nor write them, so they hold what
the memory held before, which may be NaN, and NaN * 0 is NaN. K6 therefore reads one row of zeros for a pair of another
rank. shuffle_rows copies 16 bytes at a time without a tail: hidden_size must be a multiple of 512.

local_expert_offset and routed_scaling_factor are Python numbers. Buffers are kept by shape, nothing else is.
"""

import functools

import torch

NUM_GROUPS = 8
TOP_GROUPS = 4
TOP_K = 8
BLOCK = 128
# Room for the tensor maps of the grouped GEMM: a few of 128 bytes for each SM.
WORKSPACE_BYTES = 1 << 20


@functools.lru_cache(maxsize=4)
def buffers(seq_len, hidden_size, intermediate_size, num_local_experts, device):
    """Everything the pipeline writes, by name, for one shape. rows = seq_len * 8."""
    rows = seq_len * TOP_K

    def empty(*shape, dtype):
        return torch.empty(shape, dtype=dtype, device=device)

    # The row of zeros, K6's stand-in for pairs of other ranks, is the last one; nothing ever writes it.
    gemm2 = empty(rows + 1, hidden_size, dtype=torch.bfloat16)
    gemm2[rows].zero_()
    # What the two permutations say before prepare_moe_input: rows past the local ones take pair i's own token, and
    # every pair reads the row of zeros. prepare_moe_input then overwrites the entries of local pairs.
    start = torch.stack([torch.arange(rows, device=device) // TOP_K, torch.full((rows,), rows, device=device)])
    return {
        "ids": empty(seq_len, TOP_K, dtype=torch.int32),
        "weights": empty(seq_len, TOP_K, dtype=torch.bfloat16),
        "permutations": empty(2, rows, dtype=torch.int32),
        "permutations_start": start.to(torch.int32),
        "expert_offsets": empty(num_local_experts + 1, dtype=torch.int32),
        "problem_sizes1": empty(num_local_experts, 3, dtype=torch.int32),
        "problem_sizes2": empty(num_local_experts, 3, dtype=torch.int32),
        "token_scale": empty(seq_len, hidden_size // BLOCK, dtype=torch.float32),
        "rows": empty(rows, hidden_size, dtype=torch.float8_e4m3fn),
        "rows_scale": empty(rows, hidden_size // BLOCK, dtype=torch.float32),
        "gemm1": empty(rows, 2 * intermediate_size, dtype=torch.bfloat16),
        # Half row i of the swapped buffer is half row i ^ 1 of GEMM1's output.
        "swap_halves": (torch.arange(2 * rows, device=device) ^ 1).to(torch.int32),
        "gate_first": empty(rows, 2 * intermediate_size, dtype=torch.bfloat16),
        "swiglu": empty(rows, intermediate_size, dtype=torch.bfloat16),
        "activated": empty(rows, intermediate_size, dtype=torch.float8_e4m3fn),
        "activated_scale": empty(rows, intermediate_size // BLOCK, dtype=torch.float32),
        "gemm2": gemm2,
        "pointers": empty(5, num_local_experts, dtype=torch.int64),
        "layouts": empty(2, num_local_experts, 5, dtype=torch.int32),
        "workspace": empty(WORKSPACE_BYTES, dtype=torch.uint8),
        # Row strides in elements, one for each problem: operands of GEMM1, of GEMM2, and the two outputs.
        "stride_hidden": torch.full((num_local_experts,), hidden_size, dtype=torch.int64, device=device),
        "stride_gemm1": torch.full((num_local_experts,), 2 * intermediate_size, dtype=torch.int64, device=device),
        "stride_intermediate": torch.full((num_local_experts,), intermediate_size, dtype=torch.int64, device=device),
    }


def grouped_gemm(buffer, out, rows, rows_scale, weights, weights_scale, problem_sizes, stride_in, stride_out):
    """out[offset of expert:] = rows @ weights[expert]^T for every local expert.

    rows fp8 [rows, K] and rows_scale float32 [rows, K / 128], row-major. weights fp8 [experts, N, K] and weights_scale
    float32 [experts, N / 128, K / 128] go in as transposed views: the op reads K-major memory and copies nothing.
    """
    a_pointers, b_pointers, out_pointers, a_scale_pointers, b_scale_pointers = buffer["pointers"].unbind()
    layout_a, layout_b = buffer["layouts"].unbind()
    torch.ops.sgl_kernel.fp8_blockwise_scaled_grouped_mm.default(
        out, a_pointers, b_pointers, out_pointers, a_scale_pointers, b_scale_pointers,
        rows, weights.transpose(1, 2), rows_scale, weights_scale.transpose(1, 2),
        stride_in, stride_in, stride_out, layout_a, layout_b,
        problem_sizes, buffer["expert_offsets"][:-1], buffer["workspace"])


def swiglu_quant(buffer, intermediate_size):
    """K4a to K4c over all rows, local or not: gemm1 bf16 (up, then gate) -> activated fp8 and its scales."""
    import sgl_kernel

    torch.ops.sgl_kernel.shuffle_rows.default(
        buffer["gemm1"].view(-1, intermediate_size), buffer["swap_halves"],
        buffer["gate_first"].view(-1, intermediate_size))
    sgl_kernel.silu_and_mul(buffer["gate_first"], buffer["swiglu"])
    sgl_kernel.sgl_per_token_group_quant_8bit(
        buffer["swiglu"], buffer["activated"], buffer["activated_scale"], BLOCK, 1e-10, -448.0, 448.0)


@torch.no_grad()
def run(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
        gemm2_weights, gemm2_weights_scale, local_expert_offset, routed_scaling_factor, output):
    """See the definition for the inputs. output bf16 [seq_len, hidden_size] is written."""
    import sgl_kernel  # registers torch.ops.sgl_kernel

    seq_len, hidden_size = hidden_states.shape
    num_local_experts, _, intermediate_size = gemm2_weights.shape
    if seq_len == 0:
        return
    buffer = buffers(seq_len, hidden_size, intermediate_size, num_local_experts, hidden_states.device)

    # K1. The op wants logits and bias of one dtype.
    weights, ids = sgl_kernel.moe_fused_gate(
        routing_logits, routing_bias.to(routing_logits.dtype), NUM_GROUPS, TOP_GROUPS, TOP_K, 0,
        float(routed_scaling_factor), True)
    torch.sub(ids, int(local_expert_offset), out=buffer["ids"])
    buffer["weights"].copy_(weights)

    # K2. Only ids in [0, num_local_experts) are counted and sorted.
    buffer["permutations"].copy_(buffer["permutations_start"])
    source_of_row, row_of_pair = buffer["permutations"].unbind()
    sgl_kernel.prepare_moe_input(
        buffer["ids"], buffer["expert_offsets"], buffer["problem_sizes1"], buffer["problem_sizes2"],
        source_of_row, row_of_pair, num_local_experts, intermediate_size, hidden_size)
    buffer["token_scale"].copy_(hidden_states_scale.t())
    torch.ops.sgl_kernel.shuffle_rows.default(hidden_states, source_of_row, buffer["rows"])
    torch.ops.sgl_kernel.shuffle_rows.default(buffer["token_scale"], source_of_row, buffer["rows_scale"])

    # K3, K4, K5, K6.
    grouped_gemm(buffer, buffer["gemm1"], buffer["rows"], buffer["rows_scale"], gemm1_weights, gemm1_weights_scale,
                 buffer["problem_sizes1"], buffer["stride_hidden"], buffer["stride_gemm1"])
    swiglu_quant(buffer, intermediate_size)
    grouped_gemm(buffer, buffer["gemm2"][:-1], buffer["activated"], buffer["activated_scale"], gemm2_weights,
                 gemm2_weights_scale, buffer["problem_sizes2"], buffer["stride_intermediate"],
                 buffer["stride_hidden"])
    sgl_kernel.apply_shuffle_mul_sum(buffer["gemm2"], output, row_of_pair, buffer["weights"])
