"""Torch's scaled_dot_product_attention in bfloat16, all sequences of one query length and one length at a time."""

from collections import defaultdict

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

# Never the one that holds all scores. On a CPU the scores are small.
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


@torch.no_grad()
def run(query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, max_query_len, max_seq_len, sm_scale,
        output):
    """query bf16 [num_tokens, num_query_heads, head_dim], key_cache and value_cache bf16 [num_blocks, block_size,
    num_kv_heads, head_dim], cu_seqlens_q, seq_lens and block_table int32 -> output of query's shape.

    The lengths are read on the host, which waits for the GPU.
    """
    bounds = cu_seqlens_q.tolist()
    groups = defaultdict(list)
    for sequence, length in enumerate(seq_lens.tolist()):
        groups[bounds[sequence + 1] - bounds[sequence], length].append(sequence)
    for (query_len, length), members in groups.items():
        rows, table = slice(None), block_table
        if len(groups) > 1:
            table = block_table[torch.tensor(members, device=query.device)]
            starts = torch.tensor([bounds[sequence] for sequence in members], device=query.device)
            rows = (starts.unsqueeze(-1) + torch.arange(query_len, device=query.device)).flatten()
        queries = query[rows].unflatten(0, (-1, query_len)).transpose(1, 2)
        keys, values = (gather(cache, table, length) for cache in (key_cache, value_cache))
        attend = without_context if query_len == length else with_context
        output[rows] = attend(queries, keys, values, sm_scale).transpose(1, 2).flatten(0, 1)


def gather(cache, table, length):
    """The first `length` tokens of each sequence: [sequences, kv_heads, length, head_dim]."""
    blocks = table[:, :-(-length // cache.shape[1])].flatten()
    return cache[blocks].view(len(table), -1, *cache.shape[2:])[:, :length].transpose(1, 2)


def without_context(queries, keys, values, sm_scale):
    with sdpa_kernel(FUSED if queries.is_cuda else [*FUSED, SDPBackend.MATH]):
        return scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=sm_scale,
                                            enable_gqa=keys.shape[1] != queries.shape[1])


def with_context(queries, keys, values, sm_scale):
    """Each query sees the context and the queries up to itself. is_causal would align the first query with the first
    key, and torch's fused kernels take no mask together with fewer key heads than query heads, so these are repeated.
    """
    query_len, length = queries.shape[2], keys.shape[2]
    mask = torch.ones(query_len, length, dtype=torch.bool, device=queries.device).tril_(length - query_len)
    keys, values = (tensor.repeat_interleave(queries.shape[1] // tensor.shape[1], dim=1) for tensor in (keys, values))
    return scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=sm_scale)
