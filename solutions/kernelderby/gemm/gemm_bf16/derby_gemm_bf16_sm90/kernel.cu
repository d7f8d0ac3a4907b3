// output = x @ weight^T + bias: the dense GEMM with nothing else on its way out.
#include "dense_launch.cuh"

extern "C" int derby_gemm_bf16_sm90_run(const void* x, const void* weight, const void* bias, void* output, int m, int n,
                                        int k, int form, int group, int splits, int multiprocessors, void* stream) {
    return derby::start_form<derby::Plain>(form, {x, weight, bias, nullptr, output, m, n, k, group, splits,
                                                  multiprocessors, static_cast<cudaStream_t>(stream)});
}
