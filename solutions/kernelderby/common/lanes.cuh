// Sums over the lanes of a warp.
#pragma once
#include <cuda_runtime.h>

// The value of this lane and of all lanes before it, added up.
template <class T, class Lane>
__device__ __forceinline__ T sum_up_to(T value, Lane lane) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const T before = __shfl_up_sync(~0u, value, step);
        if (lane >= step) value += before;
    }
    return value;
}
