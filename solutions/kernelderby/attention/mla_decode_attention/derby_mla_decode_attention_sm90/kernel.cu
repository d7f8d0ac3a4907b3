// derby_mla_decode_attention_sm90: latent_clusters.cuh without a block table.
#include "latent_clusters.cuh"

using namespace latent_clusters;

// cache bf16 [sequences, slots, 576]. splits: blocks of a cluster that share a context, 1, 2, 4, 8 or 16. groups: of 8
// heads to a block. tokens: of a tile. All addresses are multiples of 16.
extern "C" int derby_mla_decode_attention_sm90_run(const void* query, const void* cache, const void* context_lens,
                                                   void* output, int sequences, int heads, int slots, int longest,
                                                   float sm_scale, int splits, int groups, int tokens,
                                                   cudaStream_t stream) {
  if (groups == 1 && (tokens == 32 || tokens == 64) && splits <= 8 && longest <= splits * tokens && sequences < 1 << 16) {
    one_tile::Arguments given{static_cast<const __nv_bfloat16*>(query), static_cast<const __nv_bfloat16*>(cache),
                              static_cast<const int*>(context_lens), static_cast<__nv_bfloat16*>(output),
                              heads, slots, longest, sm_scale * LOG2E};
    return tokens == 32 ? one_tile::for_blocks<32, false>(splits, given, sequences, stream)
                        : one_tile::for_blocks<64, false>(splits, given, sequences, stream);
  }
  Arguments given{static_cast<const __nv_bfloat16*>(query), static_cast<const __nv_bfloat16*>(cache),
                  static_cast<const int*>(context_lens), static_cast<__nv_bfloat16*>(output), heads,
                  (heads + 8 * groups - 1) / (8 * groups), slots, splits, longest, sm_scale * LOG2E};
  switch (groups * 100 + tokens) {
    case 116: return start<1, 16, false>(given, sequences, stream);
    case 132: return start<1, 32, false>(given, sequences, stream);
    case 216: return start<2, 16, false>(given, sequences, stream);
    case 232: return start<2, 32, false>(given, sequences, stream);
    case 264: return start<2, 64, false>(given, sequences, stream);
    case 432: return start<4, 32, false>(given, sequences, stream);
    case 832: return start<8, 32, false>(given, sequences, stream);
  }
  return cudaErrorInvalidValue;
}
