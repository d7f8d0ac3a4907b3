// derby_rms_norm where rows are a block each: rows.cuh.

#include "rows.cuh"

namespace {

template <int VECTORS, Stream STREAM>
__global__ void __launch_bounds__(most_threads(VECTORS)) derby_rms_norm(Rows rows) {
  normalize<RMS, VECTORS, STREAM>(rows, shared_memory<Sums>());
}

struct Kernels {
  template <int VECTORS, Stream STREAM>
  static constexpr auto of = derby_rms_norm<VECTORS, STREAM>;
};

}  // namespace

extern "C" int derby_rms_norm_run(const uint4* x, const uint4* weight, uint4* output,
                            int rows, int vectors, float eps, int threads, int stream, int ahead, cudaStream_t on) {
  return start<Kernels>(Rows{x, nullptr, weight, nullptr, output, nullptr, rows, vectors, ahead, eps}, threads, stream, on);
}
