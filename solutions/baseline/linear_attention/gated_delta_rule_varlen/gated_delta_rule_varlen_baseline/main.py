"""Plain torch: step by step, at each the next token of every sequence that has one. Lengths come back to the host."""

import torch


def unit(x):
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


@torch.no_grad()
def run(A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, cu_seqlens, output, final_state):
    """A_log float32 and dt_bias bf16 [num_v_heads]; a, b bf16 [num_tokens, num_v_heads]; q, k bf16 [num_tokens,
    num_q_heads, key_dim]; v bf16 [num_tokens, num_v_heads, value_dim]; initial_state float32 [state_count,
    num_v_heads, value_dim, key_dim]; cu_seqlens int32 [num_seqs + 1]. Writes output, as v, and final_state.
    """
    final_state.copy_(initial_state)
    group, scale = v.shape[1] // q.shape[1], q.shape[2] ** -0.5
    lengths = cu_seqlens.diff()
    lengths, order = lengths.sort(descending=True)
    first, slots = cu_seqlens[:-1][order].long(), initial_state_indices[order].long()
    state, lengths = initial_state[slots], lengths.tolist()
    for step in range(lengths[0] if lengths else 0):
        token = first[:sum(length > step for length in lengths)] + step
        keys, queries = (unit(x[token]).repeat_interleave(group, 1).unsqueeze(2) for x in (k, q))
        decay = torch.exp(-A_log.exp() * torch.nn.functional.softplus(a[token].float() + dt_bias.float()))
        part = state[:len(token)].mul_(decay[:, :, None, None])
        correction = v[token].float() - (part * keys).sum(-1)
        part += (b[token].float().sigmoid()[:, :, None] * correction).unsqueeze(3) * keys
        output[token] = ((part * queries).sum(-1) * scale).to(output.dtype)
    final_state[slots] = state
