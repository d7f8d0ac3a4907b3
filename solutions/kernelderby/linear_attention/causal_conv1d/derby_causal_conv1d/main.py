"""derby_causal_conv1d: one CUDA C++ kernel; a thread has a few channels of a few tokens (kernel.cu).

It is CUDA rather than Triton because there the four taps are four loads of a tile, each one token further, and because
of the tile that reads the initial state all tiles need 158 registers a thread.
"""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
choice = importlib.import_module(f"{__name__}.choice")
contract = importlib.import_module(f"{__name__}.contract")
tuned = importlib.import_module(f"{__name__}.tuned")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
library = cuda_library.CudaLibrary(__file__, "derby_causal_conv1d", "kernel.cu", [POINTER] * 5 + [INT] * 5)
NAMES = ("channels", "rows", "threads")


def tuning_key(x, weight, bias, initial_state):
    return f"dim={x.shape[1]} tokens<={1 << max(x.shape[0] - 1, 0).bit_length()}"


def candidates(x, weight, bias, initial_state):
    tokens, dim = x.shape
    if dim % 8:
        sizes = [(1, 8, 128)] if tokens > 4 else [(1, 1, 128)]
    elif tokens <= 4:
        sizes = [(2, 1, 128), (2, 1, 64), (4, 1, 32), (4, 1, 64), (1, 1, 128), (4, 1, 128)]
    elif tokens * dim <= 1 << 22:
        sizes = [(2, 4, 128), (2, 4, 256), (4, 2, 256), (4, 2, 128), (2, 2, 128), (2, 2, 256), (4, 4, 128), (8, 2, 64),
                 (8, 4, 128), (4, 8, 128), (2, 8, 128)]
        if tokens <= 256:
            sizes.insert(0, sizes.pop(2))
        elif tokens > 512:
            sizes.insert(0, sizes.pop(8))
    else:
        sizes = [(8, 8, 64), (8, 8, 128), (8, 4, 128), (8, 4, 64), (4, 8, 128), (8, 8, 256)]
    return [dict(zip(NAMES, size, strict=True)) for size in sizes]


choose = choice.Choice(tuned.FOUND, tuning_key, candidates)


def run_with(config, x, weight, bias, initial_state, output):
    tokens, dim = x.shape
    if tokens == 0 or dim == 0:
        return
    library(x.device, x, weight, bias, initial_state, output, tokens, dim, *[config[name] for name in NAMES])


check = contract.Contract("derby_causal_conv1d", aligned=16,
    x="bfloat16 num_tokens dim", weight="bfloat16 dim 4", bias="bfloat16 dim", initial_state="bfloat16 dim 3",
    output="bfloat16 num_tokens dim")


def run(x, weight, bias, initial_state, output):
    """x bfloat16 [num_tokens, dim], weight [dim, 4], bias [dim], initial_state [dim, 3] -> output, as x. All at
    addresses that 16 divides."""
    check(x, weight, bias, initial_state, output)
    run_with(choose(x, weight, bias, initial_state), x, weight, bias, initial_state, output)
