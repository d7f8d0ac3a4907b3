// The dynamic shared memory of a kernel for Hopper, at a multiple of 1024 bytes, as TMA's 128-byte swizzle wants it.
#pragma once
#include <cuda_runtime.h>

namespace derby {

// All shared memory of a kernel is one struct at the start of the dynamic shared memory.
template <class T>
__device__ __forceinline__ T& dynamic_shared() {
#ifdef __CUDACC__
    extern __shared__ __align__(1024) unsigned char bytes[];
    return *reinterpret_cast<T*>(bytes);
#else
    return *static_cast<T*>(emulated_shared_memory());
#endif
}

}  // namespace derby
