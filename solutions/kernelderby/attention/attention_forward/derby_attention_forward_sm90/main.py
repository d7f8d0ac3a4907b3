"""derby_attention_forward_sm90: full attention over packed sequences for Hopper, in one CUDA C++ kernel and one call.

long_attention.cuh says how the kernel works: TMA, two or three warpgroups of 64 query rows that take turns on the
tensor cores, weights kept in registers. head_dim 72 is padded to 80 in the first product and not at all in the second.
attention_planning.py says how the work is cut. Sequences of a few keys go to few_keys.cu, which needs none of this.

Needs nvcc (on the PATH, in $CUDA_HOME or /usr/local/cuda) at the first call ever. Kept between calls: the library, and
a workspace for each stream whose counters every call leaves at zero. Deterministic: chunks of a tile are added in their
order.
"""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")
planning = importlib.import_module(f"{__name__}.attention_planning")

POINTER, INT, LONG, FLOAT = cuda_library.POINTER, cuda_library.INT, cuda_library.LONG, cuda_library.FLOAT
library = cuda_library.CudaLibrary(__file__, "derby_attention_forward_sm90", "kernel.cu",
                                   [POINTER] * 8 + [LONG] * 2 + [INT] * 3 + [FLOAT] + [INT] * 9)
few_library = cuda_library.CudaLibrary(__file__, "derby_few_keys_attention", "few_keys.cu",
                                       [POINTER] * 6 + [INT] * 5 + [FLOAT])
MOST_HEAD_DIM = 256
FEW_KEYS = 8  # of the longest sequence: up to this number few_keys.cu was faster

workspace = planning.Workspace()


def in_triton(*inputs, output):
    """Whether the CUDA kernels are not made for this head size or scale."""
    kernels = importlib.import_module(f"{__name__}.full_attention_triton")
    with torch.cuda.device_of(output):
        kernels.run_with(kernels.candidates(*inputs)[0], *inputs, output)


check = contract.Contract("derby_attention_forward_sm90", aligned=16, where=("len_cu_seqlens > 0",),
    query="bfloat16 num_tokens num_heads head_dim", key="bfloat16 num_tokens num_heads head_dim",
    value="bfloat16 num_tokens num_heads head_dim", cu_seqlens_q="int32 len_cu_seqlens",
    cu_seqlens_k="int32 len_cu_seqlens", output="bfloat16 num_tokens num_heads head_dim")


def run(query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen, sm_scale, output):
    """Shapes as in the definition, all contiguous and at addresses that 16 divides; max_seqlen and sm_scale are
    numbers."""
    check(query, key, value, cu_seqlens_q, cu_seqlens_k, output)
    tokens, heads, head_dim = query.shape
    if tokens == 0:
        return
    if head_dim % 8 or head_dim > MOST_HEAD_DIM or not sm_scale > 0:
        in_triton(query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen, sm_scale, output=output)
        return
    device, sequences = query.device, cu_seqlens_q.shape[0] - 1
    if int(max_seqlen) <= FEW_KEYS:
        few_library(device, query, key, value, cu_seqlens_q, cu_seqlens_k, output, tokens, key.shape[0], sequences,
                    heads, head_dim, float(sm_scale))
        return
    processors = planning.processors(device)
    made = planning.plan(tokens, sequences, int(max_seqlen), int(max_seqlen), heads, heads, head_dim, False, processors)
    counters, partials = workspace(device, made)
    library(device, query, key, value, cu_seqlens_q, cu_seqlens_k, output, counters, partials, tokens, key.shape[0],
            sequences, heads, head_dim, float(sm_scale), made.split, made.section_heads, *made.cut, made.sorted,
            made.trusting, processors)
