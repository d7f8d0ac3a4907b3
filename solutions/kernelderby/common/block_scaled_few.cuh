// block_scaled_gemm.cuh's product for few rows, where nearly all time goes into reading the weight. `splits` CTAs of a
// cluster share the k blocks of a tile of 64 x 128; two CTAs fit on a multiprocessor. The sums of a tile are added in
// shared memory, always in the same order; no memory of the device lies between the CTAs.
//
// Two warpgroups do 64 columns each, one warp loads by TMA. Scales of all k blocks are read before the first product.
// Constraints: as block_scaled_gemm.cuh; at most MOST_BLOCKS k blocks a CTA.
#pragma once
#include <cuda_bf16.h>

#include "hopper_tiles.cuh"

namespace derby {

constexpr int BLOCK = 128;  // values that share a scale

struct Few {
    static constexpr int ROWS = 64, COLUMNS = 128, STAGES = 4, CONSUMERS = 2 * WARPGROUP, THREADS = CONSUMERS + WARP;
    static constexpr int HALF = COLUMNS / 2;   // of a warpgroup
    static constexpr int QUADS = HALF / 8;     // of four sums of a thread: two columns of two rows
    static constexpr int MOST_BLOCKS = 40, MOST_SPLITS = 8;
    static constexpr int SCALES_THERE = 1;     // hardware barrier of the consumers; 0 is __syncthreads's
    uint8_t x[STAGES][ROWS * ROW_BYTES], w[STAGES][COLUMNS * ROW_BYTES];
    float scale[MOST_BLOCKS][ROWS + 1];  // one more, so that a warp writes different banks
    Pipeline<STAGES> ring;
    static_assert(ROWS * 4 == CONSUMERS && MOST_BLOCKS % 4 == 0, "four threads read the scales of a row");
    static_assert(HALF % 8 == 0 && COLUMNS == BLOCK, "a tile's columns share a scale of the weight");
};

// Out: float or __nv_bfloat16.
template <class Out>
struct FewProblem {
    const float *x_scale, *w_scale;
    Out* output;
    int m, n, k_blocks, x_box, splits;
};

// Scales of x times those of the weight, for k blocks [from, to) and the tile's rows, of which x has `rows`. All loads
// are issued at once. x_scale, w_scale: of the tile's first row and of its columns.
__device__ __forceinline__ void read_scales(Few& shared, const float* x_scale, const float* w_scale, int rows,
                                            int k_blocks, int from, int to) {
    const int r = threadIdx.x / 4, q = threadIdx.x % 4;
    float value[Few::MOST_BLOCKS / 4];
#pragma unroll
    for (int j = 0; j < Few::MOST_BLOCKS / 4; ++j) {
        const int k = from + q + 4 * j;
        value[j] = k < to && r < rows ? __ldg(x_scale + size_t(r) * k_blocks + k) * __ldg(w_scale + k) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < Few::MOST_BLOCKS / 4; ++j) shared.scale[q + 4 * j][r] = value[j];
    named_barrier_sync(Few::SCALES_THERE, Few::CONSUMERS);
}

// The sums of this thread, scaled, of `blocks` k blocks.
__device__ __forceinline__ void multiply(Few& shared, int blocks, float (&total)[4 * Few::QUADS]) {
    const int group = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0);
    const int row = threadIdx.x / WARP % 4 * 16 + threadIdx.x % WARP / 4;
    PipelineState<Few::STAGES> at;
    for (int k = 0; k < blocks; ++k, at.next()) {
        const uint32_t x = descriptor_low(shared_address(shared.x[at.stage]));
        const uint32_t w = descriptor_low(shared_address(shared.w[at.stage]) + group * (Few::HALF * ROW_BYTES));
        const float upper = shared.scale[k][row], lower = shared.scale[k][row + 8];
        float one[4 * Few::QUADS];
        pin<4 * Few::QUADS>(one);
        shared.ring.wait(at);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < BLOCK / 32; ++i)
            wgmma_e4m3<Few::HALF>(one, descriptor_of(x + 2 * i), descriptor_of(w + 2 * i), i);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        pin<4 * Few::QUADS>(one);
        shared.ring.release(at);
#pragma unroll
        for (int i = 0; i < 4 * Few::QUADS; i += 4) {
            total[i] += one[i] * upper, total[i + 1] += one[i + 1] * upper;
            total[i + 2] += one[i + 2] * lower, total[i + 3] += one[i + 3] * lower;
        }
    }
}

__device__ __forceinline__ void store_pair(float* to, float a, float b) {
    *reinterpret_cast<float2*>(to) = make_float2(a, b);
}
__device__ __forceinline__ void store_pair(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<uint32_t*>(to) = pack_bf16(a, b);
}

// The four sums of a thread in its warp's rows, from `row` and `column` of the warp on.
template <class Out>
__device__ __forceinline__ void store_quad(const FewProblem<Out>& problem, float4 sum, int row, int column) {
    const int lane = threadIdx.x % WARP, r = row + lane / 4;
    Out* to = problem.output + size_t(r) * problem.n + column + lane % 4 * 2;
    if (r < problem.m) store_pair(to, sum.x, sum.y);
    if (r + 8 < problem.m) store_pair(to + size_t(8) * problem.n, sum.z, sum.w);
}

// Each CTA of the cluster finishes a part of each thread's quads; the other CTAs write their sums for that part into
// its stages.
template <class Out>
__device__ __forceinline__ void join(Few& shared, const FewProblem<Out>& problem, const float (&total)[4 * Few::QUADS],
                                     int row, int column) {
    static_assert(Few::QUADS * Few::CONSUMERS * 16 <= int(sizeof(shared.x) + sizeof(shared.w)), "sums lie in the stages");
    const int splits = problem.splits, each = Few::QUADS / splits, rank = blockIdx.x % splits;
    float4* const place = reinterpret_cast<float4*>(shared.x[0]) + threadIdx.x;
    cluster_sync();  // every CTA's loads are consumed
#pragma unroll
    for (int i = 0; i < Few::QUADS; ++i) {
        const int owner = i / each;
        float4* const there = static_cast<float4*>(__cluster_map_shared_rank(place, owner));
        there[(rank * each + i - owner * each) * Few::CONSUMERS] =
            make_float4(total[4 * i], total[4 * i + 1], total[4 * i + 2], total[4 * i + 3]);
    }
    cluster_sync();
    for (int i = 0; i < each; ++i) {
        float4 sum = place[i * Few::CONSUMERS];
        for (int from = 1; from < splits; ++from) {
            const float4 other = place[(from * each + i) * Few::CONSUMERS];
            sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
        }
        store_quad(problem, sum, row, column + (rank * each + i) * 8);
    }
}

template <class Out>
__global__ void __launch_bounds__(Few::THREADS, 2)
    derby_block_scaled_mm_few(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                              const FewProblem<Out> problem) {
    Few& shared = dynamic_shared<Few>();
    const int warp = threadIdx.x / WARP, splits = problem.splits, tile = blockIdx.x / splits, rank = blockIdx.x % splits;
    const int down = (problem.m + Few::ROWS - 1) / Few::ROWS;
    const int row = tile % down * Few::ROWS, column = tile / down * Few::COLUMNS;
    const int from = problem.k_blocks * rank / splits, to = problem.k_blocks * (rank + 1) / splits;
    if (threadIdx.x == 0) {
        prefetch_tensor_map(&x_map), prefetch_tensor_map(&w_map);
        shared.ring.init(1, Few::CONSUMERS / WARP);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (warp == Few::CONSUMERS / WARP) {
        if (threadIdx.x % WARP == 0) {
            PipelineState<Few::STAGES> at;
            for (int k = from; k < to; ++k, at.next()) {
                // Rows of a box that x does not have are read as zeros; rows that no box reaches are not stored.
                const uint32_t full = shared.ring.acquire(at, (problem.x_box + Few::COLUMNS) * ROW_BYTES);
                tma_load(shared_address(shared.w[at.stage]), &w_map, full, k * BLOCK, column);
                tma_load(shared_address(shared.x[at.stage]), &x_map, full, k * BLOCK, row);
            }
        }
        __syncwarp();
        if (splits > 1) cluster_sync(), cluster_sync();  // those of join()
        return;
    }
    float total[4 * Few::QUADS];
#pragma unroll
    for (int i = 0; i < 4 * Few::QUADS; ++i) total[i] = 0.0f;
    read_scales(shared, problem.x_scale + size_t(row) * problem.k_blocks,
                problem.w_scale + size_t(column / BLOCK) * problem.k_blocks, problem.m - row, problem.k_blocks, from, to);
    multiply(shared, to - from, total);
    const int first = row + warp % 4 * 16, left = column + warp / 4 * Few::HALF;
    if (splits > 1) return join(shared, problem, total, first, left);
#pragma unroll
    for (int i = 0; i < Few::QUADS; ++i)
        store_quad(problem, make_float4(total[4 * i], total[4 * i + 1], total[4 * i + 2], total[4 * i + 3]), first,
                   left + i * 8);
}

// Host ------------------------------------------------------------------------------------------------------------

namespace {

template <class Out>
cudaError_t start_few(const void* x, const void* x_scale, const void* weight, const void* w_scale, void* output, int m,
                      int n, int k_blocks, int splits, cudaStream_t stream) {
    static_assert((sizeof(Few) + 1024) * 2 <= 228 * 1024, "two CTAs on a multiprocessor");
    if ((k_blocks + splits - 1) / splits > Few::MOST_BLOCKS || splits > k_blocks || splits > Few::MOST_SPLITS)
        return cudaErrorInvalidValue;
    CUtensorMap x_map, w_map;
    constexpr CUtensorMapDataType BYTES = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    const int x_box = m < Few::ROWS ? (m + 7) / 8 * 8 : Few::ROWS;
    if (!encode_matrix(&x_map, BYTES, 1, x, m, k_blocks * BLOCK, x_box) ||
        !encode_matrix(&w_map, BYTES, 1, weight, n, k_blocks * BLOCK, Few::COLUMNS))
        return cudaErrorInvalidValue;
    const FewProblem<Out> problem = {static_cast<const float*>(x_scale), static_cast<const float*>(w_scale),
                                     static_cast<Out*>(output), m, n, k_blocks, x_box, splits};
    static OnceADevice prepared;
    const cudaError_t error = prepared.allow_shared_memory<derby_block_scaled_mm_few<Out>, sizeof(Few)>();
    if (error != cudaSuccess) return error;
    const int tiles = (m + Few::ROWS - 1) / Few::ROWS * (n / Few::COLUMNS);
    return launch(derby_block_scaled_mm_few<Out>, {tiles * splits, Few::THREADS, int(sizeof(Few)), splits}, stream,
                  x_map, w_map, problem);
}

}  // namespace

}  // namespace derby
