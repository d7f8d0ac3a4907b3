// A small GEMM through pipeline.cuh, tma.cuh and launch.cuh, for test_wgmma.py: d [128, 64] = a [128, k] b [64, k]^T in
// bf16 by a cluster of two CTAs. Each has 64 rows of a for itself, and brings half of b to both.
#include "launch.cuh"
#include "pipeline.cuh"
#include "wgmma.cuh"

using namespace derby;

constexpr int STAGES = 3, BOX = 64 * 128, CONSUMERS = 128;

struct Shared {
    uint8_t a[STAGES][BOX], b[STAGES][BOX];
    Pipeline<STAGES> ring;
};

__global__ void __launch_bounds__(CONSUMERS + 32)
ring_gemm(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map, float* d, int k_blocks) {
    extern __shared__ __align__(1024) uint8_t bytes[];
    Shared& shared = *reinterpret_cast<Shared*>(bytes);
    if (threadIdx.x == 0) {
        shared.ring.init(1, 2 * CONSUMERS / 32);  // both CTAs' consumer warps read what this one loads
        fence_mbarrier_init();
    }
    cluster_sync();
    const int rank = blockIdx.x % 2;
    PipelineState<STAGES> at;
    if (threadIdx.x >= CONSUMERS) {
        if (elect_one())
            for (int k = 0; k < k_blocks; ++k, at.next()) {
                const uint32_t full = shared.ring.acquire(at, 2 * BOX);
                tma_load_hint(shared_address(shared.a[at.stage]), &a_map, full, EVICT_FIRST, k * 64, rank * 64);
                tma_load_multicast(shared_address(shared.b[at.stage]) + rank * BOX / 2, &b_map, full, 3, k * 64,
                                   rank * 32);
            }
    } else {
        float sums[32] = {};
        for (int k = 0; k < k_blocks; ++k, at.next()) {
            shared.ring.wait(at);
            const uint32_t a = descriptor_low(shared_address(shared.a[at.stage]));
            const uint32_t b = descriptor_low(shared_address(shared.b[at.stage]));
            wgmma_fence();
            for (int step = 0; step < 4; ++step)
                wgmma_bf16<64>(sums, descriptor_of(a + 2 * step), descriptor_of(b + 2 * step), 1);
            wgmma_commit_group();
            wgmma_wait_group<0>();
            shared.ring.release_cluster<2>(at);
        }
        pin<32>(sums);
        for (int i = 0; i < 32; ++i) d[(rank * 32 + i) * 128 + threadIdx.x] = sums[i];
    }
    cluster_sync();  // no CTA ends while the other arrives at its barriers
}

extern "C" int ring_run(const void* a, const void* b, float* d, int k) {
    CUtensorMap a_map, b_map;
    const auto bf16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    if (!encode_matrix(&a_map, bf16, 2, a, 128, k, 64) || !encode_matrix(&b_map, bf16, 2, b, 64, k, 32)) return -1;
    cudaFuncSetAttribute(ring_gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
    const LaunchShape shape = {2, CONSUMERS + 32, int(sizeof(Shared)), 2};
    const cudaError_t error = launch(ring_gemm, shape, nullptr, a_map, b_map, d, (k + 63) / 64);
    return error == cudaSuccess ? cudaDeviceSynchronize() : error;
}
