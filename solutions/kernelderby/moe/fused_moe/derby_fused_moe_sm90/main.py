"""derby_fused_moe_sm90: bf16 experts for Hopper in two to four CUDA C++ kernels and one host call.

1. derby_experts_route   sorts the pairs (token, expert) by expert; of few pairs every CTA of the next two does it.
2. derby_experts_gemm1   gathers its rows, multiplies with both halves of the first weight, ends in SwiGLU in registers.
3. derby_experts_gemm2   the second weight times the routing weight, added to the output rows in float32 as they are
                         done, or stored by pair, and
4. derby_experts_sum     sums each token's rows.

Weights are wgmma's M where experts have few pairs, pairs where they have many (experts_*.cuh). If rows are added as
soon as they are done, the last bits differ from call to call. The intermediate is bfloat16, and so are rows stored by
pair and, if pairs are M, rows that are added: tiles are packed and stored during the next tile's products
(experts_later.cuh).

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

library = cuda_library.CudaLibrary(__file__, "derby_fused_moe_sm90", "kernel.cu", [ctypes.POINTER(experts.Call)])
call = experts.Experts(library, most_rows=192, dtype=torch.bfloat16)

tuning_key = choice.tuning_key
candidates = choice.candidates
choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    call(config, hidden_states, None, gate_up_weight, None, down_weight, None, topk_ids, topk_weights, output)


check = contract.Contract("derby_fused_moe_sm90", aligned=16,
    hidden_states="bfloat16 num_tokens hidden_size", gate_up_weight="bfloat16 num_experts gate_up_size hidden_size",
    down_weight="bfloat16 num_experts hidden_size intermediate_size", topk_ids="int32 num_tokens top_k",
    topk_weights="float32 num_tokens top_k", output="float32 num_tokens hidden_size",
    where=("gate_up_size == 2 * intermediate_size",))


def run(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    """hidden_states bf16 [num_tokens, hidden_size] -> output float32 of that shape. Over 256 experts, and
    sizes that 8 does not divide, take experts_triton.py. Everything contiguous, at addresses that 16 divides."""
    check(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output)
    run_with(choose(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights), hidden_states, gate_up_weight,
             down_weight, topk_ids, topk_weights, output)
