// The host side of the block-scaled GEMM: tensor maps, forms, the launch.
#pragma once
#include "block_scaled_gemm.cuh"

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
    constexpr int OUT_BYTES = sizeof(typename F::Out);
    constexpr CUtensorMapDataType OUT =
        OUT_BYTES == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    if (!encode_matrix(&x_map, BYTES, 1, call.x, call.m, call.k_blocks * BLOCK, F::X_BOX) ||
        !encode_matrix(&w_map, BYTES, 1, call.weight, call.n, call.k_blocks * BLOCK, F::W_BOX) ||
        !encode_matrix(&out_map, OUT, OUT_BYTES, call.output, call.m, call.n, BOX_ROWS))
        return cudaErrorInvalidValue;
    Problem problem = {static_cast<const float*>(call.x_scale), static_cast<const float*>(call.w_scale), call.output};
    const int grid = fill_extent<F>(&problem.extent, call.m, call.n, call.k_blocks, call.group, call.ctas);
    constexpr auto kernel = derby_block_scaled_mm<F>;
    constexpr int shared_bytes = sizeof(Shared<F>);
    static OnceADevice prepared;
    const cudaError_t error = prepared.allow_shared_memory<kernel, shared_bytes>();
    if (error != cudaSuccess) return error;
    return launch(kernel, {grid, F::THREADS, shared_bytes, F::CLUSTER}, call.stream, x_map, w_map, out_map, problem);
}

// Plans by the numbers that block_scaled_choice.py calls them, widest first: a wide tile reads each operand fewer times,
// small ones fill the GPU where a shape has few. Plans 0 and 1 share x in clusters of two and leave registers for 128
// or 64 rows of sums a warpgroup. Plans 3 and 4 spread a tile's k blocks over both warpgroups, for shapes of few tiles;
// 4 also shares the weight. As: the plan itself, or ToBf16 of it.
template <template <class> class As>
cudaError_t start_variant(const Call& call, int variant) {
    switch (call.k_blocks < 3 ? 3 : variant) {  // a stage may be kept for the output: there must be others
        case 0: return start<As<Plan<Form<256, 128, false, 4, 2, true>, 1, 1>>>(call);
        case 1: return start<As<Plan<Form<192, 128, false, 4, 2, true, 3>, 2>>>(call);
        case 2: return start<As<Plan<Form<128, 128, false, 6, 1, true>, 1>>>(call);
        case 3: return start<As<Plan<Form<64, 128, true, 6, 1, true>, 2>>>(call);
        case 4: return start<As<Plan<Form<64, 128, true, 6, 2, false>, 2>>>(call);
        default: return cudaErrorInvalidValue;
    }
}

template <class Plan_>
using AsItIs = Plan_;

}  // namespace
