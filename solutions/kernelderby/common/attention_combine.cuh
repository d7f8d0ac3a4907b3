// The second kernel of long attention in equal shares: adds up the chunks of every tile that several CTAs have worked on.
//
// Each CTA of the first kernel leaves its chunks in memory, and says which tile it has begun. Each warp here takes 32
// columns of 16 rows of a tile, or a few of their chunks where there are many, so that it waits for memory once or
// twice. The number of chunks alone decides the order in which they are added, so results never change.
// Constraints: behind long_attention.cuh's kernel on the same stream, with its call; at most MOST_SHARES CTAs there.
#pragma once
#include "attention_results.cuh"
#include "attention_shares.cuh"
#include "dynamic_shared.cuh"
#include "partial_sums.cuh"

namespace derby {

constexpr int COMBINE_WARPS = 8, COMBINE_THREADS = 32 * COMBINE_WARPS, MOST_SHARES = COMBINE_THREADS;
constexpr int WARP_CHUNKS = 4;        // of 16 rows and 32 columns, where there are enough warps
constexpr float NO_SCORE = -1e30f;    // a largest score that leaves others as they are, and is no infinity

// Groups of 16 rows of a tile that have some head and token, from `first` on.
struct BusyRows {
    int first, count;
};

template <typename S>
__device__ __forceinline__ BusyRows busy_rows(const AttentionCall& call, const Tile& tile) {
    const int first = max(-tile.token * call.pack, 0) / 16;
    const int end = min(call.tile_tokens, tile.queries - tile.token) * call.pack;
    return {first, (end + 15) / 16 - first};
}

// Where the chunks of a warpgroup's rows lie. A CTA has a place for the chunk that begins a tile, the last one of its
// share, and one for a later chunk. A thread's vectors lie 128 apart, behind them largest scores and sums of two rows.
template <typename S>
__device__ __forceinline__ float4* place_of(const SharesCall& call, const Tile& tile, int chunk, int owner, int thread) {
    const long long slot = 2 * (tile.slot + chunk) + (chunk == 0);
    return reinterpret_cast<float4*>(call.partials) + (slot * S::OWNERS + owner) * 128 * (S::D / 8 + 1) + thread;
}

// The tile that each CTA has begun and others go on with; its chunks are 0 if there is none.
template <typename S>
__device__ __forceinline__ int4* begun_by(const SharesCall& call, int share) {
    const long long slots = 2ll * call.shares * S::OWNERS;
    return reinterpret_cast<int4*>(reinterpret_cast<float4*>(call.partials) + slots * 128 * (S::D / 8 + 1)) + 3 * share;
}

// One thread of a CTA, at its start.
template <typename S>
__device__ __forceinline__ void begin_no_tile(const SharesCall& call) {
    begun_by<S>(call, blockIdx.x)[2] = make_int4(0, 0, 0, 0);
}

// As combine() above, but the second kernel adds the chunks: this only writes one. Groups of rows without a head and
// token are left out.
template <typename S>
__device__ __forceinline__ bool combine(const SharesCall& call, const Tile& tile, float (&o)[S::D / 2],
                                        Softmax& softmax, SharedMap<S>, int warpgroup) {
    const BusyRows busy = busy_rows<S>(call, tile);
    // The warp is known to be one: where the assembler takes a branch for divergent, the descriptors of all products in
    // the kernel get registers of their own.
    const int rows = 4 * warpgroup + static_cast<int>(__reduce_max_sync(0xffffffff, threadIdx.x & 96)) / 32;
    if (busy.first <= rows && rows < busy.first + busy.count) {
        float4* to = place_of<S>(call, tile, tile.chunk, warpgroup, threadIdx.x & 127);
#pragma unroll
        for (int i = 0; i < S::D / 8; ++i)
            __stcg(to + 128 * i, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
        const float low = fmaxf(softmax.largest[0] * call.scale_log2, NO_SCORE);
        const float high = fmaxf(softmax.largest[1] * call.scale_log2, NO_SCORE);
        __stcg(to + 128 * (S::D / 8), make_float4(low, high, softmax.sum[0], softmax.sum[1]));
    }
    if (tile.chunk == 0 && warpgroup == 0 && (threadIdx.x & 127) == 0) {
        int4* to = begun_by<S>(call, blockIdx.x);
        to[0] = make_int4(tile.sequence, tile.head, tile.first_query, tile.queries);
        to[1] = make_int4(tile.first_key, tile.keys, tile.token, tile.blocks);
        to[2] = make_int4(tile.first_block, tile.chunk, tile.chunks, tile.slot);
    }
    return false;
}

// Stores 32 columns of two rows of a thread, from `column` on.
template <typename S>
__device__ __forceinline__ void store_columns(const AttentionCall& call, const Tile& tile, const PartialSums& sums,
                                              int first_row, int first_column, int lane) {
    const int column = first_column + 8 * (lane & 3);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = first_row + 8 * half, token = divide(row, call.by_pack), in_sequence = tile.token + token;
        const long long query = tile.first_query + in_sequence;
        const float factor = sums.total[half] > 0.0f ? 1.0f / sums.total[half] : 0.0f;
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            w[i] = pack_bf16(sums.all[4 * i + 2 * half] * factor, sums.all[4 * i + 2 * half + 1] * factor);
        transpose_quad(w, lane);
        if (token < call.tile_tokens && in_sequence >= 0 && in_sequence < tile.queries && column < call.head_dim)
            *reinterpret_cast<uint4*>(call.output + (query * call.heads + tile.head + row - token * call.pack) *
                                                        call.head_dim + column) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

struct CombineShared {
    PartialSums sums[COMBINE_WARPS][32];
    Tile tiles[MOST_SHARES];
    int before[MOST_SHARES], of_warp[COMBINE_WARPS];  // rounds of the tiles before each one
};
static_assert(sizeof(CombineShared) <= 48 * 1024, "more would need an attribute of the kernel");

// Warps that share the chunks of 16 rows and 32 columns: a power of two.
__device__ __forceinline__ int team_of(int chunks) {
    int team = 1;
    while (team < COMBINE_WARPS && team * WARP_CHUNKS < chunks) team *= 2;
    return team;
}

template <typename S>
__global__ void __launch_bounds__(COMBINE_THREADS) derby_combine_chunks(const __grid_constant__ SharesCall call) {
    constexpr int VECTORS = S::D / 8, GROUPS = (VECTORS + 3) / 4;  // a group: 32 columns; the last may have fewer
    CombineShared& shared = dynamic_shared<CombineShared>();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    wait_for_previous_kernel();
    int rounds = 0;
    if (static_cast<int>(threadIdx.x) < call.shares) {
        const int4* from = begun_by<S>(call, threadIdx.x);
        const int4 a = __ldcg(from), b = __ldcg(from + 1), c = __ldcg(from + 2);
        const Tile tile = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
        shared.tiles[threadIdx.x] = tile;
        if (tile.chunks > 0)
            rounds = (busy_rows<S>(call, tile).count * GROUPS * team_of(tile.chunks) + COMBINE_WARPS - 1) / COMBINE_WARPS;
    }
    const int up_to = sum_up_to(rounds, lane);
    if (lane == 31) shared.of_warp[warp] = up_to;
    __syncthreads();
    int before = up_to - rounds, all = 0;
    for (int i = 0; i < COMBINE_WARPS; ++i) {
        if (i < warp) before += shared.of_warp[i];
        all += shared.of_warp[i];
    }
    shared.before[threadIdx.x] = before;
    __syncthreads();
    for (int round = blockIdx.x; round < all; round += gridDim.x) {
        int share = 0;  // the last one that begins no later: those without a tile begin where the next one does
        for (int step = MOST_SHARES / 2; step > 0; step /= 2)
            if (shared.before[share + step] <= round) share += step;
        const Tile tile = shared.tiles[share];
        const BusyRows busy = busy_rows<S>(call, tile);
        const int team = team_of(tile.chunks), member = warp % team;
        const int unit = (round - shared.before[share]) * (COMBINE_WARPS / team) + warp / team;
        const int rows = busy.first + unit / GROUPS, group = unit % GROUPS;
        const bool wanted = unit < busy.count * GROUPS;
        PartialSums sums;
        if (wanted) {
#pragma unroll 4
            for (int chunk = member * tile.chunks / team; chunk < (member + 1) * tile.chunks / team; ++chunk) {
                const float4* from = place_of<S>(call, tile, chunk, rows / 4, rows % 4 * 32 + lane);
                const float4 state = __ldcg(from + 128 * VECTORS);
                const float2 statistics[2] = {make_float2(state.x, state.z), make_float2(state.y, state.w)};
                float4 values[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) values[i] = __ldcg(from + 128 * min(4 * group + i, VECTORS - 1));
                sums.add(statistics, values);
            }
        }
        if (team > 1) {
            shared.sums[warp][lane] = sums;
            __syncthreads();
            for (int i = 1; member == 0 && i < team; ++i) {
                const PartialSums& other = shared.sums[warp + i][lane];
                const float2 statistics[2] = {make_float2(other.most[0], other.total[0]),
                                              make_float2(other.most[1], other.total[1])};
                float4 values[4];
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    values[j] = make_float4(other.all[4 * j], other.all[4 * j + 1], other.all[4 * j + 2], other.all[4 * j + 3]);
                sums.add(statistics, values);
            }
            __syncthreads();
        }
        if (wanted && member == 0) store_columns<S>(call, tile, sums, 16 * rows + lane / 4, 32 * group, lane);
    }
}

}  // namespace derby
