// The FP8 experts' variants; everything else is in the experts' shared headers.
#include "experts_launch.cuh"

using namespace derby;

static const Variant VARIANTS[] = {  // main.py chooses by their numbers
    // pairs a tile, stages, CTAs a cluster, whether pairs are wgmma's M, pairs up to which every CTA sorts for itself
    variant_of<Config<Fp8, 16, 6, 1, false, 512>>(),
    variant_of<Config<Fp8, 64, 5, 1, false, 0>>(),
    variant_of<Config<Fp8, 128, 4, 1, false, 0>>(),
    variant_of<Config<Fp8, 128, 4, 2, false, 0>>(),
    variant_of<Config<Fp8, 128, 4, 2, true, 0>>(),
};

extern "C" int derby_fp8_blockscale_fused_moe_sm90_run(const Call* call, void* stream) {
    return run_experts<Fp8>(VARIANTS, sizeof(VARIANTS) / sizeof(VARIANTS[0]), call, stream);
}
