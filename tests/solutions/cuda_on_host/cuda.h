// Of cuda.h what common/launch.cuh needs: tensor maps that the emulated TMA reads.

#pragma once
#include <cstdint>

using cuuint64_t = uint64_t;
using cuuint32_t = uint32_t;
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_UINT8 };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_128B };
enum { CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };
enum CUresult { CUDA_SUCCESS };

struct CUtensorMap {
  char* tensor;
  int dimensions;
  cuuint64_t sizes[5], strides[5];  // strides in bytes, of every dimension
  cuuint32_t box[5];
};

// bf16 with the 128-byte swizzle: all that these tests need.
inline CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, int dimensions, void* tensor,
                                       const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                       const cuuint32_t*, int, CUtensorMapSwizzle, int, int) {
  map->tensor = static_cast<char*>(tensor), map->dimensions = dimensions;
  for (int i = 0; i < dimensions; i++) map->sizes[i] = sizes[i], map->box[i] = box[i];
  for (int i = 0; i < dimensions; i++) map->strides[i] = i ? strides[i - 1] : 2;
  return CUDA_SUCCESS;
}
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
enum { cudaEnableDefault };
inline int cudaGetDriverEntryPointByVersion(const char*, void** function, int, int, cudaDriverEntryPointQueryResult* result) {
  *function = reinterpret_cast<void*>(cuTensorMapEncodeTiled), *result = cudaDriverEntryPointSuccess;
  return 0;
}
