// The host's side of a Hopper kernel: tensor maps, and launches with clusters and programmatic dependent launch.
// Constraints of a tensor map: the tensor's address is a multiple of 16 bytes and so is every stride; a box has at most
// 256 elements along a dimension, and along the first one as many bytes as the swizzle says, or fewer.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

namespace derby {

using EncodeTensorMap = decltype(&cuTensorMapEncodeTiled);

// cuTensorMapEncodeTiled of the driver, or nullptr: nothing is linked against it.
inline EncodeTensorMap find_encode() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found) !=
            cudaSuccess || found != cudaDriverEntryPointSuccess)
        return nullptr;
    return reinterpret_cast<EncodeTensorMap>(function);
}

// Map of a tensor: sizes and box in elements, the contiguous dimension first; strides in bytes, of the other dimensions.
// What a box has outside of the tensor is zeros. false: the driver has no such function or refuses.
template <int DIMENSIONS>
bool encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, const void* tensor,
                       const cuuint64_t (&sizes)[DIMENSIONS], const cuuint64_t (&strides)[DIMENSIONS - 1],
                       const cuuint32_t (&box)[DIMENSIONS], CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
    static_assert(2 <= DIMENSIONS && DIMENSIONS <= 5, "tma_load takes two to four, TMA at most five");
    static const EncodeTensorMap encode = find_encode();
    const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    return encode && encode(map, type, DIMENSIONS, const_cast<void*>(tensor), sizes, strides, box, steps,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// The same for a row-major matrix and boxes of box_rows rows of 128 bytes. element: bytes.
inline bool encode_matrix(CUtensorMap* map, CUtensorMapDataType type, int element, const void* matrix, uint64_t rows,
                          uint64_t columns, uint32_t box_rows) {
    return encode_tensor_map<2>(map, type, matrix, {columns, rows}, {columns * element},
                                {cuuint32_t(128 / element), box_rows});
}

// early: programmatic dependent launch, the kernel starts when the one before it calls let_next_kernel_start() or ends.
struct LaunchShape {
    int ctas, threads, shared_bytes, cluster = 1;
    bool early = false;
};

template <typename... Parameters, typename... Values>
cudaError_t launch(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
                   const Values&... values) {
    cudaLaunchAttribute attributes[2];
    int count = 0;
    if (shape.early) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (shape.cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {unsigned(shape.cluster), 1, 1};
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(shape.ctas);
    config.blockDim = dim3(shape.threads);
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    return cudaLaunchKernelEx(&config, kernel, Parameters(values)...);
}

}  // namespace derby
