// One grouped GEMM over the pairs of each local expert, in two flavours:
//   FIRST   gathers activation rows, ends in SwiGLU and 1x128 FP8 quantisation in registers;
//   else    reads those, times the second weight and the routing weight, adds to the output rows in bf16.
//
// A tile is two blocks of 128 weight rows (up and gate in the first GEMM) times up to ROWS pairs of one expert. A
// persistent CTA an SM:
//   warpgroups 0, 1  consumers: multiply, see narrow.cuh (ROWS 16, 64) and wide.cuh (128)
//   warpgroup 2      producers: warp 3 brings weights by TMA and clears the output; warps 0 to 2 gather rows and
//                    scales (cp.async)
// The loads run ahead over the ends of tiles; STAGES k blocks of 128 are in flight. Each k block's product is scaled
// and added in float32, since the tensor core keeps about 14 bits of an FP8 sum. In a cluster of two CTAs each
// brings one of the two blocks of weights for both (TMA multicast), where both work on the same weights.
#pragma once
#include "narrow.cuh"
#include "wide.cuh"

namespace derby {

// One stretch of a tile: its products, then its end. Registers are scarce, so the task is read from shared memory once
// more for the end.
template <bool FIRST, int N, int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ void work_on(Shared<ROWS, STAGES, CLUSTER>& shared, Stage& stage,
                                        const Arguments& arguments, int index, int k_blocks) {
    constexpr int K_BLOCKS = Sizes<FIRST>::K_BLOCKS;
    float first[N / 2], second[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) first[i] = 0.0f, second[i] = 0.0f;
    if constexpr (N == 128)
        accumulate_wide<FIRST>(shared, stage, k_blocks, first, second);
    else
        accumulate<N>(shared, stage, k_blocks, first, second);
    const Task task = shared.task[index % TASKS];
    if constexpr (FIRST)
        if (task.piece_of >= 0) {
            const int stretch = shared.share.stretch;
            if (task.deliver) {
                const int collector = first_piece(task.piece_of, stretch, K_BLOCKS);
                deliver_piece<N, ROWS, CLUSTER>(arguments, collector, first, second);
                return;
            }
            const int last = last_piece(task.piece_of, stretch, K_BLOCKS);
            collect_pieces<N, ROWS, CLUSTER>(arguments, blockIdx.x / CLUSTER + 1, last, first, second);
        }
    const Tile& place = task.place;
    if constexpr (FIRST && N == 128)
        finish_first_wide(shared, arguments, place, first, second);
    else if constexpr (FIRST)
        finish_first<N>(shared, arguments, place, first, second);
    else if constexpr (N == 128)
        finish_second_wide(shared, arguments, place, first, second);
    else
        finish_second<N>(shared, arguments, place, first, second);
}

template <bool FIRST, int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ void consume(Shared<ROWS, STAGES, CLUSTER>& shared, const Arguments& arguments) {
    if constexpr (FIRST && ROUTES<ROWS>) {
        const int warp = threadIdx.x / 32;
        route_tokens(arguments.logits, arguments.bias, shared.staging.scores[warp], shared.routed, arguments.seq_len,
                     arguments.first_local, arguments.scaling_factor, warp, CONSUMERS / 32, threadIdx.x % 32);
        named_barrier_arrive(NamedBarrier::ROUTED, THREADS);
    }
    named_barrier_sync(NamedBarrier::SHARE_READY, THREADS);  // the counts are there
    if (!FIRST) wait_for_previous_kernel();
    Stage stage;
    const int visits = shared.share.visits;
    for (int v = 0; v < visits; ++v) {
        mbarrier_wait(shared_address(&shared.full[stage.index]), stage.parity);  // the task is there as well
        const Task& task = shared.task[v % TASKS];
        const Tile& place = task.place;
        const int rows = place.rows, k_blocks = task.k_blocks;
        // Copies the pairs' routing weights. Each warpgroup's threads copy those that it will use.
        const int row = ROWS == 128 ? threadIdx.x / 128 * 64 + threadIdx.x % 128 : threadIdx.x;
        if (!FIRST && row < rows && (ROWS < 128 || threadIdx.x % 128 < 64))
            cp_async8(shared_address(&shared.pair[row]),
                  arguments.bucket + size_t(place.expert) * arguments.seq_len + place.first_slot + row);
        if constexpr (ROWS == 128) {
            work_on<FIRST, 128>(shared, stage, arguments, v, k_blocks);
        } else if (rows <= 8) {
            work_on<FIRST, 8>(shared, stage, arguments, v, k_blocks);
        } else if (ROWS == 16 || rows <= 16) {
            work_on<FIRST, 16>(shared, stage, arguments, v, k_blocks);
        } else if constexpr (ROWS == 64) {
            if (rows <= 32)
                work_on<FIRST, 32>(shared, stage, arguments, v, k_blocks);
            else
                work_on<FIRST, 64>(shared, stage, arguments, v, k_blocks);
        }
    }
    if (!FIRST) bulk_wait_group();
}

// Warp 3 of warpgroup 2, one thread: loads the weights' TMA boxes. In the first GEMM it also writes this CTA's part of
// the output's zeros, in the second GEMM of many pairs it also loads their rows.
template <bool FIRST, int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ void bring_weights(Shared<ROWS, STAGES, CLUSTER>& shared, const Arguments& arguments,
                                              const CUtensorMap* map, const CUtensorMap* act_map) {
    constexpr bool BRING_ACT = !FIRST && ROWS == 128;
    const Share& share = shared.share;
    if (FIRST) {
        let_next_kernel_start();
    } else if (atomicAdd(arguments.ticket, 1) == gridDim.x - 1) {  // all CTAs have read the counts
        for (int e = 0; e < LOCAL_EXPERTS; ++e) arguments.count[e] = 0;
        *arguments.ticket = 0;
    }
    const int zeros = FIRST ? arguments.seq_len * (HIDDEN * 2 / ZERO_BYTES) : 0;
    int zero = blockIdx.x;
    auto clear = [&] {
        bulk_store(reinterpret_cast<uint8_t*>(arguments.out) + size_t(zero) * ZERO_BYTES, shared_address(shared.zeros),
                   ZERO_BYTES);
        zero += gridDim.x;
    };
    Stage stage;
    for (int v = 0; v < share.visits; ++v) {
        const Visit visit = visit_at(share, v, blockIdx.x / CLUSTER, gridDim.x / CLUSTER, Sizes<FIRST>::K_BLOCKS);
        const Tile place = locate(visit.tile, Sizes<FIRST>::TILES_N, shared.count, shared.block_start,
                                   shared.row_start, blockIdx.x % CLUSTER, CLUSTER);
        Task& task = shared.task[v % TASKS];
        task.place = place;
        task.k_blocks = visit.k_end - visit.k_begin;
        task.piece_of = task.k_blocks < Sizes<FIRST>::K_BLOCKS ? visit.tile - share.split_from : -1;
        task.deliver = visit.k_begin > 0;
        const int row = place.expert * Sizes<FIRST>::WEIGHT_ROWS + place.block_n * (FIRST ? BLOCK : 2 * BLOCK);
        for (int k = visit.k_begin; k < visit.k_end; ++k) {
            const int s = stage.index;
            const uint32_t full = shared_address(&shared.full[s]), to = shared_address(shared.weights[s]);
            mbarrier_wait(shared_address(&shared.empty[s]), stage.parity ^ 1);
            const int act_boxes = BRING_ACT ? (place.rows + ACT_BOX - 1) / ACT_BOX : 0;
            mbarrier_arrive_expect_tx(full, WEIGHT_BYTES + act_boxes * ACT_BOX * BLOCK);
            const int second_row = row + (FIRST ? INTERMEDIATE : BLOCK);
            if (CLUSTER == 1 || !place.same_weights) {
                tma_load(to, map, full, k * BLOCK, row);
                tma_load(to + BLOCK * BLOCK, map, full, k * BLOCK, second_row);
            } else {  // a block each, for both
                const int mine = blockIdx.x % CLUSTER;
                tma_load_multicast(to + mine * BLOCK * BLOCK, map, full, 3, k * BLOCK, mine ? second_row : row);
            }
            if (BRING_ACT && v == 0 && k == visit.k_begin) wait_for_previous_kernel();
            for (int box = 0; box < act_boxes; ++box)
                tma_load(shared_address(shared.x[s]) + box * ACT_BOX * BLOCK, act_map, full, k * BLOCK,
                         place.first_row + box * ACT_BOX);
            stage.next<STAGES>();
            if (zero < zeros) clear();
        }
    }
    while (zero < zeros) clear();
    bulk_commit_group();
    bulk_wait_group();
}

// Warps 0 to 2 of warpgroup 2: rows of activations into the swizzled layout, and the scales.
template <bool FIRST, int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ void gather(Shared<ROWS, STAGES, CLUSTER>& shared, const Arguments& arguments, int thread) {
    constexpr int K_BLOCKS = Sizes<FIRST>::K_BLOCKS, WIDTH = K_BLOCKS * BLOCK;
    constexpr int SCALE_BLOCKS = Sizes<FIRST>::WEIGHT_ROWS / BLOCK;
    constexpr int ROWS_AT_ONCE = GATHERERS / 8;
    static_assert(ROWS_AT_ONCE % 8 == 4, "a thread's rows have two swizzles in turn: first & 7 and (first + 4) & 7");
    // In the second GEMM of many pairs the rows lie next to each other and are loaded by TMA.
    constexpr int COPIES = !FIRST && ROWS == 128 ? 0 : (ROWS + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    constexpr int SCALES = (ROWS + GATHERERS - 1) / GATHERERS;
    // The rows of few tokens are read again for every block of weights; otherwise they would have left L2 by then.
    constexpr bool KEEP = FIRST && ROWS < 128;
    const uint64_t policy = KEEP ? keep_policy() : 0;
    const int seq_len = arguments.seq_len;
    const Share& share = shared.share;
    Stage stage;
    for (int v = 0; v < share.visits; ++v) {
        const Visit visit = visit_at(share, v, blockIdx.x / CLUSTER, gridDim.x / CLUSTER, K_BLOCKS);
        const Tile place = locate(visit.tile, Sizes<FIRST>::TILES_N, shared.count, shared.block_start,
                                   shared.row_start, blockIdx.x % CLUSTER, CLUSTER);
        // Thread t copies 16-byte chunk t % 8 of rows t / 8, t / 8 + 12, ...; it scales rows t and t + 96.
        const int chunk = thread % 8, first = thread / 8;
        uint32_t source[COPIES + 1], scale_source[SCALES];
        auto source_row = [&](int row) {
            if (row >= place.rows) return 0;
            if (!FIRST) return place.first_row + row;
            if (ROUTES<ROWS>)
                return token_at(shared.routed, place.expert, place.first_slot + row);
            return __ldcg(&arguments.bucket[size_t(place.expert) * seq_len + place.first_slot + row].x) / TOP_K;
        };
#pragma unroll
        for (int i = 0; i < COPIES; ++i) source[i] = source_row(first + ROWS_AT_ONCE * i) * (WIDTH / 16) + chunk;
#pragma unroll
        for (int i = 0; i < SCALES; ++i) scale_source[i] = source_row(thread + GATHERERS * i) * (FIRST ? 1 : K_BLOCKS);
        const int block =
            FIRST ? place.block_n + (thread ? SCALE_BLOCKS / 2 : 0) : 2 * place.block_n + (thread ? 1 : 0);
        const float* w_scale = arguments.w_scale + (size_t(place.expert) * SCALE_BLOCKS + block) * K_BLOCKS;
        const uint4* x = reinterpret_cast<const uint4*>(arguments.x) + visit.k_begin * (BLOCK / 16);
        const float* x_scale = arguments.x_scale + (FIRST ? size_t(visit.k_begin) * seq_len : size_t(visit.k_begin));
        int copies = place.rows > first ? (place.rows - first + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE : 0;
        for (int k = visit.k_begin; k < visit.k_end; ++k) {
            const int s = stage.index;
            const uint32_t to = shared_address(shared.x[s]) + first * BLOCK;
            uint32_t even = to + ((chunk ^ (first & 7)) << 4), odd = to + ((chunk ^ ((first + 4) & 7)) << 4);
            // Left alone, the compiler, with eleven copies and few registers, computes these anew for each copy, in 67
            // of the loop's 166 instructions.
            keep(even, odd, copies, x, x_scale);
            mbarrier_wait(shared_address(&shared.empty[s]), stage.parity ^ 1);
#pragma unroll
            for (int i = 0; i < COPIES; ++i)
                if (i < copies) {
                    const uint32_t there = (i % 2 ? odd : even) + i * ROWS_AT_ONCE * BLOCK;
                    if (KEEP)
                        cp_async16(there, x + source[i], policy);
                    else
                        cp_async16(there, x + source[i]);
                }
#pragma unroll
            for (int i = 0; i < SCALES; ++i)
                if (thread + GATHERERS * i < place.rows)
                    cp_async4(shared_address(&shared.x_scale[s][thread + GATHERERS * i]), x_scale + scale_source[i]);
            if (thread < 2) cp_async4(shared_address(&shared.w_scale[s][thread]), w_scale + k);
            x += BLOCK / 16;
            x_scale += FIRST ? seq_len : 1;
            mbarrier_arrive_on_cp_async(shared_address(&shared.full[s]));
            stage.next<STAGES>();
        }
    }
}

// Pairs and blocks of pairs of each expert, and this CTA's share of the work, by one warp.
template <bool FIRST, int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ void count_blocks(Shared<ROWS, STAGES, CLUSTER>& shared, int mine) {
    const int lane = threadIdx.x % 32;
    int rows = mine, blocks = (mine + ROWS - 1) / ROWS;
    const int my_blocks = blocks;
    const bool split_all = __reduce_max_sync(~0u, blocks) <= CLUSTER;
#pragma unroll
    for (int step = 1; step < LOCAL_EXPERTS; step *= 2) {
        const int more_rows = __shfl_up_sync(~0u, rows, step), more_blocks = __shfl_up_sync(~0u, blocks, step);
        if (lane >= step) rows += more_rows, blocks += more_blocks;
    }
    shared.count[lane] = mine;
    shared.row_start[lane] = rows - mine;
    shared.block_start[lane] = blocks - my_blocks;
    if (lane == LOCAL_EXPERTS - 1) {
        shared.row_start[LOCAL_EXPERTS] = rows;
        shared.block_start[LOCAL_EXPERTS] = blocks;
        shared.share = share_work(blockIdx.x / CLUSTER, gridDim.x / CLUSTER, blocks * (Sizes<FIRST>::TILES_N / CLUSTER),
                                  Sizes<FIRST>::K_BLOCKS, split_all);
    }
}

// Warpgroup 2.
template <bool FIRST, int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ void produce(Shared<ROWS, STAGES, CLUSTER>& shared, const Arguments& arguments,
                                        const CUtensorMap* map, const CUtensorMap* act_map, int thread) {
    const int lane = thread % 32;
    if (thread < GATHERERS) {
        if (FIRST && ROUTES<ROWS>) {
            named_barrier_sync(NamedBarrier::ROUTED, THREADS);
            if (blockIdx.x == 0 && thread < 32) {
                publish(shared.routed, arguments.bucket, arguments.count, arguments.seq_len, lane);
                __threadfence();
            }
        }
        named_barrier_sync(NamedBarrier::PRODUCERS_READY, PRODUCERS);
        named_barrier_arrive(NamedBarrier::SHARE_READY, THREADS);
        if (!FIRST) wait_for_previous_kernel();
        gather<FIRST>(shared, arguments, thread);
        return;
    }
    if (FIRST) {
        for (int i = lane; i < ZERO_BYTES / 4; i += 32) reinterpret_cast<int*>(shared.zeros)[i] = 0;
        fence_async_proxy();
        wait_for_previous_kernel();
    }
    if (FIRST && ROUTES<ROWS>) {
        named_barrier_sync(NamedBarrier::ROUTED, THREADS);
        count_blocks<FIRST>(shared, __popc(tokens_of(shared.routed, lane)));
    } else {
        // The second GEMM may start before the first has ended: the counts are older than that start.
        count_blocks<FIRST>(shared, __ldcg(arguments.count + lane));
    }
    named_barrier_sync(NamedBarrier::PRODUCERS_READY, PRODUCERS);
    named_barrier_arrive(NamedBarrier::SHARE_READY, THREADS);
    if (lane == 0) bring_weights<FIRST>(shared, arguments, map, act_map);
    __syncwarp();
}

template <bool FIRST, int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ void grouped_gemm(const CUtensorMap& map, const CUtensorMap& act_map,
                                             const Arguments& arguments) {
    using Shared = Shared<ROWS, STAGES, CLUSTER>;
    static_assert(sizeof(Shared) <= SHARED_LIMIT, "the stages do not fit");
    static_assert(offsetof(Shared, weights) % 1024 == 0 && offsetof(Shared, x) % 1024 == 0, "for the swizzle");
    static_assert(offsetof(Shared, staging) % 16 == 0 && offsetof(Shared, x_scale) % 8 == 0, "read by vectors");
    static_assert(Sizes<FIRST>::TILES_N % CLUSTER == 0, "both CTAs of a cluster have weights");
    extern __shared__ __align__(1024) uint8_t raw[];
    auto& shared = *reinterpret_cast<Shared*>(raw);
    if (shared_address(raw) % 1024 != 0) __trap();  // the swizzle goes by address
    const int thread = threadIdx.x, warp = thread / 32;
    if (thread == CONSUMERS) {
        for (int s = 0; s < STAGES; ++s) {
            mbarrier_init(shared_address(&shared.full[s]), GATHERERS + 1);
            mbarrier_init(shared_address(&shared.empty[s]), CLUSTER * CONSUMERS / (RACECHECK && CLUSTER == 1 ? 1 : 32));
        }
        fence_mbarrier_init();
        prefetch_tensor_map(&map);
    }
    if constexpr (CLUSTER > 1) {
        __syncwarp();
        cluster_sync();  // the other CTA's barriers are there
    }
    if (warp < CONSUMERS / 32) {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consume<FIRST>(shared, arguments);
    } else {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        produce<FIRST>(shared, arguments, &map, &act_map, thread - CONSUMERS);
    }
    if constexpr (CLUSTER > 1) {
        __syncwarp();
        cluster_sync();  // the other CTA may still send to this one
    }
}

}  // namespace derby
