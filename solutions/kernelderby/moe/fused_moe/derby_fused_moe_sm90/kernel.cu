// The bf16 experts' variants; everything else is in the experts' shared headers.
#include "experts_launch.cuh"

using namespace derby;

static const Variant VARIANTS[] = {  // main.py chooses by their numbers
    // pairs a tile, stages, CTAs a cluster, whether pairs are wgmma's M, pairs up to which every CTA sorts for itself
    variant_of<Config<Bf16, 16, 6, 1, false, 512>>(),
    variant_of<Config<Bf16, 64, 5, 1, false, 2048>>(),
    variant_of<Config<Bf16, 128, 4, 1, false, 2048>>(),
    variant_of<Config<Bf16, 192, 3, 1, false, 2048>>(),
    variant_of<Config<Bf16, 64, 5, 1, false, 0>>(),
    variant_of<Config<Bf16, 128, 4, 1, false, 0>>(),
    variant_of<Config<Bf16, 160, 4, 1, false, 0>>(),
    variant_of<Config<Bf16, 128, 4, 2, true, 0>>(),
    variant_of<Config<Bf16, 80, 5, 1, false, 1024>>(),
    variant_of<Config<Bf16, 128, 4, 2, true, 2048>>(),
};

extern "C" int derby_fused_moe_sm90_run(const Call* call, void* stream) {
    return run_experts<Bf16>(VARIANTS, sizeof(VARIANTS) / sizeof(VARIANTS[0]), call, stream);
}
