// The kernels by name, and one host function that launches all of them.
// Constraints: sm_90a; 32 local experts of 256, hidden 7168, intermediate 2048; e4m3 with float32 scales of 128
// values, contiguous, addresses a multiple of 16. The host gives counters that are zero (each call leaves them so), and
// names a variant that takes this number of tokens.
#include "gemm.cuh"
#include "launch.cuh"
#include "once_a_device.cuh"

using namespace derby;

template <int ROWS, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
derby_gemm1(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap act_map,
            const __grid_constant__ Buckets<true>::Arguments arguments) {
    grouped_gemm<LocalExperts<true, ROWS, STAGES, CLUSTER>, true, false>(map, act_map, arguments);
}

template <int ROWS, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
derby_gemm2(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap act_map,
            const __grid_constant__ Buckets<false>::Arguments arguments) {
    grouped_gemm<LocalExperts<false, ROWS, STAGES, CLUSTER>, false, false>(map, act_map, arguments);
}

namespace {

struct Variant {
    void (*first)(CUtensorMap, CUtensorMap, Buckets<true>::Arguments);
    void (*second)(CUtensorMap, CUtensorMap, Buckets<false>::Arguments);
    int shared_bytes;
};

template <int ROWS, int STAGES, int CLUSTER>
Variant variant_of() {
    constexpr int BYTES = sizeof(Shared<LocalExperts<true, ROWS, STAGES, CLUSTER>>);
    static_assert(BYTES == sizeof(Shared<LocalExperts<false, ROWS, STAGES, CLUSTER>>), "the same for both");
    return {derby_gemm1<ROWS, STAGES, CLUSTER>, derby_gemm2<ROWS, STAGES, CLUSTER>, BYTES};
}

const Variant VARIANTS[] = {  // main.py chooses by their numbers
    // pairs a tile, stages, CTAs a cluster
    variant_of<16, 6, 1>(),
    variant_of<64, 5, 1>(),
    variant_of<64, 5, 2>(),
    variant_of<128, 4, 2>(),
};

cudaError_t allow_shared_memory() {
    constexpr cudaFuncAttribute MOST = cudaFuncAttributeMaxDynamicSharedMemorySize;
    for (const Variant& variant : VARIANTS) {
        cudaError_t error = cudaFuncSetAttribute(variant.first, MOST, variant.shared_bytes);
        if (error == cudaSuccess) error = cudaFuncSetAttribute(variant.second, MOST, variant.shared_bytes);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

}  // namespace

// What a call hands over: main.py's Call has these fields in this order.
struct Call {
    CallArguments arguments;  // of the first GEMM
    const uint8_t* gemm1_weights;
    const uint8_t* gemm2_weights;
    const float* gemm2_weights_scale;
    int variant;  // of VARIANTS
    int ctas;     // CTAs of a GEMM, an even number
};

// Launches everything on the stream. Returns 0, or a CUDA error number, or -1 where a tensor map could not be encoded.
extern "C" int derby_moe_sm90_run(const Call* call, cudaStream_t stream) {
    static OnceADevice ready;
    constexpr CUtensorMapDataType BYTES = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    constexpr int ACT_BOX = LocalExperts<false, 128, 4, 2>::ACT_BOX;  // only its GEMM reads act by TMA
    const Buckets<true>::Arguments first = {call->arguments};
    Buckets<false>::Arguments second = {call->arguments};
    second.x = first.act;
    second.x_scale = first.act_scale;
    second.w_scale = call->gemm2_weights_scale;
    const uint64_t experts = LOCAL_EXPERTS, pairs = uint64_t(first.tokens) * TOP_K;
    if (call->variant < 0 || call->variant >= int(sizeof(VARIANTS) / sizeof(VARIANTS[0]))) return cudaErrorInvalidValue;
    const Variant& variant = VARIANTS[call->variant];
    const bool routes = call->variant == 0;  // the first GEMM does
    if (routes && first.tokens > MOST_ROUTED) return cudaErrorInvalidValue;
    CUtensorMap map1, map2, act_map;
    if (!encode_matrix(&map1, BYTES, 1, call->gemm1_weights, experts * 2 * INTERMEDIATE, HIDDEN, BLOCK) ||
        !encode_matrix(&map2, BYTES, 1, call->gemm2_weights, experts * HIDDEN, INTERMEDIATE, BLOCK) ||
        !encode_matrix(&act_map, BYTES, 1, first.act, pairs, INTERMEDIATE, ACT_BOX))
        return -1;
    cudaError_t error = ready(allow_shared_memory);
    if (error == cudaSuccess && !routes)
        error = launch(derby_route, {(first.tokens + ROUTE_WARPS - 1) / ROUTE_WARPS, ROUTE_WARPS * WARP, 0}, stream,
                       first.logits, first.bias, first.bucket, first.count, first.tokens, first.first_local,
                       first.scaling_factor);
    LaunchShape shape = {call->ctas, THREADS, variant.shared_bytes};  // the kernels name their cluster size themselves
    shape.early = !routes;
    if (error == cudaSuccess) error = launch(variant.first, shape, stream, map1, act_map, first);
    shape.early = true;
    if (error == cudaSuccess) error = launch(variant.second, shape, stream, map2, act_map, second);
    return error;
}
