// Wide bf16 tiles (64 pairs are wgmma's M, sums lie as in experts_wide.cuh) that are finished while the next tile's
// products are computed. A tile's values are packed into pairs of bfloat16, 64 registers or fewer, and are stored in
// parts between k blocks. The second warpgroup's parts come half way between the first's, so that one multiplies while
// the other stores.
#pragma once
#include <type_traits>
#include "experts_common.cuh"

namespace derby {

constexpr int SPREAD = 6;         // k blocks between two parts, at most
constexpr int LATER_PITCH = 144;  // bytes a row of a warp's staging where bfloat16 goes out

__device__ __forceinline__ float2 two_floats(uint32_t both) {
    return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xFFFF0000u));
}

// Adds k blocks from..to of a tile to sums; the tile's first one overwrites them. A product stays under way while the
// warpgroup waits for the next stage. before: the stage of the product that is under way, or -1; returns that of the
// last one.
template <class C, bool GATHERED>
__device__ __forceinline__ int multiply_wide(Shared<C>& shared, Stage& stage, int from, int to, int before,
                                             float (&sums)[128]) {
    for (int k = from; k < to; ++k) {
        const int s = stage.index;
        const uint32_t x = descriptor_low(shared_address(shared.x[s]) + threadIdx.x / WARPGROUP * 64 * BLOCK);
        const uint32_t weights = descriptor_low(shared_address(shared.weights[s]));
        mbarrier_wait(shared_address(&shared.full[s]), stage.parity);
        if (GATHERED) fence_async_proxy();
        wgmma_fence();
        wgmma_k_block<typename C::Kind, 256>(sums, x, weights, k > 0);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        if (before >= 0) release(shared, before, threadIdx.x % WARP);
        before = s;
        stage.template next<C::STAGES>();
    }
    return before;
}

// Turns 64 columns of this warp's 16 rows, 16 registers as wgmma leaves them, into rows: a lane calls put(i, v) with 16
// bytes of row lane / 8 + 4 i.
template <class Put>
__device__ __forceinline__ void turn_part(uint32_t staging, const uint32_t* packed, Put put) {
    const int lane = threadIdx.x % WARP;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 16; j += 4)
        stmatrix_x4(staging + lane % 16 * LATER_PITCH + lane / 16 * 16 + j * 8, packed[j], packed[j + 1], packed[j + 2],
                    packed[j + 3]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint4 v = load_shared16(staging + (lane / 8 + 4 * i) * LATER_PITCH + lane % 8 * 16);
        put(i, v);
    }
}

// Stores them. to: the lane's first row; rows: how many rows there are; stride: values from one row to the next.
__device__ __forceinline__ void store_part(uint32_t staging, const uint32_t* packed, __nv_bfloat16* to, int stride,
                                           int rows) {
    turn_part(staging, packed, [&](int i, const uint4& v) {
        if (4 * i < rows) *reinterpret_cast<uint4*>(to + size_t(4 * i) * stride) = v;
    });
}

// GEMM1's tile: 64 results of SwiGLU a thread; the first 64 sums are gate, the others up.
template <class C>
struct LaterFirst {
    static constexpr int PARTS = 2;
    uint32_t packed[32];
    __nv_bfloat16* to;  // this lane's first value
    int rows, columns;  // left from there on
    bool any = false;

    __device__ __forceinline__ void take(Shared<C>&, const Arguments& arguments, const Place& place, int,
                                         const float (&sums)[128]) {
        const int row = threadIdx.x / WARP * 16 + threadIdx.x % WARP / 8, width = arguments.intermediate;
        const int column = place.block_n * BLOCK + threadIdx.x % 8 * 8;
        rows = place.rows - row, columns = width - column, any = true;
        to = reinterpret_cast<__nv_bfloat16*>(arguments.act) + size_t(place.first_row + row) * width + column;
#pragma unroll
        for (int i = 0; i < 32; ++i)
            packed[i] = pack_bf16(silu(sums[2 * i]) * sums[64 + 2 * i], silu(sums[2 * i + 1]) * sums[65 + 2 * i]);
    }

    __device__ __forceinline__ void finish(Shared<C>& shared, const Arguments& arguments, int part) {
        const uint32_t staging = shared_address(shared.staging.wide + threadIdx.x / WARP * 16 * C::WIDE_PITCH);
        store_part(staging, packed + 16 * part, to + part * 64, arguments.intermediate, part * 64 < columns ? rows : 0);
    }
};

// GEMM2's tile, times the routing weights: 128 results a thread. STORES: they are stored as rows of pairs in bfloat16.
// Else they are added to the rows of their tokens, in the output's float32 or bfloat16; the tokens are then still in
// shared.pair[buffer].
template <class C, bool STORES>
struct LaterSecond {
    static constexpr bool PACKED = STORES || C::ADDS_BF16;
    static constexpr int PARTS = PACKED ? 4 : 8;
    uint32_t packed[64];
    __nv_bfloat16* to;
    int rows, columns, column, buffer;
    bool any = false;

    __device__ __forceinline__ void take(Shared<C>& shared, const Arguments& arguments, const Place& place, int buffer_,
                                         const float (&sums)[128]) {
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = warp * 16 + lane / 8;
        buffer = buffer_, column = place.block_n * 2 * BLOCK + lane % 8 * (PACKED ? 8 : 4);
        rows = place.rows - row, columns = arguments.hidden - column, any = true;
        if (STORES) to = arguments.results + size_t(place.first_row + row) * arguments.hidden + column;
        float weight[2];
#pragma unroll
        for (int half = 0; half < 2; ++half)
            weight[half] = __int_as_float(shared.pair[buffer][warp * 16 + 8 * half + lane / 4].y);
#pragma unroll
        for (int i = 0; i < 64; ++i)
            packed[i] = pack_bf16(sums[2 * i] * weight[i % 2], sums[2 * i + 1] * weight[i % 2]);
    }

    __device__ __forceinline__ void finish(Shared<C>& shared, const Arguments& arguments, int part) {
        uint8_t* staging = shared.staging.wide + threadIdx.x / WARP * 16 * C::WIDE_PITCH;
        if constexpr (STORES)
            store_part(shared_address(staging), packed + 16 * part, to + part * 64, arguments.hidden,
                       part * 64 < columns ? rows : 0);
        else if constexpr (PACKED)
            turn_part(shared_address(staging), packed + 16 * part, [&](int i, const uint4& v) {
                if (4 * i >= rows || part * 64 >= columns) return;
                const int token = shared.pair[buffer][threadIdx.x / WARP * 16 + 4 * i + threadIdx.x % WARP / 8].x;
                reduce_add_bf16x8(static_cast<__nv_bfloat16*>(arguments.out) + size_t(token) * arguments.hidden +
                                      column + part * 64, v);
            });
        else
            add_part(shared, arguments, staging, part);
    }

    // 32 columns.
    __device__ __forceinline__ void add_part(Shared<C>& shared, const Arguments& arguments, uint8_t* staging,
                                             int part) {
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
        uint8_t* here = staging + lane / 4 * C::WIDE_PITCH + lane % 4 * 8;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 8; ++j)  // upper and lower rows in turn
            *reinterpret_cast<float2*>(here + j % 2 * 8 * C::WIDE_PITCH + j / 2 * 32) = two_floats(packed[8 * part + j]);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint4 v = load_shared16(shared_address(staging) + (lane / 8 + 4 * i) * C::WIDE_PITCH + lane % 8 * 16);
            if (4 * i >= rows || part * 32 >= columns) continue;
            const int token = shared.pair[buffer][warp * 16 + 4 * i + lane / 8].x;
            reduce_add_f32x4(static_cast<float*>(arguments.out) + size_t(token) * arguments.hidden + column + part * 32,
                             v);
        }
    }
};

// All visits of a consumer.
template <class C, bool FIRST, bool STORES>
__device__ __forceinline__ void work_and_finish_later(Shared<C>& shared,
                                                      const typename C::Arguments& arguments) {
    using Later = std::conditional_t<FIRST, LaterFirst<C>, LaterSecond<C, STORES>>;
    const int group = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0);  // the same in all lanes
    Stage stage;
    Later later;
    auto finish_all = [&] {
        if (!later.any) return;
#pragma unroll
        for (int part = 0; part < Later::PARTS; ++part) later.finish(shared, arguments, part);
        later.any = false;
    };
    const int visits = shared.share.visits;
    for (int v = 0; v < visits; ++v) {
        mbarrier_wait(shared_address(&shared.full[stage.index]), stage.parity);  // the task is there as well
        const int k_blocks = shared.task[v % TASKS].k_blocks, rows = shared.task[v % TASKS].place.rows;
        // If results are added, each piece is added by itself.
        auto delivered = [&](auto& sums) {
            const Task& task = shared.task[v % TASKS];
            if (!(FIRST || STORES) || task.piece_of < 0) return false;
            join_pieces(shared, arguments, task, sums);
            return task.deliver;
        };
        if (rows <= group * 64) {  // no pairs for this warpgroup
            finish_all();
            pass_over(shared, stage, k_blocks);
            if (!FIRST) named_barrier_sync(NamedBarrier::WARPGROUP_DONE + group, WARPGROUP);
            float none[4] = {};
            delivered(none);
            continue;
        }
        float sums[128];
        pin<128>(sums);  // neither set before nor read behind, or the compiler would serialise the products
        int done = 1, before = multiply_wide<C, FIRST>(shared, stage, 0, 1, -1, sums);
        if (!FIRST) bring_pairs(shared, arguments, shared.task[v % TASKS].place, v % 2);
        const int spread = larger(smaller(k_blocks / (Later::PARTS + 1), SPREAD), 1), behind = group * (spread / 2);
#pragma unroll
        for (int part = 0; part < Later::PARTS; ++part) {
            const int to = smaller((part + 1) * spread + behind, k_blocks);
            before = multiply_wide<C, FIRST>(shared, stage, done, to, before, sums);
            done = to;
            if (later.any) later.finish(shared, arguments, part);
        }
        before = multiply_wide<C, FIRST>(shared, stage, done, k_blocks, before, sums);
        wgmma_wait_group<0>();
        pin<128>(sums);
        release(shared, before, threadIdx.x % WARP);
        if (!FIRST) {
            cp_async_wait_all();  // this warpgroup's pairs are there, and nobody reads the last tile's
            named_barrier_sync(NamedBarrier::WARPGROUP_DONE + group, WARPGROUP);
        }
        later.any = false;
        if (!delivered(sums)) later.take(shared, arguments, shared.task[v % TASKS].place, v % 2, sums);
    }
    finish_all();
}

}  // namespace derby
