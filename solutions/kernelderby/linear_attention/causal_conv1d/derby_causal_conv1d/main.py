"""derby_causal_conv1d: one CUDA C++ kernel; a thread walks down the tokens of a few channels (kernel.cu).

CUDA rather than Triton: there the four taps are four loads of a tile, each a token further on, and the tile that reads
the initial state costs all of them 158 registers a thread.
"""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
library = cuda_library.CudaLibrary(__file__, "derby_causal_conv1d", ["kernel.cu", "cluster.cuh"],
                                   [POINTER] * 5 + [INT] * 6)
NAMES = ("channels", "rows", "steps", "threads")


def tuning_key(x, weight, bias, initial_state):
    return f"dim={x.shape[1]} tokens<={1 << max(x.shape[0] - 1, 0).bit_length()}"


def candidates(x, weight, bias, initial_state):
    tokens, dim = x.shape
    if dim % 8:
        sizes = [(1, 8, 1, 128)] if tokens > 4 else [(1, 1, 1, 128)]
    elif tokens <= 4:
        sizes = [(4, 1, 1, 32), (4, 1, 1, 64), (2, 1, 1, 64), (2, 1, 1, 128), (1, 1, 1, 128), (4, 1, 1, 128)]
    elif tokens * dim <= 1 << 22:
        sizes = [(4, 4, 1, 128), (2, 4, 1, 128), (4, 8, 1, 128), (8, 4, 1, 128), (2, 8, 1, 128), (4, 4, 1, 64),
                 (2, 8, 1, 256), (4, 4, 2, 128)]
    else:
        sizes = [(4, 8, 4, 128), (4, 8, 2, 128), (4, 4, 4, 128), (8, 8, 2, 128), (8, 4, 4, 128), (4, 8, 8, 128),
                 (4, 8, 4, 256), (8, 8, 4, 64), (4, 4, 8, 128), (4, 8, 1, 128), (2, 8, 4, 256)]
    return [dict(zip(NAMES, size, strict=True)) for size in sizes]


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, x, weight, bias, initial_state, output):
    tokens, dim = x.shape
    if tokens == 0 or dim == 0:
        return
    library(x.device, x, weight, bias, initial_state, output, tokens, dim, *[config[name] for name in NAMES])


@torch.no_grad()
def run(x, weight, bias, initial_state, output):
    """x bfloat16 [num_tokens, dim], weight [dim, 4], bias [dim], initial_state [dim, 3] -> output, as x. All at
    addresses that 16 divides."""
    run_with(choose(x, weight, bias, initial_state), x, weight, bias, initial_state, output)
