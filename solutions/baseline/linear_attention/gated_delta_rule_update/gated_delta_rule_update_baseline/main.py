"""Plain torch: the recurrence in chunks of 64 tokens (the WY form of the delta rule), in float32.

Within a chunk the corrections c of the delta rule depend on each other: c_i = beta_i (v_i - exp(g_i) k_i S -
sum over j < i of exp(g_i - g_j) (k_i k_j) c_j), with S the state at the chunk's start. One triangular system per chunk
and head solves that for both parts, of v and of S, and for all chunks at once; a short loop carries the state on.
"""

import torch

CHUNK = 64


def chunked(x, size):
    """[num_tokens, heads, ...] -> float32 [num_chunks, heads, size, ...], with zeros after the last token."""
    padding = x.new_zeros(-len(x) % size, *x.shape[1:])
    return torch.cat([x, padding]).unflatten(0, (-1, size)).transpose(1, 2).float()


def unit(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


@torch.no_grad()
def run(A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, output, final_state):
    """A_log float32 and dt_bias bf16 [num_v_heads]; a, b bf16 [num_tokens, num_v_heads]; q, k bf16 [num_tokens,
    num_q_heads, key_dim]; v bf16 [num_tokens, num_v_heads, value_dim]; initial_state float32 [state_count,
    num_v_heads, key_dim, value_dim]. Writes output, as v, and final_state, as initial_state.
    """
    final_state.copy_(initial_state)
    num_tokens, heads, value_dim = v.shape
    if num_tokens == 0:
        return
    size, group = min(CHUNK, num_tokens), heads // q.shape[1]
    queries = unit(chunked(q, size)).mul_(q.shape[2] ** -0.5).repeat_interleave(group, dim=1)
    keys = unit(chunked(k, size)).repeat_interleave(group, dim=1)
    gate = -A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias.float())
    log_decay = chunked(gate, size).cumsum(-1)
    beta = chunked(b.float().sigmoid(), size).unsqueeze(-1)
    between = (log_decay.unsqueeze(-1) - log_decay.unsqueeze(-2)).masked_fill_(
        torch.ones(size, size, dtype=torch.bool, device=v.device).triu(1), float("-inf")).exp_()
    decay = log_decay.exp().unsqueeze(-1)

    system = (beta * (keys @ keys.transpose(2, 3)) * between).tril_(-1)
    both = torch.cat([beta * chunked(v, size), beta * decay * keys], dim=-1)
    both = torch.linalg.solve_triangular(system, both, upper=False, unitriangular=True)
    corrections, of_state = both.split([value_dim, keys.shape[-1]], dim=-1)
    corrections = corrections.contiguous()
    reading = torch.cat([of_state, decay * queries], dim=2)
    keys_to_the_end = (keys * (log_decay[..., -1:] - log_decay).exp().unsqueeze(-1)).transpose(2, 3)
    over_chunk = decay[:, :, -1:]

    row = initial_state_indices.long()
    state = initial_state[row][0]
    results = torch.empty_like(corrections)
    for chunk in range(len(results)):
        read = reading[chunk] @ state
        corrections[chunk] -= read[:, :size]
        results[chunk] = read[:, size:]
        state.mul_(over_chunk[chunk]).baddbmm_(keys_to_the_end[chunk], corrections[chunk])
    final_state[row] = state
    results += (queries @ keys.transpose(2, 3) * between) @ corrections
    output.copy_(results.transpose(1, 2).flatten(0, 1)[:num_tokens])
