// Launches the kernel of decode_attention.cuh: a CTA on every multiprocessor.
#pragma once
#include "decode_attention.cuh"
#include "once_a_device.cuh"

namespace derby_decode {
namespace {

// PLACES: pages ahead of each warp, or team of warps. EXACT: head_dim is D.
template <int D, int NT, int WARPS, int PLACES, bool EXACT = true>
int launch(Given<EXACT> given, int processors, cudaStream_t stream) {
    using Kernel = Decode<D, NT, WARPS, PLACES, EXACT>;
    const auto kernel = derby_decode_attention<D, NT, WARPS, PLACES, EXACT>;
    static_assert(sizeof(typename Kernel::Shared) <= 227 * 1024, "shared memory of a CTA");
    static OnceADevice ready;
    const cudaError_t error = ready([&] {
        return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    sizeof(typename Kernel::Shared));
    });
    if (error != cudaSuccess) return error;
    if (given.kv_heads % given.together != 0 || Kernel::TEAMS % given.together != 0) return cudaErrorInvalidValue;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(processors);
    config.blockDim = dim3(Kernel::THREADS);
    config.dynamicSmemBytes = sizeof(typename Kernel::Shared);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, given);
}

}  // namespace
}  // namespace derby_decode
