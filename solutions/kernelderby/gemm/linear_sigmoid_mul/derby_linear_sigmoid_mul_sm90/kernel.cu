// output = sigmoid(x @ weight^T + bias) * multiplier.
#include "dense_launch.cuh"

extern "C" int derby_linear_sigmoid_mul_sm90_run(const void* x, const void* weight, const void* bias,
                                                 const void* multiplier, void* output, int m, int n, int k, int form,
                                                 int group, int splits, int multiprocessors, void* stream) {
    return derby::start_form<derby::Gate>(form, {x, weight, bias, multiplier, output, m, n, k, group, splits,
                                                 multiprocessors, static_cast<cudaStream_t>(stream)});
}
