// Attention of long sequences for sm_90a.
//
// A persistent CTA on every multiprocessor. Its producer warps take items of work (tiles of queries of a head, longest
// first, given out by a counter) and load their queries, and tiles of keys and values in two stages, with TMA: a box of
// 64 columns, of a 16-token page where the cache is paged. Two or three warpgroups have 64 rows of queries each. Their
// scores are accumulated in registers, become weights there, and go into the second product as its A operand. A
// warpgroup starts the product of the next scores before it uses the weights of the current ones, so it computes
// weights while the tensor cores work for it; and warpgroups take turns, so that the tensor cores work for one while
// the others compute weights.
// Constraints: sm_90a; head_dim a multiple of 8 up to 256; pages of 16 tokens where the cache is paged; query heads a
// multiple of key heads; bf16, contiguous, addresses a multiple of 16; sm_scale > 0. The host gives the order of the
// items (attention_order.cuh) and a counter at zero.
#pragma once
#include "attention_combine.cuh"
#include "attention_producer.cuh"
#include "attention_results.cuh"
#include "wgmma.cuh"

namespace derby {

template <typename S>
__device__ __forceinline__ void multiply_keys(float (&s)[S::N / 2], uint32_t q, uint32_t k) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < S::STEPS; ++step) {
        const int slab = step / 4, inside = step % 4;
        wgmma_bf16<S::N>(s, descriptor_at(q + slab * S::Q_SLAB + inside * 32),
                         descriptor_at(k + slab * S::KV_SLAB + inside * 32), step > 0);
    }
    wgmma_commit_group();
}

template <typename S>
__device__ __forceinline__ void multiply_values(float (&o)[S::D / 2], const uint32_t (&p)[S::N / 4], uint32_t v,
                                                bool add) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < S::N / 16; ++step)
        wgmma_bf16_rs<S::D, Major::MN>(o, p + 4 * step, descriptor_at(v + step * 16 * ROW_BYTES, S::KV_SLAB),
                                       add || step > 0);
    wgmma_commit_group();
}

// Computes a warp's scores once more where they have been overwritten; without wgmma, which needs all four warps.
template <typename S>
__device__ __forceinline__ void multiply_again(float (&s)[S::N / 2], uint32_t q, uint32_t k) {
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3, row = lane & 7, matrix = lane >> 3;
#pragma unroll
    for (int i = 0; i < S::N / 2; ++i) s[i] = 0.0f;
#pragma unroll 1
    for (int step = 0; step < S::STEPS; ++step) {
        const int slab = step / 4, chunk = step % 4 * 2;
        uint32_t a[4], b[4];
        ldmatrix_x4(a, q + slab * S::Q_SLAB + (warp * 16 + row + 8 * (matrix & 1)) * ROW_BYTES +
                             (((chunk + (matrix >> 1)) ^ row) << 4));
        const uint32_t from = k + slab * S::KV_SLAB + (row + 8 * (matrix >> 1)) * ROW_BYTES +
                              (((chunk + (matrix & 1)) ^ row) << 4);
#pragma unroll
        for (int keys = 0; keys < S::N / 16; ++keys) {
            ldmatrix_x4(b, from + keys * 16 * ROW_BYTES);
            mma_m16n8k16(s + 8 * keys, a, b[0], b[1]);
            mma_m16n8k16(s + 8 * keys + 4, a, b[2], b[3]);
        }
    }
}

// Warpgroups take turns: `turn` waits for this one's, `pass` gives it to the next.
template <typename S>
__device__ __forceinline__ void turn(int warpgroup) {
    if constexpr (S::WARPGROUPS > 1 && !S::SPLIT) named_barrier_sync(TURN + warpgroup, 256);
}

template <typename S>
__device__ __forceinline__ void pass(int warpgroup) {
    if constexpr (S::WARPGROUPS > 1 && !S::SPLIT)
        named_barrier_arrive(TURN + (warpgroup + 1 == S::WARPGROUPS ? 0 : warpgroup + 1), 256);
}

// Values behind the last key have a weight of 0, but 0 times an infinite value or NaN is NaN, and free slots of a page
// and the next sequence may hold such values (whole pages behind the last are already zeros). Each warpgroup clears
// them for itself: all write the same.
template <typename S>
__device__ __forceinline__ void clear_values(uint32_t v, int keys, int warpgroup) {
    constexpr int CHUNKS = S::V_ROW / 16;
    const int end = (S::PAGED ? (keys + PAGE - 1) / PAGE * PAGE : S::N) * CHUNKS;
    for (int i = keys * CHUNKS + static_cast<int>(threadIdx.x & 127); i < end; i += 128) {
        const int row = i / CHUNKS, chunk = i % CHUNKS;
        const uint32_t at = v + chunk / 8 * S::KV_SLAB + row * ROW_BYTES + (((chunk ^ row) & 7) << 4);
        store_shared(at, make_int4(0, 0, 0, 0));
    }
    fence_async_proxy();
    named_barrier_sync(COMBINE + warpgroup, 128);
}

template <typename S, typename Call>
__device__ __forceinline__ void consume(const Call& call, SharedMap<S> shared, int warpgroup) {
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    const int group_row = S::SPLIT ? 0 : warpgroup * 64, row = group_row + warp * 16 + (lane >> 2);
    const uint32_t q = shared.q() + group_row * ROW_BYTES;
    int first_turn = 0;  // of the tile's blocks in the rings
    if (warpgroup == S::WARPGROUPS - 1) pass<S>(warpgroup);
    for (int tiles = 0;; ++tiles) {
        mbarrier_wait(shared.q_full(), tiles & 1);
        Tile tile = get_tile(shared.tile(tiles & 1));
        if (tile.blocks < 0) break;
        float o[S::D / 2], s[S::N / 2];
        uint32_t p[S::N / 4];
        Softmax softmax;
        // The positions of the thread's first row and of the warpgroup's first row among the keys.
        const int context = tile.keys - tile.queries + tile.token;
        const int position = context + divide(row, call.by_pack);
        const int position_low = context + divide(row + 8, call.by_pack);
        int first_masked = tile.keys / S::N;
        if (S::CAUSAL) first_masked = min(first_masked, (context + divide(group_row, call.by_pack) + 1) / S::N);
        int mine = 0;  // of the tile's blocks, the first of this warpgroup
        if constexpr (S::SPLIT) mine = warpgroup;
        Ring<S::K_STAGES> k_ring{first_turn + mine};
        Ring<S::STAGES> v_ring{first_turn + mine};
        first_turn += tile.blocks;
        int block = tile.first_block + tile.blocks - 1 - mine;
        bool add = false;
        if (block >= tile.first_block) {
            mbarrier_wait(shared.k_full(k_ring.stage()), k_ring.parity());
            turn<S>(warpgroup);
            multiply_keys<S>(s, q, shared.k(k_ring.stage()));
            pass<S>(warpgroup);
            wgmma_wait_group<0>();
            if (lane == 0) mbarrier_arrive(shared.k_empty(k_ring.stage()));
            k_ring.turn += S::STRIDE;
            if (block >= first_masked) mask_scores<S>(s, tile, block, position, position_low, lane);
            softmax.begin(s, call.scale_log2, call.trusting);
            pack_weights<S>(p, s);
            if (tile.keys - block * S::N < S::N && (S::PAGED ? tile.keys % PAGE != 0 : call.num_seqs > 1)) {
                mbarrier_wait(shared.v_full(v_ring.stage()), v_ring.parity());
                clear_values<S>(shared.v(v_ring.stage()), tile.keys - block * S::N, warpgroup);
            }
            for (block -= S::STRIDE; block >= tile.first_block; block -= S::STRIDE) {
                mbarrier_wait(shared.k_full(k_ring.stage()), k_ring.parity());
                turn<S>(warpgroup);
                multiply_keys<S>(s, q, shared.k(k_ring.stage()));
                mbarrier_wait(shared.v_full(v_ring.stage()), v_ring.parity());
                multiply_values<S>(o, p, shared.v(v_ring.stage()), add);
                add = true;
                pass<S>(warpgroup);
                wgmma_wait_group<1>();
                const auto mask = [&]() {
                    if (block >= first_masked) mask_scores<S>(s, tile, block, position, position_low, lane);
                };
                const auto give_back_keys = [&]() {
                    if (lane == 0) mbarrier_arrive(shared.k_empty(k_ring.stage()));
                    k_ring.turn += S::STRIDE;
                };
                bool grown;
                if constexpr (S::UNSEEN) {
                    mask();
                    grown = softmax.weigh_unseen(s, call.scale_log2, call.trusting, [&](float (&s)[S::N / 2]) {
                        multiply_again<S>(s, q, shared.k(k_ring.stage()));
                        mask();
                    });
                    give_back_keys();
                } else {
                    give_back_keys();
                    mask();
                    grown = softmax.weigh(s, call.scale_log2, call.trusting ? OUTGROWN : 0.0f);
                }
                after(softmax.sum[0] + softmax.sum[1]);
                wgmma_wait_group<0>();
                if (lane == 0) mbarrier_arrive(shared.v_empty(v_ring.stage()));
                v_ring.turn += S::STRIDE;
                if (grown) {
#pragma unroll
                    for (int i = 0; i < S::D / 2; ++i) o[i] *= softmax.rescale[i >> 1 & 1];
                }
                pack_weights<S>(p, s);
            }
            if (lane == 0) mbarrier_arrive(shared.q_empty());
            mbarrier_wait(shared.v_full(v_ring.stage()), v_ring.parity());
            multiply_values<S>(o, p, shared.v(v_ring.stage()), add);
#pragma unroll
            for (int half = 0; half < 2; ++half) softmax.sum[half] = quad_sum(softmax.sum[half]);
            wgmma_wait_group<0>();
            if (lane == 0) mbarrier_arrive(shared.v_empty(v_ring.stage()));
        } else {
            if (lane == 0) mbarrier_arrive(shared.q_empty());
#pragma unroll
            for (int i = 0; i < S::D / 2; ++i) o[i] = 0.0f;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                softmax.sum[half] = 0.0f;
                softmax.largest[half] = -INFINITY;
            }
        }
        if constexpr (S::SPLIT && S::WARPGROUPS > 1)
            if (!merge<S>(o, softmax, shared, warpgroup, call.scale_log2)) continue;
        tile = get_tile(shared.tile(tiles & 1));  // again, so that no register holds it meanwhile
        if (tile.chunks > 1 && !combine<S>(call, tile, o, softmax, shared, S::SPLIT ? 0 : warpgroup)) continue;
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) factor[half] = softmax.sum[half] > 0.0f ? 1.0f / softmax.sum[half] : 0.0f;
        store_rows<S>(call, tile, o, factor, row, lane);
    }
    // Takes the turn that is left over, so that no barrier has threads waiting at the end.
    if (warpgroup == 0) turn<S>(0);
}

// Rows of a tile without a head and token are set to zero, since their values influence when a warp moves its origin.
template <typename S>
__device__ __forceinline__ void clear_unused_queries(const AttentionCall& call, SharedMap<S> shared) {
    const int used = call.pack * call.tile_tokens, words = (S::M - used) * (ROW_BYTES / 16);
    if (words == 0) return;
    for (int i = threadIdx.x; i < S::SLABS * words; i += S::THREADS)
        store_shared(shared.q() + i / words * S::Q_SLAB + used * ROW_BYTES + i % words * 16, make_int4(0, 0, 0, 0));
    fence_async_proxy();
}

// What all threads of a CTA do before its first item; a barrier follows.
template <typename S>
__device__ __forceinline__ void prepare(const AttentionCall& call, SharedMap<S> shared) {
    if constexpr (S::SORTED) sort_sequences<S>(call, shared);
}

template <typename S>
__device__ __forceinline__ void prepare(const SharesCall& call, SharedMap<S> shared) {
    if (threadIdx.x == 0) begin_no_tile<S>(call);
    find_share<S>(call, shared);
    let_next_kernel_start();
}

template <typename S, typename Call>
__device__ __forceinline__ void attend(const AttentionMaps& maps, const Call& call) {
#ifdef __CUDACC__
    extern __shared__ uint8_t raw[];
#else
    const void* raw = emulated_shared_memory();
#endif
    const SharedMap<S> shared{(shared_address(raw) + 1023) & ~1023u};
    if (threadIdx.x == 0) {
        mbarrier_init(shared.q_full(), 1);
        mbarrier_init(shared.q_empty(), 4 * S::WARPGROUPS);
        for (int stage = 0; stage < S::K_STAGES; ++stage) {
            mbarrier_init(shared.k_full(stage), 1);
            mbarrier_init(shared.k_empty(stage), 4 * S::READERS);
        }
        for (int stage = 0; stage < S::STAGES; ++stage) {
            mbarrier_init(shared.v_full(stage), 1);
            mbarrier_init(shared.v_empty(stage), 4 * S::READERS);
        }
        fence_mbarrier_init();
        prefetch_tensor_map(&maps.q);
        prefetch_tensor_map(&maps.k);
        prefetch_tensor_map(&maps.v);
        if (S::K_TAIL > 0) {
            prefetch_tensor_map(&maps.q_tail);
            prefetch_tensor_map(&maps.k_tail);
            prefetch_tensor_map(&maps.v_tail);
        }
    }
    clear_unused_queries<S>(call, shared);
    // The table is requested together with the sequence's length.
    if (S::PAGED && call.num_seqs == 1 && threadIdx.x >= 32 && threadIdx.x < 64)
        for (int entry = (threadIdx.x - 32) * 32; entry < call.table_width; entry += 1024)
            prefetch_l2(call.block_table + entry);
    prepare<S>(call, shared);
    __syncthreads();
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (warpgroup == 0) {
        setmaxnreg_dec<S::PRODUCER_REGISTERS>();
        const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
        if (warp < S::LOADERS) produce<S>(call, maps, shared, warp, threadIdx.x & 31);
    } else {
        setmaxnreg_inc<S::CONSUMER_REGISTERS>();
        consume<S>(call, shared, warpgroup - 1);
    }
}

template <typename S>
__global__ void __launch_bounds__(S::THREADS, 1)
    derby_long_attention(const __grid_constant__ AttentionMaps maps, const AttentionCall call) {
    attend<S>(maps, call);
}

template <typename S>
__global__ void __launch_bounds__(S::THREADS, 1)
    derby_long_attention_in_shares(const __grid_constant__ AttentionMaps maps, const SharesCall call) {
    attend<S>(maps, call);
}

}  // namespace derby
