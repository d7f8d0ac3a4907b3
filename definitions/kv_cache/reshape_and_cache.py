"""Keys and values of new tokens put into their slots of a paged cache: copies, no arithmetic."""

import torch

SMALL_AXES = {"num_tokens": 21, "num_heads": 2, "head_dim": 16, "num_blocks": 2, "block_size": 16}
SMALL_VARIANTS = [
    {}, {"num_tokens": 0}, {"num_tokens": 1, "num_blocks": 1}, {"num_tokens": 16, "num_blocks": 1},
    {"num_tokens": 50, "num_blocks": 2},  # 32 slots: 18 tokens are padding
    {"num_tokens": 3, "num_blocks": 40, "num_heads": 1, "head_dim": 128}, {"num_heads": 3, "head_dim": 5},
]
# Caches that are just full, and larger ones.
AXES_SPACE = {"num_tokens": (1, 16384), "num_heads": [1, 1, 2, 4, 8, 16, (1, 32)],
              "head_dim": [64, 80, 96, 128, 128, 192, 256],
              "num_blocks": ["-(-num_tokens // 16)", ("-(-num_tokens // 16)", 16384)]}


@torch.no_grad()
def run(key, value, key_cache, value_cache, slot_mapping):
    written = slot_mapping >= 0
    outputs = []
    for tokens, cache in ((key, key_cache), (value, value_cache)):
        output = cache.clone()
        output.view(-1, *cache.shape[2:])[slot_mapping[written]] = tokens[written]
        outputs.append(output)
    return tuple(outputs)


def generate_inputs(axes_and_scalars, device):
    """slot_mapping int64 [num_tokens]: a random choice of distinct slots in random order, drawn on the CPU from `seed`.

    Distinct, because two tokens in one slot have no defined result. Where there are more tokens than slots, the rest
    are padding (-1), at random places: no workload has them, the small cases do.
    """
    generator = torch.Generator().manual_seed(int(axes_and_scalars.get("seed", 0)))
    tokens, slots = axes_and_scalars["num_tokens"], axes_and_scalars["num_blocks"] * axes_and_scalars["block_size"]
    choice = torch.randperm(max(tokens, slots), generator=generator)[:tokens]
    return {"slot_mapping": choice.masked_fill(choice >= slots, -1).to(device)}


def count_cost(axes, inputs):
    """No flops. Both caches are read whole, as the survey counts them, although what is overwritten need not be: that
    is left out of bytes_needed. In place only the tokens move."""
    row = 2 * 2 * axes["num_heads"] * axes["head_dim"]  # bytes of a slot of both caches
    caches = axes["num_blocks"] * axes["block_size"] * row
    written, mapping = min(axes["num_tokens"], axes["num_blocks"] * axes["block_size"]), 8 * axes["num_tokens"]
    return {"flops": {"bfloat16": 0}, "bytes_read": caches + axes["num_tokens"] * row + mapping,
            "bytes_written": caches, "bytes_needed": 2 * caches + mapping,
            "bytes_in_place": 2 * written * row + mapping}
