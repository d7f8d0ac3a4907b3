// derby_mla_paged_decode_attention_sm90: latent_clusters.cuh with a block table.
#include "latent_clusters.cuh"

using namespace latent_clusters;

// cache bf16 [blocks, slots, 576], slots a power of two; block_table int32 [sequences, table_width]. splits: blocks of
// a cluster that share a context, 1, 2, 4, 8 or 16. groups: of 8 heads to a block. tokens: of a tile. All addresses are
// multiples of 16.
extern "C" int derby_mla_paged_decode_attention_sm90_run(const void* query, const void* cache, const void* context_lens,
                                                         const void* block_table, void* output, int sequences,
                                                         int heads, int slots, int table_width, int longest,
                                                         float sm_scale, int splits, int groups, int tokens,
                                                         cudaStream_t stream) {
  const int page_bits = 31 - __builtin_clz(slots);
  const long long most = static_cast<long long>(table_width) * slots;
  if (longest > most) longest = static_cast<int>(most);
  const auto* table = static_cast<const int*>(block_table);
  if (groups == 1 && (tokens == 32 || tokens == 64) && splits <= 8 && longest <= splits * tokens && sequences < 1 << 16) {
    one_tile::InBlocks given{{static_cast<const __nv_bfloat16*>(query), static_cast<const __nv_bfloat16*>(cache),
                              static_cast<const int*>(context_lens), static_cast<__nv_bfloat16*>(output),
                              heads, slots, longest, sm_scale * LOG2E}, table, table_width, page_bits};
    return tokens == 32 ? one_tile::for_blocks<32, true>(splits, given, sequences, stream)
                        : one_tile::for_blocks<64, true>(splits, given, sequences, stream);
  }
  InBlocks given{{static_cast<const __nv_bfloat16*>(query), static_cast<const __nv_bfloat16*>(cache),
                  static_cast<const int*>(context_lens), static_cast<__nv_bfloat16*>(output), heads,
                  (heads + 8 * groups - 1) / (8 * groups), slots, splits, longest, sm_scale * LOG2E},
                 table, table_width, page_bits};
  switch (groups * 100 + tokens) {
    case 116: return start<1, 16, true>(given, sequences, stream);
    case 132: return start<1, 32, true>(given, sequences, stream);
    case 216: return start<2, 16, true>(given, sequences, stream);
    case 232: return start<2, 32, true>(given, sequences, stream);
    case 264: return start<2, 64, true>(given, sequences, stream);
    case 432: return start<4, 32, true>(given, sequences, stream);
    case 832: return start<8, 32, true>(given, sequences, stream);
  }
  return cudaErrorInvalidValue;
}
