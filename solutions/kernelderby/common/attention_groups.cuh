// Long attention in equal shares: a tile's chunks are put together in groups, since it may have one for every CTA.
#pragma once
#include "attention_results.cuh"
#include "attention_shares.cuh"

namespace derby {

// Of so many chunks the one that ends last adds up to MOST_AT_ONCE. Of more: groups of neighbours, about as many as
// each has chunks, and then the groups' sums.
constexpr int MOST_AT_ONCE = 8;

__device__ __forceinline__ int chunks_of_group(int chunks) {
    if (chunks <= MOST_AT_ONCE) return chunks;
    int group = 3;
    while (group * group < chunks) ++group;
    return group;
}

// As combine() above. A CTA has a place for the chunk that begins a tile, the last one of its share, and one for a
// later chunk. Warps whose rows no head and token of the tile has leave theirs out.
template <typename S>
__device__ __forceinline__ bool combine(const SharesCall& call, const Tile& tile, float (&o)[S::D / 2],
                                        Softmax& softmax, SharedMap<S> shared, int warpgroup) {
    constexpr int VECTORS = S::D / 8 + 1, FLOATS = 128 * 4 * VECTORS;
    const int thread = threadIdx.x & 127;
    // Of a warp, and known to be: where the assembler takes a branch for divergent, the descriptors of all products in
    // the kernel get registers of their own.
    const int first_row = warpgroup * 64 + static_cast<int>(__reduce_max_sync(0xffffffff, threadIdx.x & 96)) / 2;
    const int end_token = min(call.tile_tokens, tile.queries - tile.token);
    const bool some = first_row < end_token * call.pack && first_row + 16 > -tile.token * call.pack;
    const auto slot_of = [&](int chunk) { return 2 * (tile.slot + chunk) + (chunk == 0); };
    const auto place = [&](int chunk) {
        return reinterpret_cast<float4*>(call.partials + (1ll * slot_of(chunk) * S::OWNERS + warpgroup) * FLOATS) +
               thread;
    };
    const int group = chunks_of_group(tile.chunks), groups = (tile.chunks + group - 1) / group;
    const int mine = tile.chunk / group;
    const uint32_t flag = shared.flag(warpgroup);
#pragma unroll 1
    for (int level = 0; level < min(groups, 2); ++level) {
        const int step = level == 0 ? 1 : group, first = level == 0 ? mine * group : 0;
        const int end = level == 0 ? min(first + group, tile.chunks) : tile.chunks;
        const int count = level == 0 ? end - first : groups;
        if (count == 1) continue;
        float4* to = place(level == 0 ? tile.chunk : mine * group);
        if (some) {
#pragma unroll
            for (int i = 0; i < S::D / 8; ++i)
                __stcg(to + 128 * i, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
            __stcg(to + 128 * (S::D / 8),
                   make_float4(softmax.largest[0], softmax.largest[1], softmax.sum[0], softmax.sum[1]));
        }
        __threadfence();
        named_barrier_sync(COMBINE + warpgroup, 128);
        if (thread == 0) {
            const int counter = (2 * call.shares * level + slot_of(first)) * S::OWNERS + warpgroup;
            const unsigned before = atomicInc(reinterpret_cast<unsigned*>(call.counters + 2 + counter), count - 1);
            __threadfence();
            store_shared(flag, before);
        }
        named_barrier_sync(COMBINE + warpgroup, 128);
        if (load_shared_i32(flag) != count - 1) return false;
        if (some) {
            float top[2] = {-INFINITY, -INFINITY};
            for (int chunk = first; chunk < end; chunk += step) {
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
            for (int chunk = first; chunk < end; chunk += step) {
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
        }
    }
    return true;
}

}  // namespace derby
