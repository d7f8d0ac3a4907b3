"""derby_block_scaled_mm_sm90: one persistent CUDA C++ kernel for Hopper (gemm.cuh says how it works).

x_scale is read as it lies, the output leaves as float32: nothing is launched before or after.
"""

import functools
import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
BLOCK = 128
library = cuda_library.CudaLibrary(__file__, "derby_block_scaled_mm_sm90", "kernel.cu", [POINTER] * 5 + [INT] * 6)

# Variants of kernel.cu: rows of a tile, CTAs of a cluster side by side and one below the other, and what a turn of all
# multiprocessors costs beside one of variant 0 (seen on an H200 at k 2048: docs/lab/gemm_and_experts_sm90.md).
FORMS = {0: (256, 2, 1, 1.0), 1: (192, 2, 1, 0.775), 2: (128, 1, 1, 0.62), 3: (64, 1, 1, 0.45), 4: (64, 1, 2, 0.46)}
MANY = 16384  # rows from which the tail does not matter


@functools.cache
def multiprocessors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def cost(variant, m, n, ctas):
    """Of a problem of m rows and n columns: whole turns, and the last one's share, times a turn's cost."""
    rows, across, down, each = FORMS[variant]
    units, clusters = -(-m // (rows * down)) * -(-n // (BLOCK * across)), ctas // (across * down)
    whole, rest = divmod(units, clusters)
    return each * (whole + (0.5 if variant == 0 and 2 * rest <= clusters else 1) * (rest > 0))


def tuning_key(x, x_scale, weight, weight_scale):
    m = x.shape[0]
    return f"n={weight.shape[0]} k={x.shape[1]} m<={-(-m // 64) * 64 if m <= MANY else 1 << (m - 1).bit_length()}"


def candidates(x, x_scale, weight, weight_scale):
    m, n = -(-x.shape[0] // 64) * 64, weight.shape[0]
    if m > MANY:
        return [{"variant": variant, "group": group} for variant in (0, 1) for group in (8, 4)]
    variants = [variant for variant, form in FORMS.items() if m > 1024 or form[0] < 192]
    variants.sort(key=lambda variant: cost(variant, m, n, multiprocessors(x.device)))
    return [{"variant": variant, "group": group} for variant in variants[:3] for group in (8, 4)]


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, x, x_scale, weight, weight_scale, output):
    (m, k), n = x.shape, weight.shape[0]
    if m == 0 or n == 0 or k == 0:
        output.detach().zero_()
        return
    library(x.device, x, x_scale, weight, weight_scale, output, m, n, k // BLOCK, config["variant"], config["group"],
            multiprocessors(x.device))


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
