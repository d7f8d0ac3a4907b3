// The kernels by name, and one host function that launches all of them.
#include <cuda.h>
#include <cuda_runtime.h>
#include "gemm.cuh"

using namespace derby;

#define DERBY_GEMM(name, first, rows, stages, cluster)                                                    \
    __global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(THREADS, 1)                         \
        name(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap act_map,        \
             const __grid_constant__ Arguments arguments) {                                               \
        grouped_gemm<first, rows, stages, cluster>(map, act_map, arguments);                              \
    }

DERBY_GEMM(derby_gemm1_16, true, 16, 6, 1)
DERBY_GEMM(derby_gemm2_16, false, 16, 6, 1)
DERBY_GEMM(derby_gemm1_64, true, 64, 5, 1)
DERBY_GEMM(derby_gemm2_64, false, 64, 5, 1)
DERBY_GEMM(derby_gemm1_64x2, true, 64, 5, 2)
DERBY_GEMM(derby_gemm2_64x2, false, 64, 5, 2)
DERBY_GEMM(derby_gemm1_128x2, true, 128, 4, 2)
DERBY_GEMM(derby_gemm2_128x2, false, 128, 4, 2)

namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

Encode find_encode() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found) !=
            cudaSuccess || found != cudaDriverEntryPointSuccess)
        return nullptr;
    return reinterpret_cast<Encode>(function);
}

// Boxes of box_rows rows and 128 columns of a row-major byte matrix.
bool encode_map(Encode encode, CUtensorMap* map, const void* matrix, uint64_t rows, uint64_t columns,
                uint32_t box_rows) {
    const cuuint64_t sizes[2] = {columns, rows}, strides[1] = {columns};
    const cuuint32_t box[2] = {BLOCK, box_rows}, steps[2] = {1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(matrix), sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <typename... Parameters, typename... Values>
cudaError_t launch(void (*kernel)(Parameters...), int blocks, int threads, int shared_bytes, bool early,
                   cudaStream_t stream, Values... values) {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = early ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, Parameters(values)...);
}

using Gemm = void (*)(CUtensorMap, CUtensorMap, Arguments);

struct Variant {
    Gemm first, second;
    int shared_bytes;
};

const Variant VARIANTS[4] = {{derby_gemm1_16, derby_gemm2_16, int(sizeof(Shared<16, 6, 1>))},
                             {derby_gemm1_64, derby_gemm2_64, int(sizeof(Shared<64, 5, 1>))},
                             {derby_gemm1_64x2, derby_gemm2_64x2, int(sizeof(Shared<64, 5, 2>))},
                             {derby_gemm1_128x2, derby_gemm2_128x2, int(sizeof(Shared<128, 4, 2>))}};

cudaError_t allow_shared_memory(int device) {
    static bool done[64] = {};
    if (device < 64 && done[device]) return cudaSuccess;
    for (const Variant& variant : VARIANTS)
        for (Gemm gemm : {variant.first, variant.second}) {
            const cudaError_t error =
                cudaFuncSetAttribute(gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, variant.shared_bytes);
            if (error != cudaSuccess) return error;
        }
    if (device < 64) done[device] = true;
    return cudaSuccess;
}

}  // namespace

// Bytes of the pieces buffer for `programs` programs, enough for every variant.
extern "C" long long derby_moe_piece_bytes(int programs) { return 16LL * programs * PIECE_SIZE<128>; }

// Launches everything on `stream`. Returns 0, or a CUDA error number, or -1 where a tensor map could not be encoded.
extern "C" int derby_moe_run(const void* logits, const void* bias, const void* x, const void* x_scale, const void* w1,
                             const void* w1_scale, const void* w2, const void* w2_scale, void* out, void* bucket,
                             void* act, void* act_scale, void* partial, void* counters, int seq_len, int first_local,
                             float scaling_factor, int variant_number, int programs, int device, void* stream_pointer) {
    static const Encode encode = find_encode();
    CUtensorMap map1, map2, act_map;
    if (!encode || !encode_map(encode, &map1, w1, uint64_t(LOCAL_EXPERTS) * 2 * INTERMEDIATE, HIDDEN, BLOCK) ||
        !encode_map(encode, &map2, w2, uint64_t(LOCAL_EXPERTS) * HIDDEN, INTERMEDIATE, BLOCK) ||
        !encode_map(encode, &act_map, act, uint64_t(seq_len) * TOP_K, INTERMEDIATE, ACT_BOX))
        return -1;
    cudaError_t error = allow_shared_memory(device);
    if (error != cudaSuccess) return error;
    const Variant& variant = VARIANTS[variant_number];
    const cudaStream_t stream = static_cast<cudaStream_t>(stream_pointer);
    int* count = static_cast<int*>(counters);
    Arguments first = {};
    first.x = static_cast<const uint8_t*>(x);
    first.x_scale = static_cast<const float*>(x_scale);
    first.w_scale = static_cast<const float*>(w1_scale);
    first.count = count;
    first.logits = static_cast<const float*>(logits);
    first.bias = static_cast<const __nv_bfloat16*>(bias);
    first.bucket = static_cast<int2*>(bucket);
    first.act = static_cast<uint8_t*>(act);
    first.act_scale = static_cast<float*>(act_scale);
    first.partial = static_cast<float4*>(partial);
    first.ticket = count + LOCAL_EXPERTS;
    first.arrived = count + LOCAL_EXPERTS + 1;
    first.out = static_cast<__nv_bfloat16*>(out);
    first.scaling_factor = scaling_factor;
    first.first_local = first_local;
    first.seq_len = seq_len;
    Arguments second = first;
    second.x = first.act;
    second.x_scale = first.act_scale;
    second.w_scale = static_cast<const float*>(w2_scale);

    const bool routes = variant_number == 0;  // the first GEMM does
    if (routes && seq_len > MOST_ROUTED) return cudaErrorInvalidValue;
    if (!routes)
        error = launch(derby_route, (seq_len + ROUTE_WARPS - 1) / ROUTE_WARPS, ROUTE_WARPS * 32, 0, false, stream,
                       first.logits, first.bias, first.bucket, first.count, seq_len, first_local, scaling_factor);
    if (error == cudaSuccess)
        error = launch(variant.first, programs, THREADS, variant.shared_bytes, !routes, stream, map1, act_map, first);
    if (error == cudaSuccess)
        error = launch(variant.second, programs, THREADS, variant.shared_bytes, true, stream, map2, act_map, second);
    return error;
}
