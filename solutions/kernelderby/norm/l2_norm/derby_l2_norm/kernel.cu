// derby_l2_norm, a block a row (rows.cuh), in the forms that were faster than the Triton kernel somewhere on an H200.
// Constraints: as rows.cuh.

#include "rows.cuh"

DERBY_ROWS_KERNEL(derby_l2_norm, L2)

// ahead: rows, 0 for a form without. main.py lists the same forms.
extern "C" int derby_l2_norm_run(const uint4* x, uint4* output,
                                 int rows, int columns, float eps, int threads, int stream, int ahead,
                                 cudaStream_t on) {
  return start<Kernels,
               Form<2048, 256, NOTHING, false>,
               Form<2048, 256, LOADS, false>,
               Form<2048, 128, LOADS, false>,
               Form<2048, 128, LOADS, true>>(
      Rows{x, nullptr, nullptr, nullptr, output, nullptr, rows, ahead, eps}, columns, threads, stream, ahead > 0, on);
}
