// The stretch of every worker by common/latent_plan.cuh, for test_latent_attention.py on the CPU.
#include "LATENT_PLAN"
#include "CLUSTER"

constexpr int THREADS = 64;
struct Scratch {
    int words[THREADS / 32 + 4];
};

__global__ void __launch_bounds__(THREADS) find_ranges(derby::LatentPlan plan, derby::LatentRange* ranges) {
    const derby::LatentRange& range = derby::find_range<THREADS, 64>(plan, blockIdx.x, shared_memory<Scratch>().words);
    if (threadIdx.x == 0) ranges[blockIdx.x] = range;
}

extern "C" int latent_plan_run(const int* lengths, int batch, int longest, int workers, int overhead, int least, int snap,
                               derby::LatentRange* ranges) {
    const derby::LatentPlan plan{lengths, batch, longest, workers, overhead, least, snap};
    return launch<Scratch>(find_ranges, dim3(workers), THREADS, 1, nullptr, plan, ranges);
}
