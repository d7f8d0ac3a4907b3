// The driver's types that kernels for Hopper name; a tensor map holds what it was made of.
#pragma once
#include <array>
#include <cstdint>

using cuuint64_t = uint64_t;
using cuuint32_t = uint32_t;
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 };
struct CUtensorMap {
  const void* tensor;
  uint64_t sizes[3], strides[2];
  uint32_t box[3];
};
