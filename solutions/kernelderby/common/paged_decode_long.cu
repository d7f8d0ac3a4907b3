// paged_attention_decode where contexts are worth cutting anew: one call of decode_attention.cuh.
#define DECODE_ONE_QUERY
#include "decode_launch.cuh"

using namespace derby_decode;

namespace {

template <int D, int WARPS, int PLACES>
int launch_rows(const Arguments& given, int processors, cudaStream_t stream) {
    return given.group > 8 ? launch<D, 2, WARPS, PLACES>(given, processors, stream)
                           : launch<D, 1, WARPS, PLACES>(given, processors, stream);
}

}  // namespace

// Shapes as in the definition. head_dim: 64, 128 or 256. Heads a key head: at most 16, with head_dim 256 at most 8.
// together: neighbouring key heads that a CTA reads, a divisor of 8 (of 4 with head_dim 256) and of kv_heads. counters: int32 [3
// processors], zeros, and left as zeros. partials: float32 [2 processors, together, 8 or 16 (so many that heads fit),
// head_dim + 4]. processors: multiprocessors of the GPU. All addresses are multiples of 16.
extern "C" int derby_paged_attention_long_run(const void* query, const void* key_cache, const void* value_cache,
                                              const void* block_table, const void* context_lens, void* output,
                                              void* counters, void* partials, int sequences, int heads, int kv_heads,
                                              int head_dim, int table_width, float sm_scale, int together,
                                              int processors, cudaStream_t stream) {
    const Arguments given{static_cast<const __nv_bfloat16*>(query), static_cast<const __nv_bfloat16*>(key_cache),
                          static_cast<const __nv_bfloat16*>(value_cache), nullptr,
                          static_cast<const int*>(context_lens), static_cast<const int*>(block_table),
                          static_cast<__nv_bfloat16*>(output), static_cast<int*>(counters),
                          static_cast<float*>(partials), sequences, table_width, kv_heads, heads / kv_heads, together,
                          sm_scale * LOG2E};
    if (given.group > 16 || processors > MOST_PARTS * NEIGHBOURS) return cudaErrorInvalidValue;
    switch (head_dim) {
        case 64: return launch_rows<64, 8, 4>(given, processors, stream);
        case 128: return launch_rows<128, 8, 2>(given, processors, stream);
        case 256:
            if (given.group <= 8) return launch<256, 1, 4, 2>(given, processors, stream);
    }
    return cudaErrorInvalidValue;
}
