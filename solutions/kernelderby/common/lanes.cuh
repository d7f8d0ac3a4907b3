// Sums and maxima over the lanes of a warp.
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

// Over the four lanes of a quad, which hold a row of a matrix product.
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}
