"""triton_compact: the FP8 block-scale mixture of experts over local pairs only, in four Triton kernels.

A pair is (token, one of its eight experts) whose expert this rank holds; about one in eight is. All four kernels work
on pairs, so the other seven eighths are never moved:

1. moe_route      a program a token: sigmoid, group-limited top-k, weights; each local pair takes a slot in its expert's
                  bucket by an atomic counter. Nothing leaves the device.
2. moe_gemm1      gathers its token rows through the buckets, multiplies with both halves of the first weight, and ends
                  in SwiGLU and 1x128 FP8 quantisation in registers.
3. moe_gemm2      the second weight, times the routing weight, one row a pair.
4. moe_combine    sums the (up to eight) rows of each token in a fixed order.

Both GEMMs are swapped (out^T = W x^T): 128 weight rows are the M of the tensor core instruction and the pairs its N, so
an expert with three rows wastes little (AB swap, as in TensorRT-LLM's fp8_gemm_impl.cuh). Each program multiplies two
blocks of 128 weight rows with the same pairs: up and gate in the first GEMM, two neighbours in the second. Every 128 of
K the product is scaled and added in float32 (the tensor core keeps about 14 bits of an FP8 sum).

Work is split in hybrid stream-K fashion (Osama et al., arXiv 2301.03598): the K loops of the last tiles are laid end to
end and every program takes an equal stretch, however many experts are active; the program that completes a tile last
sums the pieces in K order. With many rows an expert whole tiles are dealt out instead, and not swapped.

The order in which pairs take their slots varies from run to run, but a pair's result does not depend on its slot, with
one exception: where an expert's pairs fill several tiles that are split, the pieces are cut differently and the last
bits of a float32 sum can differ.

Kept between calls: compiled kernels, and a workspace whose counters every call leaves at zero.
"""

import importlib
import os

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
experts_triton = importlib.import_module(f"{__name__}.experts_triton")
workspaces = importlib.import_module(f"{__name__}.workspaces")

TOP_K = 8
NUM_GROUPS = 8
TOP_GROUPS = 4
FP8_MAX = 448.0
LOWEST = -3.0e38
_load_counts, _locate_tile, _launch = experts_triton._load_counts, experts_triton._locate_tile, experts_triton.launch


@triton.jit(do_not_specialize=["seq_len", "first_local"])
def moe_route(logits_ptr, bias_ptr, weight_ptr, count_ptr, bucket_ptr, seq_len, first_local, scaling_factor,
              NUM_EXPERTS: tl.constexpr, NUM_LOCAL: tl.constexpr, NUM_GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr,
              TOP_K: tl.constexpr, PDL: tl.constexpr, LOWEST: tl.constexpr):
    """weight[seq_len, 8] gets the routing weight of local pairs and 0 elsewhere; bucket[expert, slot] the pair's id
    (8 * token + rank of the expert); count[expert] how many. Lower indices win ties."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0)
    GROUP_SIZE: tl.constexpr = NUM_EXPERTS // NUM_GROUPS
    expert = tl.arange(0, NUM_EXPERTS)
    affinity = tl.sigmoid(tl.load(logits_ptr + token * NUM_EXPERTS + expert))
    selection = affinity + tl.load(bias_ptr + expert).to(tl.float32)
    grouped = tl.reshape(selection, [NUM_GROUPS, GROUP_SIZE])
    best = tl.max(grouped, 1)
    best_at = tl.argmax(grouped, 1, tie_break_left=True)
    others = tl.where(tl.arange(0, GROUP_SIZE)[None, :] == best_at[:, None], float("-inf"), grouped)
    score = best + tl.max(others, 1)
    group = tl.arange(0, NUM_GROUPS)
    ahead = (score[None, :] > score[:, None]) | ((score[None, :] == score[:, None]) & (group[None, :] < group[:, None]))
    allowed = tl.sum(ahead.to(tl.int32), 1) < TOP_GROUPS
    candidate = tl.reshape(tl.where(allowed[:, None], grouped, float("-inf")), [NUM_EXPERTS])
    # Only chosen experts are at -inf: none is chosen twice, and no bucket overflows, where fewer than 8 are finite.
    candidate = tl.where(candidate > LOWEST, candidate, LOWEST)
    rank = tl.arange(0, TOP_K)
    chosen = tl.zeros([TOP_K], tl.int32)
    weight = tl.zeros([TOP_K], tl.float32)
    for k in tl.static_range(TOP_K):
        at = tl.argmax(candidate, 0, tie_break_left=True)
        chosen = tl.where(rank == k, at, chosen)
        weight = tl.where(rank == k, tl.sum(tl.where(expert == at, affinity, 0.0), 0), weight)
        candidate = tl.where(expert == at, float("-inf"), candidate)
    weight = weight / tl.sum(weight, 0) * scaling_factor
    local = chosen - first_local
    is_local = (local >= 0) & (local < NUM_LOCAL)
    tl.store(weight_ptr + token * TOP_K + rank, tl.where(is_local, weight, 0.0))
    slot = tl.atomic_add(count_ptr + local, 1, mask=is_local)
    tl.store(bucket_ptr + local * seq_len + slot, token * TOP_K + rank, mask=is_local)


@triton.jit
def _share_work(tiles, K_BLOCKS: tl.constexpr, SPLIT: tl.constexpr):
    """This program's share: (visits, whole tiles of them, first tile after those, k block it begins at, k blocks).

    Whole tiles are dealt out in turn, so that neighbouring tiles run at the same time. With SPLIT the last one to two
    tiles a program are instead laid end to end along K and cut into equal stretches (hybrid stream-K); `begin` counts
    k blocks from the first tile so treated."""
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    if SPLIT:
        whole = tl.maximum(tiles // programs - 1, 0)
        left = (tiles - whole * programs) * K_BLOCKS
        stretch = tl.maximum((left + programs - 1) // programs, 1)
        begin = program * stretch
        end = tl.minimum(begin + stretch, left)
        split_visits = tl.where(end > begin, (end - 1) // K_BLOCKS - begin // K_BLOCKS + 1, 0)
        return whole + split_visits, whole, whole * programs, begin, stretch
    else:
        visits = tl.maximum((tiles - program + programs - 1) // programs, 0)
        return visits, visits, 0, 0, K_BLOCKS


@triton.jit
def _visit(visit, whole, split_from, begin, stretch, K_BLOCKS: tl.constexpr):
    """(tile, first k block, end of k blocks) of the program's visit."""
    if visit < whole:
        tile = tl.program_id(0) + visit * tl.num_programs(0)
        k_begin = 0
        k_end = K_BLOCKS
    else:
        in_split = begin // K_BLOCKS + visit - whole
        tile = split_from + in_split
        k_begin = tl.maximum(begin - in_split * K_BLOCKS, 0)
        k_end = tl.minimum(begin + stretch - in_split * K_BLOCKS, K_BLOCKS)
    return tile, k_begin, k_end


@triton.jit
def _accumulate(w_desc, first_row, second_row, ws_ptr, K_BLOCKS: tl.constexpr, x_rows, xs_ptrs, xs_stride, k_begin,
                k_end, BLOCK_M: tl.constexpr, SWAP: tl.constexpr, NUM_STAGES: tl.constexpr):
    """Two blocks of 128 weight rows times BLOCK_M activation rows over k blocks [k_begin, k_end).

    x_rows [BLOCK_M, 128] pointers at k = 0; xs_ptrs [BLOCK_M] at k block 0, xs_stride between k blocks. Returns two
    float32 [128, BLOCK_M] with SWAP, else [BLOCK_M, 128]."""
    first = tl.zeros([128, BLOCK_M] if SWAP else [BLOCK_M, 128], tl.float32)
    second = tl.zeros([128, BLOCK_M] if SWAP else [BLOCK_M, 128], tl.float32)
    ws_first = ws_ptr + (first_row // 128) * K_BLOCKS
    ws_second = ws_ptr + (second_row // 128) * K_BLOCKS
    for k in tl.range(k_begin, k_end, num_stages=NUM_STAGES):
        x = tl.load(x_rows + k * 128)
        w_first = w_desc.load([first_row, k * 128])
        w_second = w_desc.load([second_row, k * 128])
        x_scale = tl.load(xs_ptrs + k * xs_stride)
        scale_first = x_scale * tl.load(ws_first + k)
        scale_second = x_scale * tl.load(ws_second + k)
        if SWAP:
            first += tl.dot(w_first, x.T) * scale_first[None, :]
            second += tl.dot(w_second, x.T) * scale_second[None, :]
        else:
            first += tl.dot(x, w_first.T) * scale_first[:, None]
            second += tl.dot(x, w_second.T) * scale_second[:, None]
    return first, second


@triton.jit
def _piece_ptrs(partial_ptr, piece, BLOCK_M: tl.constexpr, SWAP: tl.constexpr):
    COLUMNS: tl.constexpr = BLOCK_M if SWAP else 128
    rows = tl.arange(0, 128 if SWAP else BLOCK_M)
    offset = rows[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return partial_ptr + piece.to(tl.int64) * (2 * 128 * BLOCK_M) + offset


@triton.jit
def _join_pieces(first, second, in_split, begin, stretch, partial_ptr, arrived_ptr, K_BLOCKS: tl.constexpr,
                 BLOCK_M: tl.constexpr, SWAP: tl.constexpr):
    """Stores this program's piece of a split tile. The last of the tile's programs to arrive gets the sum, in K order,
    and is_last = True. A program has at most two pieces: of the tile it begins in (slot 0) and of a later one (1)."""
    mine = _piece_ptrs(partial_ptr, 2 * tl.program_id(0) + (in_split != begin // K_BLOCKS).to(tl.int32), BLOCK_M, SWAP)
    tl.store(mine, first)
    tl.store(mine + 128 * BLOCK_M, second)
    first_program = in_split * K_BLOCKS // stretch
    last_program = (in_split * K_BLOCKS + K_BLOCKS - 1) // stretch
    tl.debug_barrier()
    is_last = tl.atomic_add(arrived_ptr + in_split, 1, sem="acq_rel") == last_program - first_program
    if is_last:
        tl.store(arrived_ptr + in_split, 0)
        first = tl.zeros_like(first)
        second = tl.zeros_like(second)
        for program in tl.range(first_program, last_program + 1, loop_unroll_factor=4):
            later = (in_split != program * stretch // K_BLOCKS).to(tl.int32)
            theirs = _piece_ptrs(partial_ptr, 2 * program + later, BLOCK_M, SWAP)
            first += tl.load(theirs, cache_modifier=".cg")
            second += tl.load(theirs + 128 * BLOCK_M, cache_modifier=".cg")
    return first, second, is_last


@triton.jit(do_not_specialize=["seq_len"])
def moe_gemm1(x_ptr, xs_ptr, w_desc, ws_ptr, count_ptr, bucket_ptr, act_ptr, act_scale_ptr, partial_ptr, arrived_ptr,
              seq_len, HIDDEN: tl.constexpr, INTERMEDIATE: tl.constexpr, NUM_LOCAL: tl.constexpr,
              EXPERTS_P2: tl.constexpr, TOP_K: tl.constexpr, BLOCK_M: tl.constexpr, SWAP: tl.constexpr,
              SPLIT: tl.constexpr, NUM_STAGES: tl.constexpr, FP8_MAX: tl.constexpr, PDL: tl.constexpr):
    """act [pairs, INTERMEDIATE] fp8 and act_scale [pairs, INTERMEDIATE / 128] = quantised silu(gate) * up, rows in
    bucket order. x [seq_len, HIDDEN] fp8, xs [HIDDEN / 128, seq_len]."""
    K_BLOCKS: tl.constexpr = HIDDEN // 128
    TILES_N: tl.constexpr = INTERMEDIATE // 128
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    counts = _load_counts(count_ptr, NUM_LOCAL, EXPERTS_P2)
    tiles = tl.sum((counts + BLOCK_M - 1) // BLOCK_M, 0) * TILES_N
    visits, whole, split_from, begin, stretch = _share_work(tiles, K_BLOCKS, SPLIT)
    for visit in range(visits):
        tile, k_begin, k_end = _visit(visit, whole, split_from, begin, stretch, K_BLOCKS)
        expert, block_m, block_n, count, before = _locate_tile(tile, counts, TILES_N, BLOCK_M, EXPERTS_P2)
        slot = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
        token = tl.load(bucket_ptr + expert * seq_len + slot, mask=slot < count, other=0) // TOP_K
        x_rows = x_ptr + token.to(tl.int64)[:, None] * HIDDEN + tl.arange(0, 128)[None, :]
        up_row = expert * (2 * INTERMEDIATE) + block_n * 128
        up, gate = _accumulate(w_desc, up_row, up_row + INTERMEDIATE, ws_ptr, K_BLOCKS, x_rows, xs_ptr + token,
                               seq_len, k_begin, k_end, BLOCK_M, SWAP, NUM_STAGES)
        complete = k_end - k_begin == K_BLOCKS
        if SPLIT:
            if not complete:
                up, gate, complete = _join_pieces(up, gate, tile - split_from, begin, stretch, partial_ptr, arrived_ptr,
                                                  K_BLOCKS, BLOCK_M, SWAP)
        if complete:
            swapped = gate * tl.sigmoid(gate) * up
            activated = swapped.T if SWAP else swapped
            # At least 1e-10, so that a block of zeros does not divide by zero.
            scale = tl.maximum(tl.max(tl.abs(activated), 1), 1e-10) / FP8_MAX
            quantised = (activated / scale[:, None]).to(act_ptr.dtype.element_ty)
            row = (before + slot).to(tl.int64)
            column = block_n * 128 + tl.arange(0, 128)
            tl.store(act_ptr + row[:, None] * INTERMEDIATE + column[None, :], quantised, mask=(slot < count)[:, None])
            tl.store(act_scale_ptr + row * TILES_N + block_n, scale, mask=slot < count)


@triton.jit(do_not_specialize=["seq_len"])
def moe_gemm2(act_ptr, act_scale_ptr, w_desc, ws_ptr, count_ptr, bucket_ptr, weight_ptr, pair_out_ptr, partial_ptr,
              arrived_ptr, seq_len, HIDDEN: tl.constexpr, INTERMEDIATE: tl.constexpr, NUM_LOCAL: tl.constexpr,
              EXPERTS_P2: tl.constexpr, BLOCK_M: tl.constexpr, SWAP: tl.constexpr, SPLIT: tl.constexpr,
              NUM_STAGES: tl.constexpr, PDL: tl.constexpr):
    """pair_out [8 * seq_len, HIDDEN] bf16: for each local pair its expert's result times its routing weight."""
    K_BLOCKS: tl.constexpr = INTERMEDIATE // 128
    TILES_N: tl.constexpr = HIDDEN // 256
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    counts = _load_counts(count_ptr, NUM_LOCAL, EXPERTS_P2)
    tiles = tl.sum((counts + BLOCK_M - 1) // BLOCK_M, 0) * TILES_N
    visits, whole, split_from, begin, stretch = _share_work(tiles, K_BLOCKS, SPLIT)
    for visit in range(visits):
        tile, k_begin, k_end = _visit(visit, whole, split_from, begin, stretch, K_BLOCKS)
        expert, block_m, block_n, count, before = _locate_tile(tile, counts, TILES_N, BLOCK_M, EXPERTS_P2)
        slot = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
        row = before + tl.minimum(slot, count - 1)
        x_rows = act_ptr + row.to(tl.int64)[:, None] * INTERMEDIATE + tl.arange(0, 128)[None, :]
        w_row = expert * HIDDEN + block_n * 256
        first, second = _accumulate(w_desc, w_row, w_row + 128, ws_ptr, K_BLOCKS, x_rows,
                                    act_scale_ptr + row * K_BLOCKS, 1, k_begin, k_end, BLOCK_M, SWAP, NUM_STAGES)
        complete = k_end - k_begin == K_BLOCKS
        if SPLIT:
            if not complete:
                first, second, complete = _join_pieces(first, second, tile - split_from, begin, stretch, partial_ptr,
                                                       arrived_ptr, K_BLOCKS, BLOCK_M, SWAP)
        if complete:
            inside = slot < count
            pair = tl.load(bucket_ptr + expert * seq_len + slot, mask=inside, other=0)
            weight = tl.load(weight_ptr + pair)
            left = first.T if SWAP else first
            right = second.T if SWAP else second
            out = pair_out_ptr + pair.to(tl.int64)[:, None] * HIDDEN + block_n * 256 + tl.arange(0, 128)[None, :]
            tl.store(out, (left * weight[:, None]).to(tl.bfloat16), mask=inside[:, None])
            tl.store(out + 128, (right * weight[:, None]).to(tl.bfloat16), mask=inside[:, None])


@triton.jit
def moe_combine(pair_out_ptr, weight_ptr, count_ptr, out_ptr, HIDDEN: tl.constexpr, NUM_LOCAL: tl.constexpr,
                EXPERTS_P2: tl.constexpr, TOP_K: tl.constexpr, BLOCK_H: tl.constexpr, PDL: tl.constexpr):
    """out [seq_len, HIDDEN] = sum of the token's local pairs (those with a routing weight), zero where it has none.
    Leaves the counters at zero for the next call."""
    if PDL:
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0)
    if token == 0:
        if tl.program_id(1) == 0:
            expert = tl.arange(0, EXPERTS_P2)
            tl.store(count_ptr + expert, 0, mask=expert < NUM_LOCAL)
    column = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    inside = column < HIDDEN
    total = tl.zeros([BLOCK_H], tl.float32)
    for k in tl.static_range(TOP_K):
        pair = token * TOP_K + k
        if tl.load(weight_ptr + pair) != 0.0:
            total += tl.load(pair_out_ptr + pair.to(tl.int64) * HIDDEN + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + token.to(tl.int64) * HIDDEN + column, total.to(tl.bfloat16), mask=inside)


def choose_config(seq_len, sm_count):
    """(programs, tile options) of the first and of the second GEMM, by the number of tokens.

    An expert sees seq_len / 32 pairs on average and several times that when it is popular; up to some thousand tokens
    the time goes into reading weights, whatever the tile does. Splitting pays where tiles are few: always in the first
    GEMM, and at one token in the second, whose K is short. The values were chosen by measurement on an H200."""
    split = sm_count, dict(BLOCK_M=16, SWAP=True, SPLIT=True, num_warps=4, NUM_STAGES=6)
    if seq_len <= 4:
        return split, split
    if seq_len <= 128:
        return split, (2 * sm_count, dict(BLOCK_M=16, SWAP=True, SPLIT=False, num_warps=4, NUM_STAGES=3))
    if seq_len <= 2048:
        return ((2 * sm_count, dict(BLOCK_M=32, SWAP=True, SPLIT=False, num_warps=4, NUM_STAGES=3)),) * 2
    return ((sm_count, dict(BLOCK_M=128, SWAP=False, SPLIT=False, num_warps=8, NUM_STAGES=4)),) * 2


# Counts and arrived, zeros between calls, and then weights, buckets, act, act_scale, pair_out, partial.
workspace = workspaces.Workspace(torch.float32, torch.int32, torch.float8_e4m3fn, torch.float32, torch.bfloat16,
                                 torch.float32)


def space_for(seq_len, hidden, intermediate, num_local, sm_count, device):
    pairs = seq_len * min(TOP_K, num_local)
    # Split tiles have 16 pairs; a program has at most two pieces of them, and there are at most two a program.
    counters, *others = workspace(
        device, num_local + 2 * sm_count, seq_len * TOP_K, num_local * seq_len, pairs * intermediate,
        pairs * (intermediate // 128), seq_len * TOP_K * hidden, 2 * sm_count * 2 * 128 * 16).tensors
    return counters[:num_local], counters[num_local:], *others


check = contract.Contract("triton_compact", aligned=16,
    where=("gemm1_out_size == 2 * intermediate_size", "hidden_size == 128 * num_hidden_blocks",
           "intermediate_size == 128 * num_intermediate_blocks", "gemm1_out_size == 128 * num_gemm1_out_blocks",
           "hidden_size % 256 == 0", "num_local_experts & (num_local_experts - 1) == 0"),
    routing_logits="float32 seq_len num_experts", routing_bias="bfloat16 num_experts",
    hidden_states="float8_e4m3fn seq_len hidden_size", hidden_states_scale="float32 num_hidden_blocks seq_len",
    gemm1_weights="float8_e4m3fn num_local_experts gemm1_out_size hidden_size",
    gemm1_weights_scale="float32 num_local_experts num_gemm1_out_blocks num_hidden_blocks",
    gemm2_weights="float8_e4m3fn num_local_experts hidden_size intermediate_size",
    gemm2_weights_scale="float32 num_local_experts num_hidden_blocks num_intermediate_blocks",
    output="bfloat16 seq_len hidden_size")


def run(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
        gemm2_weights, gemm2_weights_scale, local_expert_offset, routed_scaling_factor, output):
    """Shapes as in the definition, all contiguous; hidden_size a multiple of 256, intermediate_size of 128, a power of
    two of experts. local_expert_offset and routed_scaling_factor are numbers."""
    check(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
          gemm2_weights, gemm2_weights_scale, output)
    seq_len, hidden = hidden_states.shape
    num_local, _, intermediate = gemm2_weights.shape
    if seq_len == 0:
        return
    device = hidden_states.device
    on_gpu = device.type == "cuda"
    sm_count = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 3
    stream = torch.cuda.current_stream(device).cuda_stream if on_gpu else 0
    counts, arrived, weights, buckets, act, act_scale, pair_out, partial = space_for(
        seq_len, hidden, intermediate, num_local, sm_count, device)
    addresses = [t.data_ptr() for t in (routing_logits, routing_bias, hidden_states, hidden_states_scale,
                                        gemm1_weights_scale, gemm2_weights_scale, output)]
    compiled_for = (device, *(address % 16 == 0 for address in addresses))
    experts = dict(NUM_LOCAL=num_local, EXPERTS_P2=triton.next_power_of_2(num_local))
    sizes = dict(HIDDEN=hidden, INTERMEDIATE=intermediate, **experts)
    # Programmatic dependent launch: a kernel starts up while the one before it ends.
    dependent = dict(PDL=True, launch_pdl=True) if on_gpu else dict(PDL=False)
    (programs1, tile1), (programs2, tile2) = choose_config(seq_len, sm_count)
    w1 = TensorDescriptor(gemm1_weights, [num_local * 2 * intermediate, hidden], [hidden, 1], [128, 128])
    w2 = TensorDescriptor(gemm2_weights, [num_local * hidden, intermediate], [intermediate, 1], [128, 128])
    block_h = min(triton.next_power_of_2(hidden), 1024)
    calls = [
        (moe_route, (seq_len, 1, 1),
         (routing_logits, routing_bias, weights, counts, buckets, seq_len, int(local_expert_offset),
          float(routed_scaling_factor)),
         dict(NUM_EXPERTS=routing_logits.shape[1], NUM_LOCAL=num_local, NUM_GROUPS=NUM_GROUPS, TOP_GROUPS=TOP_GROUPS,
              TOP_K=TOP_K, PDL=on_gpu, LOWEST=LOWEST, num_warps=1)),
        (moe_gemm1, (programs1, 1, 1),
         (hidden_states, hidden_states_scale, w1, gemm1_weights_scale, counts, buckets, act, act_scale, partial,
          arrived, seq_len),
         dict(**sizes, **tile1, TOP_K=TOP_K, FP8_MAX=FP8_MAX, **dependent)),
        (moe_gemm2, (programs2, 1, 1),
         (act, act_scale, w2, gemm2_weights_scale, counts, buckets, weights, pair_out, partial, arrived, seq_len),
         dict(**sizes, **tile2, **dependent)),
        (moe_combine, (seq_len, triton.cdiv(hidden, block_h), 1),
         (pair_out, weights, counts, output),
         dict(HIDDEN=hidden, **experts, TOP_K=TOP_K, BLOCK_H=block_h, num_warps=4, **dependent)),
    ]
    with torch.cuda.device_of(hidden_states):
        _launch(calls, compiled_for, stream)
