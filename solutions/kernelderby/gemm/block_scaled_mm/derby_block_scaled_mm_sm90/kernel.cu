// The block-scaled GEMM in float32; everything else is in its shared headers.
#include "block_scaled_launch.cuh"

extern "C" int derby_block_scaled_mm_sm90_run(const void* x, const void* x_scale, const void* weight,
                                              const void* w_scale, void* output, int m, int n, int k_blocks,
                                              int variant, int group, int ctas, void* stream) {
    const Call call = {x, x_scale, weight, w_scale, output, m, n, k_blocks, group, ctas,
                       static_cast<cudaStream_t>(stream)};
    return start_variant<AsItIs>(call, variant);
}
