// Results of long attention: put together from warpgroups and from chunks of keys, and stored.
#pragma once
#include "attention_softmax.cuh"

namespace derby {

// Four words of four lanes of a quad, transposed: lane l gets word l of every lane, in the lanes' order.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4], int lane) {
    const bool odd = lane & 1, upper = lane & 2;
    uint32_t give, got;
    give = odd ? w[0] : w[1];
    got = __shfl_xor_sync(0xffffffff, give, 1);
    if (odd) w[0] = got; else w[1] = got;
    give = odd ? w[2] : w[3];
    got = __shfl_xor_sync(0xffffffff, give, 1);
    if (odd) w[2] = got; else w[3] = got;
    give = upper ? w[0] : w[2];
    got = __shfl_xor_sync(0xffffffff, give, 2);
    if (upper) w[0] = got; else w[2] = got;
    give = upper ? w[1] : w[3];
    got = __shfl_xor_sync(0xffffffff, give, 2);
    if (upper) w[1] = got; else w[3] = got;
}

// row: of the thread in the tile, and row + 8.
template <typename S>
__device__ __forceinline__ void store_rows(const AttentionCall& call, const Tile& tile, const float (&o)[S::D / 2],
                                           const float (&factor)[2], int row, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int inside = row + 8 * half, token = divide(inside, call.by_pack);
        const bool wanted =
            token < call.tile_tokens && tile.token + token >= 0 && tile.token + token < tile.queries;
        const long long query = tile.first_query + tile.token + token;
        __nv_bfloat16* to = call.output + (query * call.heads + tile.head + inside - token * call.pack) * call.head_dim;
#pragma unroll
        for (int j = 0; j + 4 <= S::D / 8; j += 4) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                w[i] = pack_bf16(o[4 * (j + i) + 2 * half] * factor[half],
                                 o[4 * (j + i) + 2 * half + 1] * factor[half]);
            transpose_quad(w, lane);
            if (wanted && 8 * (j + (lane & 3)) < call.head_dim)
                *reinterpret_cast<uint4*>(to + 8 * (j + (lane & 3))) = make_uint4(w[0], w[1], w[2], w[3]);
        }
#pragma unroll
        for (int j = S::D / 32 * 4; j < S::D / 8; ++j)
            if (wanted && 8 * j < call.head_dim)
                *reinterpret_cast<uint32_t*>(to + 8 * j + 2 * (lane & 3)) =
                    pack_bf16(o[4 * j + 2 * half] * factor[half], o[4 * j + 2 * half + 1] * factor[half]);
    }
}

// SPLIT: adds the other warpgroups' sums and products to the first one's. Returns false in the warpgroups that have
// given theirs away.
template <typename S>
__device__ __forceinline__ bool merge(float (&o)[S::D / 2], Softmax& softmax, SharedMap<S> shared, int warpgroup,
                                      float scale) {
    constexpr int THREADS = 128 * S::WARPGROUPS;
    const uint32_t mine = shared.merge() + 4 * (threadIdx.x & 127);
    if (warpgroup > 0) {
        const uint32_t to = mine + (warpgroup - 1) * 128 * 4 * (S::D / 2 + 4);
        named_barrier_sync(MERGE_TAKEN, THREADS);
#pragma unroll
        for (int i = 0; i < S::D / 2; ++i) store_shared(to + 512 * i, o[i]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            store_shared(to + 512 * (S::D / 2 + half), softmax.largest[half]);
            store_shared(to + 512 * (S::D / 2 + 2 + half), softmax.sum[half]);
        }
        named_barrier_sync(MERGE_READY, THREADS);
        return false;
    }
    named_barrier_sync(MERGE_TAKEN, THREADS);
    named_barrier_sync(MERGE_READY, THREADS);
    for (int other = 1; other < S::WARPGROUPS; ++other) {
        const uint32_t from = mine + (other - 1) * 128 * 4 * (S::D / 2 + 4);
        float ours[2], theirs[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float largest = load_shared_f32(from + 512 * (S::D / 2 + half));
            const float sum = load_shared_f32(from + 512 * (S::D / 2 + 2 + half));
            const float top = fmaxf(largest, softmax.largest[half]);
            const float origin = top == -INFINITY ? 0.0f : top * scale;
            ours[half] = exp2_approx(softmax.largest[half] * scale - origin);
            theirs[half] = exp2_approx(largest * scale - origin);
            softmax.largest[half] = top;
            softmax.sum[half] = softmax.sum[half] * ours[half] + sum * theirs[half];
        }
#pragma unroll
        for (int i = 0; i < S::D / 2; ++i)
            o[i] = o[i] * ours[i >> 1 & 1] + load_shared_f32(from + 512 * i) * theirs[i >> 1 & 1];
    }
    return true;
}


// Writes a chunk's sums and products to memory. Returns true in the warpgroup that ends last among the chunks: its o
// and softmax then hold all chunks together, added in the chunks' order, so the result does not depend on which one
// ends last.
template <typename S>
__device__ __forceinline__ bool combine(const AttentionCall& call, const Tile& tile, float (&o)[S::D / 2],
                                        Softmax& softmax, SharedMap<S> shared, int warpgroup) {
    constexpr int VECTORS = S::D / 8 + 1, FLOATS = 128 * 4 * VECTORS;
    const int thread = threadIdx.x & 127;
    const auto place = [&](int chunk) {
        const long long slot = (1ll * tile.slot * call.chunks + chunk) * S::OWNERS + warpgroup;
        return reinterpret_cast<float4*>(call.partials + slot * FLOATS) + thread;
    };
    float4* mine = place(tile.chunk);
#pragma unroll
    for (int i = 0; i < S::D / 8; ++i)
        __stcg(mine + 128 * i, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
    __stcg(mine + 128 * (S::D / 8),
           make_float4(softmax.largest[0], softmax.largest[1], softmax.sum[0], softmax.sum[1]));
    __threadfence();
    named_barrier_sync(COMBINE + warpgroup, 128);
    const uint32_t flag = shared.flag(warpgroup);
    if (thread == 0) {
        const unsigned before = atomicInc(
            reinterpret_cast<unsigned*>(call.counters + 2 + tile.slot * S::OWNERS + warpgroup), tile.chunks - 1);
        __threadfence();
        store_shared(flag, before);
    }
    named_barrier_sync(COMBINE + warpgroup, 128);
    if (load_shared_i32(flag) != tile.chunks - 1) return false;
    float top[2] = {-INFINITY, -INFINITY};
    for (int chunk = 0; chunk < tile.chunks; ++chunk) {
        const float4 state = __ldcg(place(chunk) + 128 * (S::D / 8));
        top[0] = fmaxf(top[0], state.x);
        top[1] = fmaxf(top[1], state.y);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        softmax.set_largest(half, top[half], call.scale_log2);
        softmax.sum[half] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < S::D / 2; ++i) o[i] = 0.0f;
    for (int chunk = 0; chunk < tile.chunks; ++chunk) {
        const float4* from = place(chunk);
        const float4 state = __ldcg(from + 128 * (S::D / 8));
        const float low = exp2_approx(state.x * call.scale_log2 - softmax.origin[0]);
        const float high = exp2_approx(state.y * call.scale_log2 - softmax.origin[1]);
        softmax.sum[0] += state.z * low;
        softmax.sum[1] += state.w * high;
#pragma unroll
        for (int i = 0; i < S::D / 8; ++i) {
            const float4 part = __ldcg(from + 128 * i);
            o[4 * i] += part.x * low;
            o[4 * i + 1] += part.y * low;
            o[4 * i + 2] += part.z * high;
            o[4 * i + 3] += part.w * high;
        }
    }
    return true;
}

}  // namespace derby
