"""Decode step of multi-head latent attention over a paged latent cache, absorbed weights, in float32.

As mla_decode_attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), with the cache in blocks as servers have it:
vLLM's FlashAttnMLA and FlashMLA (blocks of 64 tokens, the latent's 512 values before the rotary key's 64).
"""

import torch

KV_LORA_RANK = 512

SMALL_AXES = {"batch_size": 4, "num_heads": 5, "num_blocks": 9, "block_size": 16, "max_blocks_per_seq": 4,
              "head_dim_qk": 576, "kv_lora_rank": 512, "max_context_len": 45, "sm_scale": 192 ** -0.5}
# No sequence, one token of context, full blocks, equal lengths, spare blocks and columns, large blocks, a long context,
# other numbers of heads.
SMALL_VARIANTS = [
    {}, {"batch_size": 0, "num_blocks": 0}, {"batch_size": 1, "num_blocks": 1, "max_context_len": 1},
    {"batch_size": 1, "num_blocks": 4, "max_context_len": 64}, {"batch_size": 3},
    {"num_blocks": 30, "max_blocks_per_seq": 6}, {"block_size": 64, "num_blocks": 7, "max_context_len": 200},
    {"batch_size": 2, "num_blocks": 50, "max_blocks_per_seq": 38, "max_context_len": 597}, {"num_heads": 1},
    {"batch_size": 1, "num_heads": 128, "num_blocks": 3, "block_size": 128, "max_context_len": 259},
]

# Scores so far apart that one key decides: none may be left out, and without the maximum exponentials overflow.
INPUT_DRAWS = [{"query": 30.0}]

# DeepSeek-V3 (128 heads), Kimi K2 (64) at tensor parallel 1 to 8, and counts that no model has; contexts to 128k.
AXES_SPACE = {
    "batch_size": (1, 256), "num_heads": [16, 32, 64, 128, (1, 128)], "block_size": [16, 32, 64, 64, 64, 128],
    "max_context_len": (1, 131072), "max_blocks_per_seq": "-(-max_context_len // block_size)",
    "num_blocks": ["batch_size * max_blocks_per_seq", ("batch_size", "batch_size * max_blocks_per_seq")],
    "sm_scale": 192 ** -0.5,
}
SMALL_SPACE = {"batch_size": (1, 6), "num_heads": (1, 40), "max_context_len": (1, 200)}
REFERENCE_ROWS = {"query": 0, "block_table": 0, "context_lens": 0}


@torch.no_grad()
def run(query, kv_cache, block_table, context_lens, max_context_len, sm_scale):
    output = torch.empty(*query.shape[:2], KV_LORA_RANK, dtype=query.dtype, device=query.device)
    for sequence, length in enumerate(context_lens.tolist()):
        blocks = block_table[sequence, :-(-length // kv_cache.shape[1])].long()
        keys = kv_cache[blocks].flatten(0, 1)[:length].float()
        weights = ((query[sequence].float() * sm_scale) @ keys.t()).softmax(dim=-1)
        output[sequence] = weights @ keys[:, :KV_LORA_RANK]
    return output


def generate_inputs(axes_and_scalars, device):
    """context_lens int32 [batch_size] and block_table int32 [batch_size, max_blocks_per_seq].

    Where num_blocks is enough for all, every sequence has max_context_len tokens. Otherwise lengths are drawn evenly
    from 1 to max_context_len, and where their blocks are still too many, all are shortened in proportion. Blocks are a
    random permutation, since a served cache is handed out block by block; table entries that no token needs are 0.
    `seed` fixes every value; they are drawn on the CPU, so they are the same everywhere.
    """
    size = axes_and_scalars
    generator = torch.Generator().manual_seed(int(size.get("seed", 0)))
    count, longest, block = size["batch_size"], size["max_context_len"], size["block_size"]
    if size["num_blocks"] < count:
        raise ValueError(f"num_blocks: {size['num_blocks']} for {count} sequences, which need one each; "
                         "mend num_blocks or batch_size")
    lengths = torch.full((count,), longest)
    if size["num_blocks"] < count * -(-longest // block):
        lengths = torch.randint(1, longest + 1, (count,), generator=generator)
        blocks, spare = (lengths + block - 1) // block, size["num_blocks"] - count
        if int(blocks.sum()) > size["num_blocks"]:
            blocks = 1 + (blocks - 1) * spare // int((blocks - 1).sum())
            lengths = torch.minimum(lengths, blocks * block)
    used = torch.arange(size["max_blocks_per_seq"]) < ((lengths + block - 1) // block).unsqueeze(-1)
    block_table = torch.zeros(used.shape, dtype=torch.int32)
    block_table[used] = torch.randperm(size["num_blocks"], generator=generator)[:int(used.sum())].to(torch.int32)
    return {"block_table": block_table.to(device), "context_lens": lengths.to(torch.int32).to(device)}


def count_cost(axes, inputs):
    """For each head and token of context the products with key (576) and latent (512); the cache up to each length, and
    the table's entries for these blocks. (mla_decode_attention's flops follow the survey, 27 % above.)
    """
    lengths = inputs["context_lens"].long()
    tokens = int(lengths.sum())
    entries = int(((lengths + axes["block_size"] - 1) // axes["block_size"]).sum())
    heads, key, latent = axes["num_heads"], axes["head_dim_qk"], axes["kv_lora_rank"]
    queries = axes["batch_size"] * heads
    return {"flops": {"bfloat16": 2 * heads * tokens * (key + latent)},
            "bytes_read": 2 * key * (queries + tokens) + 4 * (axes["batch_size"] + entries),
            "bytes_written": 2 * queries * latent}
