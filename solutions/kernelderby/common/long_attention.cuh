// Attention of long sequences for sm_90a: one producer warp, two or three consumer warpgroups of 64 query rows each.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "attention_hopper.cuh"
#include "wgmma_bf16.cuh"

namespace derby {

constexpr int PAGE = 16;            // tokens in a block of the cache
constexpr int SLAB_COLUMNS = 64;    // bf16 columns in a 128-byte swizzled row of shared memory
constexpr int ROW_BYTES = 128;

struct AttentionCall {
    const int* cu_seqlens_q;  // [num_seqs + 1]
    const int* key_lengths;   // paged: seq_lens [num_seqs]; packed: cu_seqlens_k [num_seqs + 1]
    const int* block_table;   // paged: [num_seqs, table_width]
    __nv_bfloat16* output;    // [num_tokens, heads, head_dim]
    int num_seqs, table_width, heads, kv_heads;
    int query_blocks;         // tiles of query rows, an upper bound where there are several sequences
    int section_heads;        // heads that are worked on at the same time, so that their keys and values fit the L2
    float scale_log2;         // sm_scale * log2(e)
};

template <int HEAD_DIM, int KEYS, int GROUPS, bool CAUSAL_, bool PAGED_>
struct AttentionShape {
    static constexpr int D = HEAD_DIM, N = KEYS, WARPGROUPS = GROUPS;
    static constexpr bool CAUSAL = CAUSAL_, PAGED = PAGED_;
    static constexpr int M = 64 * WARPGROUPS;
    static constexpr int SLABS = (D + SLAB_COLUMNS - 1) / SLAB_COLUMNS;
    static constexpr int STEPS = (D + 15) / 16;  // of k in the first product; columns past D are zeros
    static constexpr int STAGES = 2;
    static constexpr int THREADS = 128 * (WARPGROUPS + 1);
    static constexpr int Q_SLAB = M * ROW_BYTES, KV_SLAB = N * ROW_BYTES;
    static constexpr int Q_BYTES = SLABS * Q_SLAB, KV_BYTES = SLABS * KV_SLAB;
    static constexpr int BARRIERS = 2 + 4 * STAGES;
    static constexpr int SHARED = 1024 + Q_BYTES + 2 * STAGES * KV_BYTES + 8 * BARRIERS;
    static_assert(N % 16 == 0 && SHARED <= 232448, "tile");
};

// Shared memory, at a multiple of 1024 bytes: Q, STAGES of K, STAGES of V, barriers.
template <typename S>
struct SharedMap {
    uint32_t base;
    __device__ __forceinline__ uint32_t q() const { return base; }
    __device__ __forceinline__ uint32_t k(int stage) const { return base + S::Q_BYTES + stage * S::KV_BYTES; }
    __device__ __forceinline__ uint32_t v(int stage) const { return k(S::STAGES + stage); }
    __device__ __forceinline__ uint32_t barrier(int index) const { return k(2 * S::STAGES) + 8 * index; }
    __device__ __forceinline__ uint32_t q_full() const { return barrier(0); }
    __device__ __forceinline__ uint32_t q_empty() const { return barrier(1); }
    __device__ __forceinline__ uint32_t k_full(int stage) const { return barrier(2 + stage); }
    __device__ __forceinline__ uint32_t v_full(int stage) const { return barrier(2 + S::STAGES + stage); }
    __device__ __forceinline__ uint32_t k_empty(int stage) const { return barrier(2 + 2 * S::STAGES + stage); }
    __device__ __forceinline__ uint32_t v_empty(int stage) const { return barrier(2 + 3 * S::STAGES + stage); }
};

struct Tile {
    int sequence, head;
    int first_query, queries;  // of the sequence: row in query, count
    int first_key, keys;       // of the sequence: row in key (packed), count
    int row;                   // first query row of the tile, in the sequence
    int blocks;                // tiles of keys that some row sees
};

// Work item `index`: in sections of heads; inside, the last query rows first, since they see most.
template <typename S>
__device__ __forceinline__ Tile find_tile(const AttentionCall& call, int index) {
    Tile tile;
    const int per_section = call.query_blocks * call.section_heads;
    const int section = index / per_section, inside = index - section * per_section;
    const int heads = min(call.section_heads, call.heads - section * call.section_heads);
    const int from_last = inside / heads;
    tile.head = section * call.section_heads + inside - from_last * heads;
    int block = call.query_blocks - 1 - from_last;
    tile.sequence = 0;
    if (call.num_seqs > 1) {
        // Sequence s has the blocks from cu_seqlens_q[s] / M + s on: at least as many as it needs.
        int low = 0, high = call.num_seqs;
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (call.cu_seqlens_q[middle] / S::M + middle <= block) low = middle; else high = middle;
        }
        tile.sequence = low;
    }
    tile.first_query = call.cu_seqlens_q[tile.sequence];
    tile.queries = call.cu_seqlens_q[tile.sequence + 1] - tile.first_query;
    if (call.num_seqs > 1) block -= tile.first_query / S::M + tile.sequence;
    if (S::PAGED) {
        tile.first_key = 0;
        tile.keys = call.key_lengths[tile.sequence];
    } else {
        tile.first_key = call.key_lengths[tile.sequence];
        tile.keys = call.key_lengths[tile.sequence + 1] - tile.first_key;
    }
    tile.row = block * S::M;
    int visible = tile.keys;
    if (S::CAUSAL) visible = min(visible, tile.keys - tile.queries + tile.row + S::M);
    tile.blocks = tile.row < tile.queries ? (max(visible, 0) + S::N - 1) / S::N : 0;
    return tile;
}

// The i-th work item of this CTA: to and fro over the grid, so that no CTA always gets the longer ones.
__device__ __forceinline__ int nth_item(int round) {
    const int place = round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    return round * gridDim.x + place;
}

template <typename S>
__device__ __forceinline__ void load_keys(const AttentionCall& call, const CUtensorMap* map, const Tile& tile, int block,
                                          int kv_head, int page, uint32_t to, uint32_t barrier, int lane) {
    if (lane == 0) mbarrier_arrive_expect_tx(barrier, S::KV_BYTES);
    __syncwarp();
    if constexpr (S::PAGED) {
        if (lane < S::N / PAGE) {
#pragma unroll
            for (int slab = 0; slab < S::SLABS; ++slab)
                tma_load_4d(to + slab * S::KV_SLAB + lane * PAGE * ROW_BYTES, map, slab * SLAB_COLUMNS, kv_head, 0, page,
                            barrier);
        }
    } else if (lane < S::SLABS) {
        tma_load_3d(to + lane * S::KV_SLAB, map, lane * SLAB_COLUMNS, kv_head, tile.first_key + block * S::N, barrier);
    }
}

template <typename S>
__device__ __forceinline__ int page_of(const AttentionCall& call, const Tile& tile, int block, int lane) {
    if constexpr (S::PAGED) {
        // Pages past the last token: the last page again, so that what is multiplied by zero is finite.
        const int last = (tile.keys - 1) / PAGE;
        const int index = min(block * (S::N / PAGE) + min(lane, S::N / PAGE - 1), last);
        return call.block_table[static_cast<long long>(tile.sequence) * call.table_width + index];
    }
    return 0;
}

// A ring of buffers: its stage and the parity of its turn.
template <int STAGES>
struct Ring {
    int stage = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

template <typename S>
__device__ __forceinline__ void produce(const AttentionCall& call, const CUtensorMap* q_map, const CUtensorMap* k_map,
                                        const CUtensorMap* v_map, SharedMap<S> shared, int items, int lane) {
    Ring<S::STAGES> k_ring, v_ring;
    uint32_t q_parity = 0;
    const int group = call.heads / call.kv_heads;
    for (int round = 0;; ++round) {
        const int item = nth_item(round);
        if (round * static_cast<int>(gridDim.x) >= items) break;
        if (item >= items) continue;
        const Tile tile = find_tile<S>(call, item);
        if (tile.blocks == 0) continue;
        const int kv_head = tile.head / group;
        int page = page_of<S>(call, tile, tile.blocks - 1, lane), page_before = page;
        mbarrier_wait(shared.q_empty(), q_parity ^ 1);
        q_parity ^= 1;
        if (lane == 0) mbarrier_arrive_expect_tx(shared.q_full(), S::Q_BYTES);
        __syncwarp();
        if (lane < S::SLABS)
            tma_load_3d(shared.q() + lane * S::Q_SLAB, q_map, lane * SLAB_COLUMNS, tile.head,
                        tile.first_query + tile.row, shared.q_full());
        for (int block = tile.blocks - 1; block >= -1; --block) {
            if (block >= 0) {
                mbarrier_wait(shared.k_empty(k_ring.stage), k_ring.parity ^ 1);
                load_keys<S>(call, k_map, tile, block, kv_head, page, shared.k(k_ring.stage),
                             shared.k_full(k_ring.stage), lane);
                k_ring.next();
            }
            if (block < tile.blocks - 1) {
                mbarrier_wait(shared.v_empty(v_ring.stage), v_ring.parity ^ 1);
                load_keys<S>(call, v_map, tile, block + 1, kv_head, page_before, shared.v(v_ring.stage),
                             shared.v_full(v_ring.stage), lane);
                v_ring.next();
            }
            page_before = page;
            if (block > 0) page = page_of<S>(call, tile, block - 1, lane);
        }
    }
}

// Descriptor of a 128-byte swizzled operand: 8-row groups 1024 bytes apart; leading: bytes from one 64-column slab to the
// next where the 64 columns run along M or N.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address, int leading) {
    return static_cast<uint64_t>((address >> 4) & 0x3FFF) | (static_cast<uint64_t>(leading >> 4) << 16) |
           (static_cast<uint64_t>(1024 >> 4) << 32) | (1ull << 62);
}

template <typename S>
__device__ __forceinline__ void multiply_keys(float (&s)[S::N / 2], uint32_t q, uint32_t k) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < S::STEPS; ++step) {
        const int slab = step / 4, inside = step % 4;
        Wgmma<S::N>::ss(s, matrix_descriptor(q + slab * S::Q_SLAB + inside * 32, 16),
                        matrix_descriptor(k + slab * S::KV_SLAB + inside * 32, 16), step > 0);
    }
    wgmma_commit();
}

template <typename S>
__device__ __forceinline__ void multiply_values(float (&o)[S::D / 2], const uint32_t (&p)[S::N / 4], uint32_t v,
                                                bool add) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < S::N / 16; ++step)
        Wgmma<S::D>::rs(o, p + 4 * step, matrix_descriptor(v + step * 16 * ROW_BYTES, S::KV_SLAB), add || step > 0);
    wgmma_commit();
}

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

struct Softmax {
    float largest[2], sum[2], rescale[2];

    // Scores to weights, in place: 2^((score - largest) scale). rescale: what earlier sums and products shrink by.
    template <int COUNT, bool FIRST>
    __device__ __forceinline__ void weigh(float (&s)[COUNT], float scale) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float top = s[2 * half];
#pragma unroll
            for (int i = 0; i < COUNT; i += 4) {
                top = fmaxf(top, s[i + 2 * half]);
                top = fmaxf(top, s[i + 2 * half + 1]);
            }
            top = quad_max(top);
            if constexpr (!FIRST) top = fmaxf(top, largest[half]);
            // A row that has seen no key yet: its weights are 2^(-inf) = 0.
            const float origin = top == -INFINITY ? 0.0f : top * scale;
            if constexpr (FIRST) {
                sum[half] = 0.0f;
                rescale[half] = 0.0f;
            } else {
                rescale[half] = exp2_fast(largest[half] * scale - origin);
                sum[half] *= rescale[half];
            }
            largest[half] = top;
            float part = 0.0f;
#pragma unroll
            for (int i = 0; i < COUNT; i += 4) {
                s[i + 2 * half] = exp2_fast(fmaf(s[i + 2 * half], scale, -origin));
                s[i + 2 * half + 1] = exp2_fast(fmaf(s[i + 2 * half + 1], scale, -origin));
                part += s[i + 2 * half] + s[i + 2 * half + 1];
            }
            sum[half] += part;
        }
    }
};

// Scores of keys that a row does not see become -inf. position: of the thread's first row among the keys.
template <typename S>
__device__ __forceinline__ void mask_scores(float (&s)[S::N / 2], const Tile& tile, int block, int position, int lane) {
    const int first = block * S::N + 2 * (lane & 3);
    const int low = S::CAUSAL ? min(tile.keys, position + 1) - first : tile.keys - first;
    const int high = S::CAUSAL ? min(tile.keys, position + 9) - first : tile.keys - first;
#pragma unroll
    for (int i = 0; i < S::N / 2; i += 4) {
        const int column = 2 * i;  // 8 columns for 4 values
        if (column >= low) s[i] = -INFINITY;
        if (column + 1 >= low) s[i + 1] = -INFINITY;
        if (column >= high) s[i + 2] = -INFINITY;
        if (column + 1 >= high) s[i + 3] = -INFINITY;
    }
}

template <typename S>
__device__ __forceinline__ void pack_weights(uint32_t (&p)[S::N / 4], const float (&s)[S::N / 2]) {
#pragma unroll
    for (int i = 0; i < S::N / 4; ++i) p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

template <typename S>
__device__ __forceinline__ void store_rows(const AttentionCall& call, const Tile& tile, const float (&o)[S::D / 2],
                                           const float (&factor)[2], int row, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int query = row + 8 * half;
        if (query >= tile.queries) continue;
        const long long token = tile.first_query + query;
        __nv_bfloat16* to = call.output + (token * call.heads + tile.head) * S::D + 2 * (lane & 3);
#pragma unroll
        for (int i = 0; i < S::D / 2; i += 4)
            *reinterpret_cast<uint32_t*>(to + 2 * i) =
                pack_bf16(o[i + 2 * half] * factor[half], o[i + 2 * half + 1] * factor[half]);
    }
}

// Warpgroups take turns: `turn` waits for this one's, `pass` gives it to the next.
template <typename S>
__device__ __forceinline__ void turn(int warpgroup) {
    if constexpr (S::WARPGROUPS > 1) named_barrier_sync(1 + warpgroup, 256);
}

template <typename S>
__device__ __forceinline__ void pass(int warpgroup) {
    if constexpr (S::WARPGROUPS > 1)
        named_barrier_arrive(1 + (warpgroup + 1 == S::WARPGROUPS ? 0 : warpgroup + 1), 256);
}

template <typename S>
__device__ __forceinline__ void consume(const AttentionCall& call, SharedMap<S> shared, int items, int warpgroup) {
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    const int row_inside = warpgroup * 64 + warp * 16 + (lane >> 2);
    const uint32_t q = shared.q() + warpgroup * 64 * ROW_BYTES;
    Ring<S::STAGES> k_ring, v_ring;
    uint32_t q_parity = 0;
    if (warpgroup == S::WARPGROUPS - 1) pass<S>(warpgroup);
    for (int round = 0;; ++round) {
        const int item = nth_item(round);
        if (round * static_cast<int>(gridDim.x) >= items) break;
        if (item >= items) continue;
        const Tile tile = find_tile<S>(call, item);
        const int row = tile.row + row_inside;
        float o[S::D / 2];
        Softmax softmax;
        if (tile.blocks == 0) {
            if (tile.row < tile.queries) {
                const float zeros[2] = {0.0f, 0.0f};
#pragma unroll
                for (int i = 0; i < S::D / 2; ++i) o[i] = 0.0f;
                store_rows<S>(call, tile, o, zeros, row, lane);
            }
            continue;
        }
        const int position = tile.keys - tile.queries + row;
        int first_masked = tile.keys / S::N;
        if (S::CAUSAL)
            first_masked = min(first_masked, (tile.keys - tile.queries + tile.row + warpgroup * 64 + 1) / S::N);
        float s[S::N / 2];
        uint32_t p[S::N / 4];
        int block = tile.blocks - 1;
        mbarrier_wait(shared.q_full(), q_parity);
        q_parity ^= 1;
        mbarrier_wait(shared.k_full(k_ring.stage), k_ring.parity);
        turn<S>(warpgroup);
        multiply_keys<S>(s, q, shared.k(k_ring.stage));
        pass<S>(warpgroup);
        wgmma_wait<0>();
        if (lane == 0) mbarrier_arrive(shared.k_empty(k_ring.stage));
        k_ring.next();
        if (block >= first_masked) mask_scores<S>(s, tile, block, position, lane);
        softmax.weigh<S::N / 2, true>(s, call.scale_log2);
        pack_weights<S>(p, s);
        bool add = false;
        for (--block; block >= 0; --block) {
            mbarrier_wait(shared.k_full(k_ring.stage), k_ring.parity);
            turn<S>(warpgroup);
            multiply_keys<S>(s, q, shared.k(k_ring.stage));
            mbarrier_wait(shared.v_full(v_ring.stage), v_ring.parity);
            multiply_values<S>(o, p, shared.v(v_ring.stage), add);
            add = true;
            pass<S>(warpgroup);
            wgmma_wait<1>();
            if (lane == 0) mbarrier_arrive(shared.k_empty(k_ring.stage));
            k_ring.next();
            if (block >= first_masked) mask_scores<S>(s, tile, block, position, lane);
            softmax.weigh<S::N / 2, false>(s, call.scale_log2);
            wgmma_wait<0>();
            if (lane == 0) mbarrier_arrive(shared.v_empty(v_ring.stage));
            v_ring.next();
#pragma unroll
            for (int i = 0; i < S::D / 2; ++i) o[i] *= softmax.rescale[(i >> 1) & 1];
            pack_weights<S>(p, s);
        }
        if (lane == 0) mbarrier_arrive(shared.q_empty());
        mbarrier_wait(shared.v_full(v_ring.stage), v_ring.parity);
        multiply_values<S>(o, p, shared.v(v_ring.stage), add);
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float sum = quad_sum(softmax.sum[half]);
            factor[half] = sum > 0.0f ? 1.0f / sum : 0.0f;
        }
        wgmma_wait<0>();
        if (lane == 0) mbarrier_arrive(shared.v_empty(v_ring.stage));
        v_ring.next();
        store_rows<S>(call, tile, o, factor, row, lane);
    }
    // Takes back the turn that is left over, so that no barrier has threads waiting at the end.
    if (warpgroup == 0) turn<S>(0);
}

template <typename S>
__global__ void __launch_bounds__(S::THREADS, 1)
    derby_long_attention(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
                         const __grid_constant__ CUtensorMap v_map, const AttentionCall call) {
    extern __shared__ uint8_t raw[];
    const SharedMap<S> shared{(shared_address(raw) + 1023) & ~1023u};
    const int items = call.query_blocks * call.heads;
    if (threadIdx.x == 0) {
        mbarrier_init(shared.q_full(), 1);
        mbarrier_init(shared.q_empty(), 4 * S::WARPGROUPS);
        for (int stage = 0; stage < S::STAGES; ++stage) {
            mbarrier_init(shared.k_full(stage), 1);
            mbarrier_init(shared.v_full(stage), 1);
            mbarrier_init(shared.k_empty(stage), 4 * S::WARPGROUPS);
            mbarrier_init(shared.v_empty(stage), 4 * S::WARPGROUPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        tma_prefetch_map(&q_map);
        tma_prefetch_map(&k_map);
        tma_prefetch_map(&v_map);
    }
    __syncthreads();
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (warpgroup == 0) {
        setmaxnreg_dec<S::WARPGROUPS == 3 ? 32 : 24>();
        if (threadIdx.x < 32) produce<S>(call, &q_map, &k_map, &v_map, shared, items, threadIdx.x);
    } else {
        setmaxnreg_inc<S::WARPGROUPS == 3 ? 160 : 240>();
        consume<S>(call, shared, items, warpgroup - 1);
    }
}

using EncodeMap = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                               const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                               CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

inline EncodeMap find_encode() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found) !=
            cudaSuccess || found != cudaDriverEntryPointSuccess)
        return nullptr;
    return reinterpret_cast<EncodeMap>(function);
}

// Boxes of 64 columns of one head and `rows` tokens of a [tokens, heads, dim] tensor. With page > 0 the tensor is [blocks,
// page, heads, dim] and a box is one block.
inline bool encode_heads(EncodeMap encode, CUtensorMap* map, const void* data, long long tokens, int heads, int dim,
                         int rows, int page) {
    const cuuint64_t row = 2ull * dim;
    const cuuint64_t sizes[4] = {cuuint64_t(dim), cuuint64_t(heads), cuuint64_t(page ? page : tokens), cuuint64_t(tokens)};
    const cuuint64_t strides[3] = {row, row * heads, row * heads * (page ? page : 1)};
    const cuuint32_t box[4] = {SLAB_COLUMNS, 1, cuuint32_t(page ? page : rows), 1}, steps[4] = {1, 1, 1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, page ? 4 : 3, const_cast<void*>(data), sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

struct AttentionTensors {
    const void *query, *key, *value;
    long long num_tokens, kv_tokens;  // kv_tokens: rows of key (packed) or blocks of the cache (paged)
};

template <typename S>
cudaError_t launch_long_attention(const AttentionTensors& tensors, AttentionCall call, int processors,
                                  cudaStream_t stream) {
    static const EncodeMap encode = find_encode();
    if (encode == nullptr) return cudaErrorNotSupported;
    CUtensorMap q_map, k_map, v_map;
    const int page = S::PAGED ? PAGE : 0;
    if (!encode_heads(encode, &q_map, tensors.query, tensors.num_tokens, call.heads, S::D, S::M, 0) ||
        !encode_heads(encode, &k_map, tensors.key, tensors.kv_tokens, call.kv_heads, S::D, S::N, page) ||
        !encode_heads(encode, &v_map, tensors.value, tensors.kv_tokens, call.kv_heads, S::D, S::N, page))
        return cudaErrorInvalidValue;
    call.query_blocks = call.num_seqs == 1 ? int((tensors.num_tokens + S::M - 1) / S::M)
                                           : int(tensors.num_tokens / S::M) + call.num_seqs;
    static const cudaError_t sized = cudaFuncSetAttribute(
        derby_long_attention<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED);
    if (sized != cudaSuccess) return sized;
    const long long items = 1ll * call.query_blocks * call.heads;
    const int ctas = int(items < processors ? items : processors);
    derby_long_attention<S><<<ctas, S::THREADS, S::SHARED, stream>>>(q_map, k_map, v_map, call);
    return cudaGetLastError();
}

}  // namespace derby
