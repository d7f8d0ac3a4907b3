// Short attention: one warpgroup's arithmetic on a tile of 64 query rows and a block of 64 keys.
#pragma once
#include "short_units.cuh"

namespace derby_short {

// A consumer thread's part of a tile: rows (thread / 32) * 16 + lane / 4 and 8 more, as wgmma lays them out.
template <int HEAD_DIM>
struct Tile {
    float output[HEAD_DIM / 2];
    float highest[2], sum[2];
};

// All functions below take the first TOKENS, 32 or 64, of a block of keys.
template <int TOKENS, int HEAD_DIM>
__device__ __forceinline__ void multiply_scores(float* scores, uint32_t queries, uint32_t keys) {
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; ++k) {
        const uint32_t offset = (k / 4 * PART_BYTES + k % 4 * 32) >> 4;
        wgmma_bf16<TOKENS>(scores, descriptor_of(queries + offset), descriptor_of(keys + offset), k > 0);
    }
}

// Scores of the tokens from `column` on that a row does not see become minus infinity.
template <int TOKENS>
__device__ __forceinline__ void hide(float* scores, int column, const int* limit) {
    const int rest[2] = {limit[0] - column, limit[1] - column};
#pragma unroll
    for (int j = 0; j < TOKENS / 2; ++j)
        if (j / 4 * 8 + j % 2 > rest[j / 2 % 2]) scores[j] = -INFINITY;
}

// Each row's highest score so far in this thread.
template <int TOKENS>
__device__ __forceinline__ void find_highest(const float* scores, float* highest) {
#pragma unroll
    for (int j = 0; j < TOKENS / 2; ++j) highest[j / 2 % 2] = fmaxf(highest[j / 2 % 2], scores[j]);
}

// Updates the tile's highest scores to those found, and rescales its sums and outputs. The highest score's weight is
// then 1, which bfloat16 holds exactly; letting it grow above 1 would be 2 % faster and make the error 2.5 % larger.
template <int HEAD_DIM>
__device__ __forceinline__ void settle(Tile<HEAD_DIM>& tile, float* highest, bool first, float scale) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        highest[r] = quad_max(highest[r]) * scale;
        if (first) {
            tile.highest[r] = highest[r];
            tile.sum[r] = 0;
        } else {
            const float now = fmaxf(highest[r], tile.highest[r]), factor = exp2_approx(tile.highest[r] - now);
            tile.highest[r] = now;
            tile.sum[r] *= factor;
#pragma unroll
            for (int j = 0; j < HEAD_DIM / 2; ++j)
                if (j / 2 % 2 == r) tile.output[j] *= factor;
        }
    }
}

// Scores -> weights in bfloat16, and their sums.
template <int TOKENS, int HEAD_DIM>
__device__ __forceinline__ void weigh(const float* scores, uint32_t* weights, Tile<HEAD_DIM>& tile, float scale) {
#pragma unroll
    for (int j = 0; j < TOKENS / 2; j += 2) {
        const int r = j / 2 % 2;
        const float a = exp2_approx(fmaf(scores[j], scale, -tile.highest[r]));
        const float b = exp2_approx(fmaf(scores[j + 1], scale, -tile.highest[r]));
        tile.sum[r] += a + b;
        weights[j / 2] = pack_bf16(a, b);
    }
}

template <int TOKENS, int HEAD_DIM>
__device__ __forceinline__ void multiply_values(Tile<HEAD_DIM>& tile, const uint32_t* weights, uint32_t values,
                                                bool first) {
    constexpr int COLUMNS = HEAD_DIM < 128 ? HEAD_DIM : 128;  // at once
#pragma unroll
    for (int k = 0; k < TOKENS / 16; ++k)
#pragma unroll
        for (int c = 0; c < HEAD_DIM / COLUMNS; ++c)
            wgmma_bf16_rs<COLUMNS, Major::MN>(tile.output + c * COLUMNS / 2, weights + 4 * k,
                                              descriptor_of(values + ((c * 2 * PART_BYTES + k * 2048) >> 4)),
                                              !first || k > 0);
}

}  // namespace derby_short
