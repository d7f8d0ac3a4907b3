"""derby_attention_forward_sm90: full attention over packed sequences for Hopper, in one CUDA C++ kernel and one call.

long_attention.cuh says how the kernel works: TMA, two or three warpgroups of 64 query rows that take turns on the tensor
cores, weights kept in registers. head_dim 72 is padded to 80 in the first product and to nothing in the second.

Needs nvcc (on the PATH, in $CUDA_HOME or /usr/local/cuda) at the first call ever. Kept between calls: the library, and
two counters a stream that every call leaves at zero. Deterministic.
"""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT, LONG, FLOAT = cuda_library.POINTER, cuda_library.INT, cuda_library.LONG, cuda_library.FLOAT
library = cuda_library.CudaLibrary(
    __file__, "derby_attention_forward_sm90",
    ["kernel.cu", "long_attention.cuh", "attention_hopper.cuh", "wgmma_bf16.cuh"],
    [POINTER] * 7 + [LONG] * 2 + [INT] * 4 + [FLOAT, INT])
MOST_HEAD_DIM = 256

_counters = {}
_processors = {}


def counters(device):
    """int32 [2] of zeros for the current stream: two streams could use them at the same time."""
    place = device, torch.cuda.current_stream(device).cuda_stream
    if place not in _counters:
        _counters[place] = torch.zeros(2, dtype=torch.int32, device=device)
    return _counters[place]


def processors(device):
    if device not in _processors:
        _processors[device] = torch.cuda.get_device_properties(device).multi_processor_count
    return _processors[device]


def check(head_dim, sm_scale):
    if head_dim % 8 or head_dim > MOST_HEAD_DIM:
        raise ValueError(f"derby_attention_forward_sm90: head_dim {head_dim}; it is made for multiples of 8 up to "
                         f"{MOST_HEAD_DIM}")
    if not sm_scale > 0:
        raise ValueError(f"derby_attention_forward_sm90: sm_scale {sm_scale}; it is made for positive ones")


@torch.no_grad()
def run(query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen, sm_scale, output):
    """Shapes as in the definition, all contiguous and at addresses that 16 divides; max_seqlen and sm_scale are
    numbers."""
    tokens, heads, head_dim = query.shape
    if tokens == 0:
        return
    check(head_dim, sm_scale)
    device = query.device
    library(device, query, key, value, cu_seqlens_q, cu_seqlens_k, output, counters(device), tokens, key.shape[0],
            cu_seqlens_q.shape[0] - 1, heads, head_dim, int(max_seqlen), float(sm_scale), processors(device))
