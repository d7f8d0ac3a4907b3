"""derby_fp8_blockscale_fused_moe_triton: FP8 experts with block scales in five Triton kernels (experts_triton.py). The
intermediate is quantised again by 1x128; a token's bf16 rows are summed in float32 in the order of its experts."""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
experts_triton = importlib.import_module(f"{__name__}.experts_triton")
experts_triton_choice = importlib.import_module(f"{__name__}.experts_triton_choice")
tuned = importlib.import_module(f"{__name__}.tuned")
tuning = importlib.import_module(f"{__name__}.tuning")


def tuning_key(hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight,
               down_weight_scale, topk_ids, topk_weights):
    return experts_triton_choice.key_of(down_weight, topk_ids)


def candidates(hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight,
               down_weight_scale, topk_ids, topk_weights):
    return experts_triton_choice.candidates_of(True, down_weight, topk_ids)


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight,
             down_weight_scale, topk_ids, topk_weights, output):
    experts_triton.run(experts_triton_choice.tiles_of(config), hidden_states, hidden_states_scale, gate_up_weight,
                       gate_up_weight_scale, down_weight, down_weight_scale, topk_ids, topk_weights, output)


check = contract.Contract("derby_fp8_blockscale_fused_moe_triton", aligned=16, on_current=True,
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
    """hidden_states e4m3 [num_tokens, hidden_size] with scales -> output bfloat16 of that shape."""
    check(hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight, down_weight_scale,
          topk_ids, topk_weights, output)
    inputs = (hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight,
              down_weight_scale, topk_ids, topk_weights)
    run_with(choose(*inputs), *inputs, output)
