// derby_fused_add_rms_norm where rows are a block each: rows.cuh.

#include "rows.cuh"

namespace {

template <int VECTORS, Stream STREAM>
__global__ void __launch_bounds__(most_threads(VECTORS)) derby_fused_add_rms_norm(Rows rows) {
  normalize<ADD_RMS, VECTORS, STREAM>(rows, shared_memory<Sums>());
}

struct Kernels {
  template <int VECTORS, Stream STREAM>
  static constexpr auto of = derby_fused_add_rms_norm<VECTORS, STREAM>;
};

}  // namespace

extern "C" int derby_fused_add_rms_norm_run(const uint4* x, const uint4* residual, const uint4* weight, uint4* output, uint4* sum,
                            int rows, int vectors, float eps, int threads, int stream, int ahead, cudaStream_t on) {
  return start<Kernels>(Rows{x, residual, weight, nullptr, output, sum, rows, vectors, ahead, eps}, threads, stream, on);
}
