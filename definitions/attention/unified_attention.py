"""Causal attention over a paged KV cache with query and context of any length in each sequence, in float32."""

import torch

# Scores that are held at once: 2 GB, and their softmax as much again.
MAX_SCORES = 1 << 29

SMALL_AXES = {"num_tokens": 37, "num_seqs": 5, "len_cu_seqlens": 6, "num_blocks": 17, "block_size": 16,
              "max_blocks_per_seq": 5, "num_query_heads": 6, "num_kv_heads": 2, "head_dim": 72, "max_query_len": 20,
              "max_seq_len": 70, "sm_scale": 72 ** -0.5}
ONE = {"num_seqs": 1, "len_cu_seqlens": 2}
# No token, one token without and with context, decode only, prefill only (one partly filled block, many, several
# equal sequences), more blocks than are used, wider tables than are used, a long sequence, other head sizes.
SMALL_VARIANTS = [
    {}, {"num_tokens": 0, "num_seqs": 0, "len_cu_seqlens": 1, "num_blocks": 0},
    {**ONE, "num_tokens": 1, "num_blocks": 1, "max_query_len": 1, "max_seq_len": 1, "max_blocks_per_seq": 1},
    {**ONE, "num_tokens": 1, "num_blocks": 5, "max_query_len": 1},
    {"num_tokens": 5, "num_blocks": 16, "max_query_len": 1},
    {**ONE, "num_tokens": 7, "num_blocks": 1, "max_query_len": 7, "max_seq_len": 7, "max_blocks_per_seq": 1},
    {**ONE, "num_tokens": 130, "num_blocks": 9, "max_query_len": 130, "max_seq_len": 130, "max_blocks_per_seq": 9},
    {"num_tokens": 165, "num_blocks": 15, "max_query_len": 33, "max_seq_len": 33},
    {"num_tokens": 70, "num_blocks": 10}, {"num_blocks": 60, "max_blocks_per_seq": 7},
    {**ONE, "num_tokens": 200, "num_blocks": 24, "max_query_len": 200, "max_seq_len": 371, "max_blocks_per_seq": 24},
    {"num_query_heads": 4, "num_kv_heads": 4, "head_dim": 192, "sm_scale": 192 ** -0.5},
    {"num_query_heads": 8, "num_kv_heads": 1, "head_dim": 256, "sm_scale": 0.0625},
]
# Decode, drafts of 2 to 8 tokens, prefill and its chunks; with and without context, of one length and ragged.
AXES_SPACE = {"num_seqs": (1, 256), "max_query_len": [1, (2, 8), (16, "32768 // num_seqs")],
              "_most": "num_seqs * max_query_len", "num_tokens": ["_most", ("num_seqs + _most // 8", "_most")],
              "_longest": [(256, 131072), (256, 131072), (1, 512), 16], "max_seq_len": "max(_longest, max_query_len)",
              "len_cu_seqlens": "num_seqs + 1",
              "num_kv_heads": [1, 1, 2, 4, 8], "_group": [1, 2, 4, 5, 6, 7, 8, 12, 16],
              "num_query_heads": "_group * num_kv_heads", "head_dim": [64, 80, 96, 128, 128, 128, 256],
              "_blocks": "-(-max_seq_len // 16)", "_all": "num_seqs * _blocks",
              "num_blocks": ["_all", ("min(_all, num_tokens // 16 + num_seqs + _all // 4)", "_all")],
              "max_blocks_per_seq": ["_blocks", ("_blocks", "2 * _blocks")], "sm_scale": "head_dim ** -0.5"}
SMALL_SPACE = {"num_seqs": (1, 6), "max_query_len": [1, (2, 8), (1, 120)],
               "_longest": (1, 300), "num_kv_heads": [1, 2]}

# Scores so far apart that one key decides: none may be left out, and without the maximum exponentials overflow.
INPUT_DRAWS = [{"query": 30.0}]


@torch.no_grad()
def run(query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, max_query_len, max_seq_len, sm_scale):
    output = torch.empty_like(query)
    bounds = cu_seqlens_q.tolist()
    for sequence, length in enumerate(seq_lens.tolist()):
        rows = slice(bounds[sequence], bounds[sequence + 1])
        keys, values = (cached(cache, block_table[sequence], length) for cache in (key_cache, value_cache))
        attend(query[rows], keys, values, sm_scale, output[rows])
    return output


def reference_rows(inputs, rows):
    """The inputs of these tokens alone: each is the last one of a sequence of its own, which ends with it."""
    bounds = inputs["cu_seqlens_q"].long()
    index = torch.tensor(rows, dtype=torch.int64, device=bounds.device)
    sequence = torch.searchsorted(bounds, index, right=True) - 1
    lengths = inputs["seq_lens"].long()[sequence] - (bounds[sequence + 1] - 1 - index)
    return {**inputs, "query": inputs["query"][index], "block_table": inputs["block_table"][sequence],
            "cu_seqlens_q": torch.arange(len(rows) + 1, dtype=torch.int32, device=index.device),
            "seq_lens": lengths.to(torch.int32)}


def cached(cache, blocks, length):
    """The first `length` tokens in the blocks of one sequence's table: float32 [kv_heads, length, head_dim]."""
    needed = blocks[:-(-length // cache.shape[1])].long()
    return cache[needed].flatten(0, 1)[:length].transpose(0, 1).float()


def attend(query, keys, values, sm_scale, output):
    """The last tokens of one sequence, each over all up to itself.

    query [rows, query_heads, head_dim], keys and values [kv_heads, length, head_dim] -> output like query. Query heads
    of one group follow each other: head h reads key and value head h // (query_heads / kv_heads).
    """
    (rows, heads, head_dim), (kv_heads, length, _) = query.shape, keys.shape
    step = max(1, MAX_SCORES // (heads * length))
    for first in range(0, rows, step):
        part = query[first:first + step].float() * sm_scale
        count = len(part)
        positions = length - rows + torch.arange(first, first + count, device=query.device)
        visible = length - rows + first + count  # what the part's last token sees
        grouped = part.view(count, kv_heads, -1, head_dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, head_dim)
        scores = (grouped @ keys[:, :visible].transpose(1, 2)).view(kv_heads, -1, count, visible)
        later = torch.arange(visible, device=query.device) > positions.unsqueeze(-1)
        weights = scores.masked_fill_(later, float("-inf")).softmax(dim=-1).view(kv_heads, -1, visible)
        found = (weights @ values[:, :visible]).view(kv_heads, -1, count, head_dim)
        output[first:first + count] = found.permute(2, 0, 1, 3).reshape(count, heads, head_dim)


def generate_inputs(axes_and_scalars, device):
    """cu_seqlens_q int32 [len_cu_seqlens], seq_lens int32 [num_seqs], block_table int32 [num_seqs, max_blocks_per_seq].

    Query lengths: from 1 to max_query_len with the sum num_tokens, so all equal where num_tokens just allows it, and
    otherwise long prefills beside short ones and single tokens, as in a batch of continuous batching. Blocks: each
    sequence gets what its queries need, and what num_blocks leaves goes out at random, up to max_seq_len; then all but
    the last block are full, and the last one is filled at random. Where num_blocks is enough for all, every sequence
    has max_seq_len tokens: in the survey's shapes max_seq_len is max_query_len, prefill without context. Blocks are a
    random permutation, since a served cache is handed out block by block; table entries that no token needs are 0.
    `seed` fixes every value; they are drawn on the CPU, so they are the same everywhere.
    """
    size = axes_and_scalars
    generator = torch.Generator().manual_seed(int(size.get("seed", 0)))
    count, longest, block = size["num_seqs"], size["max_seq_len"], size["block_size"]
    queries = [1 + more for more in share(size["num_tokens"] - count, [size["max_query_len"] - 1] * count, generator)]
    least = [-(-length // block) for length in queries]
    rooms = [-(-longest // block) - blocks for blocks in least]
    spare = min(size["num_blocks"] - sum(least), sum(rooms))
    blocks = [few + more for few, more in zip(least, share(spare, rooms, generator), strict=True)]
    lengths = [longest] * count
    if spare < sum(rooms):
        lengths = [int(torch.randint(max(length, block * (held - 1) + 1), min(longest, block * held) + 1, (),
                                     generator=generator)) for length, held in zip(queries, blocks, strict=True)]
    columns = torch.arange(size["max_blocks_per_seq"])
    used = columns < torch.tensor(blocks, dtype=torch.int64).unsqueeze(-1)
    block_table = torch.zeros(used.shape, dtype=torch.int32)
    block_table[used] = torch.randperm(size["num_blocks"], generator=generator)[:sum(blocks)].to(torch.int32)
    inputs = {"cu_seqlens_q": torch.tensor([0, *queries]).cumsum(0).to(torch.int32),
              "seq_lens": torch.tensor(lengths, dtype=torch.int32), "block_table": block_table}
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def share(total, rooms, generator):
    """Random numbers from 0 to each of `rooms` that sum to `total`, handed out in random order."""
    if not 0 <= total <= sum(rooms):
        raise ValueError(f"{total} to share among places for {sum(rooms)}: num_tokens, num_blocks, max_query_len and "
                         "max_seq_len do not agree; mend these sizes")
    shares, left, after = [0] * len(rooms), total, sum(rooms)
    for place in torch.randperm(len(rooms), generator=generator).tolist():
        after -= rooms[place]
        low, high = max(0, left - after), min(left, rooms[place])
        shares[place] = int(torch.randint(low, high + 1, (), generator=generator))
        left -= shares[place]
    return shares


def count_cost(axes, inputs):
    """Two products of head_dim for each query and each token that it sees, itself included (the survey's rule).

    Keys and values are counted up to each sequence's length and the table's entries for these blocks, so that slots
    which no token needs cost nothing.
    """
    lengths, queries = inputs["seq_lens"].long(), inputs["cu_seqlens_q"].long().diff()
    pairs = int((queries * (lengths - queries) + queries * (queries + 1) // 2).sum())
    entries = int(((lengths + axes["block_size"] - 1) // axes["block_size"]).sum())
    heads, head_dim = axes["num_query_heads"], axes["head_dim"]
    tensor = 2 * axes["num_tokens"] * heads * head_dim
    cached = 2 * 2 * int(lengths.sum()) * axes["num_kv_heads"] * head_dim
    return {"flops": {"bfloat16": 4 * heads * head_dim * pairs},
            "bytes_read": tensor + cached + 4 * (axes["len_cu_seqlens"] + axes["num_seqs"] + entries),
            "bytes_written": tensor}
