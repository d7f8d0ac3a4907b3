// What the parts of the grouped GEMMs share: sizes, arguments, shared memory, stages of loads, split tiles.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include "experts_parts.cuh"
#include "route.cuh"
#include "schedule.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

namespace derby {

constexpr int HIDDEN = 7168, INTERMEDIATE = 2048;
constexpr int ACT_PITCH = BLOCK + 16;                             // bytes a row of the first GEMM's staging
constexpr int OUT_PITCH = 4 * BLOCK + 16;                         // bytes a row of the second's
constexpr int OUT_CHUNK = 32;                                     // rows of the second's staging
constexpr int ACT_BOX = 64;                                       // rows of pairs a TMA box brings
constexpr int ZERO_BYTES = 2048;                                  // of the output cleared by one bulk store

static_assert(HIDDEN % (2 * BLOCK) == 0 && INTERMEDIATE % BLOCK == 0, "whole blocks");
static_assert(ACT_PITCH % 16 == 0 && OUT_PITCH % 16 == 0, "rows are read and stored 16 bytes at a time");
static_assert(ACT_PITCH % 128 == 16 && OUT_PITCH % 128 == 16, "8 rows' 16-byte pieces lie in different banks");
static_assert(HIDDEN * 2 % ZERO_BYTES == 0, "a row of the output is cleared by whole bulk stores");
static_assert(LOCAL_EXPERTS == WARP, "count_blocks has a lane for each");

// What a GEMM's kernel gets, beside its tensor maps. FIRST: of the first GEMM.
struct Arguments {
    const uint8_t* x;          // FIRST: [seq_len, HIDDEN], else [pairs, INTERMEDIATE]
    const float* x_scale;      // FIRST: [HIDDEN / 128, seq_len], else [pairs, INTERMEDIATE / 128]
    const float* w_scale;      // [experts, weight rows / 128, K / 128]
    const float* logits;       // [seq_len, EXPERTS]
    const __nv_bfloat16* bias;
    int* count;                // [experts], zero between calls
    int2* bucket;              // [experts, seq_len]
    uint8_t* act;              // [pairs, INTERMEDIATE]
    float* act_scale;          // [pairs, INTERMEDIATE / 128]
    float4* partial;           // pieces of split tiles, one a CTA
    int* arrived;              // of a CTA's last tile, the pieces of others that are there; zero between calls
    int* ticket;               // zero between calls
    __nv_bfloat16* out;        // [seq_len, HIDDEN]
    float scaling_factor;
    int first_local;           // number of the first local expert
    int seq_len;
};

// In the kernels for blocks of 16 pairs the first GEMM does the routing.
template <int ROWS>
constexpr bool ROUTES = ROWS == MOST_ROUTED;

template <bool FIRST>
struct Sizes {
    static constexpr int K_BLOCKS = (FIRST ? HIDDEN : INTERMEDIATE) / BLOCK;
    static constexpr int TILES_N = FIRST ? INTERMEDIATE / BLOCK : HIDDEN / (2 * BLOCK);
    static constexpr int WEIGHT_ROWS = FIRST ? 2 * INTERMEDIATE : HIDDEN;  // an expert
};

// What the consumers need to know of a visit, worked out by the warp that brings its weights.
struct Task {
    Tile place;
    int k_blocks;
    int piece_of;  // the split tile this is a piece of, counted from the first that is split, or -1: a whole tile
    bool deliver;  // a piece that another CTA collects
};

// A CTA's shared memory. full[s]: the loads of stage s have landed; empty[s]: the consumers have done with it.
template <int ROWS, int STAGES, int CLUSTER>
struct Shared {
    static_assert(ROWS % 8 == 0 && ACT_BOX % 8 == 0, "the swizzle goes by 8 rows, 1024 bytes");
    static_assert(WEIGHT_BYTES + ROWS * BLOCK < 1 << 20, "what an mbarrier counts of bytes");
    static constexpr int CTAS = CLUSTER;  // that load into each other's stages
    static_assert(CTAS == 1 || CTAS == 2, "multicast goes to both CTAs of a cluster");
    // The worst case is that every visit is one k block: a consumer may then still be reading a task whose stages are
    // all free again, while the STAGES visits after it are loaded and the next one's task is written before its first
    // load waits.
    static_assert(TASKS >= STAGES + 2, "a task would be written over while it is read");
    uint8_t weights[STAGES][WEIGHT_BYTES];
    uint8_t x[STAGES][ROWS * BLOCK];
    union {
        uint8_t act[ROWS * ACT_PITCH];
        uint8_t out[(ROWS < OUT_CHUNK ? ROWS : OUT_CHUNK) * OUT_PITCH];
        Scores scores[ROUTES<ROWS> ? CONSUMERS / 32 : 1];
    } staging;
    float x_scale[STAGES][ROWS];
    alignas(16) float w_scale[STAGES][4];
    float column_max[8][ROWS == 128 ? 2 : ROWS];
    float column_scale[ROWS == 128 ? 2 : ROWS];
    alignas(16) int2 pair[ROWS];
    alignas(16) uint8_t zeros[ZERO_BYTES];
    alignas(8) uint64_t full[STAGES];
    uint64_t empty[STAGES];
    int count[LOCAL_EXPERTS], block_start[LOCAL_EXPERTS + 1], row_start[LOCAL_EXPERTS + 1];
    Task task[TASKS];
    Share share;
    Routed routed;
};

// Starts the product of one k block, 128 bytes of K, as a wgmma group: d = a b^T. a and b are the lower halves of
// descriptors.
template <int N>
__device__ __forceinline__ void wgmma_k_block(float (&d)[N / 2], uint32_t a_low, uint32_t b_low) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
        wgmma_e4m3<N>(d, descriptor_of(a_low + 2 * k), descriptor_of(b_low + 2 * k), k > 0);
    wgmma_commit_group();
}

// The order of two neighbouring sums in a piece of the wide form. Values that are stored together start at an even
// register, and so does a product. If a sum lies in the other register bank than its product, a multiply-add reads its
// registers in one go.
template <int ROWS>
constexpr int ODD = ROWS == 128;

// Stream-K's fix-up, first half: stores this CTA's piece of a split tile for the CTA that begins the tile. No CTA waits
// for this.
template <int N, int ROWS, int CLUSTER>
__device__ __forceinline__ void deliver_piece(const Arguments& arguments, int collector, const float (&first)[N / 2],
                                              const float (&second)[N / 2]) {
    float4* piece = arguments.partial + size_t(blockIdx.x) * PIECE_SIZE<ROWS> + threadIdx.x;
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
        const float *one = first + 4 * i, *two = second + 4 * i;
        constexpr int odd = ODD<ROWS>;
        piece[i * CONSUMERS] = make_float4(one[odd], one[1 - odd], one[2 + odd], one[3 - odd]);
        piece[(N / 8 + i) * CONSUMERS] = make_float4(two[odd], two[1 - odd], two[2 + odd], two[3 - odd]);
    }
    named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arguments.arrived + collector * CLUSTER + blockIdx.x % CLUSTER, 1);
    }
}

// Second half: adds the pieces of workers from..to, in the order of K, once they are there. Workers wait for nothing
// before they deliver their piece, and CTAs start in order, so some CTA can always go on, even on a GPU that holds only
// some of them at a time.
template <int N, int ROWS, int CLUSTER>
__device__ __forceinline__ void collect_pieces(const Arguments& arguments, int from, int to, float (&first)[N / 2],
                                               float (&second)[N / 2]) {
    if (threadIdx.x == 0) {
        int* arrived = arguments.arrived + blockIdx.x;
        while (load_acquire(arrived) <= to - from) {
        }
        *arrived = 0;
    }
    named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
    constexpr int AT_ONCE = N <= 8 ? 8 : N <= 16 ? 4 : N <= 32 ? 2 : 1;  // under way to registers
    for (int worker = from; worker <= to; worker += AT_ONCE) {
        float4 theirs[AT_ONCE][N / 4];
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            const float4* piece = arguments.partial + threadIdx.x +
                                  size_t((worker + n) * CLUSTER + blockIdx.x % CLUSTER) * PIECE_SIZE<ROWS>;
#pragma unroll
            for (int i = 0; i < N / 4; ++i)
                theirs[n][i] = worker + n <= to ? __ldcg(piece + i * CONSUMERS) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n)
#pragma unroll
            for (int i = 0; i < N / 4; ++i) {
                float* sum = i < N / 8 ? &first[4 * i] : &second[4 * (i - N / 8)];
                constexpr int odd = ODD<ROWS>;
                sum[odd] += theirs[n][i].x, sum[1 - odd] += theirs[n][i].y;
                sum[2 + odd] += theirs[n][i].z, sum[3 - odd] += theirs[n][i].w;
            }
    }
}

}  // namespace derby
