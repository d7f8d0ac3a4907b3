"""derby_linear_sigmoid_mul_sm90: one persistent CUDA C++ kernel for Hopper (gemm.cuh says how it works)."""

import functools
import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
workspaces = importlib.import_module(f"{__name__}.workspaces")
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
ALIGNED = 8  # values: TMA takes rows of a multiple of 16 bytes
library = cuda_library.CudaLibrary(__file__, "derby_linear_sigmoid_mul_sm90", "kernel.cu",
                                   [POINTER] * 5 + [INT] * 6 + [POINTER] * 2)

# Variants of kernel.cu: tiles of 128 x 256, of 64 x 32, of 64 x 64, alone and in clusters of two, of 128 x 64; of
# 128 x 256 with stream-K for the last turn.
WIDE, SMALL, MEDIUM, MEDIUM_TWO, TALL, STREAMED = range(6)
TILE = 128, 256           # of WIDE and STREAMED, in clusters of two, one below the other
# What CTAs hand to each other: whether pieces of tiles are there, zeros between calls, and the pieces.
workspace = workspaces.Workspace(torch.float32)


@functools.cache
def multiprocessors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def streams(m, n, ctas):
    """Whether the last turn had better be spread over all CTAs: it is far from full, and the turns are neither one nor
    many, as seen on an H200 (docs/lab/gemm_and_experts_sm90.md)."""
    clusters = max(ctas // 2, 1)
    whole, rest = divmod(-(-m // (2 * TILE[0])) * -(-n // TILE[1]), clusters)
    return 1 <= whole <= 5 and 0 < rest <= 0.8 * clusters


def variants(m, n, ctas):
    """Those worth trying, the best first."""
    if m <= 64:
        return SMALL, MEDIUM
    if m <= 512:
        return MEDIUM, MEDIUM_TWO, TALL
    return (STREAMED, WIDE) if streams(m, n, ctas) else (WIDE, STREAMED)


def tuning_key(hidden_states, weight, bias, multiplier):
    (n, k), m = weight.shape, hidden_states.shape[0]
    first = variants(m, n, multiprocessors(hidden_states.device))[0]
    return f"n={n} k={k} m<={1 << max(m - 1, 0).bit_length()} v{first}"


def candidates(hidden_states, weight, bias, multiplier):
    m, groups = hidden_states.shape[0], (8,) if hidden_states.shape[0] <= 512 else (8, 16, 4)
    order = variants(m, weight.shape[0], multiprocessors(hidden_states.device))
    return [{"variant": variant, "group": group} for variant in order for group in groups]


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, hidden_states, weight, bias, multiplier, output):
    (m, k), n = hidden_states.shape, weight.shape[0]
    if m == 0 or n == 0:
        return
    if k == 0 or k % ALIGNED:  # two launches more, where rows cannot be loaded as they lie
        hidden_states, weight = (torch.nn.functional.pad(rows, (0, -k % ALIGNED or ALIGNED))
                                 for rows in (hidden_states, weight))
    ctas = multiprocessors(hidden_states.device)
    pieces = counters = None
    if config["variant"] == STREAMED:
        counters, pieces = workspace(hidden_states.device, ctas, ctas * TILE[0] * TILE[1]).addresses
    library(hidden_states.device, hidden_states, weight, bias, multiplier, output, m, n, weight.shape[1],
            config["variant"], config["group"], ctas, pieces, counters)


check = contract.Contract("derby_linear_sigmoid_mul_sm90", aligned=16,
                          hidden_states="bfloat16 num_tokens hidden_size", weight="bfloat16 out_features hidden_size",
                          bias="bfloat16 out_features", multiplier="bfloat16 num_tokens out_features",
                          output="bfloat16 num_tokens out_features")


def run(hidden_states, weight, bias, multiplier, output):
    """hidden_states bf16 [num_tokens, hidden_size], weight bf16 [out_features, hidden_size], bias bf16 [out_features]
    -> output, as multiplier: bf16 [num_tokens, out_features]. Addresses that 16 divides."""
    check(hidden_states, weight, bias, multiplier, output)
    inputs = hidden_states, weight, bias, multiplier
    run_with(choose(*inputs), *inputs, output)
