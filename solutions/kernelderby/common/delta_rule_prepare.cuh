// What a chunk of the gated delta rule needs no state for: gates, lengths, the inverse of its WY form, its scores.
//
// A chunk's corrections c follow from the state S at its start by c = T (v - exp(g) k S), with T = (1 + A)^-1 beta and
// A_ij = beta_i exp(g_i - g_j) k_i k_j for j < i; its outputs are exp(g) q S + P c, with P_ij = exp(g_i - g_j) q_i k_j for
// j <= i. A block makes T, P and the factors of rows of one chunk and head; delta_rule_carry.cuh uses them. Keys and
// queries go into products as they are: their lengths are factors of rows and columns.
// Constraints: sm_90a, key_dim 128, all tensors at addresses that 16 divides.
#pragma once
#include "delta_rule_gates.cuh"

namespace derby {

// T and P as tiles, and of each token: the factor of k S, of q S, of its key to the chunk's end, and of the state.
struct ChunkRecord {
    uint8_t solve[TILE_BYTES], within[TILE_BYTES];
    float of_k[CHUNK], of_q[CHUNK], to_end[CHUNK], of_state[CHUNK];
};

// Chunks of all sequences have places in one list: a sequence's from first() on, and no two sequences share one.
struct ChunkPlace {
    int sequence, first, count;  // first token; tokens, or 0: nothing is there
};
__device__ __forceinline__ int first_place(const DeltaRule& problem, int sequence) {
    return problem.bounds(sequence).x / CHUNK + sequence;
}
__device__ __forceinline__ ChunkPlace find_chunk(const DeltaRule& problem, int place) {
    int low = 0, high = problem.sequences;  // the last sequence whose first place is not beyond
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        (first_place(problem, middle) <= place ? low : high) = middle;
    }
    const int2 bounds = problem.bounds(low);
    const int first = bounds.x + (place - first_place(problem, low)) * CHUNK;
    return {low, first, max(0, min(CHUNK, bounds.y - first))};
}
__host__ __device__ __forceinline__ int chunk_places(int tokens, int sequences) { return tokens / CHUNK + sequences; }

constexpr int PREPARE_THREADS = 128, SYSTEM_STRIDE = CHUNK + 4, SCRATCH_STRIDE = 36;

// What is needed at different times lies in one place, so that five blocks share a multiprocessor.
struct PrepareShared {
    union {
        uint8_t q[2 * TILE_BYTES];               // until the products are made
        ChunkRecord record;                      // P from then on,
        float scratch[32][SCRATCH_STRIDE];       // and in the place of T, until it is whole
    };
    union {
        uint8_t k[2 * TILE_BYTES];               // likewise
        float system[CHUNK][SYSTEM_STRIDE];
    };
    float g[CHUNK], beta[CHUNK], unit_q[CHUNK], unit_k[CHUNK];  // g times log2 e
    uint64_t ready;
};
static_assert(offsetof(PrepareShared, k) % 1024 == 0, "tiles are 1024-byte aligned");
static_assert(sizeof(float[32][SCRATCH_STRIDE]) <= sizeof(ChunkRecord::solve), "P lies behind");

// One warp: the sums of the log decays, and beta; 0 behind the chunk's last token.
__device__ __forceinline__ void gather_gates(PrepareShared& shared, const DeltaRule& problem, int head,
                                             const ChunkPlace& chunk) {
    const int lane = threadIdx.x % 32;
    const float rate = problem.A_log[head], bias = __bfloat162float(problem.dt_bias[head]);
    float steps[2], betas[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int token = 2 * lane + i;
        const bool inside = token < chunk.count;
        const size_t at = size_t(chunk.first + (inside ? token : 0)) * problem.v_heads + head;
        steps[i] = inside ? log_decay(rate, bias, problem.a[at]) * LOG2_E : 0.0f;
        betas[i] = inside ? sigmoid(__bfloat162float(problem.b[at])) : 0.0f;
    }
    float sum = steps[0] + steps[1];
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, sum, apart);
        if (lane >= apart) sum += before;
    }
    shared.g[2 * lane] = sum - steps[1], shared.g[2 * lane + 1] = sum;
    shared.beta[2 * lane] = betas[0], shared.beta[2 * lane + 1] = betas[1];
}

// 1 / length of the rows of q (scaled) and k: two threads a row and matrix.
__device__ __forceinline__ void find_lengths(PrepareShared& shared) {
    const int row = threadIdx.x / 2, half = threadIdx.x % 2;
    const uint32_t tiles[2] = {shared_address(shared.q), shared_address(shared.k)};
    float sums[2];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint4 words = load_shared16(tile_place(tiles[m] + half * TILE_BYTES, row, i ^ (4 * half)));
            const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                sum = fmaf(low_half(pairs[j]), low_half(pairs[j]), sum);
                sum = fmaf(high_half(pairs[j]), high_half(pairs[j]), sum);
            }
        }
        sums[m] = sum + __shfl_xor_sync(0xffffffffu, sum, 1);
    }
    if (half == 0) shared.unit_q[row] = DELTA_SCALE * rsqrtf(sums[0] + DELTA_EPS);
    else shared.unit_k[row] = rsqrtf(sums[1] + DELTA_EPS);
}

// A warp's 16 x 16 block on the diagonal becomes its inverse; a lane has a column.
__device__ __forceinline__ void invert_diagonal(PrepareShared& shared) {
    const int first = threadIdx.x / 32 * 16, column = threadIdx.x % 16;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
    for (int m = 0; m < 15; ++m) {
#pragma unroll
        for (int i = m + 1; i < 16; ++i) x[i] = fmaf(-shared.system[first + i][first + m], x[m], x[i]);
    }
    __syncwarp();
    if (threadIdx.x % 32 < 16) {
#pragma unroll
        for (int i = 0; i < 16; ++i) shared.system[first + i][first + column] = x[i];
    }
}

// The lower left quarter L of a block of 2 SIDE x 2 SIDE, between the inverses I above it and J below it, becomes -J L I.
// All threads; the blocks of that size are shared out among them.
template <int SIDE>
__device__ __forceinline__ void invert_quarters(PrepareShared& shared) {
    constexpr int BLOCKS = CHUNK / (2 * SIDE), EACH = PREPARE_THREADS / BLOCKS, COLUMNS = SIDE * SIDE / EACH;
    static_assert(COLUMNS % 4 == 0 && BLOCKS * SIDE <= 32, "vectors of four; the scratch holds a quarter of each block");
    const int block = threadIdx.x / EACH, row = threadIdx.x % EACH / (SIDE / COLUMNS);
    const int column = threadIdx.x % (SIDE / COLUMNS) * COLUMNS, first = block * 2 * SIDE;
    float sums[COLUMNS] = {};
#pragma unroll 8
    for (int k = 0; k < SIDE; ++k) {
        const float left = shared.system[first + SIDE + row][first + k];
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) sums[c] = fmaf(left, shared.system[first + k][first + column + c], sums[c]);
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) shared.scratch[block * SIDE + row][column + c] = sums[c], sums[c] = 0.0f;
    __syncthreads();
#pragma unroll 8
    for (int k = 0; k < SIDE; ++k) {
        const float left = shared.system[first + SIDE + row][first + SIDE + k];
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) sums[c] = fmaf(left, shared.scratch[block * SIDE + k][column + c], sums[c]);
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) shared.system[first + SIDE + row][first + column + c] = -sums[c];
    __syncthreads();
}

// A of the chunk into `system`, and P into the record, from k k^T and q k^T in registers.
__device__ __forceinline__ void spread_scores(PrepareShared& shared, const float* of_keys, const float* of_queries,
                                              int count) {
    const int row0 = value_of_thread(), pair = pair_of_thread();
    const uint32_t within = shared_address(shared.record.within);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row0 + 8 * half;
        const float g = shared.g[row], of_k = shared.beta[row] * shared.unit_k[row], of_q = shared.unit_q[row];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            float a[2], p[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int column = 8 * j + pair + i, at = 4 * j + 2 * half + i;
                const float between = exp2_approx(g - shared.g[column]) * shared.unit_k[column];
                const bool inside = row < count;
                a[i] = inside && column < row ? of_keys[at] * between * of_k : 0.0f;
                p[i] = inside && column <= row ? of_queries[at] * between * of_q : 0.0f;
            }
            *reinterpret_cast<float2*>(&shared.system[row][8 * j + pair]) = make_float2(a[0], a[1]);
            store_shared(tile_place(within, row, j) + 2 * pair, pack_bf16(p[0], p[1]));
        }
    }
}

// T and the factors of rows.
__device__ __forceinline__ void fill_record(PrepareShared& shared, int count) {
    const int row = threadIdx.x / 2, half = threadIdx.x % 2;
    const uint32_t solve = shared_address(shared.record.solve);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int group = half * 4 + i;
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int column = group * 8 + 2 * j;
            words[j] = pack_bf16(shared.system[row][column] * shared.beta[column],
                                 shared.system[row][column + 1] * shared.beta[column + 1]);
        }
        store_shared(tile_place(solve, row, group), uint4{words[0], words[1], words[2], words[3]});
    }
    if (threadIdx.x < CHUNK) {
        const int token = threadIdx.x;
        const bool inside = token < count;
        const float g = shared.g[token], last = shared.g[CHUNK - 1];
        shared.record.of_k[token] = inside ? exp2_approx(g) * shared.unit_k[token] : 0.0f;
        shared.record.of_q[token] = inside ? exp2_approx(g) * shared.unit_q[token] : 0.0f;
        shared.record.to_end[token] = inside ? exp2_approx(last - g) * shared.unit_k[token] : 0.0f;
        shared.record.of_state[token] = exp2_approx(last);
    }
}

struct PrepareCall {
    CUtensorMap q, k;
    DeltaRule problem;
    ChunkRecord* records;  // [places, v_heads]
    int longest_other;     // sequences of at most so many tokens are another kernel's
};

// Blocks: place, head; those beyond copy states, where the pools differ.
__global__ void __launch_bounds__(PREPARE_THREADS, 5) derby_delta_rule_prepare(const __grid_constant__ PrepareCall call) {
    auto& shared = dynamic_shared<PrepareShared>();
    const DeltaRule& problem = call.problem;
    const int head = blockIdx.x % problem.v_heads, place = blockIdx.x / problem.v_heads;
    const int places = chunk_places(problem.tokens, problem.sequences);
    let_next_kernel_start();
    if (place >= places) {
        const int part = blockIdx.x - places * problem.v_heads;
        copy_unused<PREPARE_THREADS>(problem, part / (4 * problem.v_heads), part % (4 * problem.v_heads));
        return;
    }
    const ChunkPlace chunk = find_chunk(problem, place);
    const int2 bounds = problem.bounds(chunk.sequence);
    if (chunk.count == 0 || bounds.y - bounds.x <= call.longest_other) return;
    const uint32_t q = shared_address(shared.q), k = shared_address(shared.k), ready = shared_address(&shared.ready);
    if (threadIdx.x == 0) {
        mbarrier_init(ready, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(ready, 4 * TILE_BYTES);
        const int group = head / (problem.v_heads / problem.q_heads);
        for (int half = 0; half < 2; ++half) {
            tma_load(k + half * TILE_BYTES, &call.k, ready, half * HALF, group, chunk.first);
            tma_load(q + half * TILE_BYTES, &call.q, ready, half * HALF, group, chunk.first);
        }
    }
    if (threadIdx.x / 32 == 3) gather_gates(shared, problem, head, chunk);
    __syncthreads();
    mbarrier_wait(ready, 0);
    float of_keys[32], of_queries[32];
    wgmma_fence();
    product_of_tiles<64>(of_keys, k, k, false);
    product_of_tiles<64>(of_keys, k + TILE_BYTES, k + TILE_BYTES, true);
    product_of_tiles<64>(of_queries, q, k, false);
    product_of_tiles<64>(of_queries, q + TILE_BYTES, k + TILE_BYTES, true);
    wgmma_commit_group();
    find_lengths(shared);
    wgmma_wait_group<0>();
    pin<32>(of_keys);
    pin<32>(of_queries);
    __syncthreads();  // nobody reads queries or keys any more
    spread_scores(shared, of_keys, of_queries, chunk.count);
    __syncthreads();
    invert_diagonal(shared);
    __syncthreads();
    invert_quarters<16>(shared);
    invert_quarters<32>(shared);
    fill_record(shared, chunk.count);
    fence_async_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(call.records + size_t(place) * problem.v_heads + head, shared_address(&shared.record),
                   sizeof(ChunkRecord));
        bulk_commit_group();
        bulk_wait_group_read<0>();
    }
}

}  // namespace derby
