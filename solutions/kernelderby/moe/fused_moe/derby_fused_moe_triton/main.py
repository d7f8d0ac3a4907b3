"""derby_fused_moe_triton: bf16 experts in five Triton kernels (experts_triton.py). The intermediate and each pair's row
are bfloat16; a token's rows are summed in float32 in the order of its experts."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
experts_triton = importlib.import_module(f"{__name__}.experts_triton")
tuned = importlib.import_module(f"{__name__}.tuned")
tuning = importlib.import_module(f"{__name__}.tuning")

# Pairs a tile -> (programs a multiprocessor, stages, warps), swapped up to 64.
TILES = {16: (2, 5, 4), 32: (2, 4, 4), 64: (1, 4, 4), 128: (1, 4, 8)}


def _pairs_a_tile(pairs, num_experts):
    """By the pairs that an expert has where all have as many."""
    return next((size for size in (16, 32, 64) if 1.25 * pairs / num_experts <= size), 128)


def tuning_key(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights):
    experts, hidden, intermediate = down_weight.shape
    tokens, top_k = topk_ids.shape
    pairs = _pairs_a_tile(topk_ids.numel(), experts)
    return f"e{experts} k{top_k} h{hidden} i{intermediate} t<={1 << max(tokens - 1, 0).bit_length()} p{pairs}"


def candidates(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights):
    first = _pairs_a_tile(topk_ids.numel(), down_weight.shape[0])
    order = [first, *(pairs for pairs in TILES if pairs != first)]
    return [{"pairs": pairs, "stages": stages, "warps": warps, "programs": programs}
            for pairs in order for programs, stages, warps in [TILES[pairs]]]


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    tile = config["programs"], dict(BLOCK_M=config["pairs"], SWAP=config["pairs"] <= 64, NUM_STAGES=config["stages"],
                                    num_warps=config["warps"])
    experts_triton.run((tile, tile), hidden_states, None, gate_up_weight, None, down_weight, None, topk_ids,
                       topk_weights, output)


@torch.no_grad()
def run(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    """hidden_states bf16 [num_tokens, hidden_size] -> output float32 of that shape. Sizes that 8 divides."""
    run_with(choose(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights), hidden_states, gate_up_weight,
             down_weight, topk_ids, topk_weights, output)
