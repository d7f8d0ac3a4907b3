"""derby_fused_moe_sm90: bf16 experts for Hopper in two to four CUDA C++ kernels and one host call.

1. derby_experts_route   sorts the pairs (token, expert) by expert; of few pairs every CTA of the next two does it.
2. derby_experts_gemm1   gathers its rows, multiplies with both halves of the first weight, ends in SwiGLU in registers.
3. derby_experts_gemm2   the second weight times the routing weight, added to the output rows in float32 as they are done,
                         or stored by pair, and
4. derby_experts_sum     sums each token's rows.

Weights are wgmma's M where experts have few pairs, pairs where they have many (experts_*.cuh). Where rows are added as
they are done the last bits differ from call to call. The intermediate, and rows stored by pair, are bfloat16.

Needs nvcc (on the PATH, in $CUDA_HOME or /usr/local/cuda) at the first call ever.
"""

import ctypes
import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
cuda_library = importlib.import_module(f"{__name__}.cuda_library")
experts = importlib.import_module(f"{__name__}.experts")
tuned = importlib.import_module(f"{__name__}.tuned")
tuning = importlib.import_module(f"{__name__}.tuning")

library = cuda_library.CudaLibrary(__file__, "derby_fused_moe_sm90", ["kernel.cu", *experts.HEADERS],
                                   [ctypes.POINTER(experts.Call)])
call = experts.Experts(library, most_rows=192, dtype=torch.bfloat16)

# kernel.cu's variants by their numbers: (pairs a tile at most, whether pairs are wgmma's M, pairs up to which the GEMMs
# sort for themselves, 0: never).
VARIANTS = ((16, False, 512), (64, False, 2048), (128, False, 2048), (192, False, 2048), (64, False, 0), (128, False, 0),
            (160, False, 0), (128, True, 0))
FEW, SOME_SORTING, MANY_SORTING, MORE_SORTING, SOME, MANY, MORE, WIDE = range(len(VARIANTS))
STORING = (MANY, MORE, WIDE)  # those whose second GEMM can store by pair
L2_BYTES = 16 << 20  # of the output that is added to at a time


def tuning_key(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights):
    experts_, hidden, intermediate = down_weight.shape
    tokens, top_k = topk_ids.shape
    return f"e{experts_} k{top_k} h{hidden} i{intermediate} t<={1 << max(tokens - 1, 0).bit_length()}"


def _slab(tokens, hidden):
    """Blocks of 256 columns whose part of the output stays in L2; a divisor of their number."""
    blocks = -(-hidden // 256)
    fits = [slab for slab in range(1, blocks + 1) if blocks % slab == 0 and tokens * slab * 1024 <= L2_BYTES]
    return max(fits, default=1)


def candidates(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights):
    """By the pairs that an expert has where all have as many."""
    num_experts, hidden, _ = down_weight.shape
    tokens, top_k = topk_ids.shape
    pairs = tokens * top_k
    average = pairs / num_experts
    slab = _slab(tokens, hidden)
    if pairs <= SORTED_FEW and average <= 8:
        order = [FEW, SOME_SORTED]
    elif pairs <= SORTED_SOME and average <= 40:
        order = [SOME_SORTED, MANY, MORE]
    elif average <= 40:
        order = [SOME, MANY, MORE]
    elif average <= 90:
        order = [MANY, MORE, SOME]
    elif average <= 300:
        order = [MORE, WIDE, MANY]
    else:
        order = [WIDE, MORE]
    plain = [{"variant": variant, "slab": 0, "stores": 0} for variant in order]
    slabs = [{**config, "slab": slab} for config in plain if slab < -(-hidden // 256)]
    stores = [{**config, "stores": 1} for config in plain if config["variant"] >= MANY]
    return [*slabs, *stores, *plain] if tokens * hidden * 4 > 2 * L2_BYTES else [*plain, *stores]


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    call(config, hidden_states, None, gate_up_weight, None, down_weight, None, topk_ids, topk_weights, output)


@torch.no_grad()
def run(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    """hidden_states bf16 [num_tokens, hidden_size] -> output float32 of that shape. Sizes that 8 divides, up to 256
    experts; everything contiguous and at addresses that 16 divides."""
    run_with(choose(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights), hidden_states, gate_up_weight,
             down_weight, topk_ids, topk_weights, output)
