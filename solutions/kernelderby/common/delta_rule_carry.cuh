// The state of the gated delta rule over the chunks of a sequence, and the outputs: after delta_rule_prepare.cuh.
//
// A block carries 64 columns of a head's state. It stands turned over, [value, key], as the accumulators of one warpgroup,
// so that as bf16 it is the left operand of k S as it lies, and the corrections are that of T and of the update: nothing
// goes through shared memory between these products, each of which waits for the one before. A second warpgroup makes the
// outputs of a chunk, q S + P c, while the first one is at the next: it finds S and c in shared memory. A warp of its own
// loads two chunks ahead.
// Constraints: sm_90a, key_dim and value_dim 128, all tensors at addresses that 16 divides.
#pragma once
#include "delta_rule_prepare.cuh"

namespace derby {

constexpr int CARRY_STAGES = 3, CARRY_GROUP = 128, CARRY_THREADS = 2 * CARRY_GROUP + 32;

struct CarryStage {
    uint8_t k[2 * TILE_BYTES], q[2 * TILE_BYTES], v[TILE_BYTES];
    ChunkRecord record;
};
struct CarryShared {
    CarryStage stages[CARRY_STAGES];
    uint8_t state[2 * TILE_BYTES], corrections[TILE_BYTES];  // of a chunk: [key, value], [token, value]
    uint8_t output[2][TILE_BYTES];                           // on its way out
    Pipeline<CARRY_STAGES> ring;
    Pipeline<1> states, corrected;
};
static_assert(sizeof(CarryStage) % 1024 == 0, "every stage's tiles are 1024-byte aligned");
static_assert(sizeof(CarryShared) <= 227 * 1024, "what a block of Hopper may have");

struct CarryCall {
    CUtensorMap q, k, v, output;
    DeltaRule problem;
    const ChunkRecord* records;
    int longest_other;
};

// What a block works on: 64 columns from column0 on of a head, tokens bounds.x to bounds.y.
struct CarryPart {
    int sequence, head, column0, chunks;
    int2 bounds;
};

__device__ __forceinline__ void load_chunks(const CarryCall& call, CarryShared& shared, const CarryPart& part) {
    const DeltaRule& problem = call.problem;
    const int group = part.head / (problem.v_heads / problem.q_heads);
    const ChunkRecord* record = call.records + size_t(first_place(problem, part.sequence)) * problem.v_heads + part.head;
    PipelineState<CARRY_STAGES> at;
    for (int chunk = 0; chunk < part.chunks; ++chunk, at.next(), record += problem.v_heads) {
        const uint32_t full = shared.ring.acquire(at, sizeof(CarryStage));
        const CarryStage& stage = shared.stages[at.stage];
        const int token = part.bounds.x + chunk * CHUNK;
        for (int half = 0; half < 2; ++half) {
            tma_load(shared_address(stage.k) + half * TILE_BYTES, &call.k, full, half * HALF, group, token);
            tma_load(shared_address(stage.q) + half * TILE_BYTES, &call.q, full, half * HALF, group, token);
        }
        tma_load(shared_address(stage.v), &call.v, full, part.column0, part.head, token);
        bulk_load(shared_address(&stage.record), record, sizeof(ChunkRecord), full);
    }
}

// Rows of keys and values from `count` on are another sequence's, or nothing: zeros. First warpgroup.
__device__ __forceinline__ void clear_rows(const CarryStage& stage, int count) {
    const uint32_t tiles[3] = {shared_address(stage.k), shared_address(stage.k) + TILE_BYTES, shared_address(stage.v)};
    for (int row = count + threadIdx.x / 8; row < CHUNK; row += CARRY_GROUP / 8) {
#pragma unroll
        for (int i = 0; i < 3; ++i) store_shared(tile_place(tiles[i], row, threadIdx.x % 8), uint4{0, 0, 0, 0});
    }
    fence_async_proxy();
    named_barrier_sync(1, CARRY_GROUP);
}

// d = `left` (16 columns of 64 values for each of STEPS) times a tile, K-major.
template <int STEPS>
__device__ __forceinline__ void turned_product(float* d, const uint32_t* left, uint32_t tile) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        wgmma_bf16_rs<64>(d, left + 4 * step, descriptor_of(descriptor_low(tile + step / 4 * TILE_BYTES) + 2 * (step % 4)),
                          step);
    }
}

// First warpgroup: state from a chunk's start to its end.
__device__ __forceinline__ void advance(CarryShared& shared, const CarryStage& stage, float* state,
                                        const PipelineState<1>& handed) {
    const int pair = pair_of_thread();
    const uint32_t k = shared_address(stage.k);
    uint32_t narrow[32], corrections[16], decayed[16];
    float read[32];
#pragma unroll
    for (int step = 0; step < 8; ++step) pack_operand(narrow + 4 * step, state + 8 * step);
    wgmma_fence();
    turned_product<8>(read, narrow, k);
    wgmma_commit_group();
    shared.states.wait_empty(handed);
#pragma unroll
    for (int step = 0; step < 8; ++step) store_turned(shared_address(shared.state), step, narrow + 4 * step);
    fence_async_proxy();
    shared.states.commit(handed);
    uint32_t values[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) load_turned(values[step], shared_address(stage.v), step);
    wgmma_wait_group<0>();
    pin<32>(read);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const float2 of_k = *reinterpret_cast<const float2*>(&stage.record.of_k[8 * j + pair]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t value = values[j / 2][j % 2 * 2 + i];
            corrections[2 * j + i] = pack_bf16(low_half(value) - of_k.x * read[4 * j + 2 * i],
                                               high_half(value) - of_k.y * read[4 * j + 2 * i + 1]);
        }
    }
    wgmma_fence();
    turned_product<4>(read, corrections, shared_address(stage.record.solve));
    wgmma_commit_group();
    const float of_state = stage.record.of_state[0];
#pragma unroll
    for (int i = 0; i < 64; ++i) state[i] *= of_state;
    wgmma_wait_group<0>();
    pin<32>(read);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const float2 to_end = *reinterpret_cast<const float2*>(&stage.record.to_end[8 * j + pair]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float low = read[4 * j + 2 * i], high = read[4 * j + 2 * i + 1];
            corrections[2 * j + i] = pack_bf16(low, high);
            decayed[2 * j + i] = pack_bf16(low * to_end.x, high * to_end.y);
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
    shared.corrected.wait_empty(handed);
#pragma unroll
    for (int step = 0; step < 4; ++step) store_turned(shared_address(shared.corrections), step, corrections + 4 * step);
    fence_async_proxy();
    shared.corrected.commit(handed);
    wgmma_wait_group<0>();
    pin<64>(state);
}

// Second warpgroup: the outputs of a chunk into `tile`, for a thread a row of pairs of columns.
__device__ __forceinline__ void make_outputs(CarryShared& shared, const CarryStage& stage, uint32_t tile,
                                             const PipelineState<1>& handed) {
    const int lane = threadIdx.x % 32, row = (threadIdx.x - CARRY_GROUP) / 32 * 16 + lane / 4;
    const uint32_t q = shared_address(stage.q), within = shared_address(stage.record.within);
    float result[32];
    shared.states.wait(handed);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
        wgmma_bf16<64, Major::K, Major::MN>(
            result, descriptor_of(descriptor_low(q + step / 4 * TILE_BYTES) + 2 * (step % 4)),
            descriptor_of(descriptor_low(shared_address(shared.state), TILE_BYTES) + 128 * step), step);
    }
    wgmma_commit_group();
    const float of_q[2] = {stage.record.of_q[row], stage.record.of_q[row + 8]};
    wgmma_wait_group<0>();
    pin<32>(result);
    shared.states.release(handed);
#pragma unroll
    for (int i = 0; i < 32; ++i) result[i] *= of_q[i / 2 % 2];
    shared.corrected.wait(handed);
    pin<32>(result);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        wgmma_bf16<64, Major::K, Major::MN>(
            result, descriptor_of(descriptor_low(within) + 2 * step),
            descriptor_of(descriptor_low(shared_address(shared.corrections), TILE_BYTES) + 128 * step), 1);
    }
    wgmma_commit_group();
    wgmma_wait_group<0>();
    pin<32>(result);
    shared.corrected.release(handed);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        stmatrix_x4(tile_place(tile, row - lane / 4 + lane % 16, j + lane / 16),
                    pack_bf16(result[4 * j], result[4 * j + 1]), pack_bf16(result[4 * j + 2], result[4 * j + 3]),
                    pack_bf16(result[4 * j + 4], result[4 * j + 5]), pack_bf16(result[4 * j + 6], result[4 * j + 7]));
    }
}

// Second warpgroup, outputs of a chunk: whole ones by TMA, the first rows of others one by one.
__device__ __forceinline__ void store_outputs(const CarryCall& call, uint32_t tile, const CarryPart& part, int token,
                                              int count) {
    const int thread = threadIdx.x - CARRY_GROUP;
    fence_async_proxy();
    if (thread == 0) bulk_wait_group_read<0>();  // the other tile's, which the next chunk writes over
    named_barrier_sync(2, CARRY_GROUP);
    if (count == CHUNK) {
        if (thread == 0) {
            tma_store(&call.output, tile, part.column0, part.head, token);
            bulk_commit_group();
        }
        return;
    }
    for (int row = thread / 8; row < count; row += CARRY_GROUP / 8) {
        const size_t at = (size_t(token + row) * call.problem.v_heads + part.head) * DELTA_DIM + part.column0;
        reinterpret_cast<uint4*>(call.problem.output + at)[thread % 8] = load_shared16(tile_place(tile, row, thread % 8));
    }
}

// Blocks: sequence, head, half of its columns. KEY_MAJOR: a state lies [key_dim, value_dim]; else [value_dim, key_dim].
template <bool KEY_MAJOR>
__global__ void __launch_bounds__(CARRY_THREADS, 1) derby_delta_rule_carry(const __grid_constant__ CarryCall call) {
    auto& shared = dynamic_shared<CarryShared>();
    const DeltaRule& problem = call.problem;
    CarryPart part;
    part.column0 = blockIdx.x % 2 * HALF, part.head = blockIdx.x / 2 % problem.v_heads;
    part.sequence = blockIdx.x / 2 / problem.v_heads;
    part.bounds = problem.bounds(part.sequence);
    part.chunks = (part.bounds.y - part.bounds.x + CHUNK - 1) / CHUNK;
    if (part.bounds.y - part.bounds.x <= call.longest_other) {
        wait_for_previous_kernel();  // or this grid might end before the one that it depends on
        return;
    }
    if (threadIdx.x == 0) {
        shared.ring.init(1, 2 * CARRY_GROUP / 32);
        shared.states.init(CARRY_GROUP, CARRY_GROUP / 32);
        shared.corrected.init(CARRY_GROUP, CARRY_GROUP / 32);
        fence_mbarrier_init();
    }
    __syncthreads();
    // The same in all lanes, as the compiler sees: in a branch that lanes could part in, products run one by one.
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / CARRY_GROUP, 0);
    PipelineState<CARRY_STAGES> at;
    PipelineState<1> handed;
    if (group == 2) {
        wait_for_previous_kernel();
        if (threadIdx.x == 2 * CARRY_GROUP) load_chunks(call, shared, part);
    } else if (group == 1) {
        for (int chunk = 0; chunk < part.chunks; ++chunk, at.next(), handed.next()) {
            const int token = part.bounds.x + chunk * CHUNK;
            const uint32_t tile = shared_address(shared.output[chunk % 2]);
            shared.ring.wait(at);
            make_outputs(shared, shared.stages[at.stage], tile, handed);
            shared.ring.release(at);
            store_outputs(call, tile, part, token, min(CHUNK, part.bounds.y - token));
        }
        if (threadIdx.x == CARRY_GROUP) bulk_wait_group_read<0>();
    } else {
        float state[64];
        const size_t head = (size_t(problem.slots[part.sequence]) * problem.v_heads + part.head) * DELTA_DIM * DELTA_DIM +
                            part.column0 * (KEY_MAJOR ? 1 : DELTA_DIM);
        for_state<KEY_MAJOR>([&](int i, int place) { state[i] = problem.initial[head + place]; });
        for (int chunk = 0; chunk < part.chunks; ++chunk, at.next(), handed.next()) {
            const int count = min(CHUNK, part.bounds.y - part.bounds.x - chunk * CHUNK);
            shared.ring.wait(at);
            if (count < CHUNK) clear_rows(shared.stages[at.stage], count);
            advance(shared, shared.stages[at.stage], state, handed);
            shared.ring.release(at);
        }
        for_state<KEY_MAJOR>([&](int i, int place) { problem.final[head + place] = state[i]; });
    }
}

// Both kernels: all sequences of more than longest_other tokens (-1: all; an empty one keeps its state). records: chunk_places() x v_heads of them, uninitialised.
template <bool KEY_MAJOR>
cudaError_t launch_chunked(const DeltaRule& problem, void* records, int longest_other, cudaStream_t stream) {
    PrepareCall prepare;
    CarryCall carry;
    if (!(encode_rows(&prepare.q, problem.q, problem.tokens, problem.q_heads, CHUNK) &&
          encode_rows(&prepare.k, problem.k, problem.tokens, problem.q_heads, CHUNK) &&
          encode_rows(&carry.v, problem.v, problem.tokens, problem.v_heads, CHUNK) &&
          encode_rows(&carry.output, problem.output, problem.tokens, problem.v_heads, CHUNK)))
        return cudaErrorInvalidValue;
    carry.q = prepare.q, carry.k = prepare.k;
    carry.problem = prepare.problem = problem;
    carry.records = prepare.records = static_cast<ChunkRecord*>(records);
    carry.longest_other = prepare.longest_other = longest_other;
    const int copies = problem.initial == problem.final ? 0 : 4 * problem.states;
    const int blocks = (chunk_places(problem.tokens, problem.sequences) + copies) * problem.v_heads;
    const cudaError_t error = launch_large<derby_delta_rule_prepare, PrepareShared>(blocks, PREPARE_THREADS, false, stream,
                                                                                   prepare);
    if (error != cudaSuccess) return error;
    return launch_large<derby_delta_rule_carry<KEY_MAJOR>, CarryShared>(2 * problem.v_heads * problem.sequences,
                                                                        CARRY_THREADS, true, stream, carry);
}

}  // namespace derby
