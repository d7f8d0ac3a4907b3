// derby_chunk_gated_delta_rule_state_sm90: a block carries 64 columns of a head's state over all chunks, in registers.
//
// The state stands turned over, [value, key], as the accumulators of one warpgroup: as bf16 it is the left operand of w S
// as it lies, and so are the decayed corrections in the update. Between the two products of a chunk nothing goes through
// shared memory. A warp of its own loads two chunks ahead; log decays come by it too, since a load that a thread waits for
// would also hold up its fence before the stores.
// Constraints: sm_90a, key_dim and value_dim 128, all tensors at addresses that 16 divides.
#include "delta_rule_tiles.cuh"

using namespace derby;

namespace {

constexpr int STAGES = 3, STORES = 3, CONSUMERS = 128, THREADS = CONSUMERS + 32;

struct Stage {
    uint8_t w[2 * TILE_BYTES], k[2 * TILE_BYTES], u[TILE_BYTES];
};
struct Shared {
    Stage stages[STAGES];
    uint8_t h[STORES][2 * TILE_BYTES], v_new[STORES][TILE_BYTES];  // on their way out
    float g[STAGES][CHUNK];  // log decays; behind the last token its own again
    Pipeline<STAGES> ring;
};

struct Call {
    CUtensorMap k, w, u, h, v_new;
    const float *g, *pool;
    const int* slots;
    float* final;
    int tokens, k_heads, v_heads;
};

// By a warp.
__device__ __forceinline__ void produce(const Call& call, Shared& shared, int head, int column0, int chunks) {
    const int lane = threadIdx.x % 32;
    PipelineState<STAGES> at;
    for (int chunk = 0; chunk < chunks; ++chunk, at.next()) {
        shared.ring.wait_empty(at);
        const Stage& stage = shared.stages[at.stage];
        const uint32_t full = shared.ring.full(at.stage);
        if (lane == 0) {
            mbarrier_arrive_expect_tx(full, sizeof(Stage));
            for (int half = 0; half < 2; ++half) {
                tma_load(shared_address(stage.w) + half * TILE_BYTES, &call.w, full, half * HALF, head, chunk * CHUNK);
                tma_load(shared_address(stage.k) + half * TILE_BYTES, &call.k, full, half * HALF,
                         head / (call.v_heads / call.k_heads), chunk * CHUNK);
            }
            tma_load(shared_address(stage.u), &call.u, full, column0, head, chunk * CHUNK);
        }
#pragma unroll
        for (int i = 0; i < CHUNK; i += 32) {
            const int token = min(chunk * CHUNK + i + lane, call.tokens - 1);
            cp_async4(shared_address(&shared.g[at.stage][i + lane]), call.g + size_t(token) * call.v_heads + head);
        }
        shared.ring.commit_copies(at);
    }
    cp_async_wait_all();
}

__global__ void __launch_bounds__(THREADS, 1) derby_delta_rule_state(const __grid_constant__ Call call) {
    auto& shared = dynamic_shared<Shared>();
    const int head = blockIdx.x / 2, column0 = blockIdx.x % 2 * HALF, chunks = (call.tokens + CHUNK - 1) / CHUNK;
    if (threadIdx.x == 0) {
        shared.ring.init(1 + 32, CONSUMERS / 32);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (__shfl_sync(0xffffffffu, threadIdx.x / 32, 0) == CONSUMERS / 32) {
        produce(call, shared, head, column0, chunks);
        return;
    }
    float state[64];
    const float* initial = call.pool + (size_t(call.slots[0]) * call.v_heads + head) * (128 * 128) + column0;
    for_state<true>([&](int i, int place) { state[i] = initial[place]; });
    int turn = STORES - 1;
    PipelineState<STAGES> at;
    for (int chunk = 0; chunk < chunks; ++chunk, at.next()) {
        if (++turn == STORES) turn = 0;
        uint32_t narrow[32];
#pragma unroll
        for (int step = 0; step < 8; ++step) pack_operand(narrow + 4 * step, state + 8 * step);
        shared.ring.wait(at);
        const Stage& stage = shared.stages[at.stage];
        const uint32_t w = shared_address(stage.w), k = shared_address(stage.k), u = shared_address(stage.u);
        float read[32];  // w S
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 8; ++step) {
            wgmma_bf16_rs<64>(read, narrow + 4 * step,
                              descriptor_of(descriptor_low(w + step / 4 * TILE_BYTES) + 2 * (step % 4)), step);
        }
        wgmma_commit_group();
        const float* g = shared.g[at.stage];
        const float last = g[CHUNK - 1] * LOG2_E, over = exp2_approx(last);
        float2 to_end[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float2 own = *reinterpret_cast<const float2*>(&g[8 * j + pair_of_thread()]);
            to_end[j] = make_float2(exp2_approx(last - own.x * LOG2_E), exp2_approx(last - own.y * LOG2_E));
        }
        const uint32_t h = shared_address(shared.h[turn]), v_new = shared_address(shared.v_new[turn]);
#pragma unroll
        for (int step = 0; step < 8; ++step) store_turned(h, step, narrow + 4 * step);
        uint32_t values[4][4];
#pragma unroll
        for (int step = 0; step < 4; ++step) load_turned(values[step], u, step);
        wgmma_wait_group<0>();
        pin<32>(read);
        pin<64>(state);
#pragma unroll
        for (int i = 0; i < 64; ++i) state[i] *= over;
        uint32_t decayed[16], corrections[16];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t pair = values[j / 2][j % 2 * 2 + i];
                const float low = low_half(pair) - read[4 * j + 2 * i], high = high_half(pair) - read[4 * j + 2 * i + 1];
                corrections[2 * j + i] = pack_bf16(low, high);
                decayed[2 * j + i] = pack_bf16(low * to_end[j].x, high * to_end[j].y);
            }
        }
        pin<64>(state);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            wgmma_bf16_rs<128, Major::MN>(state, decayed + 4 * step,
                                          descriptor_of(descriptor_low(k, TILE_BYTES) + 128 * step), 1);
        }
        wgmma_commit_group();
#pragma unroll
        for (int step = 0; step < 4; ++step) store_turned(v_new, step, corrections + 4 * step);
        fence_async_proxy();
        // All have written this chunk's, and the next one's place is free: its last stores are STORES - 1 groups old.
        if (threadIdx.x == 0) bulk_wait_group_read<STORES - 2>();
        named_barrier_sync(1, CONSUMERS);
        if (threadIdx.x == 0) {
            tma_store(&call.h, h, column0, 0, (chunk * call.v_heads + head) * 128);
            tma_store(&call.v_new, v_new, column0, head, chunk * CHUNK);
            bulk_commit_group();
        }
        wgmma_wait_group<0>();
        pin<64>(state);
        shared.ring.release(at);
    }
    float* final = call.final + size_t(head) * (128 * 128) + column0;
    for_state<true>([&](int i, int place) { final[place] = state[i]; });
    if (threadIdx.x == 0) bulk_wait_group_read<0>();
}

}  // namespace

extern "C" int derby_chunk_gated_delta_rule_state_run(const void* k, const void* w, const void* u, const float* g,
                                                      const float* pool, const int* slots, void* h, void* v_new,
                                                      float* final, int tokens, int k_heads, int v_heads,
                                                      cudaStream_t stream) {
    const uint64_t chunks = (tokens + CHUNK - 1) / CHUNK;
    Call call;
    call.g = g, call.pool = pool, call.slots = slots, call.final = final;
    call.tokens = tokens, call.k_heads = k_heads, call.v_heads = v_heads;
    if (tokens && !(encode_rows(&call.k, k, tokens, k_heads, CHUNK) && encode_rows(&call.w, w, tokens, v_heads, CHUNK) &&
                    encode_rows(&call.u, u, tokens, v_heads, CHUNK) &&
                    encode_rows(&call.v_new, v_new, tokens, v_heads, CHUNK) &&
                    encode_rows(&call.h, h, chunks * v_heads * 128, 1, 128)))
        return cudaErrorInvalidValue;
    return launch_large<derby_delta_rule_state, Shared>(2 * v_heads, THREADS, false, stream, call);
}
