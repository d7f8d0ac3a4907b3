// The second kernel of latent attention: puts the pieces of a sequence together that several workers have had.
//
// A CTA for each cut between two workers. Those of one sequence share its rows among each other, so that each reads as much
// whatever the lengths are. Pieces are added in their order: results never change.
#pragma once
#include "latent_tiles.cuh"

namespace derby {

constexpr int COMBINE_THREADS = 512;

struct CombineShared {
    int first, cuts;  // of the sequence
};

__global__ void __launch_bounds__(COMBINE_THREADS)
derby_latent_combine(const __grid_constant__ LatentCall call) {
    using latent::LATENT, latent::HEADS;
    CombineShared& shared = latent::shared_memory<CombineShared>();
    const int worker = blockIdx.x / call.head_blocks + 1, head_block = blockIdx.x % call.head_blocks;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) shared = {call.plan.workers, 0};
    wait_for_previous_kernel();
    const int sequence = __ldcg(call.cuts + worker);
    if (sequence < 0) return;
    __syncthreads();
    for (int i = threadIdx.x; i < call.plan.workers; i += COMBINE_THREADS)
        if (__ldcg(call.cuts + i) == sequence) atomicMin(&shared.first, i), atomicAdd(&shared.cuts, 1);
    __syncthreads();
    const int first = shared.first, cuts = shared.cuts;
    const int rows = min(HEADS, call.heads - head_block * HEADS), pieces = cuts + 1;
    // The first piece is the last one of the worker before the first cut, the others are their workers' first ones.
    const auto slot = [&](int piece) {
        return (head_block * call.plan.workers + first - 1 + piece) * 2 + (piece == 0);
    };
    for (int row = worker - first + cuts * warp; row < rows; row += cuts * (COMBINE_THREADS / 32)) {
        float most = -INFINITY, total = 0;
        for (int i = lane; i < pieces; i += 32)
            most = fmaxf(most, __ldcg(call.statistics + int64_t(slot(i)) * call.rows + row).x);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
        float4 all[4] = {};
#pragma unroll 2
        for (int i = 0; i < pieces; ++i) {
            const int64_t place = int64_t(slot(i)) * call.rows + row;
            const float2 statistic = __ldcg(call.statistics + place);
            const float factor = exp2_approx(statistic.x - most);
            total += factor * statistic.y;
            const auto part = reinterpret_cast<const float4*>(call.parts + place * LATENT) + lane;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float4 value = __ldcg(part + 32 * j);
                all[j].x += factor * value.x, all[j].y += factor * value.y;
                all[j].z += factor * value.z, all[j].w += factor * value.w;
            }
        }
        const float by = total > 0 ? __fdividef(1, total) : 0;
        auto to = reinterpret_cast<uint2*>(
            call.output + (int64_t(sequence) * call.heads + head_block * HEADS + row) * LATENT) + lane;
#pragma unroll
        for (int j = 0; j < 4; ++j)
            to[32 * j] = make_uint2(pack_bf16(all[j].x * by, all[j].y * by), pack_bf16(all[j].z * by, all[j].w * by));
    }
}

}  // namespace derby
