// The bf16 experts' variants, of the Kind that kernel.cu has named before: Bf16 or Bf16ToBf16. Everything else is in the
// experts' shared headers.
#pragma once
static const Variant VARIANTS[] = {  // experts_bf16_choice.py chooses by their numbers
    // pairs a tile, stages, CTAs a cluster, whether pairs are wgmma's M, pairs up to which every CTA sorts for itself
    variant_of<Config<Kind, 16, 6, 1, false, 512>>(),
    variant_of<Config<Kind, 64, 5, 1, false, 2048>>(),
    variant_of<Config<Kind, 128, 4, 1, false, 2048>>(),
    variant_of<Config<Kind, 192, 3, 1, false, 2048>>(),
    variant_of<Config<Kind, 64, 5, 1, false, 0>>(),
    variant_of<Config<Kind, 128, 4, 1, false, 0>>(),
    variant_of<Config<Kind, 160, 4, 1, false, 0>>(),
    variant_of<Config<Kind, 128, 4, 2, true, 0>>(),
    variant_of<Config<Kind, 80, 5, 1, false, 1024>>(),
    variant_of<Config<Kind, 128, 4, 2, true, 2048>>(),
};
