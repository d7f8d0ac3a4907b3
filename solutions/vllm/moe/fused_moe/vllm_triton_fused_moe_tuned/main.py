"""vLLM's Triton fused_experts in bfloat16 with configurations that `derby tune` found, in place of vLLM's own tables.

A tuning key is an entry of vLLM's table: the file's name, a space, the number of tokens.
"""

import functools
import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
tuned = importlib.import_module(f"{__name__}.tuned")

# BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, GROUP_SIZE_M, num_warps, num_stages: out of the space of vLLM's
# benchmark_moe.py, those that its tables of the H200 hold most often.
SPACE = [
    (16, 32, 128, 1, 4, 4), (16, 64, 64, 1, 4, 5), (16, 64, 128, 1, 4, 4), (16, 64, 256, 1, 4, 3),
    (16, 128, 64, 1, 4, 4), (16, 128, 128, 1, 4, 3), (16, 128, 256, 1, 8, 3), (32, 64, 128, 1, 4, 3),
    (32, 128, 64, 16, 4, 4), (64, 64, 64, 16, 4, 4), (64, 128, 64, 16, 4, 4), (64, 128, 128, 16, 4, 3),
    (64, 256, 64, 32, 8, 4), (128, 64, 64, 16, 4, 4), (128, 128, 64, 16, 8, 4), (128, 256, 64, 16, 8, 4),
    (128, 256, 64, 64, 8, 3), (256, 128, 64, 16, 8, 4),
]
NAMES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")


def tuning_key(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights):
    return f"{file_name(down_weight.shape)} {len(hidden_states)}"


@functools.cache
def file_name(shape):
    from vllm.model_executor.layers.fused_moe.fused_moe import get_config_file_name

    experts, _, inner = shape
    return get_config_file_name(experts, inner, None)


def candidates(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights):
    """vLLM's own choice first: of its table where it has one, else its default."""
    from vllm.model_executor.layers.fused_moe.fused_moe import try_get_optimal_moe_config

    own = dict(try_get_optimal_moe_config(
        gate_up_weight.shape, down_weight.shape, topk_ids.shape[1], None, len(hidden_states)))
    space = [dict(zip(NAMES, values, strict=True)) for values in SPACE]
    return [own, *(config for config in space if config != own)]


def run_with(config, hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    """config: None for vLLM's own choice."""
    from vllm.model_executor.layers.fused_moe import fused_experts, override_config

    with override_config(config):
        output.copy_(fused_experts(hidden_states, gate_up_weight, down_weight, topk_weights, topk_ids))


@functools.cache
def table(shape):
    """Number of tokens -> configuration. A file's name holds the GPU's."""
    start = f"{file_name(shape)} "
    return {int(key.removeprefix(start)): config for entry in tuned.FOUND.values()
            for key, config in entry["table"].items() if key.startswith(start)}


@torch.no_grad()
def run(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    """hidden_states bf16 [tokens, hidden], gate_up_weight bf16 [experts, 2 * inner, hidden], down_weight bf16 [experts,
    hidden, inner], topk_ids int32 and topk_weights float32 [tokens, top_k] -> output float32 [tokens, hidden]."""
    if not hidden_states.numel():
        return
    found = table(down_weight.shape)
    nearest = min(found, key=lambda tokens: abs(tokens - len(hidden_states)), default=None)  # as vLLM looks it up
    run_with(found.get(nearest), hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output)
