// The bf16 experts with an output in bfloat16.
#include "experts_launch.cuh"

using namespace derby;
using Kind = Bf16ToBf16;
#include "experts_bf16_variants.cuh"

extern "C" int derby_fused_moe_bf16_sm90_run(const Call* call, void* stream) {
    return run_experts<Kind>(VARIANTS, sizeof(VARIANTS) / sizeof(VARIANTS[0]), call, stream);
}
