"""Plain torch: six kernels a chunk, batched over the heads; w S in bfloat16, the state in float32."""

import torch

CHUNK = 64


def chunked(x):
    """[num_tokens, heads, size] -> [num_chunks, heads, 64, size], with zeros after the last token."""
    padding = x.new_zeros(-len(x) % CHUNK, *x.shape[1:])
    return torch.cat([x, padding]).unflatten(0, (-1, CHUNK)).transpose(1, 2).contiguous()


@torch.no_grad()
def run(k, w, u, g, initial_state, initial_state_indices, chunk_starts, h, v_new, final_state):
    """k bf16 [num_tokens, num_k_heads, key_dim], w bf16 [num_tokens, num_v_heads, key_dim],
    u bf16 [num_tokens, num_v_heads, value_dim], g float32 [num_tokens, num_v_heads],
    initial_state float32 [state_count, num_v_heads, key_dim, value_dim].

    Writes h bf16 [num_chunks, num_v_heads, key_dim, value_dim], v_new as u, and final_state as one of initial_state.
    """
    torch.index_select(initial_state, 0, initial_state_indices, out=final_state)
    num_tokens, heads = g.shape
    if num_tokens == 0:
        return
    state = final_state[0]
    # After the last token g stays as it is: the last chunk's decay ends there.
    log_decay = chunked(torch.cat([g, g[-1:].expand(-num_tokens % CHUNK, -1)]).unsqueeze(-1))
    last = log_decay[:, :, -1:]
    keys = chunked(k).repeat_interleave(heads // k.shape[1], dim=1).transpose(2, 3)
    decay, to_the_end = last.exp(), (last - log_decay).exp()
    weights, values = chunked(w), chunked(u)
    for chunk in range(len(h)):
        h[chunk].copy_(state)
        values[chunk].baddbmm_(weights[chunk], h[chunk], alpha=-1)
        state.mul_(decay[chunk])
        state.baddbmm_(keys[chunk].float(), values[chunk] * to_the_end[chunk])
    v_new.copy_(values.transpose(1, 2).flatten(0, 1)[:num_tokens])
