// The kernels by name, and one host function that launches all of them.
// Constraints: sm_90a; 32 local experts of 256, hidden 7168, intermediate 2048; e4m3 with float32 scales of 128
// values, contiguous, addresses a multiple of 16. The host gives counters that are zero (each call leaves them so), and
// names a variant that takes this number of tokens.
#include "gemm.cuh"
#include "launch.cuh"

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

cudaError_t allow_shared_memory(int device) {
    static bool done[64] = {};
    if (device < 64 && done[device]) return cudaSuccess;
    constexpr cudaFuncAttribute MOST = cudaFuncAttributeMaxDynamicSharedMemorySize;
    for (const Variant& variant : VARIANTS) {
        cudaError_t error = cudaFuncSetAttribute(variant.first, MOST, variant.shared_bytes);
        if (error == cudaSuccess) error = cudaFuncSetAttribute(variant.second, MOST, variant.shared_bytes);
        if (error != cudaSuccess) return error;
    }
    if (device < 64) done[device] = true;
    return cudaSuccess;
}

}  // namespace

// What a call hands over: main.py's _Call has these fields in this order. Shapes as in the definition; of the workspace
// as in CallArguments.
struct derby_moe_call {
    const float* routing_logits;
    const __nv_bfloat16* routing_bias;
    const uint8_t* hidden_states;
    const float* hidden_states_scale;
    const uint8_t* gemm1_weights;
    const float* gemm1_weights_scale;
    const uint8_t* gemm2_weights;
    const float* gemm2_weights_scale;
    __nv_bfloat16* output;
    int2* bucket;
    uint8_t* act;
    float* act_scale;
    float4* partial;
    int* counters;  // derby_moe_counters() of them
    int seq_len;
    int local_expert_offset;
    float routed_scaling_factor;
    int variant;    // of VARIANTS
    int ctas;       // CTAs of a GEMM, an even number
    int device;
    void* stream;
};

static_assert(sizeof(derby_moe_call) == 14 * sizeof(void*) + 6 * sizeof(int) + sizeof(void*), "no padding");

// Its size in bytes, by which main.py sees whether both still have the same fields.
extern "C" int derby_moe_call_bytes() { return sizeof(derby_moe_call); }

// Bytes of the buffer of pieces for so many CTAs, enough for every variant.
extern "C" long long derby_moe_piece_bytes(int ctas) { return 16LL * ctas * PIECE_SIZE<128>; }

// Counters for so many CTAs: pairs of each expert, the ticket, and one a CTA for the pieces of its split tile.
extern "C" int derby_moe_counters(int ctas) { return LOCAL_EXPERTS + 1 + ctas; }

// Launches everything on the stream. Returns 0, or a CUDA error number, or -1 where a tensor map could not be encoded.
extern "C" int derby_moe_run(const derby_moe_call* call) {
    constexpr CUtensorMapDataType BYTES = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    constexpr int ACT_BOX = LocalExperts<false, 128, 4, 2>::ACT_BOX;  // only its GEMM reads act by TMA
    const uint64_t experts = LOCAL_EXPERTS, pairs = uint64_t(call->seq_len) * TOP_K;
    CUtensorMap map1, map2, act_map;
    if (call->variant < 0 || call->variant >= int(sizeof(VARIANTS) / sizeof(VARIANTS[0]))) return cudaErrorInvalidValue;
    if (!encode_matrix(&map1, BYTES, 1, call->gemm1_weights, experts * 2 * INTERMEDIATE, HIDDEN, BLOCK) ||
        !encode_matrix(&map2, BYTES, 1, call->gemm2_weights, experts * HIDDEN, INTERMEDIATE, BLOCK) ||
        !encode_matrix(&act_map, BYTES, 1, call->act, pairs, INTERMEDIATE, ACT_BOX))
        return -1;
    cudaError_t error = allow_shared_memory(call->device);
    if (error != cudaSuccess) return error;
    const Variant& variant = VARIANTS[call->variant];
    const cudaStream_t stream = static_cast<cudaStream_t>(call->stream);
    Buckets<true>::Arguments first = {};
    first.x = call->hidden_states;
    first.x_scale = call->hidden_states_scale;
    first.w_scale = call->gemm1_weights_scale;
    first.logits = call->routing_logits;
    first.bias = call->routing_bias;
    first.count = call->counters;
    first.ticket = first.count + LOCAL_EXPERTS;
    first.arrived = first.ticket + 1;
    first.bucket = call->bucket;
    first.act = call->act;
    first.act_scale = call->act_scale;
    first.partial = call->partial;
    first.out = call->output;
    first.scaling_factor = call->routed_scaling_factor;
    first.first_local = call->local_expert_offset;
    first.tokens = call->seq_len;
    Buckets<false>::Arguments second = {};
    static_cast<CallArguments&>(second) = first;
    second.x = first.act;
    second.x_scale = first.act_scale;
    second.w_scale = call->gemm2_weights_scale;

    const bool routes = call->variant == 0;  // the first GEMM does
    if (routes && call->seq_len > MOST_ROUTED) return cudaErrorInvalidValue;
    if (!routes)
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
