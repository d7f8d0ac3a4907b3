"""derby_fused_moe_bf16_sm90: the kernels of derby_fused_moe_sm90 (bf16 experts for Hopper) with an output in bfloat16.

Rows that are added to the output as soon as they are done are added in bfloat16, eight values at a time. That halves
the bytes; each addition rounds by at most half a bfloat16 step, and the last bits differ from call to call. If rows are
stored by pair, the last kernel's float32 sums are rounded once.

Needs nvcc (on the PATH, in $CUDA_HOME or /usr/local/cuda) at the first call ever.
"""

import ctypes
import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
choice = importlib.import_module(f"{__name__}.experts_bf16_choice")
contract = importlib.import_module(f"{__name__}.contract")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")
experts = importlib.import_module(f"{__name__}.experts")
tuned = importlib.import_module(f"{__name__}.tuned")
tuning = importlib.import_module(f"{__name__}.tuning")

library = cuda_library.CudaLibrary(__file__, "derby_fused_moe_bf16_sm90", "kernel.cu", [ctypes.POINTER(experts.Call)])
call = experts.Experts(library, most_rows=192, dtype=torch.bfloat16)

tuning_key = choice.tuning_key
candidates = choice.candidates
choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    call(config, hidden_states, None, gate_up_weight, None, down_weight, None, topk_ids, topk_weights, output)


check = contract.Contract("derby_fused_moe_bf16_sm90", aligned=16,
    hidden_states="bfloat16 num_tokens hidden_size", gate_up_weight="bfloat16 num_experts gate_up_size hidden_size",
    down_weight="bfloat16 num_experts hidden_size intermediate_size", topk_ids="int32 num_tokens top_k",
    topk_weights="float32 num_tokens top_k", output="bfloat16 num_tokens hidden_size",
    where=("gate_up_size == 2 * intermediate_size",))


def run(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    """hidden_states bf16 [num_tokens, hidden_size] -> output of that shape and type. Over 256 experts, and
    sizes that 8 does not divide, take experts_triton.py. Everything contiguous, at addresses that 16 divides."""
    check(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output)
    run_with(choose(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights), hidden_states, gate_up_weight,
             down_weight, topk_ids, topk_weights, output)
