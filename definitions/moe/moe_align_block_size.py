"""The (token, expert) pairs of a routing in the order of their experts, each expert's padded to whole blocks."""

import torch

NUM_EXPERTS = 128
BLOCK_SIZE = 128
TRIALS = 200

SMALL_AXES = {"num_tokens": 5, "top_k": 8, "num_experts": NUM_EXPERTS, "block_size": BLOCK_SIZE, "num_blocks": 40,
              "one": 1}
# No tokens (all blocks unused), one token, blocks for every expert, blocks to spare, experts with several blocks.
SMALL_VARIANTS = [{}, {"num_tokens": 0}, {"num_tokens": 1, "num_blocks": 8}, {"num_tokens": 70, "num_blocks": 128},
                  {"num_tokens": 70, "num_blocks": 150}, {"num_tokens": 2100, "num_blocks": 200}]
# As many blocks as any routing may fill, which engines give.
AXES_SPACE = {"num_tokens": (1, 16384), "num_blocks": "min(8 * num_tokens, 128 + 8 * num_tokens // 128)"}


def blocks_per_expert(topk_ids):
    """Blocks that each expert's pairs fill, the last one partly: int64 [NUM_EXPERTS]."""
    counts = torch.bincount(topk_ids.flatten().long(), minlength=NUM_EXPERTS)
    return (counts + BLOCK_SIZE - 1) // BLOCK_SIZE


@torch.no_grad()
def run(topk_ids, block_slots):
    device, num_blocks, pairs = topk_ids.device, block_slots.shape[0], topk_ids.numel()
    experts = topk_ids.flatten().long()
    blocks = blocks_per_expert(topk_ids)
    used = int(blocks.sum())
    sorted_token_ids = torch.full((num_blocks * BLOCK_SIZE,), pairs, dtype=torch.int32, device=device)
    first_slot = (blocks.cumsum(0) - blocks) * BLOCK_SIZE
    counts = torch.bincount(experts, minlength=NUM_EXPERTS)
    first_pair = counts.cumsum(0) - counts
    order = experts.argsort(stable=True)
    expert = experts[order]
    slot = first_slot[expert] + torch.arange(pairs, device=device) - first_pair[expert]
    sorted_token_ids[slot] = order.to(torch.int32)
    expert_ids = torch.full((num_blocks,), -1, dtype=torch.int32, device=device)
    expert_ids[:used] = torch.arange(NUM_EXPERTS, dtype=torch.int32, device=device).repeat_interleave(blocks)
    num_tokens_post_padded = torch.tensor([used * BLOCK_SIZE], dtype=torch.int32, device=device)
    return sorted_token_ids.view(num_blocks, BLOCK_SIZE), expert_ids, num_tokens_post_padded


def canonical_outputs(outputs, inputs):
    """sorted_token_ids in rising order within the blocks of each expert, and within the unused ones.

    The order of an expert's pairs means nothing to the GEMM that follows, nor does the place of the padding among them,
    and kernels that count with atomics give another one at each call.
    """
    found = outputs["sorted_token_ids"]
    blocks = blocks_per_expert(inputs["topk_ids"])
    unused = found.shape[0] - blocks.sum(0, keepdim=True)
    group = torch.arange(NUM_EXPERTS + 1, device=found.device).repeat_interleave(torch.cat([blocks, unused]))
    # One number for group and id, the ids moved to 0 .. 2**32: any int32 keeps its group.
    key = group.repeat_interleave(BLOCK_SIZE) * 2**32 + (found.flatten().long() + 2**31)
    return {**outputs, "sorted_token_ids": (key.sort().values % 2**32 - 2**31).view(found.shape)}


def generate_inputs(axes_and_scalars, device):
    """topk_ids: each token's experts are distinct and uniformly drawn.

    That is the routing of the survey: what it writes says how many blocks its routing filled. 8152 pairs fill one block
    of each expert, so none had over 128 of them, twice the mean, and the larger shapes fill as many blocks as a uniform
    draw does on average (187.7, 287 and 575 against 186, 292 and 573). A draw as uneven as served models' would fill
    more blocks. A routing that does not fit into num_blocks is drawn again: some two of three of the 2044 and of the
    8192 tokens, one of twenty of the 3936, none of the others.

    `seed` in axes_and_scalars (an integer that the workload's uuid gives) fixes every value; drawn on the CPU, so the
    same on every device. Returns name -> tensor on `device`. ValueError when no draw fits.
    """
    size = axes_and_scalars
    generator = torch.Generator().manual_seed(int(size.get("seed", 0)))
    for _ in range(TRIALS):
        draw = torch.rand(size["num_tokens"], NUM_EXPERTS, generator=generator)
        topk_ids = draw.topk(size["top_k"], dim=-1).indices.to(torch.int32)
        if int(blocks_per_expert(topk_ids).sum()) <= size["num_blocks"]:
            return {"topk_ids": topk_ids.to(device)}
    raise ValueError(f"num_blocks: {size['num_blocks']} are too few for the pairs of {size['num_tokens']} tokens")


def count_cost(axes, inputs):
    """No arithmetic. block_slots is not read: only its size counts. facts: blocks that the routing fills."""
    facts = {"used_blocks": int(blocks_per_expert(inputs["topk_ids"]).sum())}
    return {"flops": {}, "bytes_read": 4 * axes["num_tokens"] * axes["top_k"],
            "bytes_written": 4 * (axes["num_blocks"] * (axes["block_size"] + 1) + 1), "facts": facts}
