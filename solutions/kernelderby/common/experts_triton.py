"""The experts of a mixture of experts in five Triton kernels, for bf16 and for FP8 with block scales.

1. experts_count     a slot in its expert's row for each pair (token, expert), by atomic counters.
2. experts_order     pairs by expert: what the GEMMs look up.
3. experts_gemm1     gathers its token rows, multiplies with both halves of the first weight, ends in SwiGLU (and 1x128
                     FP8 quantisation) in registers.
4. experts_gemm2     the second weight, times the routing weight, one bf16 row a pair.
5. experts_sum       sums each token's rows, in the order of its experts.

A program multiplies two blocks of 128 weight rows with the same pairs: gate and up in the first GEMM, two neighbours in
the second. SWAP: out^T = W x^T, so that weight rows are the M of the tensor core instruction and the pairs its N, and
an expert with few pairs wastes little. Work is persistent: tiles are dealt out in turn, expert by expert, the blocks of
pairs fastest, so that neighbours share weights.

Kept between calls: compiled kernels, and a workspace whose counters every call leaves at zero.
"""

import functools

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from . import workspaces

FP8_MAX = 448.0
PAIRS_A_PROGRAM = 128


@triton.jit(do_not_specialize=["pairs", "experts"])
def experts_count(ids_ptr, count_ptr, slot_ptr, pairs, experts, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """slot[pairs]: the pair's place among its expert's; count[expert]: how many."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(ids_ptr + pair, mask=pair < pairs, other=-1)
    valid = (expert >= 0) & (expert < experts)
    slot = tl.atomic_add(count_ptr + expert, 1, mask=valid, sem="relaxed")
    tl.store(slot_ptr + pair, tl.where(valid, slot, -1), mask=pair < pairs)


@triton.jit
def _load_counts(count_ptr, experts, EXPERTS_P2: tl.constexpr):
    expert = tl.arange(0, EXPERTS_P2)
    return tl.load(count_ptr + expert, mask=expert < experts, other=0)


@triton.jit(do_not_specialize=["pairs", "experts"])
def experts_order(ids_ptr, count_ptr, slot_ptr, order_ptr, pairs, experts, EXPERTS_P2: tl.constexpr,
                  BLOCK: tl.constexpr, PDL: tl.constexpr):
    """order[row] = pair, expert by expert."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    counts = _load_counts(count_ptr, experts, EXPERTS_P2)
    begin = tl.cumsum(counts, 0) - counts
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slot_ptr + pair, mask=pair < pairs, other=-1)
    expert = tl.load(ids_ptr + pair, mask=slot >= 0, other=0)
    row = tl.gather(begin, expert, 0) + slot
    tl.store(order_ptr + row, pair, mask=slot >= 0)


@triton.jit
def _locate_tile(tile, count, TILES_N: tl.constexpr, BLOCK_M: tl.constexpr, EXPERTS_P2: tl.constexpr):
    """tile -> (expert, block of pairs, block of weight rows, the expert's pairs, pairs of the experts before it)."""
    index = tl.arange(0, EXPERTS_P2)
    blocks = (count + BLOCK_M - 1) // BLOCK_M
    expert = tl.sum((tl.cumsum(blocks, 0) * TILES_N <= tile).to(tl.int32), 0)
    in_expert = tile - tl.sum(tl.where(index < expert, blocks, 0), 0) * TILES_N
    # At least one block, since a tile past the end (looked up ahead of its use) has no expert.
    my_blocks = tl.maximum(tl.sum(tl.where(index == expert, blocks, 0), 0), 1)
    my_count = tl.sum(tl.where(index == expert, count, 0), 0)
    before = tl.sum(tl.where(index < expert, count, 0), 0)
    return expert, in_expert % my_blocks, in_expert // my_blocks, my_count, before


@triton.jit
def _accumulate(w_desc, first_row, second_row, ws_first, ws_second, x_rows, xs_ptrs, K: tl.constexpr,
                BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr, SCALED: tl.constexpr, SWAP: tl.constexpr,
                NUM_STAGES: tl.constexpr, ON_GPU: tl.constexpr):
    """Two blocks of 128 weight rows times BLOCK_M activation rows. x_rows [BLOCK_M, 1] pointers at k = 0; SCALED:
    xs_ptrs [BLOCK_M] and ws_* at k block 0. Returns two float32 [128, BLOCK_M] with SWAP, else [BLOCK_M, 128]."""
    first = tl.zeros([128, BLOCK_M] if SWAP else [BLOCK_M, 128], tl.float32)
    second = tl.zeros([128, BLOCK_M] if SWAP else [BLOCK_M, 128], tl.float32)
    column = tl.arange(0, BLOCK_K)[None, :]
    for k in tl.range(0, tl.cdiv(K, BLOCK_K), num_stages=NUM_STAGES):
        if K % BLOCK_K == 0:
            x = tl.load(x_rows + k * BLOCK_K + column)
        else:
            x = tl.load(x_rows + k * BLOCK_K + column, mask=k * BLOCK_K + column < K, other=0.0)
        w_first = w_desc.load([first_row, k * BLOCK_K])
        w_second = w_desc.load([second_row, k * BLOCK_K])
        if not (SCALED or ON_GPU):  # Triton's interpreter multiplies bfloat16 as the integers of its bits
            x, w_first, w_second = x.to(tl.float32), w_first.to(tl.float32), w_second.to(tl.float32)
        if SCALED:
            x_scale = tl.load(xs_ptrs + k)
            scale_first = x_scale * tl.load(ws_first + k)
            scale_second = x_scale * tl.load(ws_second + k)
            if SWAP:
                first += tl.dot(w_first, x.T) * scale_first[None, :]
                second += tl.dot(w_second, x.T) * scale_second[None, :]
            else:
                first += tl.dot(x, w_first.T) * scale_first[:, None]
                second += tl.dot(x, w_second.T) * scale_second[:, None]
        elif SWAP:
            first = tl.dot(w_first, x.T, first)
            second = tl.dot(w_second, x.T, second)
        else:
            first = tl.dot(x, w_first.T, first)
            second = tl.dot(x, w_second.T, second)
    return first, second


@triton.jit(do_not_specialize=["experts"])
def experts_gemm1(x_ptr, xs_ptr, w_desc, ws_ptr, count_ptr, order_ptr, act_ptr, act_scale_ptr, experts,
                  HIDDEN: tl.constexpr, INTERMEDIATE: tl.constexpr, EXPERTS_P2: tl.constexpr, TOP_K: tl.constexpr,
                  BLOCK_K: tl.constexpr, SCALED: tl.constexpr, BLOCK_M: tl.constexpr, SWAP: tl.constexpr,
                  NUM_STAGES: tl.constexpr, FP8_MAX: tl.constexpr, PDL: tl.constexpr):
    """act [pairs, INTERMEDIATE] = silu(gate) * up, rows in the pairs' order; SCALED: quantised, act_scale
    [pairs, INTERMEDIATE / 128]. x [tokens, HIDDEN], xs [tokens, HIDDEN / 128]."""
    TILES_N: tl.constexpr = (INTERMEDIATE + 127) // 128
    K_BLOCKS: tl.constexpr = (HIDDEN + BLOCK_K - 1) // BLOCK_K
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    counts = _load_counts(count_ptr, experts, EXPERTS_P2)
    tiles = tl.sum((counts + BLOCK_M - 1) // BLOCK_M, 0) * TILES_N
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        expert, block_m, block_n, count, before = _locate_tile(tile, counts, TILES_N, BLOCK_M, EXPERTS_P2)
        slot = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
        token = tl.load(order_ptr + before + slot, mask=slot < count, other=0) // TOP_K
        gate_row = expert * (2 * INTERMEDIATE) + block_n * 128
        ws = ws_ptr + (gate_row // 128) * K_BLOCKS
        gate, up = _accumulate(w_desc, gate_row, gate_row + INTERMEDIATE, ws, ws + TILES_N * K_BLOCKS,
                               x_ptr + token.to(tl.int64)[:, None] * HIDDEN, xs_ptr + token * K_BLOCKS, HIDDEN, BLOCK_K,
                               BLOCK_M, SCALED, SWAP, NUM_STAGES, PDL)
        swapped = gate * tl.sigmoid(gate) * up
        activated = swapped.T if SWAP else swapped
        row = (before + slot).to(tl.int64)
        column = block_n * 128 + tl.arange(0, 128)
        inside = (slot < count)[:, None] & (column < INTERMEDIATE)[None, :]
        if SCALED:
            # At least 1e-10, so that a block of zeros does not divide by zero.
            scale = tl.maximum(tl.max(tl.abs(activated), 1), 1e-10) / FP8_MAX
            activated = activated / scale[:, None]
            tl.store(act_scale_ptr + row * TILES_N + block_n, scale, mask=slot < count)
        tl.store(act_ptr + row[:, None] * INTERMEDIATE + column[None, :], activated.to(act_ptr.dtype.element_ty),
                 mask=inside)


@triton.jit(do_not_specialize=["experts"])
def experts_gemm2(act_ptr, act_scale_ptr, w_desc, ws_ptr, count_ptr, order_ptr, weight_ptr, pair_out_ptr, experts,
                  HIDDEN: tl.constexpr, INTERMEDIATE: tl.constexpr, EXPERTS_P2: tl.constexpr, BLOCK_K: tl.constexpr,
                  SCALED: tl.constexpr, BLOCK_M: tl.constexpr, SWAP: tl.constexpr, NUM_STAGES: tl.constexpr,
                  PDL: tl.constexpr):
    """pair_out [pairs, HIDDEN] bf16: for each pair its expert's result times its routing weight."""
    TILES_N: tl.constexpr = (HIDDEN + 255) // 256
    K_BLOCKS: tl.constexpr = (INTERMEDIATE + BLOCK_K - 1) // BLOCK_K
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    counts = _load_counts(count_ptr, experts, EXPERTS_P2)
    tiles = tl.sum((counts + BLOCK_M - 1) // BLOCK_M, 0) * TILES_N
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        expert, block_m, block_n, count, before = _locate_tile(tile, counts, TILES_N, BLOCK_M, EXPERTS_P2)
        slot = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
        row = before + tl.minimum(slot, count - 1)
        w_row = expert * HIDDEN + block_n * 256
        ws = ws_ptr + (w_row // 128) * K_BLOCKS
        first, second = _accumulate(w_desc, w_row, w_row + 128, ws, ws + K_BLOCKS,
                                    act_ptr + row.to(tl.int64)[:, None] * INTERMEDIATE, act_scale_ptr + row * K_BLOCKS,
                                    INTERMEDIATE, BLOCK_K, BLOCK_M, SCALED, SWAP, NUM_STAGES, PDL)
        inside = slot < count
        pair = tl.load(order_ptr + before + slot, mask=inside, other=0)
        weight = tl.load(weight_ptr + pair)
        left = first.T if SWAP else first
        right = second.T if SWAP else second
        column = block_n * 256 + tl.arange(0, 128)
        out = pair_out_ptr + pair.to(tl.int64)[:, None] * HIDDEN + column[None, :]
        tl.store(out, (left * weight[:, None]).to(tl.bfloat16), mask=inside[:, None] & (column < HIDDEN)[None, :])
        tl.store(out + 128, (right * weight[:, None]).to(tl.bfloat16),
                 mask=inside[:, None] & (column + 128 < HIDDEN)[None, :])


@triton.jit(do_not_specialize=["experts"])
def experts_sum(pair_out_ptr, slot_ptr, count_ptr, out_ptr, experts, HIDDEN: tl.constexpr, EXPERTS_P2: tl.constexpr,
                TOP_K: tl.constexpr, BLOCK_H: tl.constexpr, PDL: tl.constexpr):
    """out [tokens, HIDDEN] = sum of the token's pairs. Leaves the counters at zero for the next call."""
    if PDL:
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0)
    if token == 0:
        if tl.program_id(1) == 0:
            expert = tl.arange(0, EXPERTS_P2)
            tl.store(count_ptr + expert, 0, mask=expert < experts)
    column = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    total = tl.zeros([BLOCK_H], tl.float32)
    for k in tl.static_range(TOP_K):
        pair = token * TOP_K + k
        inside = (column < HIDDEN) & (tl.load(slot_ptr + pair) >= 0)
        total += tl.load(pair_out_ptr + pair.to(tl.int64) * HIDDEN + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + token.to(tl.int64) * HIDDEN + column, total.to(out_ptr.dtype.element_ty), mask=column < HIDDEN)


# Whether scaled -> pairs a tile -> (programs a multiprocessor, stages, warps), swapped up to 64.
TILES = {False: {16: (2, 5, 4), 32: (2, 4, 4), 64: (1, 4, 4), 128: (1, 4, 8)},
         True: {16: (2, 3, 4), 32: (2, 3, 4), 64: (1, 4, 8), 128: (1, 4, 8)}}
_compiled = {}


@functools.cache
def workspace(dtype):
    """The counts, which are zero between calls, then slots, order, act, act_scale and pair_out. dtype: of act."""
    return workspaces.Workspace(torch.int32, torch.int32, dtype, torch.float32, torch.bfloat16)


def launch(calls, compiled_for, stream):
    """Launches (kernel, grid, arguments, options) one after another; `compiled_for`: device, and whether the inputs'
    addresses are multiples of 16, which Triton compiles for.

    Compiled kernels go straight to their launchers, and all preparation comes before the first launch: with few tokens
    the kernels take less time than Triton's launch path, and the GPU would wait for the host."""
    if not isinstance(calls[0][0], triton.JITFunction):  # the interpreter
        for kernel, grid, arguments, options in calls:
            kernel[grid](*arguments, **options)
        return
    launches = []
    for kernel, grid, arguments, options in calls:
        key = (kernel, compiled_for, *options.values())
        binary = _compiled.get(key)
        if binary is None:
            binary = _compiled[key] = kernel.warmup(*arguments, grid=grid, **options)
            binary._init_handles()
        # Plain addresses spare the launcher a driver query per pointer.
        plain = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments]
        constants = [options[name] for name in kernel.arg_names[len(arguments):]]
        launches.append((binary.run, (*grid, stream, binary.function, binary.packed_metadata, None, None, None,
                                      *plain, *constants)))
    for go, arguments in launches:
        go(*arguments)


def pairs_a_tile(pairs, num_experts):
    """Chosen by the pairs of an expert if all have the same number."""
    return next((size for size in (16, 32, 64) if 1.25 * pairs / num_experts <= size), 128)


def tile_of(size, programs, stages, warps):
    """The argument of run() for one GEMM with this number of pairs a tile."""
    return programs, dict(BLOCK_M=size, SWAP=size <= 64, NUM_STAGES=stages, num_warps=warps)


def run_any(hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight, down_weight_scale,
            topk_ids, topk_weights, output):
    """run() with the first choice of tiles."""
    size = pairs_a_tile(topk_ids.numel(), down_weight.shape[0])
    tile = tile_of(size, *TILES[hidden_states_scale is not None][size])
    run((tile, tile), hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight,
        down_weight_scale, topk_ids, topk_weights, output)


def _run_padded(tiles, hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    """For bf16 rows that are not multiples of 16 bytes, as TMA needs them: copies all weights at each call."""
    (tokens, hidden), intermediate = hidden_states.shape, down_weight.shape[2]
    more, between, pad = -hidden % 8, -intermediate % 8, torch.nn.functional.pad
    gate_up = pad(gate_up_weight.unflatten(1, (2, intermediate)), (0, more, 0, between)).flatten(1, 2)
    wide = torch.empty(tokens, hidden + more, dtype=output.dtype, device=output.device)
    run(tiles, pad(hidden_states, (0, more)), None, gate_up, None, pad(down_weight, (0, between, 0, more)), None,
        topk_ids, topk_weights, wide)
    output.detach().copy_(wide[:, :hidden])


def run(tiles, hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight, down_weight_scale,
        topk_ids, topk_weights, output):
    """Shapes as in the definitions, all contiguous; scales None in bf16. tiles: (programs a multiprocessor, options) of
    the first and of the second GEMM: BLOCK_M, SWAP, NUM_STAGES, num_warps."""
    tokens, hidden = hidden_states.shape
    experts, _, intermediate = down_weight.shape
    top_k = topk_ids.shape[1]
    if output.numel() == 0:
        return
    if top_k == 0 or experts == 0 or intermediate == 0:
        output.detach().zero_()
        return
    if hidden_states_scale is None and (hidden % 8 or intermediate % 8):
        _run_padded(tiles, hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output)
        return
    device, pairs, scaled = hidden_states.device, tokens * top_k, hidden_states_scale is not None
    on_gpu = device.type == "cuda"
    sm_count = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 3
    stream = torch.cuda.current_stream(device).cuda_stream if on_gpu else 0
    counts, slots, order, act, act_scale, pair_out = workspace(hidden_states.dtype)(
        device, experts, pairs, pairs, pairs * intermediate, pairs * -(-intermediate // 128), pairs * hidden).tensors
    if not scaled:
        hidden_states_scale = gate_up_weight_scale = down_weight_scale = act_scale  # not read
    inputs = (hidden_states, hidden_states_scale, gate_up_weight_scale, down_weight_scale, topk_ids, topk_weights,
              output)
    compiled_for = (device, hidden_states.dtype, *(tensor.data_ptr() % 16 == 0 for tensor in inputs))
    # Programmatic dependent launch: a kernel starts up while the one before it ends.
    dependent = dict(PDL=True, launch_pdl=True) if on_gpu else dict(PDL=False)
    experts_p2 = dict(EXPERTS_P2=triton.next_power_of_2(experts))
    block_k = 128 if scaled else 64
    sizes = dict(HIDDEN=hidden, INTERMEDIATE=intermediate, **experts_p2, BLOCK_K=block_k, SCALED=scaled)
    (programs1, tile1), (programs2, tile2) = tiles
    w1 = TensorDescriptor(gate_up_weight, [experts * 2 * intermediate, hidden], [hidden, 1], [128, block_k])
    w2 = TensorDescriptor(down_weight, [experts * hidden, intermediate], [intermediate, 1], [128, block_k])
    block_h = min(triton.next_power_of_2(hidden), 1024)
    sorting = (triton.cdiv(pairs, PAIRS_A_PROGRAM), 1, 1)
    calls = [
        (experts_count, sorting, (topk_ids, counts, slots, pairs, experts),
         dict(BLOCK=PAIRS_A_PROGRAM, PDL=on_gpu, num_warps=4)),
        (experts_order, sorting, (topk_ids, counts, slots, order, pairs, experts),
         dict(**experts_p2, BLOCK=PAIRS_A_PROGRAM, num_warps=4, **dependent)),
        (experts_gemm1, (programs1 * sm_count, 1, 1),
         (hidden_states, hidden_states_scale, w1, gate_up_weight_scale, counts, order, act, act_scale, experts),
         dict(**sizes, TOP_K=top_k, **tile1, FP8_MAX=FP8_MAX, **dependent)),
        (experts_gemm2, (programs2 * sm_count, 1, 1),
         (act, act_scale, w2, down_weight_scale, counts, order, topk_weights, pair_out, experts),
         dict(**sizes, **tile2, **dependent)),
        (experts_sum, (tokens, triton.cdiv(hidden, block_h), 1),
         (pair_out, slots, counts, output, experts),
         dict(HIDDEN=hidden, **experts_p2, TOP_K=top_k, BLOCK_H=block_h, num_warps=4, **dependent)),
    ]
    with torch.cuda.device_of(hidden_states):
        launch(calls, compiled_for, stream)
