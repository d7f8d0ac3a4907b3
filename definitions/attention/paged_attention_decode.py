"""Decode attention over a paged KV cache: one query token a sequence, in float32."""

import torch

SMALL_AXES = {"num_seqs": 5, "num_blocks": 11, "block_size": 16, "max_blocks_per_seq": 4, "num_query_heads": 8,
              "num_kv_heads": 2, "head_dim": 128, "max_context_len": 61, "sm_scale": 128 ** -0.5}
# No sequence, one token of context, exactly full blocks, all equally long with a partly filled block, more blocks and
# wider tables than are used, a long context, one key head for each query head, other numbers and sizes of heads.
SMALL_VARIANTS = [
    {}, {"num_seqs": 0, "num_blocks": 0}, {"num_seqs": 1, "num_blocks": 1, "max_context_len": 1},
    {"num_seqs": 1, "num_blocks": 4, "max_context_len": 64}, {"num_seqs": 3, "num_blocks": 12},
    {"num_blocks": 40, "max_blocks_per_seq": 6}, {"num_seqs": 9, "num_blocks": 9},
    {"num_seqs": 2, "num_blocks": 50, "max_context_len": 597, "max_blocks_per_seq": 38},
    {"num_query_heads": 3, "num_kv_heads": 3}, {"num_query_heads": 40, "num_kv_heads": 8},
    {"num_query_heads": 4, "num_kv_heads": 1}, {"num_query_heads": 16, "head_dim": 256, "sm_scale": 0.0625},
]
# Groups of query heads and head sizes that models have; contexts all of one length, or ragged.
AXES_SPACE = {"num_seqs": (1, 256), "max_context_len": [(256, 131072), (256, 131072), (1, 512)],
              "num_kv_heads": [1, 1, 2, 4, 8], "_group": [1, 2, 4, 5, 6, 7, 8, 12, 16],
              "num_query_heads": "_group * num_kv_heads",
              "head_dim": [64, 80, 96, 128, 128, 128, 256], "_blocks": "-(-max_context_len // 16)",
              "num_blocks": ["num_seqs * _blocks", ("num_seqs + num_seqs * _blocks // 4", "num_seqs * _blocks")],
              "max_blocks_per_seq": ["_blocks", ("_blocks", "2 * _blocks")], "sm_scale": "head_dim ** -0.5"}
SMALL_SPACE = {"num_seqs": (1, 6), "max_context_len": (1, 300), "num_kv_heads": [1, 2]}

# Scores so far apart that one key decides: none may be left out, and without the maximum exponentials overflow.
INPUT_DRAWS = [{"query": 30.0}]
REFERENCE_ROWS = {"query": 0, "block_table": 0, "context_lens": 0}


@torch.no_grad()
def run(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale):
    output = torch.empty_like(query)
    kv_heads, head_dim = key_cache.shape[2:]
    for sequence, length in enumerate(context_lens.tolist()):
        keys, values = (cached(cache, block_table[sequence], length) for cache in (key_cache, value_cache))
        # Query heads of one group follow each other: head h reads key and value head h // (query_heads / kv_heads).
        grouped = query[sequence].view(kv_heads, -1, head_dim).float() * sm_scale
        weights = (grouped @ keys.transpose(1, 2)).softmax(dim=-1)
        output[sequence] = (weights @ values).view(-1, head_dim)
    return output


def cached(cache, blocks, length):
    """The first `length` tokens in the blocks of one sequence's table: float32 [kv_heads, length, head_dim]."""
    needed = blocks[:-(-length // cache.shape[1])].long()
    return cache[needed].flatten(0, 1)[:length].transpose(0, 1).float()


def generate_inputs(axes_and_scalars, device):
    """context_lens int32 [num_seqs] and block_table int32 [num_seqs, max_blocks_per_seq].

    Every sequence gets one block, and what num_blocks leaves goes out at random, up to max_context_len; all but the
    last block of a sequence are full, and the last one is filled at random. Where num_blocks is enough for all, as in
    the survey's shapes, every sequence has max_context_len tokens. Blocks are a random permutation, since a served
    cache is handed out block by block; table entries that no token needs are 0. `seed` fixes every value; they are
    drawn on the CPU, so they are the same everywhere.
    """
    size = axes_and_scalars
    generator = torch.Generator().manual_seed(int(size.get("seed", 0)))
    count, longest, block = size["num_seqs"], size["max_context_len"], size["block_size"]
    most = -(-longest // block)
    spare = min(size["num_blocks"] - count, count * (most - 1))
    blocks = [1 + more for more in share(spare, count, most - 1, generator)]
    lengths = [longest] * count
    if spare < count * (most - 1):
        lengths = [int(torch.randint(block * (held - 1) + 1, min(longest, block * held) + 1, (), generator=generator))
                   for held in blocks]
    used = torch.arange(size["max_blocks_per_seq"]) < torch.tensor(blocks, dtype=torch.int64).unsqueeze(-1)
    block_table = torch.zeros(used.shape, dtype=torch.int32)
    block_table[used] = torch.randperm(size["num_blocks"], generator=generator)[:sum(blocks)].to(torch.int32)
    return {"block_table": block_table.to(device), "context_lens": torch.tensor(lengths, dtype=torch.int32).to(device)}


def share(total, count, most, generator):
    """`count` random numbers from 0 to `most` that sum to `total`, handed out in random order."""
    if not 0 <= total <= count * most:
        raise ValueError(f"num_blocks: {total} blocks remain after one for each of {count} sequences; "
                         "mend num_blocks or num_seqs")
    shares, left = [0] * count, total
    for after, place in zip(range(count - 1, -1, -1), torch.randperm(count, generator=generator).tolist(), strict=True):
        low, high = max(0, left - after * most), min(left, most)
        shares[place] = int(torch.randint(low, high + 1, (), generator=generator))
        left -= shares[place]
    return shares


def count_cost(axes, inputs):
    """Two products of head_dim for each query head and token of context, and two flops for each token of context (the
    survey's rule). Keys and values are counted up to each length, and the table's entries for these blocks.
    """
    lengths = inputs["context_lens"].long()
    tokens = int(lengths.sum())
    entries = int(((lengths + axes["block_size"] - 1) // axes["block_size"]).sum())
    heads, head_dim = axes["num_query_heads"], axes["head_dim"]
    tensor = 2 * axes["num_seqs"] * heads * head_dim
    cached = 2 * 2 * tokens * axes["num_kv_heads"] * head_dim
    return {"flops": {"bfloat16": (4 * heads * head_dim + 2) * tokens},
            "bytes_read": tensor + cached + 4 * (axes["num_seqs"] + entries), "bytes_written": tensor}
