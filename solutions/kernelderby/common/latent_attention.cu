// derby_latent_attention: decode attention over a latent cache, with or without blocks, for sm_90a: two launches.
// derby_latent_uncut (LATENT_UNCUT, latent_uncut.cu): one launch, for contexts that are too short to be cut.
#ifdef LATENT_UNCUT
#define DERBY_LATENT_RUN derby_latent_uncut_run
#else
#define DERBY_LATENT_RUN derby_latent_attention_run
#endif
#include "latent_launch.cuh"

namespace {

// Tokens of a tile, tiles in shared memory (226 of 227 KB), slabs of queries in registers, CTAs that share tiles. Tiles of 48 and
// 32 tokens, three and four at a time, were up to 6 and 18 % slower with 128 heads and within 2 % with fewer.
template <int CTAS>
using Form = derby::latent::Form<64, 2, 1, CTAS>;

// Constants of a plan, in tiles, as measured: the cost of a sequence, the least work of a worker, the shortest piece.
constexpr int OVERHEAD = 2, LEAST = 2, SNAP = derby::UNCUT ? 3 : 1;

}  // namespace

// query bf16 [batch, heads, 576], output bf16 [batch, heads, 512]. cache bf16 [blocks, slots, 576]: with a block_table int32
// [batch, table_width] slots is a power of two from 8 on, else blocks is batch. space: for each of head_blocks x workers x 2 x
// rows 514 floats, and one for each worker; head blocks are of 64 heads, rows min(heads, 64) and up to a multiple of 16.
// Addresses are multiples of 16.
extern "C" int DERBY_LATENT_RUN(const void* query, const void* cache, const void* context_lens, const void* block_table,
                                void* output, void* space, int batch, int heads, int blocks, int slots, int longest,
                                int table_width, float sm_scale, int workers, cudaStream_t stream) {
    using derby::latent::HEADS, derby::latent::LATENT;
    derby::LatentCall call;
    call.plan = {static_cast<const int*>(context_lens), batch, longest, workers, OVERHEAD, LEAST, SNAP};
    call.query = static_cast<const __nv_bfloat16*>(query);
    call.output = static_cast<__nv_bfloat16*>(output);
    call.block_table = static_cast<const int*>(block_table);
    call.heads = heads;
    call.head_blocks = (heads + HEADS - 1) / HEADS;
    call.row_groups = ((heads < HEADS ? heads : HEADS) + 15) / 16;
    const long long rows = 2ll * call.head_blocks * workers * call.row_groups * 16;
    call.parts = static_cast<float4*>(space);
    call.statistics = reinterpret_cast<float2*>(call.parts + rows * LATENT / 4);
    call.cuts = reinterpret_cast<int*>(call.statistics + rows);
    call.table_width = table_width;
    call.page_bits = 31 - __builtin_clz(slots);
    call.scale = sm_scale * 1.4426950408889634f;
    return call.head_blocks % 2 ? derby::launch_latent_attention<Form<1>>(call, cache, blocks, slots, stream)
                                : derby::launch_latent_attention<Form<2>>(call, cache, blocks, slots, stream);
}
