// derby_l2_norm where rows are a block each: rows.cuh.

#include "rows.cuh"

namespace {

template <int VECTORS, Stream STREAM>
__global__ void __launch_bounds__(most_threads(VECTORS)) derby_l2_norm(Rows rows) {
  normalize<L2, VECTORS, STREAM>(rows, shared_memory<Sums>());
}

struct Kernels {
  template <int VECTORS, Stream STREAM>
  static constexpr auto of = derby_l2_norm<VECTORS, STREAM>;
};

}  // namespace

extern "C" int derby_l2_norm_run(const uint4* x, uint4* output,
                            int rows, int vectors, float eps, int threads, int stream, int ahead, cudaStream_t on) {
  return start<Kernels>(Rows{x, nullptr, nullptr, nullptr, output, nullptr, rows, vectors, ahead, eps}, threads, stream, on);
}
