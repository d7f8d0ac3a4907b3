// The kernels by name, and one host function that launches all of them. A solution's kernel.cu names its variants.
// Constraints: sm_90a; at most 256 experts; hidden and intermediate sizes multiples of 8 in bf16, of 128 in e4m3;
// contiguous, addresses a multiple of 16; the host gives `arrived` at zero (each call leaves it so) and, where a
// variant does not sort for itself, room for the sorted pairs. A variant that sorts for itself takes at most its
// `routes` pairs.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>
#include "experts_route.cuh"
#include "experts_sorted.cuh"
#include "launch.cuh"

namespace derby {

template <class C>
__global__ void __launch_bounds__(THREADS, 1)
derby_experts_gemm1(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap act_map,
                    const __grid_constant__ typename C::Arguments arguments) {
    grouped_gemm<C, true, false>(map, act_map, arguments);
}

template <class C, bool STORES>
__global__ void __launch_bounds__(THREADS, 1)
derby_experts_gemm2(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap act_map,
                    const __grid_constant__ typename C::Arguments arguments) {
    grouped_gemm<C, false, STORES>(map, act_map, arguments);
}

using Gemm = void (*)(CUtensorMap, CUtensorMap, Arguments);

struct Variant {
    Gemm first, adds, stores;  // the second GEMM in two forms; stores: nullptr where pairs are few
    int shared_bytes, cluster, routes, act_box;
};

template <class C>
Variant variant_of() {
    Gemm stores = nullptr;
    if constexpr (C::WIDE || (C::ROWS >= 128 && !C::Kind::SCALED && !C::ROUTES)) stores = derby_experts_gemm2<C, true>;
    return {derby_experts_gemm1<C>, derby_experts_gemm2<C, false>, stores, int(sizeof(Shared<C>)), C::CLUSTER, C::ROUTES,
            C::ACT_BOX};
}

// What a call hands over: experts.py's Call has these fields in this order. Shapes as in the definitions; of the
// workspace as in Arguments.
struct Call {
    const uint8_t* hidden_states;
    const float* hidden_states_scale;
    const uint8_t* gate_up_weight;
    const float* gate_up_weight_scale;
    const uint8_t* down_weight;
    const float* down_weight_scale;
    const int* topk_ids;
    const float* topk_weights;
    void* output;
    int* starts;
    int2* sorted;
    int* row_of;
    __nv_bfloat16* results;
    uint8_t* act;
    float* act_scale;
    float4* partial;
    int* arrived;
    int tokens, hidden, intermediate, experts, top_k;
    int variant, slab, stores, ctas;
};

// A tensor map: TMA boxes of box_rows rows and 128 bytes of a row-major matrix.
template <class Kind>
bool encode_map(EncodeTensorMap encode, CUtensorMap* map, const void* matrix, uint64_t rows, uint64_t columns,
                uint32_t box_rows) {
    const cuuint64_t sizes[2] = {columns, rows}, strides[1] = {columns * Kind::BYTES};
    const cuuint32_t box[2] = {BLOCK / Kind::BYTES, box_rows}, steps[2] = {1, 1};
    return encode(map, Kind::BYTES == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8, 2,
                  const_cast<void*>(matrix), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <typename... Parameters, typename... Values>
cudaError_t launch(void (*kernel)(Parameters...), int ctas, int threads, int shared_bytes, int cluster, bool early,
                   cudaStream_t stream, Values... values) {
    cudaLaunchAttribute attributes[2];
    int count = 0;
    if (early) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count].val.clusterDim.x = cluster;
        attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
        count++;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(ctas);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    return cudaLaunchKernelEx(&config, kernel, Parameters(values)...);
}

// Not inline: in a process that has loaded both operators' libraries, both would share one `done`.
static cudaError_t allow(const Variant* variants, int count) {
    static bool done[64] = {};
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess || (device < 64 && done[device])) return error;
    for (int i = 0; i < count; ++i)
        for (Gemm gemm : {variants[i].first, variants[i].adds, variants[i].stores}) {
            if (!gemm) continue;
            error = cudaFuncSetAttribute(gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, variants[i].shared_bytes);
            if (error != cudaSuccess) return error;
        }
    error = cudaFuncSetAttribute(derby_experts_route, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error == cudaSuccess && device < 64) done[device] = true;
    return error;
}

// Launches everything on the stream. Returns 0, or a CUDA error number, or -1 where a tensor map could not be encoded.
template <class Kind>
int run_experts(const Variant* variants, int variant_count, const Call* call, void* stream_pointer) {
    static const EncodeTensorMap encode = find_encode();
    if (call->variant < 0 || call->variant >= variant_count || call->experts > MOST_EXPERTS)
        return cudaErrorInvalidValue;
    const Variant& variant = variants[call->variant];
    const int pairs = call->tokens * call->top_k;
    const bool stores = call->stores;
    if ((variant.routes && pairs > variant.routes) || (stores && !variant.stores)) return cudaErrorInvalidValue;
    const uint64_t experts = call->experts, hidden = call->hidden, intermediate = call->intermediate;
    CUtensorMap map1, map2, act_map;
    if (!encode ||
        !encode_map<Kind>(encode, &map1, call->gate_up_weight, experts * 2 * intermediate, hidden, BLOCK) ||
        !encode_map<Kind>(encode, &map2, call->down_weight, experts * hidden, intermediate, BLOCK) ||
        !encode_map<Kind>(encode, &act_map, call->act, pairs, intermediate, variant.act_box))
        return -1;
    cudaError_t error = allow(variants, variant_count);
    if (error != cudaSuccess) return error;
    const cudaStream_t stream = static_cast<cudaStream_t>(stream_pointer);
    Arguments first = {call->hidden_states, call->hidden_states_scale, call->gate_up_weight_scale, call->topk_ids,
                       call->topk_weights, call->starts, call->sorted, call->act, call->act_scale, call->partial,
                       call->arrived, call->output, stores ? call->results : nullptr};
    first.tokens = call->tokens, first.hidden = call->hidden, first.intermediate = call->intermediate;
    first.experts = call->experts, first.top_k = call->top_k;
    Arguments second = first;
    const int columns = BLOCK / Kind::BYTES;
    first.row_bytes = call->hidden * Kind::BYTES;
    first.weight_rows = 2 * call->intermediate;
    first.second_block = call->intermediate;
    first.layout.k_blocks = (call->hidden + columns - 1) / columns;
    first.layout.tiles_n = first.layout.slab = (call->intermediate + BLOCK - 1) / BLOCK;
    second.x = call->act;
    second.x_scale = call->act_scale;
    second.w_scale = call->down_weight_scale;
    second.row_bytes = call->intermediate * Kind::BYTES;
    second.weight_rows = call->hidden;
    second.second_block = BLOCK;
    second.layout.k_blocks = (call->intermediate + columns - 1) / columns;
    second.layout.tiles_n = (call->hidden + 2 * BLOCK - 1) / (2 * BLOCK);
    second.layout.slab = call->slab > 0 && second.layout.tiles_n % call->slab == 0 ? call->slab : second.layout.tiles_n;

    const bool routes = variant.routes > 0;  // the GEMMs do
    if (!routes)
        error = launch(derby_experts_route, ROUTE_BLOCKS, ROUTE_THREADS, 0, ROUTE_BLOCKS, false, stream, call->topk_ids,
                       call->topk_weights, call->starts, call->sorted, stores ? call->row_of : nullptr, pairs,
                       call->experts, call->top_k);
    if (error == cudaSuccess)
        error = launch(variant.first, call->ctas, THREADS, variant.shared_bytes, variant.cluster, !routes, stream, map1,
                       act_map, first);
    if (error == cudaSuccess)
        error = launch(stores ? variant.stores : variant.adds, call->ctas, THREADS, variant.shared_bytes, variant.cluster,
                       true, stream, map2, act_map, second);
    if (error == cudaSuccess && stores)
        error = launch(derby_experts_sum<typename Kind::Out>, call->ctas * 8, SUM_THREADS, 0, 1, true, stream,
                       call->results, call->row_of, static_cast<typename Kind::Out*>(call->output), call->tokens,
                       call->hidden, call->top_k);
    return error;
}

}  // namespace derby
