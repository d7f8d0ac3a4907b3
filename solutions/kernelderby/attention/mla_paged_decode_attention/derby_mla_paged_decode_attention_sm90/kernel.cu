// derby_mla_paged_decode_attention_sm90: latent_clusters.cuh with a block table.
#include "latent_clusters.cuh"

// cache bf16 [blocks, slots, 576], slots a power of two; block_table int32 [sequences, table_width]. splits: blocks of
// a cluster that share a context, 1, 2, 4, 8 or 16. groups: of 8 heads to a block. tokens: of a tile. All addresses are
// multiples of 16.
extern "C" int derby_mla_paged_decode_attention_sm90_run(const void* query, const void* cache, const void* context_lens,
                                                         const void* block_table, void* output, int sequences,
                                                         int heads, int slots, int table_width, int longest,
                                                         float sm_scale, int splits, int groups, int tokens,
                                                         cudaStream_t stream) {
  latent_clusters::Arguments given{};
  given.query = static_cast<const __nv_bfloat16*>(query);
  given.cache = static_cast<const __nv_bfloat16*>(cache);
  given.context_lens = static_cast<const int*>(context_lens);
  given.block_table = static_cast<const int*>(block_table);
  given.output = static_cast<__nv_bfloat16*>(output);
  given.heads = heads, given.slots = slots, given.splits = splits, given.longest = longest;
  given.table_width = table_width, given.scale = sm_scale * LOG2E;
  return latent_clusters::run<true>(given, sequences, groups, tokens, stream);
}
