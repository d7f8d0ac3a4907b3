// Gated delta rule: takes a state in registers through the products of a chunk, and from one segment of a sequence to
// the next.
//
// A segment turns the state S at its start into decay S + C S + E. C is what the segment makes of the identity without
// values, minus decay times the identity; E is what it makes of zeros.
// Constraints: one warpgroup calls these, all its warps together; the state is held transposed (delta_rule_tiles.cuh).
#pragma once
#include "delta_rule_tiles.cuh"

namespace derby {

constexpr int STATE_VALUES = 64, STATE_GROUP = 128;  // of a thread: 64 columns of a head's state; threads that share them

// The state as bf16, the left operand of a product.
__device__ __forceinline__ void pack_state(uint32_t (&narrow)[32], const float* state) {
#pragma unroll
    for (int step = 0; step < 8; ++step) pack_operand(narrow + 4 * step, state + 8 * step);
}

// d = `left` times a tile, K-major. `left` has 16 columns of 64 values for each of STEPS steps.
template <int STEPS>
__device__ __forceinline__ void turned_product(float* d, const uint32_t* left, uint32_t tile) {
    static_assert(STEPS <= 8, "two tiles have 128 columns");
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        wgmma_bf16_rs<64>(d, left + 4 * step, descriptor_of(descriptor_low(tile + step / 4 * TILE_BYTES) + 2 * (step % 4)),
                          step);
    }
}

// d = a tile's rows of 128 columns times `right`, 128 rows of N columns: `leading` bytes from 64 columns to the next.
template <int N>
__device__ __forceinline__ void product_of_state(float* d, uint32_t left, uint32_t right, uint32_t leading) {
#pragma unroll
    for (int step = 0; step < 8; ++step) {
        wgmma_bf16<N, Major::K, Major::MN>(
            d, descriptor_of(descriptor_low(left + step / 4 * TILE_BYTES) + 2 * (step % 4)),
            descriptor_of(descriptor_low(right, leading) + 128 * step), step);
    }
}

// state += corrections (decayed to the chunk's end) times its keys. Of the outputs: += scores times values.
__device__ __forceinline__ void add_corrections(float* state, const uint32_t* decayed, uint32_t keys) {
    pin<STATE_VALUES>(state);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        wgmma_bf16_rs<128, Major::MN>(state, decayed + 4 * step,
                                      descriptor_of(descriptor_low(keys, TILE_BYTES) + 128 * step), 1);
    }
    wgmma_commit_group();
}

// Computes the state at the start of a segment behind the first one: the state at the end of the first one, taken
// through the segments between. The ring brings their C, tiles of 128 rows at changes_of(stage). end_of(segment): this
// thread's values of E, or of the first segment's end, STATE_GROUP apart. segments is a reference, since it may lie in
// shared memory and a copy would take a register.
template <int STAGES, class EndOf, class DecayOf, class ChangesOf>
__device__ __forceinline__ void follow_segments(const Pipeline<STAGES>& ring, PipelineState<STAGES>& at, float* state,
                                                const int& segments, EndOf end_of, DecayOf decay_of,
                                                ChangesOf changes_of) {
    const float* end = end_of(0);
#pragma unroll
    for (int i = 0; i < STATE_VALUES; ++i) state[i] = end[i * STATE_GROUP];
    for (int segment = 1; segment < segments; ++segment, at.next()) {
        float added[STATE_VALUES];
        end = end_of(segment);
#pragma unroll
        for (int i = 0; i < STATE_VALUES; ++i) added[i] = end[i * STATE_GROUP];
        const float decay = decay_of(segment);
        uint32_t narrow[32];
        pack_state(narrow, state);
        ring.wait(at);
        const uint32_t changes = changes_of(at.stage);
#pragma unroll
        for (int i = 0; i < STATE_VALUES; ++i) state[i] = fmaf(state[i], decay, added[i]);
        pin<STATE_VALUES>(state);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 8; ++step) {
            wgmma_bf16_rs<128>(state, narrow + 4 * step,
                               descriptor_of(descriptor_low(changes + step / 4 * 2 * TILE_BYTES) + 2 * (step % 4)), 1);
        }
        wgmma_commit_group();
        wgmma_wait_group<0>();
        pin<STATE_VALUES>(state);
        ring.release(at);
    }
}

}  // namespace derby
