// Decode attention with heads of more than 128 values and more than 8 rows a key head, and drafts with heads of other
// sizes than 128: one call of decode_attention.cuh. A library of its own: its changes outdate no times of the others.
#define DECODE_WIDE
#include "decode_launch.cuh"

using namespace derby_decode;

namespace {

template <int D, int WARPS, int PLACES, bool EXACT>
int launch_rows(const AnyHead& given, int rows, int processors, cudaStream_t stream) {
    return rows > 8 ? launch<D, 2, 8, PLACES, EXACT>(given, processors, stream)
                    : launch<D, 1, WARPS, PLACES, EXACT>(given, processors, stream);
}

}  // namespace

// first_rows: int32 [sequences + 1], as cu_seqlens_q of unified_attention, or null for one query token a sequence. Other
// shapes as in the definitions, all addresses multiples of 16. head_dim: 64, or 72 to 256 by 8; max_query_len times heads
// a key head: at most 16. together: neighbouring key heads that a CTA reads, a divisor of 8 (of 4 from head_dim 136 on)
// and of kv_heads. counters: int32 [3 processors], zeros, and left as zeros. partials: float32 [2 processors, together, 8
// or 16 (so many that those rows fit), head_dim rounded up to 64, 96, 128, 192 or 256, + 4]. processors: multiprocessors
// of the GPU.
extern "C" int derby_decode_wide_run(const void* query, const void* key_cache, const void* value_cache,
                                     const void* first_rows, const void* lengths, const void* table, void* output,
                                     void* counters, void* partials, int sequences, int table_width, int heads,
                                     int kv_heads, int head_dim, int max_query_len, float sm_scale, int together,
                                     int processors, cudaStream_t stream) {
    const int rows = max_query_len * (heads / kv_heads);
    const AnyHead given{{static_cast<const __nv_bfloat16*>(query), static_cast<const __nv_bfloat16*>(key_cache),
                         static_cast<const __nv_bfloat16*>(value_cache), static_cast<const int*>(first_rows),
                         static_cast<const int*>(lengths), static_cast<const int*>(table),
                         static_cast<__nv_bfloat16*>(output), static_cast<int*>(counters),
                         static_cast<float*>(partials), sequences, table_width, kv_heads, heads / kv_heads, together,
                         sm_scale * LOG2E}, head_dim};
    if (rows > 16 || head_dim % 8 || processors > MOST_PARTS * NEIGHBOURS) return cudaErrorInvalidValue;
    if (head_dim == 64) return launch_rows<64, 8, 4, true>(given, rows, processors, stream);
    if (head_dim < 72 || head_dim > 256) return cudaErrorInvalidValue;
    if (head_dim <= 96) return launch_rows<96, 8, 3, false>(given, rows, processors, stream);
    if (head_dim <= 128) return launch_rows<128, 8, 2, false>(given, rows, processors, stream);
    if (head_dim <= 192) return launch_rows<192, 4, 3, false>(given, rows, processors, stream);
    return head_dim < 256 ? launch_rows<256, 4, 2, false>(given, rows, processors, stream)
                          : launch_rows<256, 4, 2, true>(given, rows, processors, stream);
}
