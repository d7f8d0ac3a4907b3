// Launches latent attention: tensor maps, a CTA for every worker and block of heads, and the second kernel behind the first,
// but for contexts that are not cut.
#pragma once
#include "latent_combine.cuh"
#include "launch.cuh"
#include "once_a_device.cuh"

namespace derby {

// Boxes of 64 columns of box_rows rows of a bf16 [outer, rows, 576].
inline bool encode_latent(CUtensorMap* map, const void* data, uint64_t outer, uint64_t rows, uint32_t box_rows) {
    return encode_tensor_map<3>(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, {latent::KEY, rows, outer},
                                {2 * latent::KEY, 2 * latent::KEY * rows}, {64, box_rows, 1});
}

template <class F>
static cudaError_t start_latent(const LatentMaps& maps, const LatentCall& call, cudaStream_t stream) {
    static OnceADevice ready;
    const cudaError_t error = ready.allow_shared_memory<derby_latent_attention<F>, sizeof(typename F::Shared)>();
    if (error != cudaSuccess) return error;
    const LaunchShape shape{call.plan.workers * call.head_blocks, latent::THREADS, int(sizeof(typename F::Shared)), F::CTAS};
    return launch(derby_latent_attention<F>, shape, stream, maps, call);
}

// F: latent::Form. blocks: sequences of a cache without pages, or pages, each of `slots` tokens.
template <class F>
static cudaError_t launch_latent_attention(const LatentCall& call, const void* cache, int blocks, int slots,
                                           cudaStream_t stream) {
    if (call.plan.workers > COMBINE_THREADS) return cudaErrorInvalidValue;
    LatentMaps maps;
    const int box = call.block_table ? latent::page_rows<F::TILE>(slots) : F::TILE;
    if (!encode_latent(&maps.query, call.query, call.plan.batch, call.heads, latent::HEADS) ||
        !encode_latent(&maps.cache, cache, blocks, slots, box))
        return cudaErrorNotSupported;
    const cudaError_t error = start_latent<F>(maps, call, stream);
    if (error != cudaSuccess || UNCUT || call.plan.workers == 1) return error;
    const int cuts = (call.plan.workers - 1) * call.head_blocks;
    return launch(derby_latent_combine, {cuts * COMBINE_SHARES, COMBINE_THREADS, sizeof(CombineShared), 1, true}, stream,
                  call);
}

}  // namespace derby
