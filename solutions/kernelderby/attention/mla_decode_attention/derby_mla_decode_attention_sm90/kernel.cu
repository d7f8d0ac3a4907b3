// derby_mla_decode_attention_sm90: latent_clusters.cuh without a block table.
#include "latent_clusters.cuh"

// cache bf16 [sequences, slots, 576]. splits: blocks of a cluster that share a context, 1, 2, 4, 8 or 16. groups: of 8
// heads to a block. tokens: of a tile. All addresses are multiples of 16.
extern "C" int derby_mla_decode_attention_sm90_run(const void* query, const void* cache, const void* context_lens,
                                                   void* output, int sequences, int heads, int slots, int longest,
                                                   float sm_scale, int splits, int groups, int tokens,
                                                   cudaStream_t stream) {
  latent_clusters::Arguments given{};
  given.query = static_cast<const __nv_bfloat16*>(query);
  given.cache = static_cast<const __nv_bfloat16*>(cache);
  given.context_lens = static_cast<const int*>(context_lens);
  given.output = static_cast<__nv_bfloat16*>(output);
  given.heads = heads, given.slots = slots, given.splits = splits, given.longest = longest;
  given.scale = sm_scale * LOG2E;
  return latent_clusters::run<false>(given, sequences, groups, tokens, stream);
}
