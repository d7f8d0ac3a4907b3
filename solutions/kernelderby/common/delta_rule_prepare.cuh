// The part of a chunk of the gated delta rule that needs no state: gates, lengths, the inverse of its WY form, its
// scores.
//
// A chunk's corrections c follow from the state S at its start by c = T (v - exp(g) k S), with T = (1 + A)^-1 beta and
// A_ij = beta_i exp(g_i - g_j) k_i k_j for j < i; its outputs are exp(g) q S + P c, with P_ij = exp(g_i - g_j) q_i k_j for
// j <= i. A block computes T, P and the factors of the rows of one chunk and head; delta_rule_carry.cuh uses them. Keys
// and queries go into products without being normalized first: their lengths are factors of rows and columns.
// Constraints: sm_90a, key_dim 128, all tensors at addresses that 16 divides.
#pragma once
#include "delta_rule_gates.cuh"
#include "lanes.cuh"

namespace derby {

// T and P as tiles, and of each token: the factor of k S, of q S, of its key to the chunk's end, and of the state.
struct ChunkRecord {
    uint8_t solve[TILE_BYTES], within[TILE_BYTES];
    float of_k[CHUNK], of_q[CHUNK], to_end[CHUNK], of_state[CHUNK];
};

// Chunks of all sequences have places in one list. A sequence's places begin at first(), and no two sequences share a
// place.
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

// Data that is needed at different times shares memory, so that five blocks fit on a multiprocessor.
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

// One warp: computes the running sums of the log decays, and beta; both are 0 behind the chunk's last token.
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
    const float sum = sum_up_to(steps[0] + steps[1], lane);
    shared.g[2 * lane] = sum - steps[1], shared.g[2 * lane + 1] = sum;
    shared.beta[2 * lane] = betas[0], shared.beta[2 * lane + 1] = betas[1];
}

// 1 / length of the rows of q (scaled) and k. A warp multiplies its 16 rows with each other; the squares of the lengths
// are the diagonal of that product.
__device__ __forceinline__ void find_lengths(PrepareShared& shared) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16, row = lane / 4;
    const uint32_t tiles[2] = {shared_address(shared.q), shared_address(shared.k)};
    float sums[2][2];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
        float upper[4] = {}, lower[4] = {};  // of the first eight rows, and of the others
#pragma unroll
        for (int step = 0; step < 8; ++step) {
            uint32_t rows[4];
            ldmatrix_x4(rows, tile_place(tiles[m] + step / 4 * TILE_BYTES, first + lane % 16, step % 4 * 2 + lane / 16));
            mma_m16n8k16(upper, rows, rows[0], rows[2]);
            mma_m16n8k16(lower, rows, rows[1], rows[3]);
        }
        sums[m][0] = row % 2 ? upper[1] : upper[0], sums[m][1] = row % 2 ? lower[3] : lower[2];
    }
    if (lane % 4 == row / 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            shared.unit_q[first + row + 8 * i] = DELTA_SCALE * rsqrtf(sums[0][i] + DELTA_EPS);
            shared.unit_k[first + row + 8 * i] = rsqrtf(sums[1][i] + DELTA_EPS);
        }
    }
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

// Two floats as bf16, and what rounding left over as bf16 too: three products of these give a float32 product to within
// 2^-16.
__device__ __forceinline__ void split_pair(float x, float y, uint32_t& high, uint32_t& low) {
    high = pack_bf16(x, y), low = pack_bf16(x - low_half(high), y - high_half(high));
}

// d [COUNT] of 16 x 8 = a [16, SIDE] b [SIDE, 8 COUNT], float32 in shared memory; of a warp.
template <int SIDE, int COUNT, int A_STRIDE, int B_STRIDE>
__device__ __forceinline__ void split_product(float (&d)[COUNT][4], const float* a, const float* b) {
    const int row = threadIdx.x % 32 / 4, pair = 2 * (threadIdx.x % 4);
#pragma unroll
    for (int step = 0; step < SIDE; step += 16) {
        uint32_t high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 x = *reinterpret_cast<const float2*>(&a[(row + i % 2 * 8) * A_STRIDE + step + pair + i / 2 * 8]);
            split_pair(x.x, x.y, high[i], low[i]);
        }
#pragma unroll
        for (int n = 0; n < COUNT; ++n) {
            uint32_t b_high[2], b_low[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float* x = &b[(step + pair + 8 * i) * B_STRIDE + 8 * n + row];
                split_pair(x[0], x[B_STRIDE], b_high[i], b_low[i]);
            }
            mma_m16n8k16(d[n], low, b_high[0], b_high[1]);
            mma_m16n8k16(d[n], high, b_low[0], b_low[1]);
            mma_m16n8k16(d[n], high, b_high[0], b_high[1]);
        }
    }
}

// The lower left quarter L of a block of 2 SIDE x 2 SIDE, between the inverses I above it and J below it, becomes -J L I.
// Each warp makes 16 rows of SIDE / 2 columns.
template <int SIDE>
__device__ __forceinline__ void invert_quarters(PrepareShared& shared) {
    static_assert(SIDE == 16 || SIDE == 32, "two blocks of 32, or one of 64");
    constexpr int COUNT = SIDE / 16;
    const int warp = threadIdx.x / 32, block = SIDE == 16 ? warp / 2 : 0, first = block * 2 * SIDE;
    const int row0 = SIDE == 16 ? 0 : warp / 2 * 16, column0 = warp % 2 * (SIDE / 2);
    const int row = row0 + threadIdx.x % 32 / 4, column = column0 + 2 * (threadIdx.x % 4);
    float d[COUNT][4] = {};
    split_product<SIDE, COUNT, SYSTEM_STRIDE, SYSTEM_STRIDE>(d, &shared.system[first + SIDE + row0][first],
                                                             &shared.system[first][first + column0]);
#pragma unroll
    for (int i = 0; i < 2 * COUNT; ++i) {
        *reinterpret_cast<float2*>(&shared.scratch[block * SIDE + row + i % 2 * 8][column + i / 2 * 8]) =
            make_float2(d[i / 2][i % 2 * 2], d[i / 2][i % 2 * 2 + 1]);
        d[i / 2][i % 2 * 2] = d[i / 2][i % 2 * 2 + 1] = 0.0f;
    }
    __syncthreads();
    split_product<SIDE, COUNT, SYSTEM_STRIDE, SCRATCH_STRIDE>(d, &shared.system[first + SIDE + row0][first + SIDE],
                                                              &shared.scratch[block * SIDE][column0]);
#pragma unroll
    for (int i = 0; i < 2 * COUNT; ++i) {
        *reinterpret_cast<float2*>(&shared.system[first + SIDE + row + i % 2 * 8][first + column + i / 2 * 8]) =
            make_float2(-d[i / 2][i % 2 * 2], -d[i / 2][i % 2 * 2 + 1]);
    }
    __syncthreads();
}

// A of the chunk into `system`, and P into the record, from k k^T and q k^T in registers.
__device__ __forceinline__ void spread_scores(PrepareShared& shared, const float* of_keys, const float* of_queries,
                                              int count) {
    const int row0 = value_of_thread(), pair = pair_of_thread(), last = threadIdx.x / 32 * 16 + 15;
    const uint32_t within = shared_address(shared.record.within);
    float g[2], of_k[2], of_q[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row0 + 8 * half;
        g[half] = shared.g[row], of_k[half] = shared.beta[row] * shared.unit_k[row], of_q[half] = shared.unit_q[row];
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        float a[4] = {}, p[4] = {};
        if (8 * j <= last) {  // the warp has a row that is not above
            const float2 of_g = *reinterpret_cast<const float2*>(&shared.g[8 * j + pair]);
            const float2 unit = *reinterpret_cast<const float2*>(&shared.unit_k[8 * j + pair]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int below = row0 + i / 2 * 8 - (8 * j + pair + i % 2);
                const float between = exp2_approx(g[i / 2] - (i % 2 ? of_g.y : of_g.x)) * (i % 2 ? unit.y : unit.x);
                a[i] = below > 0 && row0 + i / 2 * 8 < count ? of_keys[4 * j + i] * between * of_k[i / 2] : 0.0f;
                p[i] = below >= 0 && row0 + i / 2 * 8 < count ? of_queries[4 * j + i] * between * of_q[i / 2] : 0.0f;
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = row0 + 8 * half;
            *reinterpret_cast<float2*>(&shared.system[row][8 * j + pair]) = make_float2(a[2 * half], a[2 * half + 1]);
            store_shared(tile_place(within, row, j) + 2 * pair, pack_bf16(p[2 * half], p[2 * half + 1]));
        }
    }
}

// Writes T and the factors of the rows.
__device__ __forceinline__ void fill_record(PrepareShared& shared, int count) {
    const int row = threadIdx.x / 2, half = threadIdx.x % 2;
    const uint32_t solve = shared_address(shared.record.solve);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int group = half * 4 + i;
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            const float4 x = *reinterpret_cast<const float4*>(&shared.system[row][group * 8 + 2 * j]);
            const float4 beta = *reinterpret_cast<const float4*>(&shared.beta[group * 8 + 2 * j]);
            words[j] = pack_bf16(x.x * beta.x, x.y * beta.y), words[j + 1] = pack_bf16(x.z * beta.z, x.w * beta.w);
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
    int longest_other;     // another kernel takes sequences of at most this many tokens
};

// Blocks: place, head. Blocks behind the last place copy states if the pools differ.
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
