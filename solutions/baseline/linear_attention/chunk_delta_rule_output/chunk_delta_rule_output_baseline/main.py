"""Plain torch: the matrix products of all chunks at once in bfloat16, the decay in float32."""

import torch

CHUNK = 64


def chunked(x):
    """[num_tokens, heads, ...] -> [num_chunks, heads, 64, ...], with zeros after the last token."""
    padding = x.new_zeros(-len(x) % CHUNK, *x.shape[1:])
    return torch.cat([x, padding]).unflatten(0, (-1, CHUNK)).transpose(1, 2)


@torch.no_grad()
def run(q, k, v, h, g, output):
    """q, k bf16 [num_tokens, num_q_heads, key_dim], v bf16 [num_tokens, num_v_heads, value_dim],
    h bf16 [num_chunks, num_v_heads, key_dim, value_dim], g float32 [num_tokens, num_v_heads]. Writes output, as v.
    """
    num_tokens, num_q_heads, key_dim = q.shape
    if num_tokens == 0:
        return
    heads = (num_q_heads, v.shape[1] // num_q_heads)  # of value heads: [num_q_heads, the group that shares q and k]
    queries, keys, log_decay = chunked(q), chunked(k), chunked(g).unflatten(1, heads)
    future = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    between = (log_decay.unsqueeze(-1) - log_decay.unsqueeze(-2)).masked_fill_(future, float("-inf")).exp_()
    scores = (queries @ keys.transpose(2, 3)).unsqueeze(2) * between
    total = (queries.unsqueeze(2) @ h.unflatten(1, heads)) * log_decay.exp().unsqueeze(-1)
    total += scores.to(v.dtype) @ chunked(v).unflatten(1, heads)
    total *= key_dim ** -0.5
    output.copy_(total.flatten(1, 2).transpose(1, 2).flatten(0, 1)[:num_tokens])
