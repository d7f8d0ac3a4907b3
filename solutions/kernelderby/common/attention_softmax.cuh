// The softmax of long attention, in the registers of the accumulators.
#pragma once
#include "attention_tiles.cuh"

namespace derby {

// The assembler would wait for the tensor cores first and weigh afterwards. A branch on a value that needs all weights
// (never taken: x is not negative) keeps it from that.
__device__ __forceinline__ void after(float x) {
    if (x < 0.0f) __trap();
}

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

constexpr float OUTGROWN = 8.0f;

// Of one thread's two rows. Weights are 2^(score scale - origin). The origin follows the largest score only when a
// score has outgrown it by 2^OUTGROWN: until then weights above 1 do no harm, and sums and products need no rescaling.
struct Softmax {
    float largest[2], origin[2], sum[2], rescale[2];

    __device__ __forceinline__ void set_largest(int half, float top, float scale) {
        largest[half] = top;
        origin[half] = top == -INFINITY ? 0.0f : top * scale;  // a row that has seen no key: its weights are 0
    }

    // Scores to weights, in place. True where earlier sums (done here) and products (not here) are to be rescaled.
    template <int COUNT, bool FIRST>
    __device__ __forceinline__ bool weigh(float (&s)[COUNT], float scale) {
        float top[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float even = fmaxf(s[2 * half], s[2 * half + 4]), odd = fmaxf(s[2 * half + 1], s[2 * half + 5]);
#pragma unroll
            for (int i = 8; i < COUNT; i += 4) {
                even = fmaxf(even, s[i + 2 * half]);
                odd = fmaxf(odd, s[i + 2 * half + 1]);
            }
            top[half] = fmaxf(even, odd);
        }
        bool grown = false;
        if constexpr (FIRST) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                set_largest(half, quad_max(top[half]), scale);
                sum[half] = 0.0f;
            }
        } else {
            const bool outgrown = (top[0] - largest[0]) * scale > OUTGROWN || (top[1] - largest[1]) * scale > OUTGROWN;
            grown = __any_sync(0xffffffff, outgrown);
            if (grown) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float before = largest[half] * scale;
                    set_largest(half, fmaxf(quad_max(top[half]), largest[half]), scale);
                    rescale[half] = exp2_fast(before - origin[half]);
                    sum[half] *= rescale[half];
                }
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float even = 0.0f, odd = 0.0f;
#pragma unroll
            for (int i = 0; i < COUNT; i += 4) {
                float& a = s[i + 2 * half];
                float& b = s[i + 2 * half + 1];
                a = fmaf(a, scale, -origin[half]);
                b = fmaf(b, scale, -origin[half]);
                a = exp2_fast(a);
                b = exp2_fast(b);
                even += a;
                odd += b;
            }
            sum[half] += even + odd;
        }
        return grown;
    }
};

// Scores of keys that a row does not see become -inf. positions: of the thread's two rows among the keys.
template <typename S>
__device__ __forceinline__ void mask_scores(float (&s)[S::N / 2], const Tile& tile, int block, int position,
                                            int position_low, int lane) {
    const int first = block * S::N + 2 * (lane & 3);
    const int low = S::CAUSAL ? min(tile.keys, position + 1) - first : tile.keys - first;
    const int high = S::CAUSAL ? min(tile.keys, position_low + 1) - first : tile.keys - first;
#pragma unroll
    for (int i = 0; i < S::N / 2; i += 4) {
        const int column = 2 * i;  // 8 columns for 4 values
        if (column >= low) s[i] = -INFINITY;
        if (column + 1 >= low) s[i + 1] = -INFINITY;
        if (column >= high) s[i + 2] = -INFINITY;
        if (column + 1 >= high) s[i + 3] = -INFINITY;
    }
}

template <typename S>
__device__ __forceinline__ void pack_weights(uint32_t (&p)[S::N / 4], const float (&s)[S::N / 2]) {
#pragma unroll
    for (int i = 0; i < S::N / 4; ++i) p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

}  // namespace derby
