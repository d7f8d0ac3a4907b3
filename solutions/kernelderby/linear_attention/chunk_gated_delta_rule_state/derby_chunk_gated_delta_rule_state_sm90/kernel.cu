// derby_chunk_gated_delta_rule_state_sm90: a block carries 64 columns of a head's state over chunks, in registers.
//
// The state is held transposed, [value, key], in the accumulators of one warpgroup. Rounded to bf16 it is then, as it
// lies, the left operand of the product w S, and so are the decayed corrections in the update: between the two products
// of a chunk nothing goes through shared memory. A separate warp loads three chunks ahead, log decays too, since a load
// that a thread waits for would also hold up its fence before the stores. Another warp stores, so that the consumers
// never wait for stores. If heads are few, a long sequence is cut into segments. A segment turns the state S at its
// start into decay S + C S + E. A first kernel computes C by carrying the identity without values, and E by carrying
// zeros, for all segments at once, and carries the first segment itself. A second kernel computes each segment's
// starting state from the segments before it and carries it through the segment.
// Constraints: sm_90a, key_dim and value_dim 128, all tensors at addresses that 16 divides.
#include "delta_rule_segments.cuh"

using namespace derby;

namespace {

constexpr int STAGES = 4, STORES = 2, CONSUMERS = STATE_GROUP, THREADS = CONSUMERS + 64;

constexpr int CONSUMERS_DONE = 1;  // hardware barrier; 0 is __syncthreads's

struct Stage {
    uint8_t w[2 * TILE_BYTES], k[2 * TILE_BYTES], u[TILE_BYTES];
};
struct Shared {
    Stage stages[STAGES];
    uint8_t h[STORES][2 * TILE_BYTES], v_new[STORES][TILE_BYTES];  // on their way out
    float g[STAGES][CHUNK];  // log decays; behind the last token its own again
    Pipeline<STAGES> ring;
    Pipeline<STORES> stores;  // consumers fill it
};

static_assert(sizeof(Stage) % 1024 == 0, "every stage's tiles are 1024-byte aligned");
static_assert(sizeof(Shared) <= 227 * 1024, "what a block of Hopper may have");

struct Call {
    CUtensorMap k, w, u, h, v_new, changes;
    const float *g, *pool;
    const int* slots;
    float *final, *ends, *decays;  // [segments, v_heads]: E, turned as in registers, and decay; C is behind `changes`
    int tokens, k_heads, v_heads, chunks, segment_chunks, segments;
};

// What a block carries through a segment: the sequence's state, or the matrix that becomes C or E.
enum class Start : int { STATE, IDENTITY, ZEROS };
struct Part {
    int head, column0, segment;
    Start start;
};

// One warp: loads C of the segments from the second up to this one, then this segment's chunks.
__device__ __forceinline__ void produce(const Call& call, Shared& shared, const Part& part, int first, int end) {
    const int lane = threadIdx.x % 32;
    PipelineState<STAGES> at;
    for (int segment = 1; part.start == Start::STATE && segment < part.segment; ++segment, at.next()) {
        shared.ring.wait_empty(at);
        const uint32_t full = shared.ring.full(at.stage), to = shared_address(shared.stages[at.stage].w);
        if (lane == 0) {
            mbarrier_arrive_expect_tx(full, 4 * TILE_BYTES);
            for (int half = 0; half < 2; ++half)
                tma_load(to + half * 2 * TILE_BYTES, &call.changes, full, half * HALF, 0,
                         (segment * call.v_heads + part.head) * 128);
        }
        shared.ring.commit_copies(at);
    }
    const bool values = part.start != Start::IDENTITY;
    for (int chunk = first; chunk < end; ++chunk, at.next()) {
        shared.ring.wait_empty(at);
        const Stage& stage = shared.stages[at.stage];
        const uint32_t full = shared.ring.full(at.stage);
        if (lane == 0) {
            mbarrier_arrive_expect_tx(full, values ? sizeof(Stage) : sizeof(Stage) - TILE_BYTES);
            for (int half = 0; half < 2; ++half) {
                tma_load(shared_address(stage.w) + half * TILE_BYTES, &call.w, full, half * HALF, part.head, chunk * CHUNK);
                tma_load(shared_address(stage.k) + half * TILE_BYTES, &call.k, full, half * HALF,
                         part.head / (call.v_heads / call.k_heads), chunk * CHUNK);
            }
            if (values) tma_load(shared_address(stage.u), &call.u, full, part.column0, part.head, chunk * CHUNK);
        }
#pragma unroll
        for (int i = 0; i < CHUNK; i += 32) {
            const int token = min(chunk * CHUNK + i + lane, call.tokens - 1);
            cp_async4(shared_address(&shared.g[at.stage][i + lane]), call.g + size_t(token) * call.v_heads + part.head);
        }
        shared.ring.commit_copies(at);
    }
    cp_async_wait_all();
}

// One thread: stores the results of the chunks that consumers computed.
__device__ __forceinline__ void store(const Call& call, Shared& shared, const Part& part, int first, int end) {
    PipelineState<STORES> at, read;  // read: the last stores that have left shared memory
    for (int chunk = first; chunk < end; ++chunk, at.next()) {
        shared.stores.wait(at);
        tma_store(&call.h, shared_address(shared.h[at.stage]), part.column0, 0, (chunk * call.v_heads + part.head) * 128);
        tma_store(&call.v_new, shared_address(shared.v_new[at.stage]), part.column0, part.head, chunk * CHUNK);
        bulk_commit_group();
        bulk_wait_group_read<1>();
        if (chunk > first) mbarrier_arrive(shared.stores.empty(read.stage)), read.next();
    }
    bulk_wait_group_read<0>();
}

// This thread's values of a state of `ends`.
__device__ __forceinline__ float* end_of(const Call& call, const Part& part, int segment) {
    return call.ends + ((size_t(segment) * call.v_heads + part.head) * 2 + part.column0 / HALF) * (64 * CONSUMERS) + threadIdx.x;
}

// Carries the chunks from `first` up to, but without, `end`. Returns the product of their decays.
template <Start START>
__device__ __forceinline__ float carry_chunks(const Call& call, Shared& shared, const Part& part, int first, int end,
                                              float* state, PipelineState<STAGES>& at) {
    PipelineState<STORES> out;
    float whole = 1.0f;
    for (int chunk = first; chunk < end; ++chunk, at.next(), out.next()) {
        uint32_t narrow[32];
        pack_state(narrow, state);
        shared.ring.wait(at);
        const Stage& stage = shared.stages[at.stage];
        const uint32_t w = shared_address(stage.w), k = shared_address(stage.k), u = shared_address(stage.u);
        float read[32];  // w S
        wgmma_fence();
        turned_product<8>(read, narrow, w);
        wgmma_commit_group();
        uint32_t values[4][4] = {};
        if constexpr (START != Start::IDENTITY) {
#pragma unroll
            for (int step = 0; step < 4; ++step) load_turned(values[step], u, step);
        }
        const float* g = shared.g[at.stage];
        const float last = g[CHUNK - 1] * LOG2_E, over = exp2_approx(last);
        whole *= over;
        float2 to_end[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float2 own = *reinterpret_cast<const float2*>(&g[8 * j + pair_of_thread()]);
            to_end[j] = make_float2(exp2_approx(last - own.x * LOG2_E), exp2_approx(last - own.y * LOG2_E));
        }
#pragma unroll
        for (int i = 0; i < 64; ++i) state[i] *= over;
        wgmma_wait_group<0>();
        pin<32>(read);
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
        add_corrections(state, decayed, k);
        if constexpr (START == Start::STATE) {
            const uint32_t h = shared_address(shared.h[out.stage]), v_new = shared_address(shared.v_new[out.stage]);
            shared.stores.wait_empty(out);
#pragma unroll
            for (int step = 0; step < 8; ++step) store_turned(h, step, narrow + 4 * step);
#pragma unroll
            for (int step = 0; step < 4; ++step) store_turned(v_new, step, corrections + 4 * step);
            fence_async_proxy();
            __syncwarp();
            if (threadIdx.x % 32 == 0) shared.stores.commit(out);
        }
        wgmma_wait_group<0>();
        pin<64>(state);
        shared.ring.release(at);
    }
    return whole;
}

// Blocks: 64 columns of a head. FIRST: of the first segment, then C and E of all other segments but the last. Else: of
// the other segments.
template <bool FIRST>
__global__ void __launch_bounds__(THREADS, 1) derby_delta_rule_state(const __grid_constant__ Call call) {
    auto& shared = dynamic_shared<Shared>();
    Part part;
    part.column0 = blockIdx.x % 2 * HALF, part.head = blockIdx.x / 2 % call.v_heads;
    const int turn = blockIdx.x / 2 / call.v_heads;  // FIRST: 0, then two for each segment from 1 on
    part.segment = FIRST ? (turn + 1) / 2 : call.segments - 1 - turn;
    part.start = !FIRST || turn == 0 ? Start::STATE : turn % 2 ? Start::IDENTITY : Start::ZEROS;
    const int first = part.segment * call.segment_chunks, end = min(first + call.segment_chunks, call.chunks);
    if constexpr (FIRST) let_next_kernel_start();
    if (threadIdx.x == 0) {
        shared.ring.init(1 + 32, CONSUMERS / 32);
        shared.stores.init(CONSUMERS / 32, 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    if constexpr (!FIRST) wait_for_previous_kernel();
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (warp >= CONSUMERS / 32) {
        if (warp == CONSUMERS / 32) produce(call, shared, part, first, end);
        else if (part.start == Start::STATE && threadIdx.x % 32 == 0) store(call, shared, part, first, end);
        return;
    }
    float state[64];
    PipelineState<STAGES> at;
    if (FIRST && part.start == Start::IDENTITY) {
        const int row = part.column0 + value_of_thread(), pair = pair_of_thread();
#pragma unroll
        for (int i = 0; i < 64; ++i) state[i] = i / 4 * 8 + pair + i % 2 == row + i / 2 % 2 * 8 ? 1.0f : 0.0f;
        const float whole = carry_chunks<Start::IDENTITY>(call, shared, part, first, end, state, at);
#pragma unroll
        for (int i = 0; i < 64; ++i) state[i] -= i / 4 * 8 + pair + i % 2 == row + i / 2 % 2 * 8 ? whole : 0.0f;
        const uint32_t tile = shared_address(shared.h[0]);
#pragma unroll
        for (int step = 0; step < 8; ++step) {
            uint32_t narrow[4];
            pack_operand(narrow, state + 8 * step);
            store_turned(tile, step, narrow);
        }
        fence_async_proxy();
        named_barrier_sync(CONSUMERS_DONE, CONSUMERS);
        if (threadIdx.x == 0) {
            call.decays[part.segment * call.v_heads + part.head] = whole;
            tma_store(&call.changes, tile, part.column0, 0, (part.segment * call.v_heads + part.head) * 128);
            bulk_commit_group();
            bulk_wait_group<0>();
        }
        return;
    }
    if (FIRST && part.start == Start::ZEROS) {
#pragma unroll
        for (int i = 0; i < 64; ++i) state[i] = 0.0f;
        carry_chunks<Start::ZEROS>(call, shared, part, first, end, state, at);
    } else {
        if constexpr (FIRST) {
            const float* initial = call.pool + (size_t(call.slots[0]) * call.v_heads + part.head) * (128 * 128);
            for_state<true>(first_of_state<true>(part.column0), [&](int i, int place) { state[i] = initial[place]; });
        } else {
            follow_segments(
                shared.ring, at, state, part.segment, [&](int segment) { return end_of(call, part, segment); },
                [&](int segment) { return call.decays[segment * call.v_heads + part.head]; },
                [&](int stage) { return shared_address(shared.stages[stage].w); });
        }
        carry_chunks<Start::STATE>(call, shared, part, first, end, state, at);
    }
    if (part.segment == call.segments - 1) {
        float* final = call.final + size_t(part.head) * (128 * 128);
        for_state<true>(first_of_state<true>(part.column0), [&](int i, int place) { final[place] = state[i]; });
    } else if constexpr (FIRST) {
        float* end = end_of(call, part, part.segment);
#pragma unroll
        for (int i = 0; i < 64; ++i) end[i * CONSUMERS] = state[i];
    }
}

}  // namespace

// segment_chunks: chunks of a segment. scratch: 6 x 128 x 128 bytes and 16 more for each head of all segments but the
// last one, uninitialised; nullptr if there is one segment.
extern "C" int derby_chunk_gated_delta_rule_state_run(const void* k, const void* w, const void* u, const float* g,
                                                      const float* pool, const int* slots, void* h, void* v_new,
                                                      float* final, void* scratch, int tokens, int k_heads, int v_heads,
                                                      int segment_chunks, cudaStream_t stream) {
    const int chunks = (tokens + CHUNK - 1) / CHUNK, segments = scratch ? (chunks + segment_chunks - 1) / segment_chunks : 1;
    const uint64_t states = uint64_t(segments - 1) * v_heads;
    Call call;
    call.g = g, call.pool = pool, call.slots = slots, call.final = final;
    call.tokens = tokens, call.k_heads = k_heads, call.v_heads = v_heads;
    call.chunks = chunks, call.segment_chunks = scratch ? segment_chunks : chunks, call.segments = segments;
    call.ends = static_cast<float*>(scratch);
    call.decays = call.ends + states * (128 * 128);
    if (tokens && !(encode_rows(&call.k, k, tokens, k_heads, CHUNK) && encode_rows(&call.w, w, tokens, v_heads, CHUNK) &&
                    encode_rows(&call.u, u, tokens, v_heads, CHUNK) &&
                    encode_rows(&call.v_new, v_new, tokens, v_heads, CHUNK) &&
                    encode_rows(&call.h, h, uint64_t(chunks) * v_heads * 128, 1, 128)))
        return cudaErrorInvalidValue;
    if (segments > 1 && !encode_rows(&call.changes, call.decays + states * 4, states * 128, 1, 128))
        return cudaErrorInvalidValue;
    const int parts = segments > 1 ? 2 * segments - 3 : 1;
    const cudaError_t error =
        launch_large<derby_delta_rule_state<true>, Shared>(2 * v_heads * parts, THREADS, false, stream, call);
    if (error != cudaSuccess || segments == 1) return error;
    return launch_large<derby_delta_rule_state<false>, Shared>(2 * v_heads * (segments - 1), THREADS, true, stream, call);
}
