"""torch's grouped GEMM (`torch._grouped_mm`, CUTLASS on Hopper) for both projections, the routing on the device.

  torch.sort, searchsorted   pairs by expert, the end of each expert's rows
  index_select               a row a pair
  torch._grouped_mm          gate and up, bf16 out
  swiglu_kernel              silu(gate) * up, bf16
  torch._grouped_mm          down, bf16 out
  combine_kernel             weighted sum of a token's rows in float32, rounded to bfloat16

The two Triton kernels are ours: torch has no call that does either in one pass. Nothing reaches the host. Results of
both projections are rounded to bfloat16.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def swiglu_kernel(gate_up_ptr, out_ptr, INTERMEDIATE: tl.constexpr, TILE: tl.constexpr):
    """gate_up bf16 [rows, 2 * INTERMEDIATE] -> out bf16 [rows, INTERMEDIATE]; programs (row, tile of columns)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < INTERMEDIATE
    source = gate_up_ptr + row * (2 * INTERMEDIATE) + column
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + INTERMEDIATE, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * INTERMEDIATE + column, (gate * tl.sigmoid(gate) * up).to(tl.bfloat16), mask=inside)


@triton.jit
def combine_kernel(results_ptr, row_ptr, weights_ptr, out_ptr, HIDDEN: tl.constexpr, TILE: tl.constexpr,
                   TOP_K: tl.constexpr):
    """out bf16 [tokens, HIDDEN] = sum of weight * results bf16 [pairs, HIDDEN] at the token's rows."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < HIDDEN
    total = tl.zeros([TILE], tl.float32)
    for k in tl.static_range(TOP_K):
        row = tl.load(row_ptr + token * TOP_K + k).to(tl.int64)
        value = tl.load(results_ptr + row * HIDDEN + column, mask=inside, other=0.0)
        total += tl.load(weights_ptr + token * TOP_K + k) * value.to(tl.float32)
    tl.store(out_ptr + token * HIDDEN + column, total, mask=inside)


def sort_pairs(topk_ids, num_experts):
    """(token of each row, row of each pair, end of each expert's rows), all int32, on the device."""
    pairs, top_k = topk_ids.numel(), topk_ids.shape[1]
    expert, pair = topk_ids.view(-1).sort(stable=True)
    ends = torch.searchsorted(expert, torch.arange(num_experts, device=expert.device, dtype=expert.dtype), right=True,
                              out_int32=True)
    row = torch.empty(pairs, dtype=torch.int32, device=expert.device)
    row[pair] = torch.arange(pairs, dtype=torch.int32, device=expert.device)
    return (pair // top_k).to(torch.int32), row, ends


@torch.no_grad()
def run(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    """hidden_states bf16 [num_tokens, hidden_size] -> output of that shape and type."""
    (tokens, top_k), (num_experts, hidden, intermediate) = topk_ids.shape, down_weight.shape
    if tokens == 0:
        return
    token, row, ends = sort_pairs(topk_ids, num_experts)
    gathered = hidden_states.index_select(0, token)
    gate_up = torch._grouped_mm(gathered, gate_up_weight.transpose(1, 2), offs=ends)
    activated = torch.empty(tokens * top_k, intermediate, dtype=torch.bfloat16, device=output.device)
    tile = min(1024, triton.next_power_of_2(intermediate))
    swiglu_kernel[(tokens * top_k, triton.cdiv(intermediate, tile))](
        gate_up, activated, INTERMEDIATE=intermediate, TILE=tile, num_warps=4)
    results = torch._grouped_mm(activated, down_weight.transpose(1, 2), offs=ends)
    tile = min(1024, triton.next_power_of_2(hidden))
    combine_kernel[(tokens, triton.cdiv(hidden, tile))](
        results, row, topk_weights, output, HIDDEN=hidden, TILE=tile, TOP_K=top_k, num_warps=4)
