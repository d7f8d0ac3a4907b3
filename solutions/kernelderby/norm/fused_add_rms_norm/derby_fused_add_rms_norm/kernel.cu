// derby_fused_add_rms_norm, a block a row (rows.cuh), in the forms that were faster than the Triton kernel somewhere on an H200.
// Constraints: as rows.cuh.

#include "rows.cuh"

DERBY_ROWS_KERNEL(derby_fused_add_rms_norm, ADD_RMS)

// ahead: rows, 0 for a form without. main.py lists the same forms.
extern "C" int derby_fused_add_rms_norm_run(const uint4* x, const uint4* residual, const uint4* weight,
                                            uint4* output, uint4* sum,
                                            int rows, int columns, float eps, int threads, int stream, int ahead,
                                            cudaStream_t on) {
  return start<Kernels,
               Form<7168, 896, LOADS, false>,
               Form<7168, 448, NOTHING, false>,
               Form<7168, 224, NOTHING, false>,
               Form<7168, 128, NOTHING, false>,
               Form<7168, 896, NOTHING, true>,
               Form<7168, 320, NOTHING, true>,
               Form<5120, 640, LOADS, false>,
               Form<5120, 320, NOTHING, false>,
               Form<5120, 160, NOTHING, false>,
               Form<5120, 160, BOTH, false>,
               Form<5120, 160, LOADS, true>,
               Form<5120, 640, NOTHING, true>,
               Form<2048, 256, NOTHING, false>,
               Form<2048, 128, NOTHING, false>>(
      Rows{x, residual, weight, nullptr, output, sum, rows, ahead, eps}, columns, threads, stream, ahead > 0, on);
}
