// Tiles of the chunked gated delta rule in shared memory, and tensor maps of its tensors.
//
// A tile has rows of 64 bf16 values (128 bytes) with the 128-byte swizzle: of a chunk's 64 tokens, or of 64 or 128 keys.
// 128 columns are two tiles, one behind the other.
#pragma once
#include "dynamic_shared.cuh"
#include "launch.cuh"
#include "once_a_device.cuh"
#include "pipeline.cuh"
#include "wgmma.cuh"

namespace derby {

constexpr int CHUNK = 64;                        // tokens
constexpr int HALF = 64, ROW_BYTES = 128;        // columns of a tile
constexpr int TILE_BYTES = CHUNK * ROW_BYTES;    // of 64 rows
constexpr float LOG2_E = 1.4426950408889634f;

// Address of 16 bytes in a tile: `group` of eight columns of a row.
__device__ __forceinline__ uint32_t tile_place(uint32_t tile, int row, int group) {
    return tile + row * ROW_BYTES + ((group ^ (row & 7)) << 4);
}

// d [64, N] (+)= a b^T, both K-major over 64 columns of a tile, from `step` on (16 columns each).
template <int N>
__device__ __forceinline__ void product_of_tiles(float* d, uint32_t a, uint32_t b, bool add) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        wgmma_bf16<N>(d, descriptor_of(descriptor_low(a) + 2 * step), descriptor_of(descriptor_low(b) + 2 * step),
                      add || step);
    }
}

// The accumulators of 64 x 16 values (8 of this thread's) as an operand in registers.
__device__ __forceinline__ void pack_operand(uint32_t* to, const float* d) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = pack_bf16(d[2 * i], d[2 * i + 1]);
}

// A state in registers, transposed: 64 values x 128 keys. This thread has values value_of_thread() and the one 8
// further, and two of each eight keys. state[4j .. 4j + 3]: keys 8j + pair_of_thread() and the next of the first value,
// then of the second.
__device__ __forceinline__ int warp_of_group() { return threadIdx.x % 128 / 32; }  // of a warpgroup
__device__ __forceinline__ int value_of_thread() { return warp_of_group() * 16 + threadIdx.x % 32 / 4; }
__device__ __forceinline__ int pair_of_thread() { return 2 * (threadIdx.x % 4); }

// Places of such a state in float32 memory, which lies [key_dim, value_dim] (KEY_MAJOR) or [value_dim, key_dim]: that
// of the thread's first value if the state begins at value `column0`, then those of all its values.
template <bool KEY_MAJOR>
__device__ __forceinline__ int first_of_state(int column0) {
    const int value = column0 + value_of_thread(), pair = pair_of_thread();
    return KEY_MAJOR ? pair * 128 + value : value * 128 + pair;
}
template <bool KEY_MAJOR, class Move>
__device__ __forceinline__ void for_state(int first, Move move) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        const int key = i / 4 * 8 + i % 2, value = i / 2 % 2 * 8;
        move(i, first + (KEY_MAJOR ? key * 128 + value : value * 128 + key));
    }
}

// Stores 64 rows x 16 columns of a transposed result (value x token or key), as bf16 pairs, into a tile whose rows are
// tokens or keys, and so transposes it back. `step`: which 16 rows of the tile.
__device__ __forceinline__ void store_turned(uint32_t tile, int step, const uint32_t* packed) {
    const int lane = threadIdx.x % 32;
    stmatrix_x4_transposed(tile_place(tile, step * 16 + lane / 16 * 8 + lane % 8, warp_of_group() * 2 + lane / 8 % 2),
                           packed[0], packed[1], packed[2], packed[3]);
}

// Loads the same 16 rows of a tile [token, value], as pairs of tokens of this thread's values.
__device__ __forceinline__ void load_turned(uint32_t (&packed)[4], uint32_t tile, int step) {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4_transposed(
        packed, tile_place(tile, step * 16 + lane / 16 * 8 + lane % 8, warp_of_group() * 2 + lane / 8 % 2));
}
__device__ __forceinline__ float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_half(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// Host ----------------------------------------------------------------------------------------------------------------

// Map of bf16 [rows, heads, 128] for boxes of box_rows rows x one head x 64 columns.
inline bool encode_rows(CUtensorMap* map, const void* tensor, uint64_t rows, uint64_t heads, uint32_t box_rows) {
    return encode_tensor_map<3>(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, tensor, {128, heads, rows}, {256, heads * 256},
                                {HALF, 1, box_rows});
}

// One launch of a kernel whose dynamic shared memory is a Shared, of any size.
template <auto KERNEL, class Shared, class... Values>
cudaError_t launch_large(int ctas, int threads, bool early, cudaStream_t stream, const Values&... values) {
    static OnceADevice once;
    const cudaError_t error = once.allow_shared_memory<KERNEL, sizeof(Shared)>();
    if (error != cudaSuccess) return error;
    return launch(KERNEL, {ctas, threads, sizeof(Shared), 1, early}, stream, values...);
}

}  // namespace derby
