"""DeepGEMM's grouped GEMMs on routed tokens, in bf16 or FP8, the routing on the device.

  count_kernel      each pair's rank among its expert's, and the pairs of every expert
  gather_kernel     copies each pair's row (and scales) to its expert's rows
  GEMM 1            DeepGEMM, bf16 out [rows, 2 * intermediate]
  swiglu_kernel     silu(gate) * up, in bf16 or with a scale for each 128 columns in FP8
  GEMM 2            DeepGEMM, bf16 out [rows, hidden]
  combine_kernel    weighted sum of a token's rows

Two layouts of the rows, chosen by their number on the host:
  masked      every expert owns as many rows as there are tokens (rounded up to 128): m_grouped_*_nt_masked;
  contiguous  experts one behind the other, each starting at a multiple of 128: m_grouped_*_nt_contiguous in its psum
              layout (the end row of every expert), as the layout of m_indices visits every tile of the buffer.
Activation scales are written as DeepGEMM wants them, rows contiguous ([..., K / 128, rows], passed as a transposed
view), so that it launches no transposition.

Library: github.com/deepseek-ai/DeepGEMM (sgl-deep-gemm 0.1.3). It compiles its kernels with nvcc at the first call of
each shape. Buffers are kept by shape, nothing else is.
"""

import functools

import torch
import triton
import triton.language as tl

BLOCK = 128
# DeepGEMM's row tile in the contiguous layout, and a multiple of its row tiles in the masked one.
ROW_ALIGNMENT = 128
MASKED_ROWS = 1 << 16  # of all experts, up to which every expert owns as many rows as there are tokens


@triton.jit
def count_kernel(ids_ptr, ranks_ptr, counts_ptr, pairs, TILE: tl.constexpr):
    """ranks [pairs]: the pair's rank among those of its expert; counts starts at zero and ends as the rows of each."""
    pair = tl.program_id(0) * TILE + tl.arange(0, TILE)
    expert = tl.load(ids_ptr + pair, mask=pair < pairs, other=0)
    rank = tl.atomic_add(counts_ptr + expert, 1, mask=pair < pairs, sem="relaxed")
    tl.store(ranks_ptr + pair, rank, mask=pair < pairs)


@triton.jit
def gather_kernel(x_ptr, x_scale_ptr, ids_ptr, ranks_ptr, counts_ptr, rows_ptr, ends_ptr, out_ptr, out_scale_ptr,
                  rows_per_panel, MASKED: tl.constexpr, SCALED: tl.constexpr, NUM_EXPERTS: tl.constexpr,
                  EXPERTS: tl.constexpr, WORDS: tl.constexpr, WORDS_TILE: tl.constexpr, NUM_BLOCKS: tl.constexpr,
                  BLOCKS_TILE: tl.constexpr, ALIGNMENT: tl.constexpr, TOP_K: tl.constexpr):
    """One program a token: its row (WORDS int32 words) and its scales x_scale [tokens, NUM_BLOCKS] go to the row of
    each of its pairs. Writes rows int32 [tokens, TOP_K] and, contiguous, ends int32 [NUM_EXPERTS]. Scales lie in panels
    [NUM_BLOCKS, rows_per_panel]: one an expert when masked, else one for all."""
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    count = tl.load(counts_ptr + expert, mask=expert < NUM_EXPERTS, other=0)
    if MASKED:
        start = expert * rows_per_panel
    else:
        padded = (count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        start = tl.cumsum(padded, axis=0) - padded
        if token == 0:
            tl.store(ends_ptr + expert, start + count, mask=expert < NUM_EXPERTS)
    word = tl.arange(0, WORDS_TILE)
    block = tl.arange(0, BLOCKS_TILE)
    values = tl.load(x_ptr + token * WORDS + word, mask=word < WORDS, other=0)
    if SCALED:
        scales = tl.load(x_scale_ptr + token * NUM_BLOCKS + block, mask=block < NUM_BLOCKS, other=0.0)
    for k in tl.static_range(TOP_K):
        mine = tl.load(ids_ptr + token * TOP_K + k)
        rank = tl.load(ranks_ptr + token * TOP_K + k)
        row = tl.sum(tl.where(expert == mine, start, 0), axis=0) + rank
        tl.store(rows_ptr + token * TOP_K + k, row)
        tl.store(out_ptr + row.to(tl.int64) * WORDS + word, values, mask=word < WORDS)
        if SCALED:
            panel = (row // rows_per_panel).to(tl.int64)
            position = (panel * NUM_BLOCKS + block) * rows_per_panel + row % rows_per_panel
            tl.store(out_scale_ptr + position, scales, mask=block < NUM_BLOCKS)


@triton.jit
def swiglu_kernel(gemm1_ptr, rows_ptr, out_ptr, out_scale_ptr, rows_per_panel, SCALED: tl.constexpr,
                  INTERMEDIATE: tl.constexpr, NUM_BLOCKS: tl.constexpr, BLOCKS_TILE: tl.constexpr, BLOCK: tl.constexpr):
    """One program a pair: gemm1 bf16 [rows, 2 * INTERMEDIATE] (gate, then up) -> silu(gate) * up [rows, INTERMEDIATE],
    scales in panels as in gather_kernel. Rows that no pair owns stay as they are."""
    block = tl.arange(0, BLOCKS_TILE)
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = column < INTERMEDIATE
    row = tl.load(rows_ptr + tl.program_id(0)).to(tl.int64)
    source = gemm1_ptr + row * (2 * INTERMEDIATE)
    gate = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + INTERMEDIATE + column, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    if SCALED:
        scale = tl.maximum(tl.max(tl.abs(value), axis=1), 1e-10) / 448.0
        value = tl.clamp(value / scale[:, None], -448.0, 448.0)
        panel = row // rows_per_panel
        position = (panel * NUM_BLOCKS + block) * rows_per_panel + row % rows_per_panel
        tl.store(out_scale_ptr + position, scale, mask=block < NUM_BLOCKS)
    tl.store(out_ptr + row * INTERMEDIATE + column, value.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def combine_kernel(gemm2_ptr, rows_ptr, weights_ptr, output_ptr, HIDDEN: tl.constexpr, TILE: tl.constexpr,
                   TOP_K: tl.constexpr):
    """Programs (token, tile of columns): output [tokens, HIDDEN] = sum over the token's pairs of weight * gemm2 bf16
    [rows, HIDDEN], in float32, in the order of the pairs."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < HIDDEN
    total = tl.zeros([TILE], tl.float32)
    for k in tl.static_range(TOP_K):
        row = tl.load(rows_ptr + token * TOP_K + k).to(tl.int64)
        value = tl.load(gemm2_ptr + row * HIDDEN + column, mask=inside, other=0.0)
        total += tl.load(weights_ptr + token * TOP_K + k) * value.to(tl.float32)
    tl.store(output_ptr + token * HIDDEN + column, total.to(output_ptr.dtype.element_ty), mask=inside)


def layout(tokens, top_k, num_experts):
    """(masked, panels, rows in a panel) of the row buffers, large enough for any routing: a token may name an expert as
    often as it has places. Contiguous: an expert that has rows wastes at most ROW_ALIGNMENT - 1 of them."""
    pairs = tokens * top_k
    owned = triton.cdiv(pairs, ROW_ALIGNMENT) * ROW_ALIGNMENT
    if owned * num_experts <= MASKED_ROWS:
        return True, num_experts, owned
    return False, 1, triton.cdiv(pairs + num_experts * (ROW_ALIGNMENT - 1), ROW_ALIGNMENT) * ROW_ALIGNMENT


@functools.lru_cache(maxsize=4)
def buffers(tokens, top_k, hidden, intermediate, num_experts, dtype, device):
    """Everything the pipeline writes, by name, for one shape. `*_scale` are [panels, columns / 128, rows]."""
    _, panels, rows = layout(tokens, top_k, num_experts)

    def empty(*shape, dtype):
        return torch.empty(shape, dtype=dtype, device=device)

    return {
        "counts": empty(num_experts, dtype=torch.int32),
        "ends": empty(num_experts, dtype=torch.int32),
        "ranks": empty(tokens, top_k, dtype=torch.int32),
        "rows": empty(tokens, top_k, dtype=torch.int32),
        "gathered": empty(panels, rows, hidden, dtype=dtype),
        "gathered_scale": empty(panels, triton.cdiv(hidden, BLOCK), rows, dtype=torch.float32),
        "gemm1": empty(panels, rows, 2 * intermediate, dtype=torch.bfloat16),
        "activated": empty(panels, rows, intermediate, dtype=dtype),
        "activated_scale": empty(panels, triton.cdiv(intermediate, BLOCK), rows, dtype=torch.float32),
        "gemm2": empty(panels, rows, hidden, dtype=torch.bfloat16),
    }


def grouped_gemm(buffer, masked, expected_rows, activations, scale, weights, weights_scale, out):
    """out = activations @ weights[expert]^T on every expert's rows, bf16 out. weights_scale: None in bf16.
    expected_rows an expert only guides DeepGEMM's choice of tiles."""
    import deep_gemm

    left, right, options = activations, weights, {}
    prefix = "m_grouped_bf16_gemm_nt"
    if weights_scale is not None:
        prefix, options = "m_grouped_fp8_fp4_gemm_nt", {"disable_ue8m0_cast": True}
        left, right = (activations, scale.transpose(1, 2)), (weights, weights_scale)
    if masked:
        getattr(deep_gemm, f"{prefix}_masked")(left, right, out, buffer["counts"], expected_rows, **options)
    else:
        left = (left[0][0], left[1][0]) if weights_scale is not None else left[0]
        getattr(deep_gemm, f"{prefix}_contiguous")(
            left, right, out[0], buffer["ends"], use_psum_layout=True, expected_m_for_psum_layout=expected_rows,
            **options)


def run(hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight, down_weight_scale,
        topk_ids, topk_weights, output):
    """Shapes as in the definitions; scales None in bf16."""
    (tokens, hidden), (num_experts, _, intermediate) = hidden_states.shape, down_weight.shape
    top_k, scaled = topk_ids.shape[1], hidden_states_scale is not None
    if tokens == 0:
        return
    masked, _, rows = layout(tokens, top_k, num_experts)
    buffer = buffers(tokens, top_k, hidden, intermediate, num_experts, hidden_states.dtype, hidden_states.device)
    pairs, expected_rows = tokens * top_k, triton.cdiv(tokens * top_k, num_experts)
    buffer["counts"].zero_()
    count_kernel[(triton.cdiv(pairs, 256),)](topk_ids, buffer["ranks"], buffer["counts"], pairs, TILE=256)
    words, blocks = hidden * hidden_states.element_size() // 4, triton.cdiv(hidden, BLOCK)
    gather_kernel[(tokens,)](
        hidden_states.view(torch.int32), hidden_states_scale if scaled else buffer["gathered_scale"], topk_ids,
        buffer["ranks"], buffer["counts"], buffer["rows"], buffer["ends"], buffer["gathered"].view(torch.int32),
        buffer["gathered_scale"], rows, MASKED=masked, SCALED=scaled, NUM_EXPERTS=num_experts,
        EXPERTS=triton.next_power_of_2(num_experts), WORDS=words, WORDS_TILE=triton.next_power_of_2(words),
        NUM_BLOCKS=blocks, BLOCKS_TILE=triton.next_power_of_2(blocks), ALIGNMENT=ROW_ALIGNMENT, TOP_K=top_k,
        num_warps=4)
    grouped_gemm(buffer, masked, expected_rows, buffer["gathered"], buffer["gathered_scale"], gate_up_weight,
                 gate_up_weight_scale, buffer["gemm1"])
    blocks = triton.cdiv(intermediate, BLOCK)
    swiglu_kernel[(pairs,)](
        buffer["gemm1"], buffer["rows"], buffer["activated"], buffer["activated_scale"], rows, SCALED=scaled,
        INTERMEDIATE=intermediate, NUM_BLOCKS=blocks, BLOCKS_TILE=triton.next_power_of_2(blocks), BLOCK=BLOCK,
        num_warps=4)
    grouped_gemm(buffer, masked, expected_rows, buffer["activated"], buffer["activated_scale"], down_weight,
                 down_weight_scale, buffer["gemm2"])
    tile = min(1024, triton.next_power_of_2(hidden))
    combine_kernel[(tokens, triton.cdiv(hidden, tile))](
        buffer["gemm2"], buffer["rows"], topk_weights, output, HIDDEN=hidden, TILE=tile, TOP_K=top_k, num_warps=4)
