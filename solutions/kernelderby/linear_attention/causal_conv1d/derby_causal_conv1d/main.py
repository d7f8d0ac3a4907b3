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
                                   [POINTER] * 5 + [INT] * 7)
NAMES = ("channels", "rows", "steps", "threads", "ahead")
BLOCKS = 132 * 6  # of 128 threads that an H200 runs at once, with the 80 registers of 4 channels and 8 rows ahead


def tuning_key(x, weight, bias, initial_state):
    return f"dim={x.shape[1]} tokens<={1 << max(x.shape[0] - 1, 0).bit_length()}"


def balanced(tokens, dim, blocks):
    """Steps of a thread, of 8 rows of 4 channels each, with which at most `blocks` blocks of 128 threads do all."""
    stretches = max(blocks // -(-dim // (4 * 128)), 1)
    return -(-tokens // (stretches * 8))


def candidates(x, weight, bias, initial_state):
    tokens, dim = x.shape
    if dim % 8:
        sizes = [(1, 8, 1, 128)] if tokens > 4 else [(1, 1, 1, 128)]
    elif tokens <= 4:
        sizes = [(4, 1, 1, 32), (4, 1, 1, 64), (2, 1, 1, 64), (2, 1, 1, 128), (1, 1, 1, 128), (4, 1, 1, 128)]
    elif tokens * dim <= 1 << 22:
        sizes = [(4, 4, 1, 128), (2, 4, 1, 128), (2, 8, 1, 128), (4, 4, 1, 64), (2, 8, 1, 256)]
        if tokens <= 256:
            sizes.insert(0, sizes.pop(1))
    else:
        sizes = [(4, 16, 2, 128), (8, 8, 2, 128), (4, 8, 4, 128), (4, 8, 2, 128), (8, 8, 4, 64), (4, 8, 1, 128),
                 (4, 16, 1, 128), (4, 16, 2, 64), (4, 8, 3, 64, 1), (4, 8, 4, 128, 1),
                 (4, 8, balanced(tokens, dim, BLOCKS), 128, 1), (4, 8, balanced(tokens, dim, 2 * BLOCKS), 128, 1)]
    return [dict(zip(NAMES, (*size, 0)[:5], strict=True)) for size in sizes]


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
