"""DeepGEMM's fp8 grouped GEMMs over compacted local pairs, with small Triton kernels around them.

Only (token, expert) pairs of local experts are moved and multiplied. The compaction happens on the device: the host
knows seq_len and sizes its buffers for any routing, the GEMMs read the row counts of the experts from device memory.

Stages
  route_kernel         sigmoid, groups, top 8, weights; a pair of a local expert takes the next row of its expert.
  gather_kernel        copies a token's fp8 row and its scales to the rows of its local pairs.
  GEMM 1               DeepGEMM, bf16 out [rows, 2 * intermediate].
  swiglu_quant_kernel  silu(gate) * up, one scale for each 128 columns, fp8 out.
  GEMM 2               DeepGEMM, bf16 out [rows, hidden].
  combine_kernel       weighted sum of a token's local rows; zeros for a token without any.

Two layouts of the rows, chosen by seq_len on the host:
  masked      up to MASKED_LIMIT tokens: every expert owns seq_len rows (rounded up to 128, so that no tile reaches
              into the next expert); m_grouped_fp8_fp4_gemm_nt_masked with the counts.
  contiguous  above: experts one behind the other, each starting at a multiple of 128;
              m_grouped_fp8_fp4_gemm_nt_contiguous in its psum layout (the end row of every expert). The m_indices
              layout is not used: it visits every tile of the buffer, and a buffer for any routing is some ten times
              as long as the rows in it.
Activation scales are written as DeepGEMM wants them, rows contiguous ([..., K / 128, rows], passed as a transposed
view), so that it launches no transposition.

Library: github.com/sgl-project/DeepGEMM (csrc/apis/gemm.hpp, csrc/apis/layout.hpp, scheduler/gemm.cuh). It compiles
its kernels with nvcc at the first call of each shape. sm_90 only: on sm_100 it takes power-of-two scales, which these
inputs are not.

local_expert_offset and routed_scaling_factor are Python numbers. Buffers are kept by shape, nothing else is.
"""

import functools

import torch
import triton
import triton.language as tl

NUM_GROUPS = 8
TOP_GROUPS = 4
TOP_K = 8
BLOCK = 128
# DeepGEMM's row tile in the contiguous layout, and a multiple of its row tiles in the masked one.
ROW_ALIGNMENT = 128
MASKED_LIMIT = 1024


@triton.jit
def route_kernel(logits_ptr, bias_ptr, experts_ptr, ranks_ptr, weights_ptr, counts_ptr, local_expert_offset,
                 routed_scaling_factor, NUM_LOCAL: tl.constexpr, NUM_GROUPS: tl.constexpr, GROUP: tl.constexpr,
                 TOP_GROUPS: tl.constexpr, TOP_K: tl.constexpr):
    """One program a token. logits float32 [tokens, NUM_GROUPS * GROUP]. Writes [tokens, TOP_K] each: the local expert
    or -1, the pair's rank among the rows of that expert, the weight. counts int32 [NUM_LOCAL] starts at zero and ends
    as the rows of every expert. Equal scores go to the lower index. Ranks depend on timing, results do not."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, NUM_GROUPS)
    member = tl.arange(0, GROUP)
    index = group[:, None] * GROUP + member[None, :]
    logits = tl.load(logits_ptr + token * (NUM_GROUPS * GROUP) + index)
    affinity = 1.0 / (1.0 + tl.exp(-logits))
    selection = affinity + tl.load(bias_ptr + index).to(tl.float32)

    best = tl.max(selection, axis=1)
    is_best = member[None, :] == tl.argmax(selection, axis=1)[:, None]
    group_score = best + tl.max(tl.where(is_best, float("-inf"), selection), axis=1)
    allowed = group < 0
    for _ in tl.static_range(TOP_GROUPS):
        pick = tl.argmax(tl.where(allowed, float("-inf"), group_score), axis=0)
        allowed = allowed | (group == pick)

    candidates = tl.reshape(tl.where(allowed[:, None], selection, float("-inf")), [NUM_GROUPS * GROUP])
    affinity = tl.reshape(affinity, [NUM_GROUPS * GROUP])
    expert = tl.arange(0, NUM_GROUPS * GROUP)
    slot = tl.arange(0, TOP_K)
    chosen = tl.zeros([TOP_K], tl.int32)
    weight = tl.zeros([TOP_K], tl.float32)
    for k in tl.static_range(TOP_K):
        pick = tl.argmax(candidates, axis=0)
        chosen = tl.where(slot == k, pick, chosen)
        weight = tl.where(slot == k, tl.sum(tl.where(expert == pick, affinity, 0.0), axis=0), weight)
        candidates = tl.where(expert == pick, float("-inf"), candidates)
    weight = weight / tl.sum(weight, axis=0) * routed_scaling_factor

    local = chosen - local_expert_offset
    on_rank = (local >= 0) & (local < NUM_LOCAL)
    rank = tl.atomic_add(counts_ptr + local, 1, mask=on_rank, sem="relaxed")
    pair = token * TOP_K + slot
    tl.store(experts_ptr + pair, tl.where(on_rank, local, -1))
    tl.store(ranks_ptr + pair, rank)
    tl.store(weights_ptr + pair, weight)


@triton.jit
def gather_kernel(hidden_ptr, hidden_scale_ptr, experts_ptr, ranks_ptr, counts_ptr, rows_ptr, ends_ptr, out_ptr,
                  out_scale_ptr, num_tokens, rows_per_panel, MASKED: tl.constexpr, NUM_LOCAL: tl.constexpr,
                  EXPERTS: tl.constexpr, WORDS: tl.constexpr, WORDS_TILE: tl.constexpr, NUM_BLOCKS: tl.constexpr,
                  BLOCKS_TILE: tl.constexpr, ALIGNMENT: tl.constexpr, TOP_K: tl.constexpr):
    """One program a token: its fp8 row (WORDS int32 words) and its NUM_BLOCKS scales (hidden_scale
    [NUM_BLOCKS, tokens]) go to the row of each of its local pairs. Writes rows int32 [tokens, TOP_K] (-1: not local)
    and, contiguous, ends int32 [NUM_LOCAL], the row behind the last one of every expert.

    Scales lie in panels [NUM_BLOCKS, rows_per_panel]: one panel an expert when masked, one for all when contiguous."""
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    count = tl.load(counts_ptr + expert, mask=expert < NUM_LOCAL, other=0)
    if MASKED:
        start = expert * rows_per_panel
    else:
        padded = (count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        start = tl.cumsum(padded, axis=0) - padded
        if token == 0:
            tl.store(ends_ptr + expert, start + count, mask=expert < NUM_LOCAL)

    word = tl.arange(0, WORDS_TILE)
    block = tl.arange(0, BLOCKS_TILE)
    values = tl.load(hidden_ptr + token * WORDS + word, mask=word < WORDS, other=0)
    scales = tl.load(hidden_scale_ptr + block.to(tl.int64) * num_tokens + token, mask=block < NUM_BLOCKS, other=0.0)
    for k in tl.static_range(TOP_K):
        local = tl.load(experts_ptr + token * TOP_K + k)
        rank = tl.load(ranks_ptr + token * TOP_K + k)
        row = tl.where(local >= 0, tl.sum(tl.where(expert == local, start, 0), axis=0) + rank, -1)
        tl.store(rows_ptr + token * TOP_K + k, row)
        if local >= 0:
            tl.store(out_ptr + row.to(tl.int64) * WORDS + word, values, mask=word < WORDS)
            panel = (row // rows_per_panel).to(tl.int64)
            position = (panel * NUM_BLOCKS + block) * rows_per_panel + row % rows_per_panel
            tl.store(out_scale_ptr + position, scales, mask=block < NUM_BLOCKS)


@triton.jit
def swiglu_quant_kernel(gemm1_ptr, rows_ptr, out_ptr, out_scale_ptr, rows_per_panel, INTERMEDIATE: tl.constexpr,
                        NUM_BLOCKS: tl.constexpr, BLOCKS_TILE: tl.constexpr, BLOCK: tl.constexpr, TOP_K: tl.constexpr,
                        SPLIT: tl.constexpr):
    """Programs (token, part of its pairs): gemm1 bf16 [rows, 2 * INTERMEDIATE] (up, then gate) -> silu(gate) * up as
    fp8 [rows, INTERMEDIATE], scales in panels as in gather_kernel. Rows that no local pair owns stay as they are."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS_TILE)
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = column < INTERMEDIATE
    for k in range(tl.program_id(1), TOP_K, SPLIT):
        row = tl.load(rows_ptr + token * TOP_K + k).to(tl.int64)
        if row >= 0:
            source = gemm1_ptr + row * (2 * INTERMEDIATE)
            up = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
            gate = tl.load(source + INTERMEDIATE + column, mask=inside, other=0.0).to(tl.float32)
            value = gate / (1.0 + tl.exp(-gate)) * up
            scale = tl.maximum(tl.max(tl.abs(value), axis=1), 1e-10) / 448.0
            quantized = tl.clamp(value / scale[:, None], -448.0, 448.0)
            tl.store(out_ptr + row * INTERMEDIATE + column, quantized.to(out_ptr.dtype.element_ty), mask=inside)
            panel = row // rows_per_panel
            position = (panel * NUM_BLOCKS + block) * rows_per_panel + row % rows_per_panel
            tl.store(out_scale_ptr + position, scale, mask=block < NUM_BLOCKS)


@triton.jit
def combine_kernel(gemm2_ptr, rows_ptr, weights_ptr, output_ptr, HIDDEN: tl.constexpr, TILE: tl.constexpr,
                   TOP_K: tl.constexpr):
    """Programs (token, tile of columns): output bf16 [tokens, HIDDEN] = sum over the token's local pairs of weight *
    gemm2 bf16 [rows, HIDDEN], in float32, in the order of the pairs."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < HIDDEN
    total = tl.zeros([TILE], tl.float32)
    for k in tl.static_range(TOP_K):
        row = tl.load(rows_ptr + token * TOP_K + k).to(tl.int64)
        if row >= 0:
            value = tl.load(gemm2_ptr + row * HIDDEN + column, mask=inside, other=0.0)
            total += tl.load(weights_ptr + token * TOP_K + k) * value.to(tl.float32)
    tl.store(output_ptr + token * HIDDEN + column, total.to(output_ptr.dtype.element_ty), mask=inside)


def layout(seq_len, num_local_experts):
    """(masked, panels, rows in a panel) of the row buffers, large enough for any routing of seq_len tokens.

    Contiguous: every pair may be local, and each expert that has rows wastes at most ROW_ALIGNMENT - 1 of them.
    """
    if seq_len <= MASKED_LIMIT:
        return True, num_local_experts, triton.cdiv(seq_len, ROW_ALIGNMENT) * ROW_ALIGNMENT
    pairs = seq_len * min(TOP_K, num_local_experts)
    rows = pairs + num_local_experts * (ROW_ALIGNMENT - 1)
    return False, 1, triton.cdiv(rows, ROW_ALIGNMENT) * ROW_ALIGNMENT


@functools.lru_cache(maxsize=4)
def buffers(seq_len, hidden_size, intermediate_size, num_local_experts, device):
    """Everything the pipeline writes, by name, for one shape. `*_scale` are [panels, columns / 128, rows]."""
    _, panels, rows = layout(seq_len, num_local_experts)

    def empty(*shape, dtype):
        return torch.empty(shape, dtype=dtype, device=device)

    return {
        "counts": empty(num_local_experts, dtype=torch.int32),
        "ends": empty(num_local_experts, dtype=torch.int32),
        "experts": empty(seq_len, TOP_K, dtype=torch.int32),
        "ranks": empty(seq_len, TOP_K, dtype=torch.int32),
        "weights": empty(seq_len, TOP_K, dtype=torch.float32),
        "rows": empty(seq_len, TOP_K, dtype=torch.int32),
        "gathered": empty(panels, rows, hidden_size, dtype=torch.float8_e4m3fn),
        "gathered_scale": empty(panels, hidden_size // BLOCK, rows, dtype=torch.float32),
        "gemm1": empty(panels, rows, 2 * intermediate_size, dtype=torch.bfloat16),
        "activated": empty(panels, rows, intermediate_size, dtype=torch.float8_e4m3fn),
        "activated_scale": empty(panels, intermediate_size // BLOCK, rows, dtype=torch.float32),
        "gemm2": empty(panels, rows, hidden_size, dtype=torch.bfloat16),
    }


def grouped_gemm(buffer, masked, expected_rows, activations, scale, weights, weights_scale, out):
    """out = activations @ weights[expert]^T on every expert's rows, fp8 in, bf16 out.

    activations [panels, rows, K], scale [panels, K / 128, rows], weights [experts, N, K], weights_scale
    [experts, N / 128, K / 128], out [panels, rows, N]. expected_rows an expert only guides DeepGEMM's choice of tiles.
    """
    import deep_gemm

    scale = scale.transpose(1, 2)
    if masked:
        deep_gemm.m_grouped_fp8_fp4_gemm_nt_masked(
            (activations, scale), (weights, weights_scale), out, buffer["counts"], expected_rows,
            disable_ue8m0_cast=True)
    else:
        deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(
            (activations[0], scale[0]), (weights, weights_scale), out[0], buffer["ends"], disable_ue8m0_cast=True,
            use_psum_layout=True, expected_m_for_psum_layout=expected_rows)


def route_and_gather(buffer, masked, rows, logits, bias, hidden_states, hidden_states_scale, offset, factor):
    """Fills counts, rows, weights, gathered and gathered_scale (and ends, contiguous)."""
    seq_len, hidden_size = hidden_states.shape
    num_experts, num_local_experts = logits.shape[1], buffer["counts"].shape[0]
    buffer["counts"].zero_()
    route_kernel[(seq_len,)](
        logits, bias, buffer["experts"], buffer["ranks"], buffer["weights"], buffer["counts"], offset, factor,
        NUM_LOCAL=num_local_experts, NUM_GROUPS=NUM_GROUPS, GROUP=num_experts // NUM_GROUPS, TOP_GROUPS=TOP_GROUPS,
        TOP_K=TOP_K, num_warps=1)
    words, num_blocks = hidden_size // 4, hidden_size // BLOCK
    gather_kernel[(seq_len,)](
        hidden_states.view(torch.int32), hidden_states_scale, buffer["experts"], buffer["ranks"], buffer["counts"],
        buffer["rows"], buffer["ends"], buffer["gathered"].view(torch.int32), buffer["gathered_scale"], seq_len, rows,
        MASKED=masked, NUM_LOCAL=num_local_experts, EXPERTS=triton.next_power_of_2(num_local_experts), WORDS=words,
        WORDS_TILE=triton.next_power_of_2(words), NUM_BLOCKS=num_blocks,
        BLOCKS_TILE=triton.next_power_of_2(num_blocks), ALIGNMENT=ROW_ALIGNMENT, TOP_K=TOP_K, num_warps=4)


@torch.no_grad()
def run(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
        gemm2_weights, gemm2_weights_scale, local_expert_offset, routed_scaling_factor, output):
    """See the definition for the inputs. output bf16 [seq_len, hidden_size] is written."""
    seq_len, hidden_size = hidden_states.shape
    num_local_experts, _, intermediate_size = gemm2_weights.shape
    if seq_len == 0:
        return
    masked, _, rows = layout(seq_len, num_local_experts)
    buffer = buffers(seq_len, hidden_size, intermediate_size, num_local_experts, hidden_states.device)
    # What an expert gets when the router balances its experts.
    expected_rows = triton.cdiv(seq_len * TOP_K, routing_logits.shape[1])

    route_and_gather(buffer, masked, rows, routing_logits, routing_bias, hidden_states, hidden_states_scale,
                     int(local_expert_offset), float(routed_scaling_factor))
    grouped_gemm(buffer, masked, expected_rows, buffer["gathered"], buffer["gathered_scale"], gemm1_weights,
                 gemm1_weights_scale, buffer["gemm1"])
    num_blocks = intermediate_size // BLOCK
    # One program a pair where tokens are few, one a token where they fill the GPU anyway.
    split = TOP_K if seq_len <= MASKED_LIMIT else 1
    swiglu_quant_kernel[(seq_len, split)](
        buffer["gemm1"], buffer["rows"], buffer["activated"], buffer["activated_scale"], rows,
        INTERMEDIATE=intermediate_size, NUM_BLOCKS=num_blocks, BLOCKS_TILE=triton.next_power_of_2(num_blocks),
        BLOCK=BLOCK, TOP_K=TOP_K, SPLIT=split, num_warps=8)
    grouped_gemm(buffer, masked, expected_rows, buffer["activated"], buffer["activated_scale"], gemm2_weights,
                 gemm2_weights_scale, buffer["gemm2"])
    tile = min(1024, triton.next_power_of_2(hidden_size))
    combine_kernel[(seq_len, triton.cdiv(hidden_size, tile))](
        buffer["gemm2"], buffer["rows"], buffer["weights"], output, HIDDEN=hidden_size, TILE=tile, TOP_K=TOP_K,
        num_warps=4)
