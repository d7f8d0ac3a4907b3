// Latent attention in blocks of 64 query heads and 64 tokens, for sm_90a.
//
// A persistent CTA on every multiprocessor. One warpgroup multiplies queries and tokens and makes weights of the scores;
// two others multiply the weights by half of the latent's dimensions each, whose 64 x 256 sums they keep in registers.
// So the tensor cores have work from one of them while the others wait or compute weights. A tile of tokens lies in
// shared memory only once, as key and as value, and there is room for two tiles. The threads that load them request a
// part as soon as all have used what was in its place: the rotary part after the scores, each half of the latent after
// the sums. Sums are rescaled only if a row's greatest score has grown by a factor of more than 2^8 (as FlashAttention
// 4 does); until then weights are relative to an older one.
// Constraints: sm_90a; 576 values of a query head and of a token, of which the first 512 are the value; heads are
// padded to 64 a CTA; a cache without blocks, or in blocks of a power of two of tokens, 8 or more; bf16, contiguous,
// addresses a multiple of 16. The host plans (latent_plan.cuh) and gives room for the pieces.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>

#include "dynamic_shared.cuh"
#include "latent_plan.cuh"
#include "pipeline.cuh"
#include "wgmma.cuh"

namespace derby {

struct LatentMaps {
    CUtensorMap query, cache;
};

struct LatentCall {
    LatentPlan plan;
    const __nv_bfloat16* query;
    __nv_bfloat16* output;
    const int* block_table;  // int32 [sequences, table_width], or null: a sequence's tokens follow each other
    float4* parts;           // [head blocks, workers, 2, row groups, 64, 32]: sums of pieces, of weights against `most`
    float2* statistics;      // [head blocks, workers, 2, row groups, 16]: most and sum of weights
    int* cuts;               // [workers]: the sequence that the worker begins inside of, or -1
    int heads, head_blocks, row_groups;  // of 16 heads, in a block
    int table_width, page_bits;
    float scale;  // of scores, for powers of two
};

namespace latent {

constexpr int KEY = 576, LATENT = 512, HEADS = 64, THREADS = 512;
constexpr int SLABS = KEY / 64;  // 64 columns each, with the 128-byte swizzle
constexpr int QUERY_SLAB = HEADS * 128, WEIGHTS = HEADS * 128;  // bytes
constexpr int ISSUERS = 3;  // threads that load tokens, in a warp each; the fourth warp's loads queries
constexpr float NONE = -1e30f;  // greatest score of no token
constexpr float GROWTH = 8;     // of a row's greatest score, beyond which its sums are scaled anew
// Registers of a thread, by role. With the 512 threads of a CTA the compiler gives 128 to each, so wgmma takes half of
// the 256 columns at a time.
constexpr int LOAD_REGISTERS = 32, WEIGH_REGISTERS = 144, SUM_REGISTERS = 168;
static_assert(LOAD_REGISTERS + WEIGH_REGISTERS + 2 * SUM_REGISTERS == 65536 / 128, "all that a multiprocessor has");
enum Part { LEFT, RIGHT, ROTARY, PARTS };
enum Role { LOAD, WEIGH, SUM_LEFT, SUM_RIGHT };
enum Barrier { ZEROED_LEFT = 1, ZEROED_RIGHT };

// TILE: tokens, a multiple of 16. BUFFERS: tiles in shared memory. HELD: how many slabs of the queries the warpgroup of
// the scores keeps in registers: the rotary one and those before it. CTAS: the CTAs of a cluster have a block of heads
// each and the same pieces, and each loads its share of a tile for all of them.
template <int TILE_, int BUFFERS_, int HELD_, int CTAS_>
struct Form {
    static constexpr int TILE = TILE_, BUFFERS = BUFFERS_, HELD = HELD_, CTAS = CTAS_;
    static constexpr int SLAB = TILE * 128, QUERY_SLABS = SLABS - HELD;
    static_assert(TILE % 16 == 0 && SLAB % 1024 == 0 && TILE <= 64, "steps of a product; the swizzle's period; a row of weights");
    static_assert(HELD >= 1 && (CTAS == 1 || CTAS == 2), "the rotary slab is one; halves are shared in two");
    struct Shared {
        alignas(1024) unsigned char tiles[BUFFERS][SLABS * SLAB];
        alignas(1024) unsigned char query[QUERY_SLABS * QUERY_SLAB];
        alignas(1024) unsigned char weights[2][WEIGHTS];
        float factor[2][HEADS], sum[2][HEADS], most[2][HEADS];
        uint64_t full[BUFFERS][PARTS], empty[BUFFERS][PARTS], weighed[2], used[2], query_full, query_empty;
        int scratch[THREADS / 32 + 4];
    };
    static_assert(sizeof(Shared) <= 227 * 1024, "shared memory of a multiprocessor");
};

__device__ __forceinline__ float inverse(float sum) { return sum > 0 ? __fdividef(1, sum) : 0; }  // 0: no token

// The lanes of a quad each hold a fourth of four words of 8 columns; lane c gets the whole c-th word.
__device__ __forceinline__ uint4 gather_quad(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    const bool odd = threadIdx.x % 2, high = threadIdx.x / 2 % 2;
    const uint32_t first = __shfl_xor_sync(~0u, odd ? a : b, 1), second = __shfl_xor_sync(~0u, odd ? c : d, 1);
    const uint2 low = odd ? make_uint2(first, b) : make_uint2(a, first);
    const uint2 up = odd ? make_uint2(second, d) : make_uint2(c, second);
    const uint32_t x = __shfl_xor_sync(~0u, high ? low.x : up.x, 2), y = __shfl_xor_sync(~0u, high ? low.y : up.y, 2);
    return high ? make_uint4(x, y, up.x, up.y) : make_uint4(low.x, low.y, x, y);
}

// Stores 32 columns of two rows, 8 apart, from their sums in a warp's layout: o[4 j + ..], 8 columns for each j. rows:
// how many rows exist from the first one on.
__device__ __forceinline__ void write_columns(__nv_bfloat16* to, int rows, const float* o, float low, float high) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float by = i ? high : low;
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) words[j] = pack_bf16(o[4 * j + 2 * i] * by, o[4 * j + 2 * i + 1] * by);
        const uint4 mine = gather_quad(words[0], words[1], words[2], words[3]);
        if (8 * i < rows) *reinterpret_cast<uint4*>(to + 8 * i * LATENT + threadIdx.x % 4 * 8) = mine;
    }
}

// Rows of a page in a box: the largest number with which no box belongs to two tiles.
template <int TILE>
__host__ __device__ constexpr int page_rows(int page_size) {
    int rows = page_size;
    while (TILE % rows) rows /= 2;
    return rows;
}

// The pieces of a worker, one after the other.
struct Piece {
    int sequence, length, tiles, tile, end;  // the sequence's; first of the piece, and the one behind it
    __device__ __forceinline__ bool whole() const { return tile == 0 && end == tiles; }
};

template <int TILE>
__device__ __forceinline__ bool take(const LatentCall& call, const LatentRange& range, int sequence, Piece& piece) {
    piece.sequence = sequence;
    piece.tile = sequence == range.first ? range.first_tile : 0;
    if (!range.has(sequence, piece.tile)) return false;
    piece.length = length_of(call.plan, sequence);
    piece.tiles = tiles_of<TILE>(piece.length);
    piece.end = sequence == range.end ? range.end_tile : piece.tiles;
    return true;
}

template <class F>
struct Kernel {
    using Shared = typename F::Shared;
    static constexpr int TILE = F::TILE, CTAS = F::CTAS, SLAB = F::SLAB, HALF = 4 * SLAB, HELD = F::HELD;
    static constexpr int SHARE = 4 / CTAS;  // slabs of a half that this CTA loads
    const LatentMaps& maps;
    const LatentCall& call;
    Shared& shared;
    const LatentRange& range;
    int worker, head_block, first_head, lane, warp;  // warp: of the warpgroup

    __device__ __forceinline__ uint32_t at(const void* place) const { return shared_address(place); }

    // One of ISSUERS threads: the tokens of all pieces. Each loads its share of a tile's pages where a tile has several,
    // since a thread asks for boxes one after the other, and pages of 16 tokens make 36 of a tile.
    __device__ __forceinline__ void load_tokens(int issuer) {
        if (issuer > 0 && (call.block_table == nullptr || issuer * page_rows<TILE>(1 << call.page_bits) >= TILE)) return;
        Piece piece;
        PipelineState<F::BUFFERS> at_tile;
        for (int b = range.first; take<TILE>(call, range, b, piece); ++b) {
            for (int tile = piece.tile; tile < piece.end; ++tile, at_tile.next()) {
                const int buffer = at_tile.stage, phase = at_tile.parity;
#pragma unroll
                for (int i = 0; i < PARTS; ++i) {
                    const int part = (i + 2) % PARTS;  // the rotary part first: its place is free first
                    mbarrier_wait(at(&shared.empty[buffer][part]), phase ^ 1);
                    const uint32_t full = at(&shared.full[buffer][part]);
                    if (issuer == 0) mbarrier_arrive_expect_tx(full, (part == ROTARY ? 1 : 4) * SLAB);
                    if (part == ROTARY) {
                        if (tile % CTAS == head_block % CTAS) load_slabs<8, 1>(piece, tile, issuer, buffer, full);
                    } else if (CTAS == 1 || head_block % CTAS == 0) {
                        part == LEFT ? load_slabs<0, SHARE>(piece, tile, issuer, buffer, full)
                                     : load_slabs<4, SHARE>(piece, tile, issuer, buffer, full);
                    } else {
                        part == LEFT ? load_slabs<2, SHARE>(piece, tile, issuer, buffer, full)
                                     : load_slabs<6, SHARE>(piece, tile, issuer, buffer, full);
                    }
                }
            }
        }
    }

    __device__ __forceinline__ void load_box(uint32_t to, uint32_t full, int column, int row, int block) {
        if (CTAS > 1) tma_load_multicast(to, &maps.cache, full, (1 << CTAS) - 1, column, row, block);
        else tma_load_hint(to, &maps.cache, full, EVICT_FIRST, column, row, block);  // nobody else reads it
    }

    template <int FIRST, int COUNT>
    __device__ __forceinline__ void load_slabs(const Piece& piece, int tile, int issuer, int buffer, uint32_t full) {
        const uint32_t to = at(shared.tiles[buffer]) + FIRST * SLAB;
        if (call.block_table == nullptr) {
#pragma unroll
            for (int slab = 0; slab < COUNT; ++slab)
                load_box(to + slab * SLAB, full, (FIRST + slab) * 64, tile * TILE, piece.sequence);
            return;
        }
        const int page_size = 1 << call.page_bits, rows = page_rows<TILE>(page_size);
        const int* table = call.block_table + int64_t(piece.sequence) * call.table_width;
        for (int row = issuer * rows; row < TILE; row += ISSUERS * rows) {
            // Pages behind the last token are replaced by the last one, whose rows do not count there.
            const int token = min(tile * TILE + row, max(piece.length - 1, 0));
            const int page = __ldg(table + (token >> call.page_bits));
#pragma unroll
            for (int slab = 0; slab < COUNT; ++slab)
                load_box(to + slab * SLAB + row * 128, full, (FIRST + slab) * 64, token & (page_size - 1) & -rows, page);
        }
    }

    // Says that a warp is done with a part of a tile, to every CTA of the cluster that loads a share of it.
    __device__ __forceinline__ void release(int buffer, int part) {
        const uint32_t empty = at(&shared.empty[buffer][part]);
        if (CTAS == 1 && lane == 0) mbarrier_arrive(empty);
        if (CTAS > 1 && lane < CTAS) mbarrier_arrive_remote(empty, lane);
    }

    // One thread: the queries of all pieces but their rotary parts.
    __device__ __forceinline__ void load_queries() {
        Piece piece;
        int n = 0;
        for (int b = range.first; take<TILE>(call, range, b, piece); ++b, ++n) {
            mbarrier_wait(at(&shared.query_empty), (n & 1) ^ 1);
            mbarrier_arrive_expect_tx(at(&shared.query_full), F::QUERY_SLABS * QUERY_SLAB);
            for (int slab = 0; slab < F::QUERY_SLABS; ++slab)
                tma_load(at(shared.query) + slab * QUERY_SLAB, &maps.query, at(&shared.query_full), slab * 64, first_head, b);
        }
    }

    // Row r of the warpgroup's 64: this thread holds parts of rows r and r + 8.
    __device__ __forceinline__ int row() const { return 16 * warp + lane / 4; }

    // The last HELD slabs of the queries, as A operands.
    __device__ __forceinline__ void hold(uint32_t (&q)[16 * HELD], int sequence) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int head = first_head + row() + 8 * i;
            const bool there = head < call.heads;
            const auto from = reinterpret_cast<const uint32_t*>(
                call.query + (int64_t(sequence) * call.heads + (there ? head : 0)) * KEY + F::QUERY_SLABS * 64) + lane % 4;
#pragma unroll
            for (int j = 0; j < 8 * HELD; ++j) q[j / 2 * 4 + j % 2 * 2 + i] = there ? __ldg(from + 4 * j) : 0;
        }
    }

    __device__ __forceinline__ void multiply(float (&s)[TILE / 2], const uint32_t (&held)[16 * HELD], uint32_t tile,
                                             uint32_t query, int first, int slabs, bool add) {
#pragma unroll
        for (int slab = first; slab < first + slabs; ++slab) {
#pragma unroll
            for (int step = 0; step < 4; ++step) {
                const uint64_t tokens = descriptor_of(tile + slab * SLAB / 16 + 2 * step);
                if (slab >= F::QUERY_SLABS)
                    wgmma_bf16_rs<TILE>(s, held + 16 * (slab - F::QUERY_SLABS) + 4 * step, tokens, add || step > 0);
                else wgmma_bf16<TILE>(s, descriptor_of(query + slab * QUERY_SLAB / 16 + 2 * step), tokens, 1);
            }
        }
    }

    __device__ __forceinline__ void score(float (&s)[TILE / 2], const uint32_t (&held)[16 * HELD], int buffer, int phase) {
        const uint32_t tile = descriptor_low(at(shared.tiles[buffer])), query = descriptor_low(at(shared.query));
        mbarrier_wait(at(&shared.full[buffer][ROTARY]), phase);
        wgmma_fence();
        multiply(s, held, tile, query, 8, 1, false);
        mbarrier_wait(at(&shared.full[buffer][LEFT]), phase);
        multiply(s, held, tile, query, 0, 4, true);
        mbarrier_wait(at(&shared.full[buffer][RIGHT]), phase);
        multiply(s, held, tile, query, 4, 4, true);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        pin<TILE / 2>(s);
    }

    // Turns scores into weights and updates `most` and `sum` of both rows. Returns the factors by which sums must be
    // rescaled.
    __device__ __forceinline__ float2 weigh(float (&s)[TILE / 2], float (&most)[2], float (&sum)[2], int limit) {
        float greatest[2] = {-INFINITY, -INFINITY}, factor[2] = {1, 1};
#pragma unroll
        for (int i = 0; i < TILE / 2; ++i) {
            s[i] *= call.scale;
            if (limit < TILE && 8 * (i / 4) + 2 * (lane % 4) + i % 2 >= limit) s[i] = -INFINITY;
            greatest[i / 2 % 2] = fmaxf(greatest[i / 2 % 2], s[i]);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            greatest[i] = quad_max(greatest[i]);
            if (greatest[i] > most[i] + GROWTH) {
                factor[i] = exp2_approx(most[i] - greatest[i]);
                most[i] = greatest[i];
            }
            sum[i] *= factor[i];
        }
#pragma unroll
        for (int i = 0; i < TILE / 2; ++i) {
            s[i] = exp2_approx(s[i] - most[i / 2 % 2]);
            sum[i / 2 % 2] += s[i];
        }
        return make_float2(factor[0], factor[1]);
    }

    __device__ __forceinline__ void publish(const float (&s)[TILE / 2], float2 factor, const float (&most)[2],
                                            const float (&sum)[2], int slot, bool last) {
        const int matrix_row = 16 * warp + lane % 16;
        const uint32_t to = at(shared.weights[slot]) + matrix_row * 128;
#pragma unroll
        for (int j = 0; j < TILE / 8; j += 2)
            stmatrix_x4(to + ((j + lane / 16) ^ (matrix_row % 8)) * 16, pack_bf16(s[4 * j], s[4 * j + 1]),
                           pack_bf16(s[4 * j + 2], s[4 * j + 3]), pack_bf16(s[4 * j + 4], s[4 * j + 5]),
                           pack_bf16(s[4 * j + 6], s[4 * j + 7]));
        if (lane % 4 == 0) shared.factor[slot][row()] = factor.x, shared.factor[slot][row() + 8] = factor.y;
        if (last) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float all = quad_sum(sum[i]);
                if (lane % 4 == 0) shared.sum[slot][row() + 8 * i] = all, shared.most[slot][row() + 8 * i] = most[i];
            }
        }
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(at(&shared.weighed[slot]));
    }

    // The warpgroup of the scores.
    __device__ __forceinline__ void weigh_all() {
        Piece piece;
        PipelineState<F::BUFFERS> at_tile;
        PipelineState<2> at_weights;
        int pieces = 0;
        float s[TILE / 2];
        for (int b = range.first; take<TILE>(call, range, b, piece); ++b, ++pieces) {
            uint32_t held[16 * HELD];
            hold(held, b);
            float most[2] = {NONE, NONE}, sum[2] = {0, 0};
            mbarrier_wait(at(&shared.query_full), pieces & 1);
#pragma unroll 1
            for (int tile = piece.tile; tile < piece.end; ++tile, at_tile.next(), at_weights.next()) {
                const bool last = tile + 1 == piece.end;
                score(s, held, at_tile.stage, at_tile.parity);
                release(at_tile.stage, ROTARY);
                if (last && lane == 0) mbarrier_arrive(at(&shared.query_empty));
                const float2 factor = weigh(s, most, sum, piece.length - tile * TILE);
                mbarrier_wait(at(&shared.used[at_weights.stage]), at_weights.parity ^ 1);
                publish(s, factor, most, sum, at_weights.stage, last);
            }
        }
    }

    // Sets the rows of the half of a tile from `limit` on to zero, since 0 times NaN is NaN.
    template <int PART>
    __device__ __forceinline__ void clear(int buffer, int limit) {
        unsigned char* half = shared.tiles[buffer] + PART * HALF;
        for (int i = limit * 8 + int(threadIdx.x) % 128; i < TILE * 8; i += 128)
#pragma unroll
            for (int slab = 0; slab < 4; ++slab) *reinterpret_cast<uint4*>(half + slab * SLAB + i * 16) = {0, 0, 0, 0};
        fence_async_proxy();
        named_barrier_sync(PART == LEFT ? ZEROED_LEFT : ZEROED_RIGHT, 128);
    }

    // A piece that is its whole sequence goes to the output. The sums of other pieces are stored lane by lane, 512
    // bytes a warp, for a kernel whose lanes read them in the same layout.
    template <int PART>
    __device__ __forceinline__ void write(const float (&o)[128], const float (&sum)[2], const float (&most)[2],
                                          const Piece& piece) {
        const int group = warp, head = first_head + row();
        if (group >= call.row_groups) return;
        if (piece.whole()) {
            const float by[2] = {inverse(sum[0]), inverse(sum[1])};
            __nv_bfloat16* to = call.output + (int64_t(piece.sequence) * call.heads + head) * LATENT + PART * 256;
#pragma unroll
            for (int j = 0; j < 32; j += 4) write_columns(to + 8 * j, call.heads - head, o + 4 * j, by[0], by[1]);
            return;
        }
        const int slot = ((head_block * call.plan.workers + worker) * 2 + (piece.tile == 0)) * call.row_groups + group;
        float4* to = call.parts + (int64_t(slot) * 64 + PART * 32) * 32 + lane;
#pragma unroll
        for (int j = 0; j < 32; ++j) to[32 * j] = make_float4(o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3]);
        if (PART == LEFT && lane % 4 == 0) {
            call.statistics[slot * 16 + lane / 4] = make_float2(most[0], sum[0]);
            call.statistics[slot * 16 + lane / 4 + 8] = make_float2(most[1], sum[1]);
        }
    }

    // A warpgroup of the sums.
    template <int PART>
    __device__ __forceinline__ void sum_all() {
        Piece piece;
        PipelineState<F::BUFFERS> at_tile;
        PipelineState<2> at_weights;
        float o[128];
#pragma unroll
        for (int i = 0; i < 128; ++i) o[i] = 0;
        for (int b = range.first; take<TILE>(call, range, b, piece); ++b) {
            float sum[2], most[2];
#pragma unroll 1
            for (int tile = piece.tile; tile < piece.end; ++tile, at_tile.next(), at_weights.next()) {
                const int buffer = at_tile.stage, slot = at_weights.stage, limit = piece.length - tile * TILE;
                mbarrier_wait(at(&shared.full[buffer][PART]), at_tile.parity);
                if (limit < TILE) clear<PART>(buffer, limit);
                mbarrier_wait(at(&shared.weighed[slot]), at_weights.parity);
                const float low = shared.factor[slot][row()], high = shared.factor[slot][row() + 8];
                if (tile > piece.tile && __any_sync(~0u, low != 1 || high != 1)) {
#pragma unroll
                    for (int i = 0; i < 128; ++i) o[i] *= i / 2 % 2 ? high : low;
                }
                const uint32_t weights = descriptor_low(at(shared.weights[slot]));
                const uint32_t values = descriptor_low(at(shared.tiles[buffer]) + PART * HALF, SLAB);
                wgmma_fence();
#pragma unroll
                for (int step = 0; step < TILE / 16; ++step) {
                    const uint64_t a = descriptor_of(weights + 2 * step);
                    const int add = step > 0 || tile > piece.tile;
                    wgmma_bf16<128, Major::K, Major::MN>(o, a, descriptor_of(values + 128 * step), add);
                    wgmma_bf16<128, Major::K, Major::MN>(o + 64, a, descriptor_of(values + 128 * step + 2 * SLAB / 16), add);
                }
                wgmma_commit_group();
                sum[0] = shared.sum[slot][row()], sum[1] = shared.sum[slot][row() + 8];
                most[0] = shared.most[slot][row()], most[1] = shared.most[slot][row() + 8];
                wgmma_wait_group<0>();
                pin<128>(o);
                if (lane == 0) mbarrier_arrive(at(&shared.used[slot]));
                release(buffer, PART);
            }
            write<PART>(o, sum, most, piece);
        }
    }
};

// One thread, before the barrier of the block.
template <class F>
__device__ __forceinline__ void set_up(const LatentMaps& maps, typename F::Shared& shared) {
    const auto init = [](uint64_t& barrier, int arrivals) { mbarrier_init(shared_address(&barrier), arrivals); };
    for (int i = 0; i < F::BUFFERS; ++i) {
        for (int part = 0; part < PARTS; ++part) {
            init(shared.full[i][part], 1);
            init(shared.empty[i][part], 4 * F::CTAS);
        }
    }
    for (int i = 0; i < 2; ++i) {
        init(shared.weighed[i], 4);
        init(shared.used[i], 8);
    }
    init(shared.query_full, 1);
    init(shared.query_empty, 4);
    fence_mbarrier_init();
    prefetch_tensor_map(&maps.cache);
    prefetch_tensor_map(&maps.query);
}

}  // namespace latent

template <class F>
__global__ void __launch_bounds__(latent::THREADS, 1)
derby_latent_attention(const __grid_constant__ LatentMaps maps, const __grid_constant__ LatentCall call) {
    using namespace latent;
    auto& shared = dynamic_shared<typename F::Shared>();
    let_next_kernel_start();
    const int worker = blockIdx.x / call.head_blocks, head_block = blockIdx.x % call.head_blocks;
    if (threadIdx.x == 0) set_up<F>(maps, shared);
    const LatentRange& range = find_range<THREADS, F::TILE>(call.plan, worker, shared.scratch);  // synchronises
    if (threadIdx.x == 0 && head_block == 0) call.cuts[worker] = range.first_tile > 0 ? range.first : -1;
    Kernel<F> kernel{maps, call, shared, range, worker, head_block, head_block * HEADS, int(threadIdx.x) % 32,
                     int(threadIdx.x) / 32 % 4};
    if (F::CTAS > 1) cluster_sync();
    const int role = threadIdx.x / 128;
    if (role == LOAD) {
        setmaxnreg_dec<LOAD_REGISTERS>();
        if (threadIdx.x % 32 == 0) {
            if (threadIdx.x == 32 * ISSUERS) kernel.load_queries();
            else kernel.load_tokens(threadIdx.x / 32);
        }
        __syncwarp();
    } else if (role == WEIGH) {
        setmaxnreg_inc<WEIGH_REGISTERS>();
        kernel.weigh_all();
    } else if (role == SUM_LEFT) {
        setmaxnreg_inc<SUM_REGISTERS>();
        kernel.template sum_all<LEFT>();
    } else {
        setmaxnreg_inc<SUM_REGISTERS>();
        kernel.template sum_all<RIGHT>();
    }
    if (F::CTAS > 1) cluster_sync();  // the others still send to this one, and to its barriers
}

}  // namespace derby
