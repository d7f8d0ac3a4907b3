// The host side: tensor maps, forms, the launch.
#include "gemm.cuh"

using namespace derby;

namespace {

struct Call {
    const void *x, *weight, *bias, *multiplier;
    void* output;
    int m, n, k, group, ctas;
    float4* pieces;
    int* arrived;
    cudaStream_t stream;
};

template <class F, bool STREAMS = false>
cudaError_t start(const Call& call) {
    static_assert(sizeof(Shared<F>) <= 227 * 1024, "what a CTA can have");
    CUtensorMap x_map, w_map, out_map;
    constexpr CUtensorMapDataType BF16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    // Where rows of the output are no multiple of 16 bytes its map is not used.
    const void* out = call.n % 8 ? call.x : call.output;
    const int out_rows = call.n % 8 ? 1 : call.m, out_columns = call.n % 8 ? 8 : call.n;
    if (!encode_matrix(&x_map, BF16, 2, call.x, call.m, call.k, F::X_BOX) ||
        !encode_matrix(&w_map, BF16, 2, call.weight, call.n, call.k, F::W_BOX) ||
        !encode_matrix(&out_map, BF16, 2, out, out_rows, out_columns, 8))
        return cudaErrorInvalidValue;
    Problem problem = {static_cast<const __nv_bfloat16*>(call.bias),
                       static_cast<const __nv_bfloat16*>(call.multiplier), static_cast<__nv_bfloat16*>(call.output)};
    int grid = fill_extent<F>(&problem.extent, call.m, call.n, (call.k + BLOCK - 1) / BLOCK, call.group, call.ctas);
    if (STREAMS) {
        if (!call.pieces) return cudaErrorInvalidValue;
        grid = F::CLUSTER * spread_last_turn<F>(&problem, grid / F::CLUSTER, call.ctas / F::CLUSTER);
        problem.pieces = call.pieces, problem.arrived = call.arrived;
    }
    constexpr auto kernel = derby_linear_sigmoid_mul<F, STREAMS>;
    constexpr int shared_bytes = sizeof(Shared<F>);
    static OnceADevice prepared;
    const cudaError_t error = prepared(
        [] { return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes); });
    if (error != cudaSuccess) return error;
    return launch(kernel, {grid, F::THREADS, shared_bytes, F::CLUSTER}, call.stream, x_map, w_map, out_map, problem);
}

}  // namespace

extern "C" int derby_linear_sigmoid_mul_sm90_run(const void* x, const void* weight, const void* bias,
                                                 const void* multiplier, void* output, int m, int n, int k,
                                                 int variant, int group, int ctas, void* pieces, void* arrived,
                                                 void* stream) {
    const Call call = {x,   weight, bias,  multiplier, output, m, n, k, group, ctas, static_cast<float4*>(pieces),
                       static_cast<int*>(arrived), static_cast<cudaStream_t>(stream)};
    switch (variant) {
        case 0: return start<Form<128, 256, false, 4, 2, false>>(call);
        case 1: return start<Form<64, 32, true, 16, 1, true>>(call);
        case 2: return start<Form<64, 64, true, 10, 1, true>>(call);
        case 3: return start<Form<64, 64, true, 10, 2, true>>(call);
        case 4: return start<Form<128, 64, false, 8, 1, true>>(call);
        case 5: return start<Form<128, 256, false, 4, 2, false>, true>(call);
        default: return cudaErrorInvalidValue;
    }
}
