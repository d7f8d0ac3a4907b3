// Items of work of long attention: rows of queries and the keys that they see.
#pragma once
#include "attention_order.cuh"

namespace derby {

// One work item: rows of one sequence for the query heads head .. head + pack - 1.
struct __align__(16) Tile {
    int sequence, head;
    int first_query, queries;  // of the sequence: row in query, count
    int first_key, keys;       // of the sequence: row in key (packed), count
    int token;                 // first query token of the tile, in the sequence; may be negative where causal
    int blocks;                // tiles of keys of this chunk; 0: the rows are zeros; negative: no more work
    int first_block;           // its first tile of keys
    int chunk, chunks;         // this one of so many that share the rows
    int slot;                  // of the rows among the tiles that are cut
};
static_assert(sizeof(Tile) == 48, "TILE_BYTES");

__device__ __forceinline__ void put_tile(uint32_t to, const Tile& tile) {
    store_shared(to, make_int4(tile.sequence, tile.head, tile.first_query, tile.queries));
    store_shared(to + 16, make_int4(tile.first_key, tile.keys, tile.token, tile.blocks));
    store_shared(to + 32, make_int4(tile.first_block, tile.chunk, tile.chunks, tile.slot));
}

__device__ __forceinline__ Tile get_tile(uint32_t from) {
    const uint4 a = load_shared16(from), b = load_shared16(from + 16), c = load_shared16(from + 32);
    return {int(a.x), int(a.y), int(a.z), int(a.w), int(b.x), int(b.y), int(b.z), int(b.w),
            int(c.x), int(c.y), int(c.z), int(c.w)};
}

// Work item `index`. Items are ordered by section of heads, then by sequence (those with most keys first if they are
// sorted), then from the last query rows to the first, since the last ones see most keys. Returns false if there is
// nothing to do.
template <typename S>
__device__ __forceinline__ bool find_tile(const AttentionCall& call, SharedMap<S> shared, int index, int lane,
                                          Tile& tile) {
    const int from_cut = index - call.first_cut;
    const bool cut = from_cut >= 0 && from_cut < call.cut_tiles * call.chunks;
    tile.slot = tile.chunk = 0;
    if (cut) {
        tile.slot = divide(from_cut, call.by_chunks);
        tile.chunk = from_cut - tile.slot * call.chunks;
        index = call.first_cut + tile.slot;
    } else if (from_cut >= 0) {
        index -= call.cut_tiles * (call.chunks - 1);
    }
    const int section = divide(index, call.by_section), first_head = section * call.section_heads;
    const int inside = index - section * call.query_blocks * call.section_heads;
    const int heads = min(call.section_heads, call.all_heads - first_head);
    const int from_last = divide(inside, heads == call.section_heads ? call.by_section_heads : call.by_last_heads);
    tile.head = (first_head + inside - from_last * heads) * call.pack;
    // The host knows the rows of a single sequence, so there is no load here that the next load would have to wait for.
    int block = call.query_blocks - 1 - from_last;
    tile.sequence = tile.first_query = tile.first_key = 0;
    if (call.num_seqs == 1) {
        tile.queries = static_cast<int>(call.num_tokens);
        tile.keys = S::PAGED ? call.key_lengths[0] : static_cast<int>(call.kv_tokens);
    } else {
        if constexpr (S::SORTED) {
            block = from_last;
            tile.sequence = sequence_of<S>(call, shared, block, lane);
        } else {
            // Sequence s has the blocks from cu_seqlens_q[s] / tile_tokens + s on, which are at least as many as it
            // needs. The warp looks at 32 places at once.
            int low = 0, count = call.num_seqs;
            while (count > 1) {
                const int step = (count + 31) / 32, place = low + lane * step;
                const bool before =
                    lane * step < count && divide(call.cu_seqlens_q[place], call.by_tile_tokens) + place <= block;
                const int last = 31 - __clz(__ballot_sync(0xffffffff, before) | 1);
                count = min(step, count - last * step);
                low += last * step;
            }
            tile.sequence = low;
            block -= divide(call.cu_seqlens_q[low], call.by_tile_tokens) + low;
        }
        tile.first_query = call.cu_seqlens_q[tile.sequence];
        tile.queries = call.cu_seqlens_q[tile.sequence + 1] - tile.first_query;
        tile.first_key = S::PAGED ? 0 : call.key_lengths[tile.sequence];
        tile.keys = S::PAGED ? call.key_lengths[tile.sequence]
                             : call.key_lengths[tile.sequence + 1] - tile.first_key;
    }
    tile.token = block * call.tile_tokens;
    int visible = tile.keys;
    if (S::CAUSAL) {
        // Tiles are counted from the last row backwards: the tile that is not full is then the one of the first rows,
        // which sees fewest keys.
        const int all = divide(tile.queries + call.tile_tokens - 1, call.by_tile_tokens);
        tile.token -= all * call.tile_tokens - tile.queries;
        visible = min(visible, tile.keys - tile.queries + tile.token + call.tile_tokens);
    }
    const int blocks = (max(visible, 0) + S::N - 1) / S::N;
    tile.chunks = 1, tile.first_block = 0, tile.blocks = blocks;
    if (cut) {
        tile.chunks = max(1, min(call.chunks, divide(blocks + call.chunk_blocks - 1, call.by_chunk_blocks)));
        tile.first_block = blocks * tile.chunk / tile.chunks;
        tile.blocks = blocks * (tile.chunk + 1) / tile.chunks - tile.first_block;
    }
    return block >= 0 && tile.token < tile.queries && tile.chunk < tile.chunks;
}

}  // namespace derby
