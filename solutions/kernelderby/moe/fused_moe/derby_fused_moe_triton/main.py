"""derby_fused_moe_triton: bf16 experts in five Triton kernels (experts_triton.py). The intermediate and each pair's row
are bfloat16; a token's rows are summed in float32 in the order of its experts."""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
experts_triton_choice = importlib.import_module(f"{__name__}.experts_triton_choice")
tuned = importlib.import_module(f"{__name__}.tuned")
tuning = importlib.import_module(f"{__name__}.tuning")

tuning_key = experts_triton_choice.tuning_key
candidates = experts_triton_choice.candidates
choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)
run_with = experts_triton_choice.run_with

check = contract.Contract("derby_fused_moe_triton", aligned=16, on_current=True,
    hidden_states="bfloat16 num_tokens hidden_size", gate_up_weight="bfloat16 num_experts gate_up_size hidden_size",
    down_weight="bfloat16 num_experts hidden_size intermediate_size", topk_ids="int32 num_tokens top_k",
    topk_weights="float32 num_tokens top_k", output="float32 num_tokens hidden_size",
    where=("gate_up_size == 2 * intermediate_size",))


def run(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    """hidden_states bf16 [num_tokens, hidden_size] -> output float32 of that shape. Sizes that 8 divides."""
    check(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output)
    inputs = hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights
    run_with(choose(*inputs), *inputs, output)
