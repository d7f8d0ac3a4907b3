// What the parts of the grouped GEMMs share: sizes, arguments, shared memory, stages of loads, split tiles.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include "hopper.cuh"
#include "schedule.cuh"

namespace derby {

// For compute-sanitizer's racecheck. It does not see that __syncwarp orders a warp's reads before the warp's one
// arrival at a barrier, so every thread arrives; and there is no rehearsal, whose reads race with loads on purpose.
#ifdef DERBY_RACECHECK
constexpr bool RACECHECK = true;
#else
constexpr bool RACECHECK = false;
#endif

constexpr int HIDDEN = 7168, INTERMEDIATE = 2048, BLOCK = 128;
constexpr int CONSUMERS = 256, GATHERERS = 96, THREADS = 384;
constexpr int WEIGHT_BYTES = 2 * BLOCK * BLOCK;  // of a stage
constexpr int ACT_PITCH = BLOCK + 16;            // bytes a row of the first GEMM's staging: no bank conflicts
constexpr int OUT_PITCH = 4 * BLOCK + 16;        // bytes a row of the second's
constexpr int OUT_CHUNK = 32;                    // rows of the second's staging
constexpr int ACT_BOX = 64;                      // rows of pairs a TMA box brings
constexpr float FP8_MOST = 448.0f;                // the largest e4m3 value
constexpr int ZERO_BYTES = 2048;                 // of the output cleared by one copy
constexpr int TASKS = 8;                         // places for tasks: over STAGES, since each takes a stage or more

struct Arguments {
    const uint8_t* x;        // FIRST: [seq_len, HIDDEN], else [pairs, INTERMEDIATE]
    const float* x_scale;    // FIRST: [HIDDEN / 128, seq_len], else [pairs, INTERMEDIATE / 128]
    const float* w_scale;    // [experts, weight rows / 128, K / 128]
    int* count;              // [experts], zero between calls
    const int2* bucket;      // [experts, seq_len]
    uint8_t* act;            // [pairs, INTERMEDIATE]
    float* act_scale;        // [pairs, INTERMEDIATE / 128]
    float4* partial;         // pieces of split tiles
    int* arrived;            // per split tile, zero between calls
    int* ticket;             // zero between calls
    __nv_bfloat16* out;      // [seq_len, HIDDEN]
    int seq_len;
    int rehearse;            // whether to run through the code once while waiting for the routing, see work_on
};

template <bool FIRST>
struct Sizes {
    static constexpr int K_BLOCKS = (FIRST ? HIDDEN : INTERMEDIATE) / BLOCK;
    static constexpr int TILES_N = FIRST ? INTERMEDIATE / BLOCK : HIDDEN / (2 * BLOCK);
    static constexpr int WEIGHT_ROWS = FIRST ? 2 * INTERMEDIATE : HIDDEN;  // an expert
};

// What the consumers need to know of a visit, worked out by the warp that brings its weights.
struct Task {
    Place place;
    int k_blocks;
    int piece_of;  // the split tile this is a piece of, counted from the first that is split, or -1: a whole tile
};

template <int ROWS, int STAGES, int CLUSTER>
struct Shared {
    uint8_t weights[STAGES][WEIGHT_BYTES];
    uint8_t x[STAGES][ROWS * BLOCK];
    union {
        uint8_t act[ROWS * ACT_PITCH];
        uint8_t out[OUT_CHUNK * OUT_PITCH];
    } staging;
    float x_scale[STAGES][ROWS];
    alignas(16) float w_scale[STAGES][4];
    float column_max[8][ROWS == 64 ? 64 : 2];
    float column_scale[ROWS == 64 ? 64 : 2];
    alignas(16) int2 pair[ROWS];
    alignas(16) uint8_t zeros[ZERO_BYTES];
    alignas(8) uint64_t full[STAGES];
    uint64_t empty[STAGES];
    int count[LOCAL_EXPERTS], block_start[LOCAL_EXPERTS + 1], row_start[LOCAL_EXPERTS + 1];
    Task task[TASKS];
    Share share;
    int is_last;
};

struct Stage {
    int index = 0;
    uint32_t parity = 0;
    template <int STAGES>
    __device__ __forceinline__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

template <int N>
__device__ __forceinline__ void multiply(float (&product_of)[N / 2], uint32_t a_low, uint32_t b_low) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
        product<N>(product_of, operand_of(a_low + 2 * k), operand_of(b_low + 2 * k), k > 0);
    product_commit();
}

// The warp has done with stage s; with a cluster, both programs that load into it hear so.
template <int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ void release(Shared<ROWS, STAGES, CLUSTER>& shared, int s, int lane) {
    __syncwarp();
    if constexpr (CLUSTER == 1) {
        if (RACECHECK || lane == 0) barrier_arrive(shared_address(&shared.empty[s]));
    } else {
        if (lane < CLUSTER) barrier_arrive_at(shared_address(&shared.empty[s]), lane);
    }
}

// x * sigmoid(x) = h + h tanh(h) with h = x / 2: one special function.
__device__ __forceinline__ float silu(float x) {
    const float h = 0.5f * x;
    float t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(h));
    return fmaf(h, t, h);
}

// Stores this program's piece of a split tile; true for the program that arrives last, which then holds the sum of all
// pieces, added in the order of K. Rehearsing, nobody is waited for and nothing is counted.
template <int N, int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ bool join_pieces(Shared<ROWS, STAGES, CLUSTER>& shared, const Arguments& arguments,
                                            bool rehearsal, int in_split, int stretch, int k_blocks,
                                            float (&first)[N / 2], float (&second)[N / 2]) {
    constexpr int SIZE = ROWS * 2 * BLOCK / 4;  // float4
    const int thread = threadIdx.x;
    const int from = first_piece(in_split, stretch, k_blocks), to = last_piece(in_split, stretch, k_blocks);
    float4* pieces = arguments.partial + size_t(blockIdx.x % CLUSTER) * SIZE + thread;
    float4* mine = pieces + size_t(piece_slot(blockIdx.x / CLUSTER, in_split, stretch, k_blocks)) * (CLUSTER * SIZE);
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
        mine[i * CONSUMERS] = make_float4(first[4 * i], first[4 * i + 1], first[4 * i + 2], first[4 * i + 3]);
        mine[(N / 8 + i) * CONSUMERS] =
            make_float4(second[4 * i], second[4 * i + 1], second[4 * i + 2], second[4 * i + 3]);
    }
    if (!rehearsal) __threadfence();
    named_barrier(1, CONSUMERS);
    if (thread == 0) {
        bool is_last = true;
        if (!rehearsal) {
            int* arrived = arguments.arrived + piece_slot(from, in_split, stretch, k_blocks) * CLUSTER +
                           blockIdx.x % CLUSTER;
            is_last = atomicAdd(arrived, 1) == to - from;
            if (is_last) *arrived = 0;
            __threadfence();
        }
        shared.is_last = is_last;
    }
    named_barrier(1, CONSUMERS);
    if (!shared.is_last) return false;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) first[i] = 0.0f, second[i] = 0.0f;
#pragma unroll(N <= 8 ? 8 : N <= 16 ? 4 : N <= 32 ? 2 : 1)
    for (int program = from; program <= to; ++program) {
        const float4* theirs = pieces + size_t(piece_slot(program, in_split, stretch, k_blocks)) * (CLUSTER * SIZE);
#pragma unroll
        for (int i = 0; i < N / 8; ++i) {
            const float4 a = __ldcg(theirs + i * CONSUMERS), b = __ldcg(theirs + (N / 8 + i) * CONSUMERS);
            first[4 * i] += a.x, first[4 * i + 1] += a.y, first[4 * i + 2] += a.z, first[4 * i + 3] += a.w;
            second[4 * i] += b.x, second[4 * i + 1] += b.y, second[4 * i + 2] += b.z, second[4 * i + 3] += b.w;
        }
    }
    return true;
}

}  // namespace derby
