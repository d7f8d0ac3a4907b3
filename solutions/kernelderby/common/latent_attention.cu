// derby_latent_attention: decode attention over a latent cache, with or without blocks, for sm_90a: two launches.
#include "latent_launch.cuh"

namespace {

using derby::latent::Form;

// Tokens of a tile, tiles in shared memory, slabs of queries in registers. Of 227 KB the first takes 225.7, the second 221.7.
// 0: the fewest barriers a token; 64 query heads take some 2,200 cycles of a tile's 4,000 that it needs from memory.
// 1: two CTAs that share tiles have 2,000 each: with a third tile the tensor cores need not wait for the one that comes, and
//    queries in registers take a sixth off what products read of shared memory.
template <int CTAS>
cudaError_t launch_form(int form, const derby::LatentCall& call, const void* cache, int blocks, int slots,
                        cudaStream_t stream) {
    switch (form) {
        case 0: return derby::launch_latent_attention<Form<64, 2, 1, CTAS>>(call, cache, blocks, slots, stream);
        case 1: return derby::launch_latent_attention<Form<48, 3, 4, CTAS>>(call, cache, blocks, slots, stream);
    }
    return cudaErrorInvalidValue;
}

}  // namespace

// query bf16 [batch, heads, 576], output bf16 [batch, heads, 512]. cache bf16 [blocks, slots, 576]: with a block_table int32
// [batch, table_width] slots is a power of two from 8 on, else blocks is batch. space: for each of head_blocks x workers x 2 x
// rows 512 floats and 2 more, and an int for each worker; head blocks are of 64 heads, rows min(heads, 64). overhead, least,
// snap: of LatentPlan, in tiles. Addresses are multiples of 16.
extern "C" int derby_latent_attention_run(const void* query, const void* cache, const void* context_lens,
                                          const void* block_table, void* output, void* space, int batch, int heads,
                                          int blocks, int slots, int longest, int table_width, float sm_scale, int form,
                                          int workers, int overhead, int least, int snap, cudaStream_t stream) {
    using derby::latent::HEADS, derby::latent::LATENT;
    derby::LatentCall call;
    call.plan = {static_cast<const int*>(context_lens), batch, longest, workers, overhead, least, snap};
    call.query = static_cast<const __nv_bfloat16*>(query);
    call.output = static_cast<__nv_bfloat16*>(output);
    call.block_table = static_cast<const int*>(block_table);
    call.heads = heads;
    call.head_blocks = (heads + HEADS - 1) / HEADS;
    call.rows = heads < HEADS ? heads : HEADS;
    const long long pieces = 2ll * call.head_blocks * workers * call.rows;
    call.parts = static_cast<float*>(space);
    call.statistics = reinterpret_cast<float2*>(call.parts + pieces * LATENT);
    call.cuts = reinterpret_cast<int*>(call.statistics + pieces);
    call.table_width = table_width;
    call.page_bits = 31 - __builtin_clz(slots);
    call.scale = sm_scale * 1.4426950408889634f;
    return call.head_blocks % 2 ? launch_form<1>(form, call, cache, blocks, slots, stream)
                                : launch_form<2>(form, call, cache, blocks, slots, stream);
}
