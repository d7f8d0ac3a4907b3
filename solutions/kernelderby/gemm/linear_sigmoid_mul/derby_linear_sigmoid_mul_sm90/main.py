"""derby_linear_sigmoid_mul_sm90: one persistent CUDA C++ kernel for Hopper (gemm.cuh says how it works)."""

import functools
import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
ALIGNED = 8  # values: TMA takes rows of a multiple of 16 bytes
library = cuda_library.CudaLibrary(
    __file__, "derby_linear_sigmoid_mul_sm90", ["kernel.cu", "gemm.cuh", "hopper_tiles.cuh", "hopper_gemm.cuh"],
    [POINTER] * 5 + [INT] * 6)


@functools.cache
def multiprocessors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def tuning_key(hidden_states, weight, bias, multiplier):
    (n, k), m = weight.shape, hidden_states.shape[0]
    return f"n={n} k={k} m<={1 << max(m - 1, 0).bit_length()}"


def candidates(hidden_states, weight, bias, multiplier):
    m = hidden_states.shape[0]
    order = [1, 2] if m <= 64 else [2, 3, 4] if m <= 512 else [0]
    return [{"variant": variant, "group": group} for variant in order for group in ((8,) if m <= 512 else (8, 16, 4))]


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, hidden_states, weight, bias, multiplier, output):
    (m, k), n = hidden_states.shape, weight.shape[0]
    if m == 0 or n == 0:
        return
    if k % ALIGNED:  # two launches more, where rows cannot be loaded as they lie
        hidden_states, weight = (torch.nn.functional.pad(rows, (0, -k % ALIGNED)) for rows in (hidden_states, weight))
    library(hidden_states.device, hidden_states, weight, bias, multiplier, output, m, n, weight.shape[1],
            config["variant"], config["group"], multiprocessors(hidden_states.device))


@torch.no_grad()
def run(hidden_states, weight, bias, multiplier, output):
    """hidden_states bf16 [num_tokens, hidden_size], weight bf16 [out_features, hidden_size], bias bf16 [out_features]
    -> output, as multiplier: bf16 [num_tokens, out_features]. All contiguous and at addresses that 16 divides."""
    inputs = hidden_states, weight, bias, multiplier
    run_with(choose(*inputs), *inputs, output)
