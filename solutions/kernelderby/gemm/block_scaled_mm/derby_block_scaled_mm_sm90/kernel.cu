// The host side: tensor maps, forms, the launch.
#include "gemm.cuh"

using namespace derby;

namespace {

struct Call {
    const void *x, *x_scale, *weight, *w_scale;
    void* output;
    int m, n, k_blocks, group, ctas;
    cudaStream_t stream;
};

template <class F>
cudaError_t start(const Call& call) {
    static_assert(sizeof(Shared<F>) <= 227 * 1024, "what a CTA can have");
    CUtensorMap x_map, w_map, out_map;
    constexpr CUtensorMapDataType BYTES = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    if (!encode_matrix(&x_map, BYTES, 1, call.x, call.m, call.k_blocks * BLOCK, F::X_BOX) ||
        !encode_matrix(&w_map, BYTES, 1, call.weight, call.n, call.k_blocks * BLOCK, F::W_BOX) ||
        !encode_matrix(&out_map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, call.output, call.m, call.n, BOX_ROWS))
        return cudaErrorInvalidValue;
    Problem problem = {static_cast<const float*>(call.x_scale), static_cast<const float*>(call.w_scale),
                       static_cast<float*>(call.output)};
    const int grid = fill_extent<F>(&problem.extent, call.m, call.n, call.k_blocks, call.group, call.ctas);
    constexpr auto kernel = derby_block_scaled_mm<F>;
    constexpr int shared_bytes = sizeof(Shared<F>);
    static OnceADevice prepared;
    const cudaError_t error = prepared(
        [] { return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes); });
    if (error != cudaSuccess) return error;
    return launch(kernel, {grid, F::THREADS, shared_bytes, F::CLUSTER}, call.stream, x_map, w_map, out_map, problem);
}

}  // namespace

extern "C" int derby_block_scaled_mm_sm90_run(const void* x, const void* x_scale, const void* weight,
                                              const void* w_scale, void* output, int m, int n, int k_blocks,
                                              int variant, int group, int ctas, void* stream) {
    const Call call = {x, x_scale, weight, w_scale, output, m, n, k_blocks, group, ctas,
                       static_cast<cudaStream_t>(stream)};
    switch (k_blocks < 3 ? 3 : variant) {  // a stage may be kept for the output: there must be others
        case 0: return start<Plan<Form<256, 128, false, 4, 2, true>, 1, 1>>(call);
        case 1: return start<Plan<Form<192, 128, false, 4, 2, true, 3>, 2>>(call);
        case 2: return start<Plan<Form<128, 128, false, 6, 1, true>, 1>>(call);
        case 3: return start<Plan<Form<64, 128, true, 6, 1, true>, 2>>(call);
        case 4: return start<Plan<Form<64, 128, true, 6, 2, false>, 2>>(call);
        default: return cudaErrorInvalidValue;
    }
}
