// The state of the gated delta rule over the chunks of a sequence, and the outputs: after delta_rule_prepare.cuh.
//
// A block carries 64 columns of a head's state. It stands turned over, [value, key], as the accumulators of one warpgroup,
// so that as bf16 it is the left operand of k S and q S as it lies, and the corrections are that of T, P and the update:
// nothing goes through shared memory between the products. A warp of its own loads two chunks ahead.
// Constraints: sm_90a, key_dim and value_dim 128, all tensors at addresses that 16 divides.
#pragma once
#include "delta_rule_prepare.cuh"

namespace derby {

constexpr int CARRY_STAGES = 3, CARRY_CONSUMERS = 128, CARRY_THREADS = CARRY_CONSUMERS + 32;

struct CarryStage {
    uint8_t k[2 * TILE_BYTES], q[2 * TILE_BYTES], v[TILE_BYTES];
    ChunkRecord record;
};
struct CarryShared {
    CarryStage stages[CARRY_STAGES];
    uint8_t output[2][TILE_BYTES];  // on its way out
    Pipeline<CARRY_STAGES> ring;
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

// Rows of the stage from `count` on are another sequence's, or nothing: zeros. Consumers.
__device__ __forceinline__ void clear_rows(const CarryStage& stage, int count) {
    const uint32_t tiles[5] = {shared_address(stage.k), shared_address(stage.k) + TILE_BYTES, shared_address(stage.q),
                               shared_address(stage.q) + TILE_BYTES, shared_address(stage.v)};
    for (int row = count + threadIdx.x / 8; row < CHUNK; row += CARRY_CONSUMERS / 8) {
#pragma unroll
        for (int i = 0; i < 5; ++i) store_shared(tile_place(tiles[i], row, threadIdx.x % 8), uint4{0, 0, 0, 0});
    }
    fence_async_proxy();
    named_barrier_sync(1, CARRY_CONSUMERS);
}

// d (+)= `left` (16 columns of 64 values for each of STEPS) times a tile, K-major.
template <int STEPS>
__device__ __forceinline__ void turned_product(float* d, const uint32_t* left, uint32_t tile, bool add) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        wgmma_bf16_rs<64>(d, left + 4 * step, descriptor_of(descriptor_low(tile + step / 4 * TILE_BYTES) + 2 * (step % 4)),
                          add || step);
    }
}

// One chunk: state from its start to its end, and its outputs (turned, as pairs of tokens).
__device__ __forceinline__ void advance(const CarryStage& stage, float* state, uint32_t* outputs) {
    const int pair = pair_of_thread();
    const uint32_t k = shared_address(stage.k);
    uint32_t narrow[32], missing[16], decayed[16];
    float read[32], result[32];
#pragma unroll
    for (int step = 0; step < 8; ++step) pack_operand(narrow + 4 * step, state + 8 * step);
    wgmma_fence();
    turned_product<8>(read, narrow, k, false);
    wgmma_commit_group();
    turned_product<8>(result, narrow, shared_address(stage.q), false);
    wgmma_commit_group();
    uint32_t values[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) load_turned(values[step], shared_address(stage.v), step);
    wgmma_wait_group<1>();
    pin<32>(read);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const float2 of_k = *reinterpret_cast<const float2*>(&stage.record.of_k[8 * j + pair]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t value = values[j / 2][j % 2 * 2 + i];
            missing[2 * j + i] = pack_bf16(low_half(value) - of_k.x * read[4 * j + 2 * i],
                                           high_half(value) - of_k.y * read[4 * j + 2 * i + 1]);
        }
    }
    wgmma_fence();
    turned_product<4>(read, missing, shared_address(stage.record.solve), false);
    wgmma_commit_group();
    wgmma_wait_group<1>();
    pin<32>(result);
    const float of_state = stage.record.of_state[0];
#pragma unroll
    for (int i = 0; i < 64; ++i) state[i] *= of_state;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const float2 of_q = *reinterpret_cast<const float2*>(&stage.record.of_q[8 * j + pair]);
#pragma unroll
        for (int i = 0; i < 4; ++i) result[4 * j + i] *= i % 2 ? of_q.y : of_q.x;
    }
    wgmma_wait_group<0>();
    pin<32>(read);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const float2 to_end = *reinterpret_cast<const float2*>(&stage.record.to_end[8 * j + pair]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float low = read[4 * j + 2 * i], high = read[4 * j + 2 * i + 1];
            missing[2 * j + i] = pack_bf16(low, high);
            decayed[2 * j + i] = pack_bf16(low * to_end.x, high * to_end.y);
        }
    }
    pin<64>(state);
    pin<32>(result);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        wgmma_bf16_rs<128, Major::MN>(state, decayed + 4 * step,
                                      descriptor_of(descriptor_low(k, TILE_BYTES) + 128 * step), 1);
    }
    wgmma_commit_group();
    turned_product<4>(result, missing, shared_address(stage.record.within), true);
    wgmma_commit_group();
    wgmma_wait_group<0>();
    pin<64>(state);
    pin<32>(result);
#pragma unroll
    for (int step = 0; step < 4; ++step) pack_operand(outputs + 4 * step, result + 8 * step);
}

// Outputs of a chunk: whole ones by TMA, the first rows of others one by one.
__device__ __forceinline__ void store_outputs(const CarryCall& call, uint32_t tile, const CarryPart& part, int token,
                                              int count, const uint32_t* outputs) {
#pragma unroll
    for (int step = 0; step < 4; ++step) store_turned(tile, step, outputs + 4 * step);
    fence_async_proxy();
    if (threadIdx.x == 0) bulk_wait_group_read<0>();  // the other tile's, which the next chunk writes over
    named_barrier_sync(1, CARRY_CONSUMERS);
    if (count == CHUNK) {
        if (threadIdx.x == 0) {
            tma_store(&call.output, tile, part.column0, part.head, token);
            bulk_commit_group();
        }
        return;
    }
    for (int row = threadIdx.x / 8; row < count; row += CARRY_CONSUMERS / 8) {
        const size_t at = (size_t(token + row) * call.problem.v_heads + part.head) * DELTA_DIM + part.column0;
        reinterpret_cast<uint4*>(call.problem.output + at)[threadIdx.x % 8] =
            load_shared16(tile_place(tile, row, threadIdx.x % 8));
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
        shared.ring.init(1, CARRY_CONSUMERS / 32);
        fence_mbarrier_init();
    }
    __syncthreads();
    // The same in all lanes, as the compiler sees: in a branch that lanes could part in, products run one by one.
    if (__shfl_sync(0xffffffffu, threadIdx.x / 32, 0) == CARRY_CONSUMERS / 32) {
        wait_for_previous_kernel();
        if (threadIdx.x == CARRY_CONSUMERS) load_chunks(call, shared, part);
        return;
    }
    float state[64];
    const size_t head = (size_t(problem.slots[part.sequence]) * problem.v_heads + part.head) * DELTA_DIM * DELTA_DIM +
                        part.column0 * (KEY_MAJOR ? 1 : DELTA_DIM);
    for_state<KEY_MAJOR>([&](int i, int place) { state[i] = problem.initial[head + place]; });
    PipelineState<CARRY_STAGES> at;
    for (int chunk = 0; chunk < part.chunks; ++chunk, at.next()) {
        const int token = part.bounds.x + chunk * CHUNK, count = min(CHUNK, part.bounds.y - token);
        shared.ring.wait(at);
        const CarryStage& stage = shared.stages[at.stage];
        if (count < CHUNK) clear_rows(stage, count);
        uint32_t outputs[16];
        advance(stage, state, outputs);
        shared.ring.release(at);
        store_outputs(call, shared_address(shared.output[chunk % 2]), part, token, count, outputs);
    }
    for_state<KEY_MAJOR>([&](int i, int place) { problem.final[head + place] = state[i]; });
    if (threadIdx.x == 0) bulk_wait_group_read<0>();
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
