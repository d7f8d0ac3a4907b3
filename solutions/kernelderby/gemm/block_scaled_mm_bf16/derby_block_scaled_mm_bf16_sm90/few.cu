// The block-scaled GEMM of few rows; everything else is in its shared headers.
#include "block_scaled_few.cuh"

extern "C" int derby_block_scaled_few_run(const void* x, const void* x_scale, const void* weight, const void* w_scale,
                                          void* output, int m, int n, int k_blocks, int splits, void* stream) {
    return derby::start_few<__nv_bfloat16>(x, x_scale, weight, w_scale, output, m, n, k_blocks, splits,
                                   static_cast<cudaStream_t>(stream));
}
