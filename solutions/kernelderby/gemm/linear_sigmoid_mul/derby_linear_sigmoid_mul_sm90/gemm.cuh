// output [m, n] = sigmoid(x @ weight^T + bias) * multiplier, all bf16, sums in float32.
//
// Two consumer warpgroups multiply, one warp loads by TMA. Where there are many rows a tile's sums are packed into half
// the registers (fp16: 11 bits, where a gate that cuBLAS hands on has 8) and finished while the next tile's products
// are made: bias, sigmoid and product, then out through shared memory by TMA, an eighth after every sixth block, the
// second warpgroup's three blocks behind the first's.
// Constraints: sm_90a; bf16, contiguous, addresses a multiple of 16; k a multiple of 8 (main.py pads x and weight with
// zeros); any m and n from 1 on; the streamed form wants the host's counters at zero (each call leaves them so) and
// room for its pieces.
#pragma once
#include "stretches.cuh"

namespace derby {

template <class F, bool STREAMS>
__device__ void consume_wide(Shared<F>& shared, const CUtensorMap* out_map, const Problem& problem) {
    const int group = threadIdx.x / WARPGROUP, warp = threadIdx.x / WARP % 4;
    const bool by_tma = problem.extent.n % 8 == 0;
    uint32_t step = 0, parity = 0;
    const int second = __shfl_sync(~0u, group, 0);  // the same in all lanes
    Later<F> later;
    using Work = std::conditional_t<STREAMS, Stretches<F>, WholeTiles<F>>;
    for (Work work(problem, blockIdx.x, gridDim.x); work.next(problem); parity ^= 1) {
        const int2 tile = work.tile(problem.extent);
        const int row = tile.x + group * 64 + warp * 16, k_blocks = work.to - work.from;
        named_barrier_sync(1, F::CONSUMERS);  // nobody still reads the bias of the tile before the last
        read_bias<F>(problem, tile.y, shared.bias[parity]);
        float d[F::COLUMNS / 2];
        pin<F::COLUMNS / 2>(d);
        // The second warpgroup's parts come half way between the first's: while one finishes, the other multiplies.
        const int spread = max(min(k_blocks / (Later<F>::PARTS + 1), SPREAD), 1), behind = second * (spread / 2);
        int before = -1, done = 0;  // k blocks
#pragma unroll
        for (int part = 0; part < Later<F>::PARTS; ++part) {
            const int to = min((part + 1) * spread + behind, k_blocks);
            before = multiply<F>(shared, step, done, to, before, d);
            done = to;
            if (later.any) later.finish(shared, out_map, problem, part);
        }
        before = multiply<F>(shared, step, done, k_blocks, before, d);
        last_product<F>(shared, before, d);
        step += k_blocks;
        if constexpr (STREAMS) {
            if (work.from > 0) {  // a stretch that does not begin the tile comes first: nothing is left to finish
                deliver_piece<F>(problem, d);
                continue;
            }
            if (work.to < problem.extent.k_blocks) collect_pieces<F>(problem, work, d);
        }
        if (by_tma) {
            later.take(d, shared.bias[parity], row, tile.y);
            later.read_multiplier(problem, 0);
            continue;
        }
#pragma unroll
        for (int j = 0; j < F::COLUMNS / 8; ++j) {
            Direct<4> direct;
            direct.read(problem, row, tile.y + 8 * j);
            direct.finish(problem, d + 4 * j, row, tile.y + 8 * j);
        }
    }
    if (later.any) {
        named_barrier_sync(1, F::CONSUMERS);
        if constexpr (STREAMS) {
            later.finish_all(shared, out_map, problem);
        } else {
#pragma unroll
            for (int part = 0; part < Later<F>::PARTS; ++part) later.finish(shared, out_map, problem, part);
        }
    }
    if (threadIdx.x % WARP == 0) bulk_wait_group_read<0>();
}

template <class F>
__device__ void consume_narrow(Shared<F>& shared, const Problem& problem) {
    constexpr int COUNT = F::COLUMNS / 2, MINE = F::SPLIT ? COUNT / 2 : COUNT;  // sums that this thread finishes
    const int group = threadIdx.x / WARPGROUP, thread = threadIdx.x % WARPGROUP, k_blocks = problem.extent.k_blocks;
    uint32_t step = 0;
    for (Walk<F> walk(blockIdx.x, gridDim.x); walk.more(problem.extent); walk.next(), step += k_blocks) {
        const int2 tile = walk.tile(problem.extent);
        const int row = tile.x + (F::SPLIT ? 0 : group * 64) + thread / WARP * 16;
        const int column = tile.y + (F::SPLIT ? group * F::COLUMNS / 2 : 0);
        Direct<MINE> direct;
        direct.read(problem, row, column);
        float d[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) d[i] = 0.0f;
        last_product<F>(shared, multiply<F>(shared, step, F::SPLIT ? group : 0, k_blocks, -1, d), d);
        if (F::SPLIT) {  // each warpgroup finishes half of the columns
            float* mine = shared.joined + group * MINE * WARPGROUP + thread;
            const float* other = shared.joined + (group ^ 1) * MINE * WARPGROUP + thread;
            named_barrier_sync(1, F::CONSUMERS);  // the last tile's were read
#pragma unroll
            for (int i = 0; i < MINE; ++i) mine[i * WARPGROUP] = group ? d[i] : d[COUNT - MINE + i];
            named_barrier_sync(2, F::CONSUMERS);
#pragma unroll
            for (int i = 0; i < MINE; ++i) d[i] = (group ? d[COUNT - MINE + i] : d[i]) + other[i * WARPGROUP];
        }
        direct.finish(problem, d, row, column);
    }
}

// STREAMS: with stretches, see there.
template <class F, bool STREAMS>
__global__ void __launch_bounds__(F::THREADS, 1)
    derby_linear_sigmoid_mul(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                             const __grid_constant__ CUtensorMap out_map, const Problem problem) {
    extern __shared__ __align__(1024) uint8_t raw[];
    Shared<F>& shared = *reinterpret_cast<Shared<F>*>(raw);
    const int warp = threadIdx.x / WARP;
    if (threadIdx.x == 0) prefetch_tensor_map(&x_map), prefetch_tensor_map(&w_map);
    set_up<F>(shared.barriers, 1);
    if (warp >= F::CONSUMERS / WARP) {
        setmaxnreg_dec<40>();
        if (warp == F::CONSUMERS / WARP && threadIdx.x % WARP == 0) {
            if constexpr (STREAMS) load_stretches<F>(shared.ring, shared.barriers, &x_map, &w_map, problem);
            else load_operands<F, BLOCK>(shared.ring, shared.barriers, &x_map, &w_map, problem.extent);
        }
        __syncwarp();
    } else {
        setmaxnreg_inc<232>();
        if constexpr (F::COLUMNS > 64) consume_wide<F, STREAMS>(shared, &out_map, problem);
        else consume_narrow<F>(shared, problem);
    }
    if (F::CLUSTER > 1) cluster_sync();  // no CTA leaves while another one may still signal it
}

}  // namespace derby
