// One grouped GEMM over the pairs of each expert, in two flavours:
//   FIRST   gathers activation rows, ends in SwiGLU (and 1x128 FP8 quantisation) in registers;
//   else    reads those, times the second weight and the routing weight, and adds to the output rows, or, STORES, stores
//           a row for each pair, which a kernel behind it sums.
//
// A tile is two blocks of 128 weight rows (gate and up in the first GEMM) times up to ROWS pairs of one expert. A
// persistent CTA an SM:
//   warpgroups 0, 1  consumers: multiply, see experts_narrow.cuh, experts_wide.cuh and experts_later.cuh
//   warpgroup 2      producers: warp 3 brings weights, and the second GEMM's pairs, by TMA and clears the output; warps
//                    0 to 2 gather rows and scales (cp.async)
// The loads run ahead over the ends of tiles; STAGES k blocks of 128 bytes are in flight. In a cluster of two CTAs each
// brings one of the two blocks of weights for both (TMA multicast), where both work on the same weights.
#pragma once
#include "experts_later.cuh"
#include "experts_narrow.cuh"
#include "experts_wide.cuh"

namespace derby {

// One stretch of a tile: its products, then its end. Registers are scarce, so the task is read from shared memory once
// more for the end.
template <class C, bool FIRST, bool STORES, int N>
__device__ __forceinline__ void work_on(Shared<C>& shared, Stage& stage, const typename C::Arguments& arguments,
                                        int index, int k_blocks) {
    constexpr bool SCALED = C::Kind::SCALED, GATHERED = FIRST || C::GATHERS_ACT;
    float sums[N];
    if constexpr (SCALED)
        accumulate_scaled<C, GATHERED>(shared, stage, k_blocks, sums);
    else
        accumulate_plain<C, GATHERED>(shared, stage, k_blocks, sums);
    const Task task = shared.task[index % TASKS];
    if constexpr (FIRST || STORES)  // else pieces are added as they are
        if (task.piece_of >= 0 && join_pieces(shared, arguments, task, sums)) return;
    const Place& place = task.place;
    if constexpr (FIRST && SCALED)
        finish_first_scaled(shared, arguments, place, sums);
    else if constexpr (FIRST)
        finish_first_plain(shared, arguments, place, sums);
    else if constexpr (SCALED)
        finish_second_scaled(shared, arguments, place, sums);
    else
        finish_second_plain<C, STORES>(shared, arguments, place, sums);
}

// The same for the smallest N of the given ones that holds the rows.
template <class C, bool FIRST, bool STORES, int N, int... MORE>
__device__ __forceinline__ void work_on_smallest(int rows, Shared<C>& shared, Stage& stage,
                                                 const typename C::Arguments& arguments, int index, int k_blocks) {
    if constexpr (sizeof...(MORE) == 0 || N >= C::ROWS)
        work_on<C, FIRST, STORES, N>(shared, stage, arguments, index, k_blocks);
    else if (rows <= N)
        work_on<C, FIRST, STORES, N>(shared, stage, arguments, index, k_blocks);
    else
        work_on_smallest<C, FIRST, STORES, MORE...>(rows, shared, stage, arguments, index, k_blocks);
}

// The consumers, once this CTA's share of the work is known.
template <class C, bool FIRST, bool STORES>
__device__ __forceinline__ void consume(Shared<C>& shared, const typename C::Arguments& arguments) {
    if (!FIRST) wait_for_previous_kernel();
    if constexpr (C::WIDE) {
        if constexpr (C::LATER)
            work_and_finish_later<C, FIRST, STORES>(shared, arguments);
        else
            work_on_wide_scaled<C, FIRST, STORES>(shared, arguments);
        return;
    }
    Stage stage;
    const int visits = shared.share.visits;
    for (int v = 0; v < visits; ++v) {
        mbarrier_wait(shared_address(&shared.full[stage.index]), stage.parity);  // the task is there as well
        const Task& task = shared.task[v % TASKS];
        const int rows = task.place.rows, k_blocks = task.k_blocks;
        if (!FIRST) bring_pairs(shared, arguments, task.place, 0);
        if constexpr (C::Kind::SCALED && C::ROWS > 64)
            work_on_smallest<C, FIRST, STORES, 32, 64, 96, 128>(rows, shared, stage, arguments, v, k_blocks);
        else if constexpr (C::Kind::SCALED)
            work_on_smallest<C, FIRST, STORES, 8, 16, 32, 64>(rows, shared, stage, arguments, v, k_blocks);
        else if constexpr (C::ROWS <= 64)
            work_on_smallest<C, FIRST, STORES, 8, 16, 32, 48, 64>(rows, shared, stage, arguments, v, k_blocks);
        else if constexpr (C::ROWS == 80)
            work_on_smallest<C, FIRST, STORES, 16, 32, 48, 64, 80>(rows, shared, stage, arguments, v, k_blocks);
        else
            work_on_smallest<C, FIRST, STORES, 32, 64, 96, 128, 160, 192>(rows, shared, stage, arguments, v, k_blocks);
    }
    if (!FIRST) bulk_wait_group();
}

// Loads both boxes of weights of a k block. In a cluster whose CTAs share the weights, each CTA loads one box for both.
template <class C>
__device__ __forceinline__ void bring_block(Shared<C>& shared, int s, const CUtensorMap* map, int column, int row,
                                            int second_row, bool same_weights, bool once) {
    const uint32_t full = shared_address(&shared.full[s]), to = shared_address(shared.weights[s]);
    if ((C::CLUSTER == 1 || !same_weights) && once) {
        tma_load_hint(to, map, full, EVICT_FIRST, column, row);
        tma_load_hint(to + BLOCK * BLOCK, map, full, EVICT_FIRST, column, second_row);
    } else if (C::CLUSTER == 1 || !same_weights) {
        tma_load(to, map, full, column, row);
        tma_load(to + BLOCK * BLOCK, map, full, column, second_row);
    } else {
        const int mine = blockIdx.x % C::CLUSTER, my_row = mine ? second_row : row;
        if (once)
            tma_load_multicast_hint(to + mine * BLOCK * BLOCK, map, full, BOTH_CTAS, EVICT_FIRST, column, my_row);
        else
            tma_load_multicast(to + mine * BLOCK * BLOCK, map, full, BOTH_CTAS, column, my_row);
    }
}

// Which of an expert's blocks of weights is a tile's first one in the first GEMM, the one of gate.
template <class C>
__device__ __forceinline__ int first_block(const typename C::Arguments& arguments, int block_n) {
    return C::UP_FIRST ? block_n + arguments.intermediate / BLOCK : block_n;
}

// Its first row among the rows of all experts.
template <class C, bool FIRST>
__device__ __forceinline__ int first_row(const typename C::Arguments& arguments, int expert, int block_n) {
    return expert * arguments.weight_rows + (FIRST ? first_block<C>(arguments, block_n) * BLOCK : block_n * 2 * BLOCK);
}

// Warp 3 of warpgroup 2, one thread: the weights' TMA boxes, in the second GEMM those of the pairs, in the first this
// CTA's part of the output's zeros. early: k blocks whose weights are under way.
template <class C, bool FIRST>
__device__ __forceinline__ void bring_weights(Shared<C>& shared, const typename C::Arguments& arguments,
                                              const CUtensorMap* map, const CUtensorMap* act_map, int early) {
    using Kind = typename C::Kind;
    constexpr int CLUSTER = C::CLUSTER, COLUMNS = BLOCK / Kind::BYTES;
    const Share& share = shared.share;
    const auto& layout = arguments.layout;
    if (FIRST) let_next_kernel_start();
    const long long out_bytes =
        FIRST && !arguments.results ? (long long)arguments.tokens * arguments.hidden * sizeof(typename Kind::Out) : 0;
    constexpr int ZERO_BYTES = C::ZERO_BYTES;
    long long zero = (long long)blockIdx.x * ZERO_BYTES;
    auto clear = [&] {
        const long long left = out_bytes - zero;
        bulk_store(static_cast<uint8_t*>(arguments.out) + zero, shared_address(shared.zeros),
                   left < ZERO_BYTES ? int(left) : ZERO_BYTES);
        zero += (long long)gridDim.x * ZERO_BYTES;
    };
    // Every CTA clears its part a little with each k block, so that nothing waits for it at the end.
    const int my_blocks = share.whole * layout.k_blocks + share.end - share.begin;
    const int zeros_a_block = C::ZEROS_A_BLOCK ? C::ZEROS_A_BLOCK : out_bytes ? int(out_bytes / ZERO_BYTES / gridDim.x / (my_blocks ? my_blocks : 1)) + 1 : 0;
    Stage stage;
    for (int v = 0; v < share.visits; ++v) {
        const Visit visit = visit_at(share, v, blockIdx.x / CLUSTER, gridDim.x / CLUSTER, layout.k_blocks);
        const Place place = C::Routing::place_of(shared, arguments, visit.tile);
        Task& task = shared.task[v % TASKS];
        task.place = place;
        task.k_blocks = visit.k_end - visit.k_begin;
        task.piece_of = task.k_blocks < layout.k_blocks ? visit.tile - share.split_from : -1;
        task.deliver = visit.k_begin > 0;
        const int row = first_row<C, FIRST>(arguments, place.expert, place.block_n);
        const int second_row = row + arguments.second_block;
        const int pairs = shared.row_start[place.expert + 1] - shared.row_start[place.expert];
        const bool once = C::READ_ONCE && pairs <= CLUSTER * C::ROWS;
        const int act_boxes = FIRST || C::GATHERS_ACT ? 0 : (place.rows + C::ACT_BOX - 1) / C::ACT_BOX;
        for (int k = visit.k_begin; k < visit.k_end; ++k) {
            const int s = stage.index;
            const uint32_t full = shared_address(&shared.full[s]);
            mbarrier_wait(shared_address(&shared.empty[s]), stage.parity ^ 1);
            const bool there = C::EARLY && v == 0 && k - visit.k_begin < early;
            mbarrier_arrive_expect_tx(full, (there ? 0 : WEIGHT_BYTES) + act_boxes * C::ACT_BOX * BLOCK);
            if (!there) bring_block(shared, s, map, k * COLUMNS, row, second_row, place.same_weights, once);
            if (!FIRST && !C::GATHERS_ACT && v == 0 && k == visit.k_begin) wait_for_previous_kernel();
            for (int box = 0; box < act_boxes; ++box)
                tma_load(shared_address(shared.x[s]) + box * C::ACT_BOX * BLOCK, act_map, full, k * COLUMNS,
                         place.first_row + box * C::ACT_BOX);
            stage.template next<C::STAGES>();
            if (FIRST)
                for (int i = 0; i < zeros_a_block && zero < out_bytes; ++i) clear();
        }
    }
    while (zero < out_bytes) clear();
    bulk_commit_group();
    bulk_wait_group();
}

// Warps 0 to 2 of warpgroup 2: copy the scales and, GATHERED, rows of activations into the swizzled layout.
template <class C, bool FIRST>
__device__ __forceinline__ void gather(Shared<C>& shared, const typename C::Arguments& arguments,
                                       int thread) {
    using Kind = typename C::Kind;
    constexpr bool GATHERED = FIRST || C::GATHERS_ACT;
    constexpr int ROWS = C::ROWS, ROWS_AT_ONCE = GATHERERS / 8;
    static_assert(ROWS_AT_ONCE % 8 == 4, "a thread's rows have two swizzles in turn: first & 7 and (first + 4) & 7");
    constexpr int COPIES = GATHERED ? (ROWS + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE : 0;
    constexpr int SCALES = Kind::SCALED ? (ROWS + GATHERERS - 1) / GATHERERS : 0;
    // The rows of few tokens are read again for every block of weights; otherwise they would have left L2 by then.
    constexpr bool KEEP = FIRST && !C::WIDE, BY_BLOCK = FIRST && C::SCALES_BY_BLOCK;
    const uint64_t policy = KEEP ? keep_policy() : 0;
    const Share& share = shared.share;
    const auto& layout = arguments.layout;
    const int width = arguments.row_bytes / 16;  // of a row, in 16-byte chunks
    Stage stage;
    for (int v = 0; v < share.visits; ++v) {
        const Visit visit = visit_at(share, v, blockIdx.x / C::CLUSTER, gridDim.x / C::CLUSTER, layout.k_blocks);
        const Place place = C::Routing::place_of(shared, arguments, visit.tile);
        // Thread t copies 16-byte chunk t % 8 of rows t / 8, t / 8 + 12, ...; it scales rows t and t + 96.
        const int chunk = thread % 8, first = thread / 8;
        uint32_t source[COPIES + 1], scale_source[SCALES + 1];
        auto source_row = [&](int row) {
            if (row >= place.rows) return 0;
            return FIRST ? C::Routing::token_at(shared, arguments, place, row) : place.first_row + row;
        };
#pragma unroll
        for (int i = 0; i < COPIES; ++i) source[i] = source_row(first + ROWS_AT_ONCE * i) * width + chunk;
#pragma unroll
        for (int i = 0; i < SCALES; ++i)
            scale_source[i] = source_row(thread + GATHERERS * i) * (BY_BLOCK ? 1 : layout.k_blocks);
        const int block = FIRST ? first_block<C>(arguments, place.block_n) + (thread ? arguments.second_block / BLOCK : 0)
                                : smaller(2 * place.block_n + (thread ? 1 : 0), arguments.weight_rows / BLOCK - 1);
        const float* w_scale =
            arguments.w_scale + (size_t(place.expert) * (arguments.weight_rows / BLOCK) + block) * layout.k_blocks;
        const uint4* x = reinterpret_cast<const uint4*>(arguments.x) + visit.k_begin * (BLOCK / 16);
        const float* x_scale = arguments.x_scale;
        if (BY_BLOCK) x_scale += size_t(visit.k_begin) * arguments.tokens;
        else x_scale += visit.k_begin;
        int copies = place.rows > first ? (place.rows - first + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE : 0;
        for (int k = visit.k_begin; k < visit.k_end; ++k) {
            const int s = stage.index;
            const uint32_t to = shared_address(shared.x[s]) + first * BLOCK;
            uint32_t even = to + ((chunk ^ (first & 7)) << 4), odd = to + ((chunk ^ ((first + 4) & 7)) << 4);
            const int bytes = C::WHOLE_BLOCKS || k * (BLOCK / 16) + chunk < width ? 16 : 0;  // zeros behind the end of a row
            // Left alone, the compiler, with eleven copies and few registers, computes these anew for each copy, in 67
            // of the loop's 166 instructions.
            keep(even, odd, copies, x, x_scale);
            mbarrier_wait(shared_address(&shared.empty[s]), stage.parity ^ 1);
#pragma unroll
            for (int i = 0; i < COPIES; ++i)
                if (i < copies) {
                    const uint32_t there = (i % 2 ? odd : even) + i * ROWS_AT_ONCE * BLOCK;
                    if (KEEP)
                        cp_async16(there, x + source[i], bytes, policy);
                    else
                        cp_async16(there, x + source[i], bytes);
                }
            if constexpr (Kind::SCALED) {
#pragma unroll
                for (int i = 0; i < SCALES; ++i)
                    if (thread + GATHERERS * i < place.rows)
                        cp_async4(shared_address(&shared.x_scale[s][thread + GATHERERS * i]), x_scale + scale_source[i]);
                if (thread < 2) cp_async4(shared_address(&shared.w_scale[s][thread]), w_scale + k);
            }
            x += BLOCK / 16;
            x_scale += BY_BLOCK ? arguments.tokens : 1;
            mbarrier_arrive_on_cp_async(shared_address(&shared.full[s]));
            stage.template next<C::STAGES>();
        }
    }
}

// A warp: what bring_weights stores to clear the output.
template <class C>
__device__ __forceinline__ void fill_zeros(Shared<C>& shared, int lane) {
    for (int i = lane; i < C::ZERO_BYTES / 4; i += 32) reinterpret_cast<int*>(shared.zeros)[i] = 0;
    fence_async_proxy();
}

template <class C, bool FIRST, bool STORES>
__device__ __forceinline__ void grouped_gemm(const CUtensorMap& map, const CUtensorMap& act_map,
                                             const typename C::Arguments& arguments) {
    static_assert(sizeof(Shared<C>) <= SHARED_LIMIT, "the stages do not fit");
    static_assert(offsetof(Shared<C>, weights) % 1024 == 0 && offsetof(Shared<C>, x) % 1024 == 0, "for the swizzle");
    static_assert(offsetof(Shared<C>, staging) % 16 == 0 && offsetof(Shared<C>, x_scale) % 8 == 0, "read by vectors");
    extern __shared__ __align__(1024) uint8_t raw[];
    auto& shared = *reinterpret_cast<Shared<C>*>(raw);
    if (shared_address(raw) % 1024 != 0) __trap();  // the swizzle goes by address
    const int thread = threadIdx.x, warp = thread / 32;
    constexpr bool LITTLE = C::LATER && !FIRST;  // the producers have little work: nobody gathers
    if (thread == C::SETS_UP) {
        for (int s = 0; s < C::STAGES; ++s) {
            mbarrier_init(shared_address(&shared.full[s]), (FIRST || C::Kind::SCALED ? GATHERERS : 0) + 1);
            mbarrier_init(shared_address(&shared.empty[s]),
                          C::CLUSTER * CONSUMERS / (RACECHECK && C::CLUSTER == 1 ? 1 : 32));
        }
        fence_mbarrier_init();
        prefetch_tensor_map(&map);
    }
    if constexpr (C::CLUSTER > 1) {
        __syncwarp();
        cluster_sync();  // the other CTA's barriers are there
    }
    if (warp < CONSUMERS / 32) {
        setmaxnreg_inc<CONSUMER_REGISTERS + (LITTLE ? 8 : 0)>();
        C::Routing::template await_share<C, FIRST>(shared, arguments);
        consume<C, FIRST, STORES>(shared, arguments);
    } else {
        setmaxnreg_dec<PRODUCER_REGISTERS - (LITTLE ? 16 : 0)>();
        C::Routing::template produce<C, FIRST>(shared, arguments, &map, &act_map, thread - CONSUMERS);
    }
    if constexpr (C::CLUSTER > 1) {
        __syncwarp();
        cluster_sync();  // the other CTA may still send to this one
    }
}

}  // namespace derby
