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
static cudaError_t start(const Call& call) {  // static: its own in each library
    static_assert((sizeof(Shared<F>) + 1024) * F::RESIDENT <= 228 * 1024, "what the CTAs of a multiprocessor can have");
    CUtensorMap a_map, b_map, out_map, multiplier_map;
    constexpr CUtensorMapDataType BF16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const int k_blocks = (call.k + F::DEEP * BLOCK - 1) / (F::DEEP * BLOCK);
    if (call.splits > 1 && (!F::SPLITS || F::CLUSTER * call.splits > MOST_CTAS || k_blocks < call.splits))
        return cudaErrorInvalidValue;
    Problem problem = {static_cast<const __nv_bfloat16*>(call.bias),
                       static_cast<const __nv_bfloat16*>(call.multiplier), static_cast<__nv_bfloat16*>(call.output)};
    const int grid = fill_extent<F>(&problem.extent, call.m, call.n, k_blocks, call.group, call.splits, call.ctas);
    const void *a = F::TURNED ? call.weight : call.x, *b = F::TURNED ? call.x : call.weight;
    const int a_rows = F::TURNED ? call.n : call.m, b_rows = F::TURNED ? call.m : call.n;
    // If a row of the output is not a multiple of 16 bytes, its map is not used.
    const bool whole = call.n % 8 == 0;
    const auto encode_out = [&](CUtensorMap* map, const void* out) {
        return encode_matrix(map, BF16, 2, whole && out ? out : call.x, whole ? call.m : 1, whole ? call.n : 8, F::OUT_ROWS);
    };
    if (!encode_matrix(&a_map, BF16, 2, a, a_rows, call.k, problem.extent.a_box) ||
        !encode_matrix(&b_map, BF16, 2, b, b_rows, call.k, problem.extent.b_box) ||
        !encode_out(&out_map, call.output) || !encode_out(&multiplier_map, call.multiplier))
        return cudaErrorInvalidValue;
    static OnceADevice prepared;
    cudaError_t error = prepared.allow_shared_memory<derby_dense_gemm<E, F>, sizeof(Shared<F>)>();
    if (error != cudaSuccess) return error;
    return launch(derby_dense_gemm<E, F>, {grid, F::THREADS, int(sizeof(Shared<F>)), F::CLUSTER * call.splits},
                  call.stream, a_map, b_map, out_map, multiplier_map, problem);
}

// form: its number in dense_forms.cuh.
template <class E>
static cudaError_t start_form(int form, const Call& call) {
    static cudaError_t (*const starts[])(const Call&) = {
#define FORM(PACE, ...) start<E, Form<__VA_ARGS__>>,
#include "dense_forms.cuh"
#undef FORM
    };
    if (form < 0 || form >= int(sizeof(starts) / sizeof(*starts))) return cudaErrorInvalidValue;
    return starts[form](call);
}

}  // namespace derby
