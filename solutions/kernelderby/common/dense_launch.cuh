// The host side of the dense bf16 GEMMs: the forms there are, tensor maps, the launch.
#pragma once
#include "dense_gemm.cuh"
#include "launch.cuh"
#include "once_a_device.cuh"

namespace derby {

struct Call {
    const void *x, *weight, *bias, *multiplier;  // bias: or nullptr
    void* output;
    int m, n, k, group, splits, ctas;  // ctas: multiprocessors
    cudaStream_t stream;
};

template <class E, class F>
cudaError_t start(const Call& call) {
    static_assert((sizeof(Shared<F>) + 1024) * F::RESIDENT <= 228 * 1024, "what the CTAs of a multiprocessor can have");
    CUtensorMap x_map, w_map, out_map;
    constexpr CUtensorMapDataType BF16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const int k_blocks = (call.k + BLOCK - 1) / BLOCK;
    if (call.splits > 1 && (F::CLUSTER > 1 || F::COUNT / 4 % call.splits || k_blocks < call.splits))
        return cudaErrorInvalidValue;
    Problem problem = {static_cast<const __nv_bfloat16*>(call.bias),
                       static_cast<const __nv_bfloat16*>(call.multiplier), static_cast<__nv_bfloat16*>(call.output)};
    const int grid = fill_extent<F>(&problem.extent, call.m, call.n, k_blocks, call.group, call.splits, call.ctas);
    // Where rows of the output are no multiple of 16 bytes its map is not used.
    const bool by_tma = call.n % 8 == 0;
    if (!encode_matrix(&x_map, BF16, 2, call.x, call.m, call.k, problem.extent.x_box) ||
        !encode_matrix(&w_map, BF16, 2, call.weight, call.n, call.k, F::W_BOX) ||
        !encode_matrix(&out_map, BF16, 2, by_tma ? call.output : call.x, by_tma ? call.m : 1, by_tma ? call.n : 8, 8))
        return cudaErrorInvalidValue;
    static OnceADevice prepared;
    cudaError_t error = prepared([] {
        return cudaFuncSetAttribute(derby_dense_gemm<E, F>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    int(sizeof(Shared<F>)));
    });
    if (error != cudaSuccess) return error;
    return launch(derby_dense_gemm<E, F>, {grid, F::THREADS, int(sizeof(Shared<F>)), F::CLUSTER * call.splits},
                  call.stream, x_map, w_map, out_map, problem);
}

// The forms, by the number that dense_choice.py calls them. One warpgroup: two CTAs a multiprocessor.
template <class E>
cudaError_t start_form(int form, const Call& call) {
    switch (form) {
        case 0: return start<E, Form<128, 256, 2, 4, 2, false, true>>(call);
        case 1: return start<E, Form<256, 128, 2, 4, 2, true, true>>(call);
        case 2: return start<E, Form<128, 192, 2, 5, 2, false, true>>(call);
        case 3: return start<E, Form<128, 128, 2, 6, 2, false, true>>(call);
        case 4: return start<E, Form<192, 192, 3, 4>>(call);
        case 5: return start<E, Form<192, 128, 3, 5>>(call);
        case 6: return start<E, Form<128, 256, 2, 4>>(call);
        case 7: return start<E, Form<128, 128, 2, 6>>(call);
        case 8: return start<E, Form<128, 64, 2, 8>>(call);
        case 9: return start<E, Form<64, 128, 1, 4>>(call);
        case 10: return start<E, Form<64, 64, 1, 6>>(call);
        case 11: return start<E, Form<64, 32, 1, 8>>(call);
        case 12: return start<E, Form<64, 16, 1, 10>>(call);
        default: return cudaErrorInvalidValue;
    }
}

}  // namespace derby
