// In the place of solutions/kernelderby/common/wgmma.cuh for long attention: cuda_on_host/wgmma.cuh, and its descriptors.

#pragma once
#include "../cuda_on_host/wgmma.cuh"

namespace derby {

inline uint64_t descriptor_at(uint32_t address, int leading = 16) {
  return descriptor_of(descriptor_low(address, uint32_t(leading)));
}

}  // namespace derby
