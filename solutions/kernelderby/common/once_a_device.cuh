// What the host sets up before the first launch on a GPU: once a GPU, since CUDA keeps a kernel's attributes for each.

#pragma once
#include <atomic>
#include <cuda_runtime.h>

// Each kernel has a static one, in a function that is itself static or in an anonymous namespace: otherwise two
// libraries of a process would share it, as the dynamic linker has it for templates. `set` (-> cudaError_t) is called
// if it has not yet succeeded on the current device. Two threads may call it at once. Devices from 64 on are set up at
// each call.
class OnceADevice {
  static constexpr int MOST = 64;
  std::atomic<bool> done[MOST] = {};

 public:
  template <class Set>
  cudaError_t operator()(Set set) {
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess || (device < MOST && done[device])) return error;
    error = set();
    if (error == cudaSuccess && device < MOST) done[device] = true;
    return error;
  }

  // Allows KERNEL so many bytes of dynamic shared memory.
  template <auto KERNEL, int BYTES>
  __forceinline__ cudaError_t allow_shared_memory() {
    return (*this)([] { return cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES); });
  }
};
