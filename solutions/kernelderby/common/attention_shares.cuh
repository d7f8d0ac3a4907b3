// Long attention of a ragged batch: every CTA takes an equal share of the keys of all tiles.
//
// The host does not know the sequences' lengths, so each CTA finds its share at its start. All tiles stand in a line:
// head by head, in a head sequence by sequence, in a sequence from the first rows to the last. A tile is as long as the
// keys that it sees, and `overhead` more in front for its begin and end. The line is cut into equal shares. A CTA goes
// through its own, so it works on the end of one tile, on whole tiles, and on the begin of another one. Where each CTA
// can have one chunk of one tile, and the longest chunk takes no longer than a share with a second item, the line
// counts chunks instead of keys: then a batch of equal sequences is cut as the host would cut it.
// The memory for chunks does not depend on the lengths: two places a CTA. A second kernel adds them
// (attention_combine.cuh).
// Constraints: those of long_attention.cuh; at most 256 sequences. No CTA waits for another one.
#pragma once
#include "attention_tiles.cuh"

namespace derby {

struct SharesCall : AttentionCall {
    int overhead;  // of a tile, in keys
    int again;     // a second item of a CTA, in keys
    int least;     // blocks of keys that a chunk has at least: smaller ones go to the neighbour
    int shares;    // CTAs
};

// The same tiles as S. A CTA finds its items itself, so its producer has more registers.
template <typename S>
struct InShares : S {
    static constexpr int PRODUCER_REGISTERS = S::WARPGROUPS == 3 ? 32 : 40;
    static constexpr int CONSUMER_REGISTERS = S::WARPGROUPS == 3 ? 160 : 232;
    static constexpr bool IN_SHARES = true;
    static constexpr int WORDS = 10;  // that a CTA keeps of its share
    static constexpr int SHARED = S::SHARED + 4 * WORDS;
    static_assert(SHARED <= 232448, "shared memory of a CTA of sm_90");
};

constexpr int MOST_SHARED_SEQUENCES = 256;  // a thread each
constexpr int MOST_SHARED_TILES = 4096;     // of a head

// How the line is cut. chunk_blocks: 0, or the blocks of keys of a chunk, where the line counts chunks.
struct LineCut {
    int share, chunk_blocks;
};

// A sequence's tiles in the line: tile i is first + i * more long.
struct LineTiles {
    int tiles, first, more;
    __device__ __forceinline__ int length(int tile) const { return first + tile * more; }
    __device__ __forceinline__ int before(int tile) const { return tile * first + more * (tile * (tile - 1) / 2); }
};

struct SequenceLengths {
    int first_query, queries, first_key, keys;
};

template <typename S>
__device__ __forceinline__ SequenceLengths lengths_of(const AttentionCall& call, int sequence) {
    SequenceLengths it;
    it.first_query = call.cu_seqlens_q[sequence];
    it.queries = call.cu_seqlens_q[sequence + 1] - it.first_query;
    it.first_key = S::PAGED ? 0 : call.key_lengths[sequence];
    it.keys = S::PAGED ? call.key_lengths[sequence] : call.key_lengths[sequence + 1] - it.first_key;
    return it;
}

template <typename S>
__device__ __forceinline__ int blocks_of(int keys) {
    return (max(keys, 0) + S::N - 1) / S::N;
}

template <typename S>
__device__ __forceinline__ LineTiles tiles_in_line(const SharesCall& call, int chunk_blocks, int queries, int keys) {
    const int tiles = divide(queries + call.tile_tokens - 1, call.by_tile_tokens);
    if (chunk_blocks > 0) return {tiles, max((blocks_of<S>(keys) + chunk_blocks - 1) / chunk_blocks, 1), 0};
    const int seen = S::CAUSAL ? keys - (tiles - 1) * call.tile_tokens : keys;
    return {tiles, max(seen, 0) + call.overhead, S::CAUSAL ? call.tile_tokens : 0};
}

// The chunks of a tile: from which CTA on, how many, and of the CTA that asks its number and blocks.
struct ChunkOfTile {
    int first_share, chunks, first_block, end_block;
};

// A tile that begins at `place` of the line, of `length`, with `blocks` of keys, as this CTA's share cuts it. Returns
// false if the CTA has nothing of it.
template <typename S>
__device__ __forceinline__ bool cut_tile(const SharesCall& call, const LineCut& cut, int place, int length, int blocks,
                                         int mine, ChunkOfTile& found) {
    if (cut.chunk_blocks > 0) {
        found.first_share = place;
        found.chunks = min(length, max(blocks, 1));
        const int chunk = mine - place;
        if (chunk < 0 || chunk >= found.chunks) return false;
        found.first_block = blocks * chunk / found.chunks;
        found.end_block = blocks * (chunk + 1) / found.chunks;
        return true;
    }
    // The share that ends `at` behind the tile's begin ends before this block.
    const auto block_at = [&](int at) {
        if (at >= length) return blocks;
        const int block = max(at - call.overhead + S::N / 2, 0) / S::N;
        return block < call.least ? 0 : block > blocks - call.least ? blocks : block;
    };
    found.first_block = block_at(mine * cut.share - place);
    found.end_block = block_at((mine + 1) * cut.share - place);
    // Where block_at() is still 0, and from where on it is `blocks`.
    const int none = min(call.overhead + call.least * S::N - S::N / 2, length) - 1;
    const int all = min(call.overhead + max(call.least, blocks - call.least + 1) * S::N - S::N / 2, length);
    found.first_share = (place + none) / cut.share;
    found.chunks = (place + all - 1) / cut.share - found.first_share + 1;
    return blocks > 0 ? found.first_block < found.end_block : mine == found.first_share;
}

template <typename S>
__device__ __forceinline__ uint32_t share_word(SharedMap<S> shared, int word) {
    return shared.barrier(S::BARRIERS) + 4 * word;
}

// All threads, and a barrier after it: leaves the cut, and where in the line this CTA begins. Every CTA does it for
// itself. The place of the keys is free until then.
template <typename S>
__device__ __forceinline__ void find_share(const SharesCall& call, SharedMap<S> shared) {
    constexpr int WARPS = S::THREADS / 32, NONE = 0x7fffffff;
    static_assert(S::THREADS >= MOST_SHARED_SEQUENCES && S::KV_BYTES >= 8 * MOST_SHARED_SEQUENCES + 16 * WARPS,
                  "a thread for each sequence, and room for what they hand over");
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, s = threadIdx.x;
    const uint32_t sequences = shared.k(0), sums = sequences + 8 * MOST_SHARED_SEQUENCES, chosen = sums + 8 * WARPS,
                   ahead = chosen + 4 * WARPS;
    SequenceLengths mine = {};
    if (s < call.num_seqs) mine = lengths_of<S>(call, s);
    const LineTiles in_keys = tiles_in_line<S>(call, 0, mine.queries, mine.keys);
    const int blocks = blocks_of<S>(mine.keys);
    if (s < call.num_seqs) {
        store_shared(sequences + 8 * s, in_keys.tiles);
        store_shared(sequences + 8 * s + 4, blocks);
    }
    const int keys_of_warp = __reduce_add_sync(0xffffffff, static_cast<unsigned>(in_keys.before(in_keys.tiles)));
    const int blocks_of_warp = __reduce_add_sync(0xffffffff, static_cast<unsigned>(in_keys.tiles * blocks));
    if (lane == 0) {
        store_shared(sums + 8 * warp, keys_of_warp);
        store_shared(sums + 8 * warp + 4, blocks_of_warp);
    }
    __syncthreads();
    int all_keys = 0, all_blocks = 0;
    for (int i = 0; i < WARPS; ++i) {
        all_keys += load_shared_i32(sums + 8 * i);
        all_blocks += load_shared_i32(sums + 8 * i + 4);
    }
    // Each warp tries another length of chunks, from one that could just fit on.
    const int of_head = call.shares / call.all_heads, shortest = max((all_blocks + of_head - 1) / max(of_head, 1), 1);
    const int tried = shortest + warp * ((shortest + 15) / 16);
    int count = 0;
    for (int i = lane; i < call.num_seqs; i += 32)
        count += load_shared_i32(sequences + 8 * i) *
                 max((load_shared_i32(sequences + 8 * i + 4) + tried - 1) / tried, 1);
    count = __reduce_add_sync(0xffffffff, static_cast<unsigned>(count));
    if (lane == 0) store_shared(chosen + 4 * warp, count <= of_head ? tried : NONE);
    __syncthreads();
    int chunk_blocks = NONE;
    for (int i = 0; i < WARPS; ++i) chunk_blocks = min(chunk_blocks, load_shared_i32(chosen + 4 * i));
    LineCut cut;
    cut.share = max((all_keys * call.all_heads + call.shares - 1) / call.shares, 2 * call.least * S::N);
    const bool in_chunks = chunk_blocks <= (cut.share + call.again - call.overhead) / S::N;
    cut.chunk_blocks = in_chunks ? chunk_blocks : 0;
    if (in_chunks) cut.share = 1;
    const LineTiles line = tiles_in_line<S>(call, cut.chunk_blocks, mine.queries, mine.keys);
    const int length = line.before(line.tiles), up_to = sum_up_to(length, lane);
    if (lane == 31) store_shared(ahead + 4 * warp, up_to);
    __syncthreads();
    int begin = up_to - length, head_length = 0;
    for (int i = 0; i < WARPS; ++i) {
        const int of_warp = load_shared_i32(ahead + 4 * i);
        if (i < warp) begin += of_warp;
        head_length += of_warp;
    }
    const int from = blockIdx.x * cut.share, head = head_length > 0 ? from / head_length : call.all_heads;
    const int inside = from - head * head_length - begin;
    if (head < call.all_heads ? 0 <= inside && inside < length : threadIdx.x == 0) {
        int tile = 0;  // the last one that begins no later
        for (int step = line.tiles > 1 ? MOST_SHARED_TILES / 2 : 0; step > 0; step /= 2)
            if (tile + step < line.tiles && line.before(tile + step) <= inside) tile += step;
        store_shared(share_word(shared, 0), cut.share);
        store_shared(share_word(shared, 1), cut.chunk_blocks);
        store_shared(share_word(shared, 2), head);
        store_shared(share_word(shared, 3), s);
        store_shared(share_word(shared, 4), tile);
        store_shared(share_word(shared, 5), head * head_length + begin + line.before(tile));
        store_shared(share_word(shared, 6), mine.first_query);
        store_shared(share_word(shared, 7), mine.queries);
        store_shared(share_word(shared, 8), mine.first_key);
        store_shared(share_word(shared, 9), mine.keys);
    }
    fence_async_proxy();  // keys come where threads have read and written
}

// The way of a producer warp through its CTA's share.
template <typename S>
struct Way {
    LineCut cut;
    int head, sequence, tile, place;  // of the line, the next tile
    SequenceLengths lengths;          // of its sequence

    __device__ __forceinline__ explicit Way(SharedMap<S> shared) {
        const auto word = [&](int i) { return load_shared_i32(share_word(shared, i)); };
        cut = {word(0), word(1)};
        head = word(2), sequence = word(3), tile = word(4), place = word(5);
        lengths = {word(6), word(7), S::PAGED ? 0 : word(8), word(9)};
    }

    // The next item. Returns false at the share's end.
    __device__ __forceinline__ bool next(const SharesCall& call, Tile& item) {
        const int mine = blockIdx.x;
        while (head < call.all_heads && place < (mine + 1) * cut.share) {
            const LineTiles line = tiles_in_line<S>(call, cut.chunk_blocks, lengths.queries, lengths.keys);
            if (tile == line.tiles) {
                tile = 0;
                if (++sequence == call.num_seqs) {
                    sequence = 0;
                    if (++head == call.all_heads) return false;
                }
                lengths = lengths_of<S>(call, sequence);
                continue;
            }
            const int token = S::CAUSAL ? lengths.queries - (line.tiles - tile) * call.tile_tokens
                                        : tile * call.tile_tokens;
            const int seen = S::CAUSAL ? min(lengths.keys, lengths.keys - lengths.queries + token + call.tile_tokens)
                                       : lengths.keys;
            const int length = line.length(tile);
            ChunkOfTile chunk;
            const bool some = cut_tile<S>(call, cut, place, length, blocks_of<S>(seen), mine, chunk);
            place += length;
            ++tile;
            if (!some) continue;
            item = {sequence, head * call.pack, lengths.first_query, lengths.queries, lengths.first_key, lengths.keys,
                    token, chunk.end_block - chunk.first_block, chunk.first_block, mine - chunk.first_share,
                    chunk.chunks, chunk.first_share};
            return true;
        }
        return false;
    }
};

template <typename S>
__device__ __forceinline__ Way<S> way_of(const SharesCall&, SharedMap<S> shared) {
    return Way<S>(shared);
}

// Where a counter gives out the items.
template <typename S>
__device__ __forceinline__ int way_of(const AttentionCall&, SharedMap<S>) {
    return 0;
}

}  // namespace derby
