// derby_layer_norm, a block a row (rows.cuh), in the forms that were faster than the Triton kernel somewhere on an H200.
// Constraints: as rows.cuh; weight and bias there.

#include "rows.cuh"

DERBY_ROWS_KERNEL(derby_layer_norm, LAYER)

// ahead: rows, 0 for a form without. main.py lists the same forms.
extern "C" int derby_layer_norm_run(const uint4* x, const uint4* weight, const uint4* bias, uint4* output,
                                    int rows, int columns, float eps, int threads, int stream, int ahead,
                                    cudaStream_t on) {
  return start<Kernels,
               Form<1152, 160, NOTHING, false>,
               Form<1152, 160, BOTH, false>,
               Form<2048, 256, NOTHING, false>,
               Form<4096, 512, NOTHING, false>,
               Form<5120, 640, NOTHING, false>>(
      Rows{x, nullptr, weight, bias, output, nullptr, rows, ahead, eps}, columns, threads, stream, ahead > 0, on);
}
