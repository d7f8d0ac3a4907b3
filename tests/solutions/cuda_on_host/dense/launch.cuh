// common/launch.cuh on the CPU.
#pragma once
#include <cuda.h>

namespace derby {

inline bool encode_matrix(CUtensorMap* map, CUtensorMapDataType, int element, const void* matrix, uint64_t rows,
                          uint64_t columns, uint32_t box_rows) {
  if ((uintptr_t)matrix % 16 || columns * element % 16 || box_rows > 256) return false;  // as the driver refuses
  *map = {(char*)matrix, 2, {columns, rows}, {uint64_t(element), element * columns}, {uint32_t(128 / element), box_rows}};
  return true;
}

struct LaunchShape { int ctas, threads, shared_bytes, cluster = 1; };

template <typename... Parameters, typename... Values>
cudaError_t launch(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t, const Values&... values) {
  cudaLaunchAttribute attribute = {cudaLaunchAttributeClusterDimension, {dim3(shape.cluster)}};
  cudaLaunchConfig_t config = {dim3(shape.ctas), dim3(shape.threads), size_t(shape.shared_bytes), nullptr, &attribute, 1};
  return cudaLaunchKernelEx(&config, kernel, Parameters(values)...);
}

}  // namespace derby
