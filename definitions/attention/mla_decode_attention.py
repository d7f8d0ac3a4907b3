"""Decode step of multi-head latent attention with absorbed weights, in float32.

DeepSeek-V2 (arXiv 2405.04434, section 2.1): all query heads share one latent of 512 values and one rotary key of 64.
With the up projections absorbed into the query and the output, latent and rotary key together are the key, and the
latent alone is the value.
"""

import torch

KV_LORA_RANK = 512

SMALL_AXES = {"batch_size": 3, "num_heads": 5, "cache_len": 40, "head_dim_qk": 576, "kv_lora_rank": 512,
              "max_context_len": 37, "sm_scale": 192 ** -0.5}
# No sequence, one token of context, all slots used (equal lengths), one slot more, a long context, more heads.
SMALL_VARIANTS = [
    {}, {"batch_size": 0}, {"batch_size": 1, "cache_len": 1, "max_context_len": 1}, {"max_context_len": 40},
    {"cache_len": 38}, {"batch_size": 2, "cache_len": 700, "max_context_len": 513}, {"num_heads": 1},
    {"batch_size": 1, "num_heads": 128, "cache_len": 130, "max_context_len": 129},
]
# Heads of a rank of 1 to 16 GPUs; contexts all of one length, or ragged.
AXES_SPACE = {"batch_size": (1, 256), "num_heads": [8, 16, 32, 64, 128, (1, 128)],
              "max_context_len": [(256, 131072), (256, 131072), (1, 512)],
              "cache_len": ["max_context_len", ("max_context_len + 1", "2 * max_context_len + 16")],
              "sm_scale": "192 ** -0.5"}
SMALL_SPACE = {"batch_size": (1, 4), "num_heads": (1, 32), "max_context_len": (1, 400)}

# Scores so far apart that one key decides: none may be left out, and without the maximum exponentials overflow.
INPUT_DRAWS = [{"query": 30.0}]
REFERENCE_ROWS = {"query": 0, "kv_cache": 0, "context_lens": 0}


@torch.no_grad()
def run(query, kv_cache, context_lens, max_context_len, sm_scale):
    output = torch.empty(*query.shape[:2], KV_LORA_RANK, dtype=query.dtype, device=query.device)
    for sequence, length in enumerate(context_lens.tolist()):
        keys = kv_cache[sequence, :length].float()
        weights = ((query[sequence].float() * sm_scale) @ keys.t()).softmax(dim=-1)
        output[sequence] = weights @ keys[:, :KV_LORA_RANK]
    return output


def generate_inputs(axes_and_scalars, device):
    """context_lens int32 [batch_size].

    Where the longest context fills a sequence's slots (max_context_len is cache_len), as in the survey's shapes, all
    contexts have that length. Otherwise lengths are drawn evenly from 1 to max_context_len, and the slots behind them
    are for tokens to come. `seed` fixes them; they are drawn on the CPU, so they are the same everywhere.
    """
    size = axes_and_scalars
    generator = torch.Generator().manual_seed(int(size.get("seed", 0)))
    longest = size["max_context_len"]
    least = longest if longest == size["cache_len"] else 1
    lengths = torch.randint(least, longest + 1, (size["batch_size"],), generator=generator)
    return {"context_lens": lengths.to(torch.int32).to(device)}


def count_cost(axes, inputs):
    """For each head and token of context the products with key (576) and latent (512), and head_dim_qk flops more;
    for each head once more head_dim_qk flops (the survey's rule: see docs/operators.md). The cache is counted up to
    each length.
    """
    tokens = int(inputs["context_lens"].long().sum())
    heads, key, latent = axes["num_heads"], axes["head_dim_qk"], axes["kv_lora_rank"]
    queries = axes["batch_size"] * heads
    flops = heads * tokens * (2 * key + 2 * latent + key) + queries * key
    return {"flops": {"bfloat16": flops}, "bytes_read": 2 * key * (queries + tokens) + 4 * axes["batch_size"],
            "bytes_written": 2 * queries * latent}
