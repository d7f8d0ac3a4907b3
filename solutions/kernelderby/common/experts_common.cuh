// What the parts of the experts' grouped GEMMs share: number formats, arguments, shared memory, stages of loads, split
// tiles. K is counted in bytes everywhere: a k block is 128 of them, 64 bfloat16 or 128 e4m3 values.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cstddef>
#include "experts_parts.cuh"
#include "experts_schedule.cuh"
#include "lanes.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

namespace derby {

// The number formats. SCALED: there is a scale for each 128 values of a row and for each block of 128 x 128 weights. A
// k block's product is scaled and added in float32, since the tensor core keeps only about 14 bits of an FP8 sum.
struct Bf16 {
    static constexpr int BYTES = 2;
    static constexpr bool SCALED = false;
    using Out = float;
};
struct Bf16ToBf16 : Bf16 {
    using Out = __nv_bfloat16;
};
struct Fp8 {
    static constexpr int BYTES = 1;
    static constexpr bool SCALED = true;
    using Out = __nv_bfloat16;
};

constexpr uint16_t BOTH_CTAS = 3;     // of a cluster, for multicast
constexpr int MANY_BLOCKS = 1 << 20;  // of pairs of an expert: more than there are

static_assert(CONSUMERS >= MOST_EXPERTS, "a consumer plans an expert");

// What a GEMM's kernel gets, beside its tensor maps. FIRST: of the first GEMM.
struct Arguments {
    const uint8_t* x;        // FIRST: [tokens, hidden], else [pairs, intermediate]
    const float* x_scale;    // SCALED, [rows of x, k blocks]
    const float* w_scale;    // SCALED, [experts, weight rows / 128, k blocks]
    const int* topk_ids;     // [pairs]
    const float* topk_weights;
    const int* starts;       // [experts + 1] rows of pairs before an expert, where a kernel before has sorted
    const int2* sorted;      // [pairs] (token, bits of the routing weight), expert by expert
    uint8_t* act;            // [pairs, intermediate]
    float* act_scale;        // SCALED, [pairs, intermediate / 128]
    float4* partial;         // pieces of split tiles, one a CTA
    int* arrived;            // of a CTA's last tile, the pieces of others that are there; zero between calls
    void* out;               // [tokens, hidden]
    __nv_bfloat16* results;  // [pairs, hidden] where the second GEMM stores (and a kernel behind it sums)
    Layout layout;
    int row_bytes;           // of x, K's
    int weight_rows;         // of an expert
    int second_block;        // weight rows from a tile's first block of 128 to its second
    int tokens, hidden, intermediate, experts, top_k;
};

struct Sorted;  // experts_sorted.cuh

// What one pair of GEMM kernels is compiled for. ROUTES: up to this many pairs every CTA sorts for itself; 0: never.
// ROUTING: how a kernel learns which pairs an expert has (Sorted, or a solution's own type with the same members). A
// solution's own configuration derives from this one and replaces constants.
template <class KIND_, int ROWS_, int STAGES_, int CLUSTER_, bool WIDE_, int ROUTES_, class ROUTING_ = Sorted>
struct Config {
    using Kind = KIND_;
    using Routing = ROUTING_;
    using Arguments = typename Routing::Arguments;
    static constexpr int ROWS = ROWS_, STAGES = STAGES_, CLUSTER = CLUSTER_, ROUTES = ROUTES_;
    static constexpr bool WIDE = WIDE_;                               // pairs are wgmma's M
    static constexpr bool LATER = WIDE && !Kind::SCALED;              // tiles are finished during the next one's products
    static constexpr bool ADDS_BF16 = sizeof(typename Kind::Out) == 2;
    // Up to this many blocks of pairs, the last one of an odd number may be a half block. In bf16, with more blocks,
    // that gains nothing if the second GEMM stores; if it adds, the last block may always be a half one.
    static constexpr int HALVED = !WIDE ? 0 : Kind::SCALED ? MANY_BLOCKS : 3;
    // Whether weights that no other cluster reads leave L2 first: where that was measured to gain.
    static constexpr bool READ_ONCE = WIDE || (ROUTES > 0 && !Kind::SCALED);
    // Whether weights are requested before the plan is made: where the pairs are so few that they tell which weights.
    // Guessing them loses time, since the routing then arrives late, behind all those loads.
    static constexpr bool EARLY = ROUTES > 0 && ROWS <= 16;
    static constexpr bool GATHERS_ACT = false;      // the second GEMM's rows are copied by cp.async, too, not by TMA
    static constexpr bool WHOLE_BLOCKS = false;     // a row of x is whole k blocks
    static constexpr bool UP_FIRST = false;         // an expert's first rows of the first weights are up, then gate
    static constexpr bool SCALES_BY_BLOCK = false;  // x_scale of the first GEMM: [k blocks, tokens]
    static constexpr int ZERO_BYTES = 1024;         // of the output cleared by one bulk store
    static constexpr int ZEROS_A_BLOCK = 0;         // such stores with a k block; 0: as many as spread them evenly
    static constexpr int SETS_UP = CONSUMERS + GATHERERS;  // the thread that initialises the barriers: the first to load
    static constexpr int ACT_BOX = WIDE ? 64 : ROWS >= 128 ? 32 : 16;  // rows of pairs a TMA box brings
    static constexpr int ACT_PITCH = BLOCK * Kind::BYTES + 16;        // bytes a row of the first GEMM's staging
    static constexpr int ACT_CHUNK = Kind::SCALED || ROWS < 64 ? ROWS : ROWS % 64 == 0 ? 64 : 32;  // its rows
    static constexpr int OUT_CHUNK = ROWS < 32 ? ROWS : 32;           // rows of the second's, SCALED
    static constexpr int OUT_PITCH = 2 * BLOCK * 2 + 16;
    static constexpr int WARP_PITCH = 144, WARP_ROWS = ROWS % 64 == 0 ? 16 : 8;  // a warp's pairs of it, plain
    static constexpr int WARP_BYTES = CONSUMERS / 32 * WARP_ROWS * WARP_PITCH;
    static constexpr int WIDE_PITCH = 160, WIDE_BYTES = CONSUMERS / 32 * 16 * WIDE_PITCH;  // 16 rows of 128 bytes a warp
};

// What the consumers need to know of a visit, worked out by the warp that brings its weights.
struct Task {
    Place place;
    int k_blocks;
    int piece_of;  // the split tile this is a piece of, counted from the first that is split, or -1: a whole tile
    bool deliver;  // a piece that another CTA collects
};

// A CTA's shared memory. full[s]: the loads of stage s have landed; empty[s]: the consumers have done with it.
template <class C>
struct Shared {
    static_assert(C::ROWS % 8 == 0 && C::ACT_BOX % 8 == 0, "the swizzle goes by 8 rows, 1024 bytes");
    static_assert(WEIGHT_BYTES + C::ROWS * BLOCK < 1 << 20, "what an mbarrier counts of bytes");
    static constexpr int CTAS = C::CLUSTER;  // that load into each other's stages
    static_assert(CTAS == 1 || CTAS == 2, "multicast goes to both CTAs of a cluster");
    // The worst case is that every visit is one k block: a consumer may then still be reading a task whose stages are
    // all free again, while the STAGES visits after it are loaded and the next one's task is written before its first
    // load waits.
    static_assert(TASKS >= C::STAGES + 2, "a task would be written over while it is read");
    uint8_t weights[C::STAGES][WEIGHT_BYTES];
    uint8_t x[C::STAGES][C::ROWS * BLOCK];
    union {
        alignas(16) uint8_t act[C::WIDE ? 16 : C::ACT_CHUNK * C::ACT_PITCH];
        uint8_t out[C::WIDE ? 16 : C::Kind::SCALED ? C::OUT_CHUNK * C::OUT_PITCH : C::WARP_BYTES];
        uint8_t wide[C::WIDE ? C::WIDE_BYTES : 16];
        int histogram[C::ROUTES ? CONSUMERS / 32 : 1][C::ROUTES ? MOST_EXPERTS : 1];
        typename C::Routing::Scratch scratch[C::ROUTES ? CONSUMERS / 32 : 1];
    } staging;
    float x_scale[C::Kind::SCALED ? C::STAGES : 1][C::Kind::SCALED ? C::ROWS : 2];
    alignas(16) float w_scale[C::STAGES][4];
    float column_max[8][C::Kind::SCALED && !C::WIDE ? C::ROWS : 2];
    float column_scale[C::Kind::SCALED && !C::WIDE ? C::ROWS : 2];
    alignas(16) int2 pair[C::LATER ? 2 : 1][C::ROWS];  // of a tile, LATER: in turn: (token, bits of the routing weight)
    alignas(16) uint8_t zeros[C::ZERO_BYTES];
    alignas(8) uint64_t full[C::STAGES];
    uint64_t empty[C::STAGES];
    int row_start[MOST_EXPERTS + 1], tile_start[MOST_EXPERTS];
    int slab_tiles;
    int warp_rows[CONSUMERS / 32], warp_tiles[CONSUMERS / 32], warp_many[CONSUMERS / 32];
    Task task[TASKS];
    Share share;
    typename C::Routing::template Order<C::ROUTES> order;
};

// Starts the product of one k block, 128 bytes of K, as a wgmma group: d (+)= a b^T. a and b are the lower halves of
// descriptors.
template <class Kind, int N>
__device__ __forceinline__ void wgmma_k_block(float* d, uint32_t a_low, uint32_t b_low, bool add) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        if constexpr (Kind::SCALED)
            wgmma_e4m3<N>(d, descriptor_of(a_low + 2 * k), descriptor_of(b_low + 2 * k), add || k > 0);
        else
            wgmma_bf16<N>(d, descriptor_of(a_low + 2 * k), descriptor_of(b_low + 2 * k), add || k > 0);
    }
}

// The same for a warpgroup without pairs.
template <class C>
__device__ __forceinline__ void pass_over(Shared<C>& shared, Stage& stage, int k_blocks) {
    for (int k = 0; k < k_blocks; ++k) {
        mbarrier_wait(shared_address(&shared.full[stage.index]), stage.parity);
        release(shared, stage.index, threadIdx.x % WARP);
        stage.next<C::STAGES>();
    }
}

// The order of two neighbouring sums in a piece of a scaled wide tile. Values that are stored together start at an even
// register, and so does a product. If a sum lies in the other register bank than its product, a scaled multiply-add
// reads its registers in one go; if both lie alike, half of the scaled multiply-adds read three registers of one bank,
// which costs 3 % of the time.
template <class C>
constexpr int ODD = C::Kind::SCALED && C::WIDE;

// Stream-K's fix-up, first half: stores this CTA's piece of a split tile, SIZE sums a consumer, for the CTA that begins
// the tile. No CTA waits for this.
template <class C, int SIZE>
__device__ __forceinline__ void deliver_piece(const typename C::Arguments& arguments, int collector,
                                              const float (&sums)[SIZE]) {
    float4* piece = arguments.partial + size_t(blockIdx.x) * PIECE_SIZE<C::ROWS> + threadIdx.x;
#pragma unroll
    for (int i = 0; i < SIZE / 4; ++i) {
        const float* sum = sums + 4 * i;
        piece[i * CONSUMERS] = make_float4(sum[ODD<C>], sum[1 - ODD<C>], sum[2 + ODD<C>], sum[3 - ODD<C>]);
    }
    named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arguments.arrived + collector * C::CLUSTER + blockIdx.x % C::CLUSTER, 1);
    }
}

// Second half: adds the pieces of workers from..to, in the order of K, once they are there. Workers wait for nothing
// before they deliver their piece, and CTAs start in order, so some CTA can always go on, even on a GPU that holds only
// some of them at a time.
template <class C, int SIZE>
__device__ __forceinline__ void collect_pieces(const typename C::Arguments& arguments, int from, int to,
                                               float (&sums)[SIZE]) {
    if (threadIdx.x == 0) {
        int* arrived = arguments.arrived + blockIdx.x;
        while (load_acquire(arrived) <= to - from) {
        }
        *arrived = 0;
    }
    named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
    // On its way into registers; wide tiles come in quarters, since registers are scarce there.
    constexpr int AT_ONCE = SIZE <= 8 ? 8 : SIZE <= 16 ? 4 : SIZE <= 32 ? 2 : 1, STEP = SIZE < 32 ? SIZE / 4 : 8;
    for (int worker = from; worker <= to; worker += AT_ONCE) {
#pragma unroll
        for (int part = 0; part < SIZE / 4; part += STEP) {
            float4 theirs[AT_ONCE][STEP];
#pragma unroll
            for (int n = 0; n < AT_ONCE; ++n) {
                const float4* piece = arguments.partial + threadIdx.x +
                                      size_t((worker + n) * C::CLUSTER + blockIdx.x % C::CLUSTER) * PIECE_SIZE<C::ROWS>;
#pragma unroll
                for (int i = 0; i < STEP; ++i)
                    if (part + i < SIZE / 4)
                        theirs[n][i] = worker + n <= to ? __ldcg(piece + (part + i) * CONSUMERS) : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int n = 0; n < AT_ONCE; ++n)
#pragma unroll
                for (int i = 0; i < STEP; ++i)
                    if (part + i < SIZE / 4) {
                        float* sum = sums + 4 * (part + i);
                        sum[ODD<C>] += theirs[n][i].x, sum[1 - ODD<C>] += theirs[n][i].y;
                        sum[2 + ODD<C>] += theirs[n][i].z, sum[3 - ODD<C>] += theirs[n][i].w;
                    }
        }
    }
}

// Both halves, of a task that is a piece of a split tile. Returns whether another CTA finishes the tile.
template <class C, int SIZE>
__device__ __forceinline__ bool join_pieces(const Shared<C>& shared, const typename C::Arguments& arguments,
                                            const Task& task, float (&sums)[SIZE]) {
    const int stretch = shared.share.stretch, all = arguments.layout.k_blocks;
    if (task.deliver) {
        deliver_piece<C>(arguments, first_piece(task.piece_of, stretch, all), sums);
        return true;
    }
    collect_pieces<C>(arguments, blockIdx.x / C::CLUSTER + 1, last_piece(task.piece_of, stretch, all), sums);
    return false;
}

// Copies the tokens and routing weights of a tile's pairs to buffer n. Each warpgroup's threads copy those that it will
// use.
template <class C>
__device__ __forceinline__ void bring_pairs(Shared<C>& shared, const typename C::Arguments& arguments,
                                            const Place& place, int n) {
    const int thread = threadIdx.x, row = C::WIDE ? thread / 128 * 64 + thread % 128 : thread;
    if (row >= place.rows || (C::WIDE && thread % 128 >= 64)) return;
    C::Routing::bring_pair(shared, arguments, place, row, &shared.pair[n][row]);
}

}  // namespace derby
