"""derby_fp8_blockscale_fused_moe_sm90: FP8 experts with block scales for Hopper in two to four CUDA C++ kernels and one
host call.

1. derby_experts_route   sorts the pairs (token, expert) by expert; of few pairs every CTA of the next two does it.
2. derby_experts_gemm1   gathers its rows, multiplies with both halves of the first weight, ends in SwiGLU and 1x128 FP8
                         quantisation in registers.
3. derby_experts_gemm2   the second weight times the routing weight, added to the output rows in bfloat16 as they are
                         done, or stored by pair, and
4. derby_experts_sum     sums each token's rows.

Weights are wgmma's M where experts have few pairs, pairs where they have many (experts_*.cuh). Where rows are added as
they are done each addition rounds by at most half a bfloat16 step, and the last bits differ from call to call.

Needs nvcc (on the PATH, in $CUDA_HOME or /usr/local/cuda) at the first call ever.
"""

import ctypes
import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")
experts = importlib.import_module(f"{__name__}.experts")
tuned = importlib.import_module(f"{__name__}.tuned")
tuning = importlib.import_module(f"{__name__}.tuning")

library = cuda_library.CudaLibrary(__file__, "derby_fp8_blockscale_fused_moe_sm90", "kernel.cu",
                                   [ctypes.POINTER(experts.Call)])
call = experts.Experts(library, most_rows=128, dtype=torch.float8_e4m3fn)

# kernel.cu's variants by their numbers: (pairs a tile at most, whether pairs are wgmma's M, pairs up to which the GEMMs
# sort for themselves, 0: never).
VARIANTS = ((16, False, 512), (64, False, 0), (128, False, 0), (128, False, 0), (128, True, 0))
FEW, SOME, MANY, MANY_TWO, WIDE = range(len(VARIANTS))  # _TWO, and WIDE: in clusters of two
STORING = (WIDE,)  # those whose second GEMM can store by pair


def _order(pairs, num_experts):
    """Variants worth trying, by the pairs that an expert has where all have as many; as measured on an H200
    (docs/lab/gemm_and_experts_sm90.md)."""
    average = pairs / num_experts
    if pairs <= VARIANTS[FEW][2] and average <= 8:
        return FEW, SOME
    return (SOME, MANY, MANY_TWO) if average <= 40 else (WIDE, MANY_TWO, MANY)


def tuning_key(hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight,
               down_weight_scale, topk_ids, topk_weights):
    """With the answer of _order(), as it depends on more than the size's power of two."""
    num_experts, hidden, intermediate = down_weight.shape
    tokens, top_k = topk_ids.shape
    bucket, order = 1 << max(tokens - 1, 0).bit_length(), _order(topk_ids.numel(), num_experts)
    return f"e{num_experts} k{top_k} h{hidden} i{intermediate} t<={bucket} v{order[0]}"


def candidates(hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight,
               down_weight_scale, topk_ids, topk_weights):
    order, hidden = _order(topk_ids.numel(), down_weight.shape[0]), down_weight.shape[1]
    slab = max(hidden // 1024, 1)
    adds = [{"variant": variant, "slab": 0, "stores": 0} for variant in order]
    stores = [{"variant": variant, "slab": 0, "stores": 1} for variant in order if variant in STORING]
    slabs = [{**config, "slab": slab} for config in adds[:1] if hidden % (256 * slab) == 0]
    return [*adds, *stores, *slabs]


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight,
             down_weight_scale, topk_ids, topk_weights, output):
    call(config, hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight,
         down_weight_scale, topk_ids, topk_weights, output)


check = contract.Contract("derby_fp8_blockscale_fused_moe_sm90", aligned=16,
    hidden_states="float8_e4m3fn num_tokens hidden_size", hidden_states_scale="float32 num_tokens num_hidden_blocks",
    gate_up_weight="float8_e4m3fn num_experts gate_up_size hidden_size",
    gate_up_weight_scale="float32 num_experts num_gate_up_blocks num_hidden_blocks",
    down_weight="float8_e4m3fn num_experts hidden_size intermediate_size",
    down_weight_scale="float32 num_experts num_hidden_blocks num_intermediate_blocks",
    topk_ids="int32 num_tokens top_k", topk_weights="float32 num_tokens top_k",
    output="bfloat16 num_tokens hidden_size",
    where=("gate_up_size == 2 * intermediate_size", "hidden_size == 128 * num_hidden_blocks",
           "intermediate_size == 128 * num_intermediate_blocks", "gate_up_size == 128 * num_gate_up_blocks"))


def run(hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight, down_weight_scale,
        topk_ids, topk_weights, output):
    """hidden_states e4m3 [num_tokens, hidden_size] with scales -> output bfloat16 of that shape. Over 256 experts
    take experts_triton.py. Everything contiguous and at addresses that 16 divides."""
    check(hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight, down_weight_scale,
          topk_ids, topk_weights, output)
    inputs = (hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight,
              down_weight_scale, topk_ids, topk_weights)
    run_with(choose(*inputs), *inputs, output)
