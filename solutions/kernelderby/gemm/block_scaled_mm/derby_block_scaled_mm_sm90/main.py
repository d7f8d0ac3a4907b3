"""derby_block_scaled_mm_sm90: one persistent CUDA C++ kernel for Hopper (gemm.cuh says how it works).

x_scale is read as it lies, the output leaves as float32: nothing is launched before or after.
"""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
BLOCK = 128
library = cuda_library.CudaLibrary(
    __file__, "derby_block_scaled_mm_sm90", ["kernel.cu", "gemm.cuh", "hopper_tiles.cuh", "hopper_gemm.cuh"],
    [POINTER] * 5 + [INT] * 6)

# variant of kernel.cu -> (rows of a tile, CTAs of a cluster that share x, that share the weight)
FORMS = {0: (256, 2, 1), 1: (256, 1, 1), 2: (256, 1, 2), 3: (128, 2, 1), 4: (128, 1, 2), 5: (128, 1, 1),
         6: (64, 1, 4), 7: (64, 1, 2), 8: (64, 2, 1), 9: (64, 1, 1)}


def tuning_key(x, x_scale, weight, weight_scale):
    return f"n={weight.shape[0]} k={x.shape[1]} m<={1 << max(x.shape[0] - 1, 0).bit_length()}"


def candidates(x, x_scale, weight, weight_scale):
    m = x.shape[0]
    order = [9, 7, 6, 8, 3, 5] if m <= 512 else [5, 3, 4, 0] if m <= 2048 else [0, 2, 3, 4]
    return [{"variant": variant, "group": group} for variant in order for group in ((8,) if m <= 2048 else (8, 4))]


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, x, x_scale, weight, weight_scale, output):
    (m, k), n = x.shape, weight.shape[0]
    if m == 0 or n == 0:
        return
    ctas = torch.cuda.get_device_properties(x.device).multi_processor_count
    library(x.device, x, x_scale, weight, weight_scale, output, m, n, k // BLOCK, config["variant"], config["group"],
            ctas)


@torch.no_grad()
def run(x, x_scale, weight, weight_scale, output):
    """x fp8 [m, k], x_scale float32 [m, k / 128], weight fp8 [n, k], weight_scale float32 [n / 128, k / 128] -> output
    float32 [m, n]. All contiguous and at addresses that 16 divides; n and k multiples of 128."""
    inputs = x, x_scale, weight, weight_scale
    run_with(choose(*inputs), *inputs, output)
