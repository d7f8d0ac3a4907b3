"""FlashInfer's chunk_gated_delta_rule for Hopper, with what it wants made before: queries and keys of length one by its
own rmsnorm, the decay itself and beta in float32, the state turned to [value_dim, key_dim]."""

import functools

import torch


@functools.cache
def to_unit(size, dtype, device):
    """Weight with which an RMS norm gives rows of length one: size**-0.5."""
    return torch.full((size,), size ** -0.5, dtype=dtype, device=device)


@torch.no_grad()
def run(A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, output, final_state):
    """A_log float32 and dt_bias bf16 [num_v_heads]; a, b bf16 [num_tokens, num_v_heads]; q, k bf16 [num_tokens,
    num_q_heads, key_dim]; v bf16 [num_tokens, num_v_heads, value_dim]; initial_state float32 [state_count,
    num_v_heads, key_dim, value_dim]. Writes output, as v, and final_state, as initial_state.
    """
    import flashinfer.gdn_prefill
    import flashinfer.norm

    if final_state.data_ptr() != initial_state.data_ptr():
        final_state.copy_(initial_state)
    tokens, key_dim = len(v), q.shape[2]
    if tokens == 0:
        return
    weight = to_unit(key_dim, q.dtype, q.device)
    q, k = (flashinfer.norm.rmsnorm(x.flatten(0, 1), weight, 1e-6 / key_dim, enable_pdl=False).view_as(x)
            for x in (q, k))
    decay = torch.exp(-A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias.float()))
    state = initial_state.index_select(0, initial_state_indices).transpose(2, 3).contiguous()
    bounds = torch.arange(0, 2 * tokens, tokens, dtype=torch.int64, device=v.device)
    _, last = flashinfer.gdn_prefill.chunk_gated_delta_rule(
        q, k, v, decay, b.float().sigmoid(), key_dim ** -0.5, state, True, bounds, output=output,
        output_state=torch.empty_like(state))
    final_state.index_copy_(0, initial_state_indices.long(), last.transpose(2, 3))
