// The items of every CTA by common/attention_shares.cuh, for test_attention_shares.py on the CPU.
#include "attention_shares.cuh"
#include "launch.cuh"

using namespace derby;

template <typename S>
__global__ void list_items(const SharesCall call, Tile* items, int* counts, int most) {
    const SharedMap<S> shared{0};
    find_share<S>(call, shared);
    __syncthreads();
    if (threadIdx.x > 0) return;
    Way<S> way = way_of<S>(call, shared);
    int count = 0;
    for (Tile item; way.next(call, item); ++count) {
        if (count == most) abort();
        items[blockIdx.x * most + count] = item;
    }
    counts[blockIdx.x] = count;
}

template <typename S>
int list(SharesCall call, Tile* items, int* counts, int most) {
    call.tile_tokens = S::M / call.pack;
    call.all_heads = call.heads / call.pack;
    call.by_tile_tokens = divisor(call.tile_tokens);
    return launch(list_items<S>, {call.shares, S::THREADS, S::SHARED}, nullptr, call, items, counts, most);
}

extern "C" int items_run(const int* cu_seqlens_q, const int* seq_lens, int num_seqs, int heads, int pack, int split,
                         int causal, int overhead, int again, int least, int shares, Tile* items, int* counts, int most) {
    SharesCall call{};
    call.cu_seqlens_q = cu_seqlens_q, call.key_lengths = seq_lens, call.num_seqs = num_seqs, call.heads = heads;
    call.pack = pack, call.overhead = overhead, call.again = again, call.least = least, call.shares = shares;
    if (!causal) return list<InShares<ShapeOf<128, false, false, true>::Shape>>(call, items, counts, most);
    if (split) return list<InShares<ShapeOf<128, true, true, true>::Shape>>(call, items, counts, most);
    return list<InShares<ShapeOf<256, false, true, true>::Shape>>(call, items, counts, most);
}
