// Sums that several workers have computed of the same rows of attention, put together.
#pragma once
#include "ptx.cuh"

namespace derby {

// Sums of values times weights relative to `most`: 32 columns of two rows, in the layout in which they were written.
struct PartialSums {
    float most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    float all[16] = {};

    __device__ __forceinline__ void add(const float2 (&statistics)[2], const float4 (&theirs)[4]) {
        float mine[2], factor[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float greatest = fmaxf(most[i], statistics[i].x);
            mine[i] = exp2_approx(most[i] - greatest), factor[i] = exp2_approx(statistics[i].x - greatest);
            most[i] = greatest, total[i] = total[i] * mine[i] + statistics[i].y * factor[i];
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            all[4 * j] = all[4 * j] * mine[0] + theirs[j].x * factor[0];
            all[4 * j + 1] = all[4 * j + 1] * mine[0] + theirs[j].y * factor[0];
            all[4 * j + 2] = all[4 * j + 2] * mine[1] + theirs[j].z * factor[1];
            all[4 * j + 3] = all[4 * j + 3] * mine[1] + theirs[j].w * factor[1];
        }
    }
};

}  // namespace derby
