"""How solutions choose tiles of experts_triton.py: a shape's key and the candidates; for bf16 experts also the call.

A configuration is a dict, the same for both GEMMs: pairs a tile, stages, warps, programs a multiprocessor.
"""

from . import experts_triton


def key_of(down_weight, topk_ids):
    experts, hidden, intermediate = down_weight.shape
    tokens, top_k = topk_ids.shape
    pairs = experts_triton.pairs_a_tile(topk_ids.numel(), experts)
    return f"e{experts} k{top_k} h{hidden} i{intermediate} t<={1 << max(tokens - 1, 0).bit_length()} p{pairs}"


def candidates_of(scaled, down_weight, topk_ids):
    tiles = experts_triton.TILES[scaled]
    first = experts_triton.pairs_a_tile(topk_ids.numel(), down_weight.shape[0])
    order = [first, *(pairs for pairs in tiles if pairs != first)]
    return [{"pairs": pairs, "stages": stages, "warps": warps, "programs": programs}
            for pairs in order for programs, stages, warps in [tiles[pairs]]]


def tiles_of(config):
    """Of a configuration, as experts_triton.run() takes them."""
    return (experts_triton.tile_of(*[config[name] for name in ("pairs", "programs", "stages", "warps")]),) * 2


def tuning_key(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights):
    return key_of(down_weight, topk_ids)


def candidates(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights):
    return candidates_of(False, down_weight, topk_ids)


def run_with(config, hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    experts_triton.run(tiles_of(config), hidden_states, None, gate_up_weight, None, down_weight, None, topk_ids,
                       topk_weights, output)
