// Thread block clusters: the shared memory of a block, seen by its neighbours, and one launch for kernels of any size.

#pragma once
#include <cuda_runtime.h>

// All shared memory of a kernel is one struct at the start of the dynamic shared memory.
template <class T>
__device__ __forceinline__ T& shared_memory() {
#ifdef __CUDACC__
  extern __shared__ __align__(16) unsigned char bytes[];
  return *reinterpret_cast<T*>(bytes);
#else
  return *static_cast<T*>(emulated_shared_memory());
#endif
}

// A type of so many bytes that a thread loads or stores at once.
template <int BYTES> struct Bits;
template <> struct Bits<16> { using Type = uint4; };
template <> struct Bits<8> { using Type = uint2; };
template <> struct Bits<4> { using Type = unsigned; };
template <> struct Bits<2> { using Type = unsigned short; };

// The same object in the shared memory of block `rank` of the cluster.
template <class T>
__device__ __forceinline__ T& in_block(T& mine, int rank) {
  return *static_cast<T*>(__cluster_map_shared_rank(&mine, rank));
}

// After it, all threads of the cluster see everything that any of them wrote before it.
__device__ __forceinline__ void cluster_sync() {
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
}

struct Nothing { int unused; };  // the shared memory of a kernel that has none

// Launches `kernel` with sizeof(Shared) bytes of shared memory; cluster > 1 along x. Clusters of up to 16 blocks.
template <class Shared, class Kernel, class... Arguments>
cudaError_t launch(Kernel kernel, dim3 grid, int threads, int cluster, cudaStream_t stream, Arguments... arguments) {
  static_assert(sizeof(Shared) <= 48 * 1024, "more would need an attribute of the kernel");
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  if (cluster > 1) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  if (cluster > 8) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return error;
  }
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}
