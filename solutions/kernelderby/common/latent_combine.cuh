// The second kernel of latent attention: puts together the pieces of a sequence that several workers have computed.
//
// COMBINE_SHARES CTAs for each cut between two workers. The CTAs of one sequence share its results in units of 16 rows
// and 32 columns, so that each reads the same amount whatever the lengths are. If a unit has many pieces, each warp
// takes a few of them, so that it waits for memory only once. The number of pieces alone decides the order in which
// they are added, so results never change.
// Constraints: behind latent_tiles.cuh's kernel on the same stream, with its plan and its pieces; sm_90a; at most 48
// KB of shared memory.
#pragma once
#include "latent_tiles.cuh"
#include "partial_sums.cuh"

namespace derby {

constexpr int COMBINE_THREADS = 256, COMBINE_WARPS = COMBINE_THREADS / 32, RESIDENT = 2;  // CTAs of a multiprocessor
constexpr int COMBINE_SHARES = 4;
constexpr int WARP_PIECES = 4;  // of a unit, where there are enough warps

struct CombineShared {
    PartialSums sums[COMBINE_WARPS][32];
    int sequence;
};
static_assert(sizeof(CombineShared) <= 48 * 1024, "more would need an attribute of the kernel");

__global__ void __launch_bounds__(COMBINE_THREADS, RESIDENT)
derby_latent_combine(const __grid_constant__ LatentCall call) {
    using latent::LATENT, latent::HEADS;
    CombineShared& shared = dynamic_shared<CombineShared>();
    const int share = blockIdx.x % COMBINE_SHARES, head_block = blockIdx.x / COMBINE_SHARES % call.head_blocks;
    const int worker = blockIdx.x / COMBINE_SHARES / call.head_blocks + 1, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    wait_for_previous_kernel();
    const int cut = threadIdx.x < call.plan.workers ? __ldcg(call.cuts + threadIdx.x) : -1;
    if (threadIdx.x == worker) shared.sequence = cut;
    __syncthreads();
    const int sequence = shared.sequence;
    if (sequence < 0) return;
    // A sequence's cuts follow each other.
    const int cuts = __syncthreads_count(cut == sequence);
    const int before = __syncthreads_count(cut == sequence && threadIdx.x < worker);
    const int pieces = cuts + 1, units = 16 * call.row_groups;
    int group = 1;  // warps of a unit
    while (group < COMBINE_WARPS && group * WARP_PIECES < pieces) group *= 2;
    const int member = warp % group, at_once = COMBINE_WARPS / group;
    // The first piece is the last one of the worker before the first cut; each other piece is the first one of its
    // worker.
    const int first_slot = (head_block * call.plan.workers + worker - before - 1) * 2;
    for (int base = (before * COMBINE_SHARES + share) * at_once; base < units; base += cuts * COMBINE_SHARES * at_once) {
        const int unit = base + warp / group, rows = unit / 16, columns = unit % 16;
        PartialSums sums;
        if (unit < units) {
#pragma unroll 4
            for (int i = member * pieces / group; i < (member + 1) * pieces / group; ++i) {
                const int place = (first_slot + 2 * i + (i == 0)) * call.row_groups + rows;
                const float2* statistic = call.statistics + place * 16 + lane / 4;
                const float4* part = call.parts + (int64_t(place) * 64 + columns * 4) * 32 + lane;
                const float2 statistics[2] = {__ldcg(statistic), __ldcg(statistic + 8)};
                const float4 values[4] = {__ldcg(part), __ldcg(part + 32), __ldcg(part + 64), __ldcg(part + 96)};
                sums.add(statistics, values);
            }
        }
        if (group > 1) {
            shared.sums[warp][lane] = sums;
            __syncthreads();
            for (int i = 1; member == 0 && i < group; ++i) {
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
        if (unit >= units || member > 0) continue;
        const int head = head_block * HEADS + 16 * rows + lane / 4;
        latent::write_columns(call.output + (int64_t(sequence) * call.heads + head) * LATENT + 32 * columns, call.heads - head,
                              sums.all, latent::inverse(sums.total[0]), latent::inverse(sums.total[1]));
    }
}

}  // namespace derby
