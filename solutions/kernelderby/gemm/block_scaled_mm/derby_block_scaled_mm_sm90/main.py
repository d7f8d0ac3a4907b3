"""derby_block_scaled_mm_sm90: one persistent CUDA C++ kernel for Hopper (block_scaled_gemm.cuh says how it works).

x_scale is read as it lies, and the output is stored as float32: nothing is launched before or after.
"""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
choice = importlib.import_module(f"{__name__}.block_scaled_choice")
contract = importlib.import_module(f"{__name__}.contract")
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
library = cuda_library.CudaLibrary(__file__, "derby_block_scaled_mm_sm90", "kernel.cu", [POINTER] * 5 + [INT] * 6)
few_library = cuda_library.CudaLibrary(__file__, "derby_block_scaled_few", "few.cu", [POINTER] * 5 + [INT] * 4)

tuning_key = choice.tuning_key
candidates = choice.candidates
choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, x, x_scale, weight, weight_scale, output):
    (m, k), n = x.shape, weight.shape[0]
    if m == 0 or n == 0 or k == 0:
        output.detach().zero_()
        return
    if config["variant"] in choice.FEW:
        few_library(x.device, x, x_scale, weight, weight_scale, output, m, n, k // choice.BLOCK,
                    choice.FEW[config["variant"]])
        return
    library(x.device, x, x_scale, weight, weight_scale, output, m, n, k // choice.BLOCK, config["variant"],
            config["group"], choice.multiprocessors(x.device))


check = contract.Contract("derby_block_scaled_mm_sm90", aligned=16,
                          where=("n == 128 * num_n_blocks", "k == 128 * num_k_blocks"), x="float8_e4m3fn m k",
                          x_scale="float32 m num_k_blocks", weight="float8_e4m3fn n k",
                          weight_scale="float32 num_n_blocks num_k_blocks", output="float32 m n")


def run(x, x_scale, weight, weight_scale, output):
    """x fp8 [m, k], x_scale float32 [m, k / 128], weight fp8 [n, k], weight_scale float32 [n / 128, k / 128] -> output
    float32 [m, n]. All contiguous and at addresses that 16 divides; n and k multiples of 128."""
    check(x, x_scale, weight, weight_scale, output)
    inputs = x, x_scale, weight, weight_scale
    run_with(choose(*inputs), *inputs, output)
