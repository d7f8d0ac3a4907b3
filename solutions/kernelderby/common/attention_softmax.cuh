// The softmax of long attention, in the registers of the accumulators.
#pragma once
#include "attention_tiles.cuh"

namespace derby {

// Left alone, the assembler waits for the tensor cores first and computes the weights afterwards. A branch on a value
// that needs all weights prevents that; it is never taken, since x is not negative.
__device__ __forceinline__ void after(float x) {
    if (x < 0.0f) __trap();
}

constexpr float OUTGROWN = 8.0f, LARGE_SUM = 1.1529215e18f;  // powers of two; 2^60

// Of one thread's two rows. Weights are 2^(score scale - origin). If the origin is a row's largest score, that key's
// weight is 1, which bfloat16 holds exactly, and weights just below it lie where bfloat16 is finest: with few keys the
// error is 8 % smaller. An origin that is only near the largest score does no other harm: weights may then be above 1,
// and sums and products need no rescaling.
struct Softmax {
    float largest[2], origin[2], sum[2], rescale[2];
    bool settled;  // the largest scores need not be looked for: every row of the warp has one, and near is near enough

    __device__ __forceinline__ void set_largest(int half, float top, float scale) {
        largest[half] = top;
        origin[half] = top == -INFINITY ? 0.0f : top * scale;  // a row that has seen no key: its weights are 0
    }

    // The largest of these scores in this thread.
    template <int COUNT>
    __device__ __forceinline__ void find_top(const float (&s)[COUNT], float (&top)[2]) {
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
    }

    // The origin becomes the largest score so far. Sums are rescaled here, products are not.
    __device__ __forceinline__ void follow(const float (&top)[2], float scale) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float before = largest[half] * scale;
            set_largest(half, fmaxf(quad_max(top[half]), largest[half]), scale);
            rescale[half] = exp2_approx(before - origin[half]);
            sum[half] *= rescale[half];
        }
    }

    __device__ __forceinline__ void settle(bool trusting) {
        settled = trusting && __all_sync(0xffffffff, largest[0] > -INFINITY && largest[1] > -INFINITY);
    }

    // The first scores of a tile.
    template <int COUNT>
    __device__ __forceinline__ void begin(float (&s)[COUNT], float scale, bool trusting) {
        float top[2];
        find_top(s, top);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            set_largest(half, quad_max(top[half]), scale);
            sum[half] = 0.0f;
        }
        settle(trusting);
        add_weights(s, scale, sum);
    }

    // Turns scores into weights, in place. Returns true if products must be rescaled. outgrown: the power of two by
    // which a score may lie above the origin.
    template <int COUNT>
    __device__ __forceinline__ bool weigh(float (&s)[COUNT], float scale, float outgrown) {
        float top[2];
        find_top(s, top);
        const bool grown = __any_sync(0xffffffff, (top[0] - largest[0]) * scale > outgrown ||
                                                      (top[1] - largest[1]) * scale > outgrown);
        if (grown) follow(top, scale);
        add_weights(s, scale, sum);
        return grown;
    }

    // The same without looking at the scores, once settled: a sum that has grown too large shows that they have
    // outgrown the origin, and again(s) then computes the scores once more.
    template <int COUNT, typename Again>
    __device__ __forceinline__ bool weigh_unseen(float (&s)[COUNT], float scale, bool trusting, Again again) {
        bool grown = !settled;
        float part[2];
        for (;;) {
            if (grown) {
                float top[2];
                find_top(s, top);
                follow(top, scale);
                settle(trusting);
            }
            part[0] = part[1] = 0.0f;
            add_weights(s, scale, part);
            if (grown || !__any_sync(0xffffffff, fmaxf(part[0], part[1]) > LARGE_SUM)) break;
            again(s);
            grown = true;
        }
        sum[0] += part[0];
        sum[1] += part[1];
        return grown;
    }

    template <int COUNT>
    __device__ __forceinline__ void add_weights(float (&s)[COUNT], float scale, float (&to)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float even = 0.0f, odd = 0.0f;
#pragma unroll
            for (int i = 0; i < COUNT; i += 4) {
                float& a = s[i + 2 * half];
                float& b = s[i + 2 * half + 1];
                a = fmaf(a, scale, -origin[half]);
                b = fmaf(b, scale, -origin[half]);
                a = exp2_approx(a);
                b = exp2_approx(b);
                even += a;
                odd += b;
            }
            to[half] += even + odd;
        }
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
