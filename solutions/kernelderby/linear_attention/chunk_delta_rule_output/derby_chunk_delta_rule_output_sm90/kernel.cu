// derby_chunk_delta_rule_output_sm90: a block computes a chunk's 64 x 128 outputs of one value head.
//
// Three products on one warpgroup: scores = q k^T, q h and, after decay and mask on the scores in registers, scores v on
// top of the decayed q h. All operands are loaded by TMA at once; two blocks a multiprocessor hide each other's loads.
// Constraints: sm_90a, key_dim and value_dim 128, all tensors at addresses that 16 divides.
#include "delta_rule_segments.cuh"

using namespace derby;

namespace {

constexpr int THREADS = 128;

struct Shared {
    uint8_t q[2 * TILE_BYTES], k[2 * TILE_BYTES], v[2 * TILE_BYTES], h[4 * TILE_BYTES];
    float g[CHUNK];  // times log2 e
    uint64_t scores_ready, h_ready, v_ready;
};

__global__ void __launch_bounds__(THREADS, 2) derby_delta_rule_output(
    const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
    const __grid_constant__ CUtensorMap v_map, const __grid_constant__ CUtensorMap h_map,
    const __grid_constant__ CUtensorMap output_map, const float* __restrict__ g, int tokens, int q_heads, int v_heads) {
    auto& shared = dynamic_shared<Shared>();
    const int head = blockIdx.x % v_heads, chunk = blockIdx.x / v_heads, first = chunk * CHUNK;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t q = shared_address(shared.q), k = shared_address(shared.k), v = shared_address(shared.v);
    const uint32_t h = shared_address(shared.h), scores_ready = shared_address(&shared.scores_ready);
    const uint32_t h_ready = shared_address(&shared.h_ready), v_ready = shared_address(&shared.v_ready);
    if (threadIdx.x == 0) {
        for (uint32_t barrier : {scores_ready, h_ready, v_ready}) mbarrier_init(barrier, 1);
        fence_mbarrier_init();
        const int group = head / (v_heads / q_heads);
        mbarrier_arrive_expect_tx(scores_ready, 4 * TILE_BYTES);
        for (int half = 0; half < 2; ++half) {
            tma_load(q + half * TILE_BYTES, &q_map, scores_ready, half * HALF, group, first);
            tma_load(k + half * TILE_BYTES, &k_map, scores_ready, half * HALF, group, first);
        }
        mbarrier_arrive_expect_tx(h_ready, 4 * TILE_BYTES);
        for (int half = 0; half < 2; ++half)
            tma_load(h + half * 2 * TILE_BYTES, &h_map, h_ready, half * HALF, 0, (chunk * v_heads + head) * 128);
        mbarrier_arrive_expect_tx(v_ready, 2 * TILE_BYTES);
        for (int half = 0; half < 2; ++half)
            tma_load(v + half * TILE_BYTES, &v_map, v_ready, half * HALF, head, first);
    }
    if (threadIdx.x >= 64) {
        const int token = first + threadIdx.x - 64;
        shared.g[threadIdx.x - 64] = token < tokens ? g[size_t(token) * v_heads + head] * LOG2_E : 0.0f;
    }
    __syncthreads();

    float scores[32], total[64];
    mbarrier_wait(scores_ready, 0);
    wgmma_fence();
    product_of_tiles<64>(scores, q, k, false);
    product_of_tiles<64>(scores, q + TILE_BYTES, k + TILE_BYTES, true);
    wgmma_commit_group();
    mbarrier_wait(h_ready, 0);
    wgmma_fence();
    product_of_state<128>(total, q, h, 2 * TILE_BYTES);
    wgmma_commit_group();
    const int row = warp * 16 + lane / 4, column0 = 2 * (lane % 4);
    const float of_row[2] = {shared.g[row], shared.g[row + 8]};
    wgmma_wait_group<1>();
    pin<32>(scores);
    uint32_t operand[16];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const float2 of_column = *reinterpret_cast<const float2*>(&shared.g[8 * j + column0]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int below = row + i / 2 * 8 - (8 * j + column0 + i % 2);
            const float decay = exp2_approx(of_row[i / 2] - (i % 2 ? of_column.y : of_column.x));
            scores[4 * j + i] = below >= 0 ? scores[4 * j + i] * decay : 0.0f;
        }
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) pack_operand(operand + 4 * step, scores + 8 * step);
    const float kept[2] = {exp2_approx(of_row[0]), exp2_approx(of_row[1])};
    wgmma_wait_group<0>();
    pin<64>(total);
#pragma unroll
    for (int i = 0; i < 64; ++i) total[i] *= kept[i / 2 % 2];
    mbarrier_wait(v_ready, 0);
    add_corrections(total, operand, v);
    wgmma_wait_group<0>();
    pin<64>(total);
    __syncthreads();  // outputs go where q lay
    constexpr float SCALE = 0.08838834764831845f;
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
        const int r = warp * 16 + lane % 16, group = j + lane / 16;
        stmatrix_x4(tile_place(q + group / 8 * TILE_BYTES, r, group % 8),
                    pack_bf16(total[4 * j] * SCALE, total[4 * j + 1] * SCALE),
                    pack_bf16(total[4 * j + 2] * SCALE, total[4 * j + 3] * SCALE),
                    pack_bf16(total[4 * j + 4] * SCALE, total[4 * j + 5] * SCALE),
                    pack_bf16(total[4 * j + 6] * SCALE, total[4 * j + 7] * SCALE));
    }
    fence_async_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int half = 0; half < 2; ++half) tma_store(&output_map, q + half * TILE_BYTES, half * HALF, head, first);
        bulk_commit_group();
        bulk_wait_group_read<0>();
    }
}

}  // namespace

extern "C" int derby_chunk_delta_rule_output_run(const void* q, const void* k, const void* v, const void* h,
                                                 const float* g, void* output, int tokens, int q_heads, int v_heads,
                                                 cudaStream_t stream) {
    const int chunks = (tokens + CHUNK - 1) / CHUNK;
    CUtensorMap q_map, k_map, v_map, h_map, output_map;
    if (!encode_rows(&q_map, q, tokens, q_heads, CHUNK) || !encode_rows(&k_map, k, tokens, q_heads, CHUNK) ||
        !encode_rows(&v_map, v, tokens, v_heads, CHUNK) || !encode_rows(&output_map, output, tokens, v_heads, CHUNK) ||
        !encode_rows(&h_map, h, uint64_t(chunks) * v_heads * 128, 1, 128))
        return cudaErrorInvalidValue;
    return launch_large<derby_delta_rule_output, Shared>(int(chunks) * v_heads, THREADS, false, stream, q_map, k_map, v_map, h_map,
                  output_map, g, tokens, q_heads, v_heads);
}
