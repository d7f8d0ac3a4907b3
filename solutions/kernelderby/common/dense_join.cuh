// How the CTAs of a cluster that share a tile's k blocks add up their sums: in shared memory, always in the same order.
// No memory of the device lies between them, so a captured graph holds nothing that a later call could free.
#pragma once
#include "dense_parts.cuh"

namespace derby {

#ifdef __CUDACC__
__device__ __forceinline__ void store_cluster(uint32_t to, float4 value) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w) : "memory");
}
#endif

// Every CTA finishes about 1 / splits of each thread's sums; the other CTAs write their sums for that part into its
// stages, which no load uses any more. All threads of the cluster pass two cluster barriers: consumers here, those of
// the producer in its own branch.
template <class E, class F>
__device__ __forceinline__ void join_cluster(Shared<F>& shared, const Problem& problem, const float* d, int row,
                                             int column) {
    constexpr int QUADS = F::COUNT / 4;
    static_assert((QUADS + MOST_CTAS - 1) * F::CONSUMERS * 16 <= int(sizeof(shared.stages)), "sums lie in the stages");
    const int splits = problem.extent.splits, each = (QUADS + splits - 1) / splits;
    const int rank = share_of<F>(blockIdx.x, problem.extent);
    const uint32_t place = shared_address(shared.stages[0]) + threadIdx.x * 16;
    cluster_sync();
#pragma unroll
    for (int i = 0, owner = 0, of_owner = 0; i < QUADS; ++i) {
        store_cluster(cluster_address(place, owner * F::CLUSTER + blockIdx.x % F::CLUSTER) +
                          (rank * each + of_owner) * (F::CONSUMERS * 16),
                      make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]));
        if (++of_owner == each) of_owner = 0, ++owner;
    }
    cluster_sync();
    const float4* mine = reinterpret_cast<const float4*>(shared.stages[0]) + threadIdx.x;
    for (int i = 0; i < min(each, QUADS - rank * each); ++i) {
        float4 sum = mine[i * F::CONSUMERS];
        for (int from = 1; from < splits; ++from) {
            const float4 other = mine[(from * each + i) * F::CONSUMERS];
            sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
        }
        const int quad = rank * each + i;
        const float four[4] = {sum.x, sum.y, sum.z, sum.w};
        const int r = row + quad / (F::HALF / 4) * 64, c = column + quad % (F::HALF / 4) * 8;
        if constexpr (F::TURNED) store_turned<E>(problem, four, r, c);
        else store_direct<E, 4>(problem, four, r, c);
    }
}

}  // namespace derby
