// paged_decode_long.cu for further head sizes, and for more than 8 heads of 256 to a key head (where decode_wide.cu is
// asked now). A library of its own: its changes outdate no times of the other one.
#define DECODE_ONE_QUERY
#include "decode_launch.cuh"

using namespace derby_decode;

namespace {

template <int D, int WARPS, int PLACES, bool EXACT>
int launch_rows(const AnyHead& given, int processors, cudaStream_t stream) {
    return given.group > 8 ? launch<D, 2, WARPS, PLACES, EXACT>(given, processors, stream)
                           : launch<D, 1, WARPS, PLACES, EXACT>(given, processors, stream);
}

}  // namespace

// As derby_paged_attention_long_run(), but head_dim: 72 to 192 by 8, or 256 with 9 to 16 heads a key head. together: a
// divisor of 8 (of 4 from head_dim 136 on) and of kv_heads. partials: float32 [2 processors, together, 8 or 16 (so many
// that heads fit), head_dim rounded up to 96, 128, 192 or 256, + 4].
extern "C" int derby_paged_attention_other_run(const void* query, const void* key_cache, const void* value_cache,
                                               const void* block_table, const void* context_lens, void* output,
                                               void* counters, void* partials, int sequences, int heads, int kv_heads,
                                               int head_dim, int table_width, float sm_scale, int together,
                                               int processors, cudaStream_t stream) {
    const AnyHead given{{static_cast<const __nv_bfloat16*>(query), static_cast<const __nv_bfloat16*>(key_cache),
                         static_cast<const __nv_bfloat16*>(value_cache), nullptr,
                         static_cast<const int*>(context_lens), static_cast<const int*>(block_table),
                         static_cast<__nv_bfloat16*>(output), static_cast<int*>(counters),
                         static_cast<float*>(partials), sequences, table_width, kv_heads, heads / kv_heads, together,
                         sm_scale * LOG2E}, head_dim};
    if (given.group > 16 || processors > MOST_PARTS * NEIGHBOURS) return cudaErrorInvalidValue;
    if (head_dim == 256) {
        return given.group > 8 ? launch<256, 2, 4, 2, true>(given, processors, stream) : cudaErrorInvalidValue;
    }
    if (head_dim % 8 || head_dim < 72) return cudaErrorInvalidValue;
    if (head_dim <= 96) return launch_rows<96, 8, 3, false>(given, processors, stream);
    if (head_dim <= 128) return launch_rows<128, 8, 2, false>(given, processors, stream);
    return head_dim <= 192 ? launch_rows<192, 4, 3, false>(given, processors, stream) : cudaErrorInvalidValue;
}
