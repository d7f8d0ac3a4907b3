"""derby_fused_moe_bf16_triton: bf16 experts in five Triton kernels (experts_triton.py). The intermediate and each
pair's row are bfloat16; a token's rows are summed in float32 in the order of its experts and rounded once."""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
experts_triton = importlib.import_module(f"{__name__}.experts_triton")
tuned = importlib.import_module(f"{__name__}.tuned")
tuning = importlib.import_module(f"{__name__}.tuning")

TILES = experts_triton.TILES[False]


def tuning_key(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights):
    experts, hidden, intermediate = down_weight.shape
    tokens, top_k = topk_ids.shape
    pairs = experts_triton.pairs_a_tile(topk_ids.numel(), experts)
    return f"e{experts} k{top_k} h{hidden} i{intermediate} t<={1 << max(tokens - 1, 0).bit_length()} p{pairs}"


def candidates(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights):
    first = experts_triton.pairs_a_tile(topk_ids.numel(), down_weight.shape[0])
    order = [first, *(pairs for pairs in TILES if pairs != first)]
    return [{"pairs": pairs, "stages": stages, "warps": warps, "programs": programs}
            for pairs in order for programs, stages, warps in [TILES[pairs]]]


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    tile = experts_triton.tile_of(*[config[name] for name in ("pairs", "programs", "stages", "warps")])
    experts_triton.run((tile, tile), hidden_states, None, gate_up_weight, None, down_weight, None, topk_ids,
                       topk_weights, output)


check = contract.Contract("derby_fused_moe_bf16_triton", aligned=16, on_current=True,
    hidden_states="bfloat16 num_tokens hidden_size", gate_up_weight="bfloat16 num_experts gate_up_size hidden_size",
    down_weight="bfloat16 num_experts hidden_size intermediate_size", topk_ids="int32 num_tokens top_k",
    topk_weights="float32 num_tokens top_k", output="bfloat16 num_tokens hidden_size",
    where=("gate_up_size == 2 * intermediate_size",))


def run(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    """hidden_states bf16 [num_tokens, hidden_size] -> output of that shape and type. Sizes that 8 divides."""
    check(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output)
    run_with(choose(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights), hidden_states, gate_up_weight,
             down_weight, topk_ids, topk_weights, output)
