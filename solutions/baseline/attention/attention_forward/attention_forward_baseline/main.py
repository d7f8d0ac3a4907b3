"""Torch's scaled_dot_product_attention in bfloat16, all sequences of one length at a time."""

from collections import defaultdict

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

# Never the one that holds all scores: 137 GB for 65556 tokens and 16 heads. On a CPU the scores are small.
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


@torch.no_grad()
def run(query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen, sm_scale, output):
    """query, key, value bf16 [num_tokens, num_heads, head_dim], cu_seqlens int32 -> output of query's shape.

    The lengths are read on the host, which waits for the GPU.
    """
    backends = FUSED if query.is_cuda else [*FUSED, SDPBackend.MATH]
    for rows, length in equal_lengths(cu_seqlens_q.tolist(), query.device):
        parts = [tensor[rows].unflatten(0, (-1, length)).transpose(1, 2) for tensor in (query, key, value)]
        with sdpa_kernel(backends):
            found = scaled_dot_product_attention(*parts, scale=sm_scale)
        output[rows] = found.transpose(1, 2).flatten(0, 1)


def equal_lengths(bounds, device):
    """(rows, length) for each length: the rows of all sequences of that length, a slice where that is all rows."""
    starts = defaultdict(list)
    for start, end in zip(bounds, bounds[1:], strict=False):
        starts[end - start].append(start)
    for length, first in starts.items():
        if len(starts) == 1:
            yield slice(None), length
        else:
            columns = torch.arange(length, device=device)
            yield (torch.tensor(first, device=device).unsqueeze(-1) + columns).flatten(), length
