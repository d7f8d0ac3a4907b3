// output [m, n] = (x * x_scale) @ (weight * weight_scale)^T: x and weight in e4m3, a scale for 1 x 128 values of x and
// for 128 x 128 of weight, output float32 or bfloat16.
//
// A persistent CTA: two consumer warpgroups multiply, the third one's warps produce. Warp 0 loads by TMA; warps 2 and 3
// read x_scale as it lies, [m, k / 128], multiply it with the weight's scale and lay the products beside the operands.
// After each block of 128 along k the wgmma's float32 sums are scaled and added to the tile's.
// Constraints: sm_90a; n and k multiples of 128, any m from 1 on; x and weight e4m3, scales float32, output float32 or
// bfloat16, contiguous, addresses a multiple of 16.
#pragma once
#include <cuda_bf16.h>
#include "hopper_tiles.cuh"

namespace derby {

constexpr int BLOCK = 128;                                    // values that share a scale
constexpr int BOX_ROWS = 16, BOX = BOX_ROWS * 128;  // bytes: a warp's rows of 32 columns of output, in bfloat16 of 64

// Hardware barriers, by what their threads wait for; 0 is __syncthreads's.
enum TileBarrier {
    JOINED_READ = 1,     // SPLIT, all consumers: the last tile's sums were read
    JOINED_WRITTEN = 2,  // SPLIT, all consumers: this tile's are there
    OPERANDS_READ = 4,   // one warpgroup, number 4 + its index: all its warps are done with x
};

// A form, and where its output waits to be stored: each warp has room of its own for SLABS boxes, and keeps the last
// HELD stages for more boxes.
template <class Form_, int SLABS_, int HELD_ = 0>
struct Plan : Form_ {
    using Out = float;
    static constexpr int SLABS = SLABS_, HELD = HELD_;
    static constexpr int CONSUMER_REGISTERS = Form_::GROUPS == 2 ? 216 : 152;  // a thread
    static constexpr int PRODUCER_REGISTERS = Form_::GROUPS == 2 ? 72 : 56;
    static_assert(Form_::CONSUMERS * CONSUMER_REGISTERS + WARPGROUP * PRODUCER_REGISTERS <= 65536, "an SM's registers");
    static_assert(Form_::COLUMNS == BLOCK, "a tile's columns share a scale of the weight");
    static_assert(!Form_::SPLIT || Form_::GROUPS == 2, "two warpgroups join their sums");
    static_assert(HELD < Form_::STAGES, "a stage is left for loads while others are kept");
};

template <class Plan_>
struct ToBf16 : Plan_ {
    using Out = __nv_bfloat16;
};

// Registers of a thread that one box takes.
template <class F>
constexpr int BOX_REGISTERS = 64 / sizeof(typename F::Out);

template <class F>
struct Shared {
    Ring<F> ring;
    uint8_t slab[F::CONSUMERS / WARP][F::SLABS][BOX];
    float joined[F::SPLIT ? F::ROWS * F::COLUMNS : 1];  // what the warpgroups hand to each other
    float scale[F::STAGES][F::ROWS];
    Pipeline<F::STAGES> barriers;
};

struct Problem {
    const float* x_scale;
    const float* w_scale;
    void* output;
    Extent extent;
};

// Four consecutive scales of a row from block k on, zeros behind the end of the row.
__device__ __forceinline__ float4 four_scales(const float* row, int k, int k_blocks, bool aligned) {
    if (aligned) return __ldg(reinterpret_cast<const float4*>(row + k));
    return make_float4(__ldg(row + k), k + 1 < k_blocks ? __ldg(row + k + 1) : 0.0f,
                       k + 2 < k_blocks ? __ldg(row + k + 2) : 0.0f, k + 3 < k_blocks ? __ldg(row + k + 3) : 0.0f);
}

// Two warps, each half of the tile's rows, four blocks along k at a time.
template <class F>
__device__ void load_scales(Shared<F>& shared, const Problem& problem) {
    constexpr int EACH = F::ROWS / 2 / WARP;
    const Extent& extent = problem.extent;
    const int lane = threadIdx.x % WARP, first = threadIdx.x / WARP % 2 * WARP + lane, k_blocks = extent.k_blocks;
    const bool aligned = k_blocks % 4 == 0;
    uint32_t step = 0;
    for (Walk<F> walk(blockIdx.x, gridDim.x); walk.more(extent); walk.next()) {
        const int2 tile = walk.tile(extent);
        const int rows = min(walk.half(extent) ? F::ROWS / 2 : F::ROWS, extent.m - tile.x);
        const float* w_scale = problem.w_scale + size_t(tile.y / BLOCK) * k_blocks;
        const float* x_scale = problem.x_scale + size_t(tile.x + first) * k_blocks;
        for (int k = 0; k < k_blocks; k += 4) {
            float4 scale[EACH], w = make_float4(0, 0, 0, 0);
            if (tile.y < extent.n) w = four_scales(w_scale, k, k_blocks, aligned);
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                scale[i] = make_float4(0, 0, 0, 0);
                if (first + i * 2 * WARP < rows)
                    scale[i] = four_scales(x_scale + i * 2 * WARP * k_blocks, k, k_blocks, aligned);
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (k + j >= k_blocks) break;
                const uint32_t s = step % F::STAGES;
                mbarrier_wait(shared.barriers.empty(s), (step / F::STAGES & 1) ^ 1);
#pragma unroll
                for (int i = 0; i < EACH; ++i)
                    shared.scale[s][first + i * 2 * WARP] = reinterpret_cast<const float(&)[4]>(scale[i])[j] *
                                                            reinterpret_cast<const float(&)[4]>(w)[j];
                __syncwarp();
                if (lane == 0) mbarrier_arrive(shared.barriers.full(s));
                ++step;
            }
        }
    }
}

// A warp's places for boxes of output: its own shared memory, and, in the HELD stages that it has not released, the
// rows of x that were its own, which have room for HALVES boxes of the same size in each stage.
template <class F, int HALVES, int HELD>
struct Boxes {
    static constexpr int COUNT = HELD * HALVES + F::SLABS;
    static constexpr int TURNS = (F::SPLIT ? 32 : 64) / BOX_REGISTERS<F> * HALVES;  // boxes of a tile
    uint32_t own, held[HELD ? HELD : 1];  // addresses
    __device__ __forceinline__ Boxes(Shared<F>& shared, uint32_t step) {
        const int warp = threadIdx.x / WARP;
        own = shared_address(shared.slab[warp]);
#pragma unroll
        for (int i = 0; i < HELD; ++i)
            held[i] = shared_address(shared.ring.x[(step - HELD + i) % F::STAGES]) +
                      (warp / 4 * HALVES * 4 + warp % 4) * BOX;
    }
    // How many stores may still be reading shared memory when the tile's box `turn` is written: those issued after the
    // box that was in the same place before. Where stages are kept, and before tiles of another size, the warp waits
    // for all stores at the start.
    static __host__ __device__ constexpr int pending(int turn) {
        const int last = turn + COUNT * ((TURNS - 1 - turn) / COUNT);  // in the tile before
        const int since = turn < COUNT ? TURNS - last + turn : COUNT;
        return (since < COUNT ? since : COUNT) - 1;
    }
    // Of box i, which compile time knows.
    __device__ __forceinline__ uint32_t operator[](int i) const {
        i %= COUNT;
        return i < HELD * HALVES ? held[i / HALVES] + i % HALVES * 4 * BOX : own + (i - HELD * HALVES) * BOX;
    }
};

// sum += product times its rows' scales. Neighbouring values share a scale, which is read once for two.
__device__ __forceinline__ void add_scaled(float (&sum)[64], const float (&product)[64], float upper, float lower) {
#pragma unroll
    for (int j = 0; j < 64; j += 4) sum[j] += product[j] * upper, sum[j + 1] += product[j + 1] * upper;
#pragma unroll
    for (int j = 2; j < 64; j += 4) sum[j] += product[j] * lower, sum[j + 1] += product[j + 1] * lower;
}

// The products of this warpgroup's k blocks: total[h] of 64 rows each. The last HELD stages are kept; those of the tile
// before are released as soon as they have been stored.
//
// Between two products of a warpgroup lie 64 multiply-adds and the instructions that start the next product. If these take
// longer than the other warpgroup's product, the tensor cores wait. So the loop has no branch but its own, a
// descriptor's parts are written so that the compiler sees that all lanes have the same, and two blocks are unrolled.
template <class F, int HALVES, int HELD>
__device__ __forceinline__ void multiply(Shared<F>& shared, const Problem& problem, uint32_t step,
                                         float (&total)[HALVES][64]) {
    constexpr int STEP = F::SPLIT ? 2 : 1;
    const int lane = threadIdx.x % WARP, group = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0);
    const int k_blocks = problem.extent.k_blocks;
    const int first_row = F::SPLIT ? 0 : group * HALVES * 64;
    const int row = first_row + threadIdx.x / WARP % 4 * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < HALVES; ++h)
#pragma unroll
        for (int i = 0; i < 64; ++i) total[h][i] = 0.0f;
    float upper[HALVES], lower[HALVES];  // of the block that comes next
    auto next_is_there = [&](uint32_t now) {
        const uint32_t s = now % F::STAGES;
        mbarrier_wait(shared.barriers.full(s), now / F::STAGES & 1);
#pragma unroll
        for (int h = 0; h < HALVES; ++h)
            upper[h] = shared.scale[s][row + h * 64], lower[h] = shared.scale[s][row + h * 64 + 8];
    };
    auto add_block = [&](int k, bool first, bool more, bool keep) {
        const uint32_t s = (step + k) % F::STAGES;
        const uint32_t x = descriptor_low(shared_address(shared.ring.x[s]) + first_row * ROW_BYTES);
        const uint32_t w = descriptor_low(shared_address(shared.ring.w[s]));
#pragma unroll
        for (int h = 0; h < HALVES; ++h) {
            const float up = upper[h], low = lower[h];
            float one[64];
            pin<64>(one);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < BLOCK / 32; ++i)
                wgmma_e4m3<BLOCK>(one, descriptor_of(x + h * (64 * ROW_BYTES >> 4) + 2 * i), descriptor_of(w + 2 * i),
                                  i);
            wgmma_commit_group();
            if (HELD && h == 0 && first && step) {
                if (lane == 0) bulk_wait_group_read<0>();
                __syncwarp();
#pragma unroll
                for (int i = HELD; i; --i) release<F>(shared.barriers, (step - i) % F::STAGES);
            }
            if (h + 1 == HALVES && more) next_is_there(step + k + STEP);
            wgmma_wait_group<0>();
            pin<64>(one);
            if (h + 1 == HALVES && !keep) release<F>(shared.barriers, s);
            add_scaled(total[h], one, up, low);
        }
    };
    int k = F::SPLIT ? group : 0;
    if (k < k_blocks) next_is_there(step + k);
    static_assert(HELD == 0 || (HELD == 1 && STEP == 1), "the last block alone is kept");
    if (HELD) add_block(k++, true, true, false);
#pragma unroll HELD ? 2 : 1
    for (; k + STEP < k_blocks; k += STEP) add_block(k, false, true, false);
    if (k < k_blocks) add_block(k, false, false, HELD > 0);
}

// Until at most `pending` of this thread's groups of stores still read shared memory: a number that unrolling makes a
// constant, up to 7.
template <int MOST = 7>
__device__ __forceinline__ void bulk_wait_group_read(int pending) {
    if constexpr (MOST > 0)
        if (pending < MOST) return bulk_wait_group_read<MOST - 1>(pending);
    bulk_wait_group_read<MOST>();
}

// 16 rows of 32 columns in float32, 16 registers. Odd rows write their 8 columns in another order, so that the four
// rows that are written at once lie on different banks.
__device__ __forceinline__ void fill_box(uint32_t box, const float* d, float*) {
    const int lane = threadIdx.x % WARP, r = lane / 4, q = lane % 4;
    const bool odd = r & 1;
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int a = t * 4 + half * 2, b = (t ^ 2) * 4 + half * 2;
            const int chunk = 2 * (odd ? t ^ 2 : t) + q / 2;
            store_shared(box + (r + 8 * half) * 128 + (chunk ^ r) * 16 + q % 2 * 8,
                         make_float2(odd ? d[b] : d[a], odd ? d[b + 1] : d[a + 1]));
        }
}

// 16 rows of 64 columns in bfloat16, 32 registers. Each lane gives the address of row lane % 8 of a matrix of 8 x 8
// values: the upper rows, the lower ones, and both again 8 columns further.
__device__ __forceinline__ void fill_box(uint32_t box, const float* d, __nv_bfloat16*) {
    const int lane = threadIdx.x % WARP;
    const uint32_t row = box + lane % 16 * 128;
#pragma unroll
    for (int t = 0; t < 32; t += 8)
        stmatrix_x4(row + ((t / 4 + lane / 16) ^ lane % 8) * 16, pack_bf16(d[t], d[t + 1]), pack_bf16(d[t + 2], d[t + 3]),
                    pack_bf16(d[t + 4], d[t + 5]), pack_bf16(d[t + 6], d[t + 7]));
}

// 16 rows of a warp, the columns of registers FROM .. TO - 1: boxes go through shared memory, with the 128-byte swizzle,
// and are stored by TMA. TURN: boxes before in this tile.
template <class F, int FROM, int TO, int TURN, class Place>
__device__ __forceinline__ void store_rows(const Place& place, const CUtensorMap* out_map, const float* d, int row,
                                           int column) {
    constexpr int EACH = BOX_REGISTERS<F>;
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int c = FROM / EACH; c < TO / EACH; ++c) {
        const int turn = TURN + c - FROM / EACH;
        const uint32_t box = place[turn];
        if (lane == 0) bulk_wait_group_read(Place::pending(turn));
        __syncwarp();
        fill_box(box, d + c * EACH, static_cast<typename F::Out*>(nullptr));
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
            tma_store(out_map, box, column + c * EACH * 2, row);
            bulk_commit_group();
        }
    }
}

// A tile of HALVES times 64 rows a warpgroup.
template <class F, int HALVES, int HELD>
__device__ __forceinline__ void do_tile(Shared<F>& shared, const CUtensorMap* out_map, const Problem& problem,
                                        int2 tile, uint32_t step) {
    const int group = threadIdx.x / WARPGROUP, thread = threadIdx.x % WARPGROUP, warp = thread / WARP;
    float total[HALVES][64];
    multiply<F, HALVES, HELD>(shared, problem, step, total);
    const Boxes<F, HALVES, HELD> place(shared, step + problem.extent.k_blocks);
    if (HELD) named_barrier_sync(OPERANDS_READ + group, WARPGROUP);
    if (F::SPLIT) {  // each warpgroup finishes 64 of the columns
        float* mine = shared.joined + group * HALVES * 32 * WARPGROUP + thread;
        const float* other = shared.joined + (group ^ 1) * HALVES * 32 * WARPGROUP + thread;
        named_barrier_sync(JOINED_READ, F::CONSUMERS);
#pragma unroll
        for (int h = 0; h < HALVES; ++h)
#pragma unroll
            for (int i = 0; i < 32; ++i) mine[(h * 32 + i) * WARPGROUP] = group ? total[h][i] : total[h][32 + i];
        named_barrier_sync(JOINED_WRITTEN, F::CONSUMERS);
        const int row = tile.x + warp * 16;
        if (group == 0) {
#pragma unroll
            for (int i = 0; i < 32; ++i) total[0][i] += other[i * WARPGROUP];
            store_rows<F, 0, 32, 0>(place, out_map, total[0], row, tile.y);
        } else {
#pragma unroll
            for (int i = 0; i < 32; ++i) total[0][32 + i] += other[i * WARPGROUP];
            store_rows<F, 32, 64, 0>(place, out_map, total[0], row, tile.y);
        }
    } else {
        const int row = tile.x + group * HALVES * 64 + warp * 16;
        if (HALVES < F::HALVES && threadIdx.x % WARP == 0) bulk_wait_group_read<0>();
        store_rows<F, 0, 64, 0>(place, out_map, total[0], row, tile.y);
        if (HALVES > 1) store_rows<F, 0, 64, 64 / BOX_REGISTERS<F>>(place, out_map, total[HALVES - 1], row + 64, tile.y);
    }
}

template <class F>
__device__ void consume(Shared<F>& shared, const CUtensorMap* out_map, const Problem& problem) {
    constexpr int HELD = F::HELD;
    uint32_t step = 0;
    for (Walk<F> walk(blockIdx.x, gridDim.x); walk.more(problem.extent); walk.next(), step += problem.extent.k_blocks) {
        const int2 tile = walk.tile(problem.extent);
        if (walk.half(problem.extent)) do_tile<F, 1, HELD>(shared, out_map, problem, tile, step);
        else do_tile<F, F::HALVES, HELD>(shared, out_map, problem, tile, step);
    }
    if (threadIdx.x % WARP == 0) bulk_wait_group_read<0>();
}

template <class F>
__global__ void __launch_bounds__(F::THREADS, 1)
    derby_block_scaled_mm(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                          const __grid_constant__ CUtensorMap out_map, const Problem problem) {
    Shared<F>& shared = dynamic_shared<Shared<F>>();
    const int warp = threadIdx.x / WARP;
    if (threadIdx.x == 0) prefetch_tensor_map(&x_map), prefetch_tensor_map(&w_map), prefetch_tensor_map(&out_map);
    set_up<F>(shared.barriers, 3);  // TMA and the two warps with scales
    if (warp >= F::CONSUMERS / WARP) {
        setmaxnreg_dec<F::PRODUCER_REGISTERS>();
        if (warp == F::CONSUMERS / WARP) {
            if (threadIdx.x % WARP == 0)
                load_operands<F, BLOCK>(shared.ring, shared.barriers, &x_map, &w_map, problem.extent);
            __syncwarp();
        } else if (warp >= F::CONSUMERS / WARP + 2) {
            load_scales<F>(shared, problem);
        }
    } else {
        setmaxnreg_inc<F::CONSUMER_REGISTERS>();
        consume<F>(shared, &out_map, problem);
    }
    if (F::CLUSTER > 1) cluster_sync();  // no CTA leaves while another one may still signal it
}

}  // namespace derby
