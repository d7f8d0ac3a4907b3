// The state of the gated delta rule over the chunks of a sequence, and the outputs: after delta_rule_prepare.cuh.
//
// A block carries 64 columns of a head's state. It is held transposed, [value, key], in the accumulators of one
// warpgroup. Rounded to bf16 it is then, as it lies, the left operand of the product k S; likewise the corrections are
// the left operand of the products with T and of the update. So nothing goes through shared memory between these
// products, each of which waits for the one before. A second warpgroup computes the outputs of a chunk, q S + P c, from
// S and c in shared memory while the first one works on the next chunk. A warp of its own loads two chunks ahead.
// A long sequence with few blocks is cut into segments. A segment turns the state S at its start into decay S + C S + E.
// A first kernel carries the first segment. For the others it computes C (from the identity, without values) and E
// (from zeros), half of the columns in each warpgroup. A second kernel computes each segment's starting state from the
// segments before it and carries it through the segment.
// Constraints: sm_90a, key_dim and value_dim 128, all tensors at addresses that 16 divides.
#pragma once
#include "delta_rule_prepare.cuh"
#include "delta_rule_segments.cuh"

namespace derby {

constexpr int CARRY_STAGES = 3, CARRY_GROUP = STATE_GROUP, CARRY_THREADS = 2 * CARRY_GROUP + 32;

// Hardware barriers, named by the threads that meet at them; 0 is __syncthreads's.
enum CarryBarrier { FIRST_GROUP = 1, SECOND_GROUP = 2 };

// What a block works on: a segment of a sequence for one head, with 64 columns of its state from column0 on, or with
// all of C or E.
enum class Start : int { NONE, STATE, IDENTITY, ZEROS };
struct CarryPart {
    int sequence, head, column0, chunks, place;  // place: of the first chunk
    int segment, first_segment;                  // in the sequence; place of the sequence's first one
    bool last;
    int2 bounds;  // tokens
    Start start;
};
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
    CarryPart part;
};
static_assert(sizeof(CarryStage) % 1024 == 0, "every stage's tiles are 1024-byte aligned");
static_assert(sizeof(CarryShared) <= 227 * 1024, "what a block of Hopper may have");

struct CarryCall {
    CUtensorMap q, k, v, output, changes;
    DeltaRule problem;
    const ChunkRecord* records;
    int longest_other, segment_chunks;
    float *ends, *decays;  // [segments, v_heads]: E, turned as in registers, and decay; C is behind `changes`
};

// Segments of all sequences have places in one list. A sequence's places begin here, and no two sequences share a
// place.
__host__ __device__ __forceinline__ int segment_places(int chunks, int sequences, int length) {
    return chunks / length + sequences;
}
__device__ __forceinline__ int first_segment(const CarryCall& call, int sequence) {
    return segment_places(first_place(call.problem, sequence), sequence, call.segment_chunks);
}

template <bool FIRST>
__device__ __forceinline__ CarryPart find_part(const CarryCall& call) {
    const DeltaRule& problem = call.problem;
    const int half = blockIdx.x % 2, segment = blockIdx.x / 2 / problem.v_heads;
    int low = 0, high = problem.sequences;  // the last sequence whose first segment is not beyond
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        (first_segment(call, middle) <= segment ? low : high) = middle;
    }
    CarryPart part;
    part.sequence = low, part.head = blockIdx.x / 2 % problem.v_heads, part.column0 = half * HALF;
    part.first_segment = first_segment(call, low), part.segment = segment - part.first_segment;
    const int2 bounds = problem.bounds(low);
    const int chunks = (bounds.y - bounds.x + CHUNK - 1) / CHUNK, first = part.segment * call.segment_chunks;
    part.chunks = min(call.segment_chunks, chunks - first), part.last = first + part.chunks == chunks;
    part.place = first_place(problem, low) + first;
    part.bounds = make_int2(bounds.x + first * CHUNK, min(bounds.x + (first + part.chunks) * CHUNK, bounds.y));
    const bool mine = bounds.y - bounds.x > call.longest_other && (part.segment == 0 || part.chunks > 0);
    part.start = FIRST == (part.segment == 0) ? Start::STATE : !FIRST || part.last ? Start::NONE
                                                : half ? Start::ZEROS : Start::IDENTITY;
    if (!mine) part.start = Start::NONE;
    return part;
}

// One thread: loads C of the segments from the second up to this one, then this segment's chunks.
__device__ __forceinline__ void load_chunks(const CarryCall& call, CarryShared& shared, const CarryPart& part) {
    const DeltaRule& problem = call.problem;
    const int group = part.head / (problem.v_heads / problem.q_heads);
    const ChunkRecord* record = call.records + size_t(part.place) * problem.v_heads + part.head;
    PipelineState<CARRY_STAGES> at;
    for (int segment = 1; part.start == Start::STATE && segment < part.segment; ++segment, at.next()) {
        const uint32_t full = shared.ring.acquire(at, 4 * TILE_BYTES), to = shared_address(shared.stages[at.stage].k);
        for (int half = 0; half < 2; ++half)
            tma_load(to + half * 2 * TILE_BYTES, &call.changes, full, half * HALF, 0,
                     ((part.first_segment + segment) * problem.v_heads + part.head) * DELTA_DIM);
    }
    // If a block computes all of E, the values of the other half lie where the queries would be.
    const int bytes = sizeof(CarryStage) - (part.start == Start::ZEROS ? TILE_BYTES : part.start == Start::IDENTITY ? 3 * TILE_BYTES : 0);
    for (int chunk = 0; chunk < part.chunks; ++chunk, at.next(), record += problem.v_heads) {
        const uint32_t full = shared.ring.acquire(at, bytes);
        const CarryStage& stage = shared.stages[at.stage];
        const int token = part.bounds.x + chunk * CHUNK;
        for (int half = 0; half < 2; ++half) {
            tma_load(shared_address(stage.k) + half * TILE_BYTES, &call.k, full, half * HALF, group, token);
            if (part.start == Start::STATE)
                tma_load(shared_address(stage.q) + half * TILE_BYTES, &call.q, full, half * HALF, group, token);
        }
        if (part.start == Start::STATE) {
            tma_load(shared_address(stage.v), &call.v, full, part.column0, part.head, token);
        } else if (part.start == Start::ZEROS) {
            tma_load(shared_address(stage.v), &call.v, full, 0, part.head, token);
            tma_load(shared_address(stage.q), &call.v, full, HALF, part.head, token);
        }
        bulk_load(shared_address(&stage.record), record, sizeof(ChunkRecord), full);
    }
}

// First warpgroup: makes zeros of the rows of keys and values from `count` on, which belong to another sequence or hold
// nothing.
__device__ __forceinline__ void clear_rows(const CarryStage& stage, int count) {
    const uint32_t tiles[3] = {shared_address(stage.k), shared_address(stage.k) + TILE_BYTES, shared_address(stage.v)};
    for (int row = count + threadIdx.x / 8; row < CHUNK; row += CARRY_GROUP / 8) {
#pragma unroll
        for (int i = 0; i < 3; ++i) store_shared(tile_place(tiles[i], row, threadIdx.x % 8), uint4{0, 0, 0, 0});
    }
    fence_async_proxy();
    named_barrier_sync(FIRST_GROUP, CARRY_GROUP);
}

// Carries the state from a chunk's start to its end; values: a tile. HANDS_OVER: the first warpgroup hands state and
// corrections to the second one. Returns the decay.
template <bool HANDS_OVER, bool VALUES>
__device__ __forceinline__ float advance(CarryShared& shared, const CarryStage& stage, uint32_t values_tile, float* state,
                                         const PipelineState<1>& handed) {
    const int pair = pair_of_thread();
    const uint32_t k = shared_address(stage.k);
    uint32_t narrow[32], corrections[16], decayed[16];
    float read[32];
    pack_state(narrow, state);
    wgmma_fence();
    turned_product<8>(read, narrow, k);
    wgmma_commit_group();
    if constexpr (HANDS_OVER) {
        shared.states.wait_empty(handed);
#pragma unroll
        for (int step = 0; step < 8; ++step) store_turned(shared_address(shared.state), step, narrow + 4 * step);
        fence_async_proxy();
        shared.states.commit(handed);
    }
    uint32_t values[4][4] = {};
    if constexpr (VALUES) {
#pragma unroll
        for (int step = 0; step < 4; ++step) load_turned(values[step], values_tile, step);
    }
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
    add_corrections(state, decayed, k);
    if constexpr (HANDS_OVER) {
        shared.corrected.wait_empty(handed);
#pragma unroll
        for (int step = 0; step < 4; ++step) store_turned(shared_address(shared.corrections), step, corrections + 4 * step);
        fence_async_proxy();
        shared.corrected.commit(handed);
    }
    wgmma_wait_group<0>();
    pin<64>(state);
    return of_state;
}

// This thread's values of 64 columns of E of a segment, or of the state at its end.
__device__ __forceinline__ float* end_of(const CarryCall& call, const CarryPart& part, int segment, int half) {
    const size_t place = size_t(part.first_segment + segment) * call.problem.v_heads + part.head;
    return call.ends + (place * 2 + half) * (64 * CARRY_GROUP) + threadIdx.x % CARRY_GROUP;
}

// C (IDENTITY) or E of a segment, by both warpgroups.
template <bool IDENTITY>
__device__ __forceinline__ void carry_change(const CarryCall& call, CarryShared& shared, const CarryPart& part, int half) {
    int value = half * HALF + value_of_thread() - pair_of_thread();
    auto diagonal = [&](int i) { return i / 4 * 8 + i % 2 - i / 2 % 2 * 8 == value; };
    float state[64], whole = 1.0f;
#pragma unroll
    for (int i = 0; i < 64; ++i) state[i] = IDENTITY && diagonal(i) ? 1.0f : 0.0f;
    PipelineState<CARRY_STAGES> at;
    for (int chunk = 0; chunk < part.chunks; ++chunk, at.next()) {
        shared.ring.wait(at);
        const CarryStage& stage = shared.stages[at.stage];
        const uint32_t values = half ? shared_address(stage.q) : shared_address(stage.v);
        whole *= advance<false, !IDENTITY>(shared, stage, values, state, {});
        shared.ring.release(at);
    }
    if constexpr (IDENTITY) {
        value = __shfl_sync(0xffffffffu, value, threadIdx.x % 32);  // or where the diagonal lies is kept, all the while
        const int place = (part.first_segment + part.segment) * call.problem.v_heads + part.head;
        const uint32_t tile = half ? shared_address(shared.output) : shared_address(shared.state);
#pragma unroll
        for (int step = 0; step < 8; ++step) {
#pragma unroll
            for (int i = 8 * step; i < 8 * step + 8; ++i) state[i] -= diagonal(i) ? whole : 0.0f;
            uint32_t narrow[4];
            pack_operand(narrow, state + 8 * step);
            store_turned(tile, step, narrow);
        }
        fence_async_proxy();
        if (half) named_barrier_sync(SECOND_GROUP, CARRY_GROUP);
        else named_barrier_sync(FIRST_GROUP, CARRY_GROUP);
        if (threadIdx.x % CARRY_GROUP == 0) {
            if (half == 0) call.decays[place] = whole;
            tma_store(&call.changes, tile, half * HALF, 0, place * DELTA_DIM);
            bulk_commit_group();
            bulk_wait_group<0>();
        }
    } else {
        float* end = end_of(call, part, part.segment, half);
#pragma unroll
        for (int i = 0; i < 64; ++i) end[i * CARRY_GROUP] = state[i];
    }
}

// Second warpgroup: writes the outputs of a chunk into `tile`; each thread has rows of pairs of columns.
__device__ __forceinline__ void make_outputs(CarryShared& shared, const CarryStage& stage, uint32_t tile,
                                             const PipelineState<1>& handed) {
    const int lane = threadIdx.x % 32, row = (threadIdx.x - CARRY_GROUP) / 32 * 16 + lane / 4;
    const uint32_t q = shared_address(stage.q), within = shared_address(stage.record.within);
    float result[32];
    shared.states.wait(handed);
    wgmma_fence();
    product_of_state<64>(result, q, shared_address(shared.state), TILE_BYTES);
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

// Second warpgroup: stores the outputs of a chunk, of a whole one by TMA, else its first rows one by one.
__device__ __forceinline__ void store_outputs(const CarryCall& call, uint32_t tile, const CarryPart& part, int token,
                                              int count) {
    const int thread = threadIdx.x - CARRY_GROUP;
    fence_async_proxy();
    if (thread == 0) bulk_wait_group_read<0>();  // the other tile's, which the next chunk writes over
    named_barrier_sync(SECOND_GROUP, CARRY_GROUP);
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

// First warpgroup: carries the state through a segment.
template <bool KEY_MAJOR, bool FIRST>
__device__ __forceinline__ void carry_state(const CarryCall& call, CarryShared& shared, const CarryPart& part) {
    const DeltaRule& problem = call.problem;
    const size_t head = (size_t(problem.slots[part.sequence]) * problem.v_heads + part.head) * DELTA_DIM * DELTA_DIM;
    int first = first_of_state<KEY_MAJOR>(part.column0);
    float state[64];
    PipelineState<CARRY_STAGES> at;
    PipelineState<1> handed;
    if constexpr (FIRST) for_state<KEY_MAJOR>(first, [&](int i, int place) { state[i] = problem.initial[head + place]; });
    else
        follow_segments(
            shared.ring, at, state, part.segment,
            [&](int segment) { return end_of(call, part, segment, part.column0 / HALF); },
            [&](int segment) { return call.decays[(part.first_segment + segment) * problem.v_heads + part.head]; },
            [&](int stage) { return shared_address(shared.stages[stage].k); });
    for (int chunk = 0; chunk < part.chunks; ++chunk, at.next(), handed.next()) {
        const int count = min(CHUNK, part.bounds.y - part.bounds.x - chunk * CHUNK);
        shared.ring.wait(at);
        const CarryStage& stage = shared.stages[at.stage];
        if (count < CHUNK) clear_rows(stage, count);
        advance<true, true>(shared, stage, shared_address(stage.v), state, handed);
        shared.ring.release(at);
    }
    if (part.last) {
        first = __shfl_sync(0xffffffffu, first, threadIdx.x % 32);  // or all places of `initial` are kept, all the while
        for_state<KEY_MAJOR>(first, [&](int i, int place) { problem.final[head + place] = state[i]; });
    } else if constexpr (FIRST) {
        float* end = end_of(call, part, 0, part.column0 / HALF);
#pragma unroll
        for (int i = 0; i < 64; ++i) end[i * CARRY_GROUP] = state[i];
    }
}

// Second warpgroup: computes the outputs of a segment.
__device__ __forceinline__ void carry_outputs(const CarryCall& call, CarryShared& shared, const CarryPart& part) {
    PipelineState<CARRY_STAGES> at;
    PipelineState<1> handed;
    for (int segment = 1; segment < part.segment; ++segment, at.next()) {
        shared.ring.wait(at);
        shared.ring.release(at);
    }
    for (int chunk = 0; chunk < part.chunks; ++chunk, at.next(), handed.next()) {
        const int token = part.bounds.x + chunk * CHUNK;
        const uint32_t tile = shared_address(shared.output[chunk % 2]);
        shared.ring.wait(at);
        make_outputs(shared, shared.stages[at.stage], tile, handed);
        shared.ring.release(at);
        store_outputs(call, tile, part, token, min(CHUNK, part.bounds.y - token));
    }
    if (threadIdx.x == CARRY_GROUP) bulk_wait_group_read<0>();
}

// Blocks: segment, head, half of the columns; two of a segment and head. KEY_MAJOR: a state lies [key_dim, value_dim]; else
// [value_dim, key_dim]. FIRST: carries all first segments, and computes C and E of those between first and last; else
// carries all others.
template <bool KEY_MAJOR, bool FIRST>
__global__ void __launch_bounds__(CARRY_THREADS, 1) derby_delta_rule_carry(const __grid_constant__ CarryCall call) {
    auto& shared = dynamic_shared<CarryShared>();
    if constexpr (FIRST) let_next_kernel_start();
    if (threadIdx.x == 0) {
        shared.part = find_part<FIRST>(call);
        shared.ring.init(1, 2 * CARRY_GROUP / 32);
        shared.states.init(CARRY_GROUP, CARRY_GROUP / 32);
        shared.corrected.init(CARRY_GROUP, CARRY_GROUP / 32);
        fence_mbarrier_init();
    }
    __syncthreads();
    const CarryPart& part = shared.part;
    const Start start = Start(__shfl_sync(0xffffffffu, int(part.start), 0));
    if (start == Start::NONE) {
        wait_for_previous_kernel();  // or this grid might end before the one that it depends on
        return;
    }
    // The same in all lanes, in a way that the compiler sees: in a branch where lanes could diverge, products would run
    // one by one.
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / CARRY_GROUP, 0);
    if (!FIRST || group == 2) wait_for_previous_kernel();
    if (group == 2) {
        if (threadIdx.x == 2 * CARRY_GROUP) load_chunks(call, shared, part);
    } else if (FIRST && start == Start::IDENTITY) {
        carry_change<true>(call, shared, part, group);
    } else if (FIRST && start == Start::ZEROS) {
        carry_change<false>(call, shared, part, group);
    } else if (group == 1) {
        carry_outputs(call, shared, part);
    } else {
        carry_state<KEY_MAJOR, FIRST>(call, shared, part);
    }
}

// All kernels: all sequences of more than longest_other tokens (-1: all; an empty one keeps its state), cut every
// segment_chunks chunks. scratch: for chunk_places() x v_heads records and, where a sequence may have more chunks, for
// segment_places() x v_heads of six times 128 x 128 bytes and 16 more; uninitialised.
template <bool KEY_MAJOR>
cudaError_t launch_chunked(const DeltaRule& problem, void* scratch, int longest_other, int segment_chunks,
                           cudaStream_t stream) {
    PrepareCall prepare;
    CarryCall carry;
    const int places = chunk_places(problem.tokens, problem.sequences);
    const int segments = segment_places(places, problem.sequences, segment_chunks);
    const bool cut = (problem.tokens + CHUNK - 1) / CHUNK > segment_chunks;
    carry.records = prepare.records = static_cast<ChunkRecord*>(scratch);
    carry.ends = reinterpret_cast<float*>(prepare.records + size_t(places) * problem.v_heads);
    carry.decays = carry.ends + size_t(segments) * problem.v_heads * (DELTA_DIM * DELTA_DIM);
    if (!(encode_rows(&prepare.q, problem.q, problem.tokens, problem.q_heads, CHUNK) &&
          encode_rows(&prepare.k, problem.k, problem.tokens, problem.q_heads, CHUNK) &&
          encode_rows(&carry.v, problem.v, problem.tokens, problem.v_heads, CHUNK) &&
          encode_rows(&carry.output, problem.output, problem.tokens, problem.v_heads, CHUNK) &&
          (!cut || encode_rows(&carry.changes, carry.decays + size_t(segments) * problem.v_heads * 4,
                               uint64_t(segments) * problem.v_heads * DELTA_DIM, 1, DELTA_DIM))))
        return cudaErrorInvalidValue;
    carry.q = prepare.q, carry.k = prepare.k;
    carry.problem = prepare.problem = problem;
    carry.longest_other = prepare.longest_other = longest_other;
    carry.segment_chunks = segment_chunks;
    const int copies = problem.initial == problem.final ? 0 : 4 * problem.states;
    cudaError_t error = launch_large<derby_delta_rule_prepare, PrepareShared>((places + copies) * problem.v_heads,
                                                                              PREPARE_THREADS, false, stream, prepare);
    const int parts = 2 * problem.v_heads * (cut ? segments : problem.sequences);
    if (error == cudaSuccess)
        error = launch_large<derby_delta_rule_carry<KEY_MAJOR, true>, CarryShared>(parts, CARRY_THREADS, true, stream, carry);
    if (error == cudaSuccess && cut)
        error = launch_large<derby_delta_rule_carry<KEY_MAJOR, false>, CarryShared>(parts, CARRY_THREADS, true, stream, carry);
    return error;
}

}  // namespace derby
