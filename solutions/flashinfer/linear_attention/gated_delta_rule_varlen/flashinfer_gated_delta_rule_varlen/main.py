"""FlashInfer's chunk_gated_delta_rule for Hopper, with what it wants made before: queries and keys of length one by its
own rmsnorm, the decay itself and beta in float32, the sequences' states beside each other."""

import functools

import torch


@functools.cache
def to_unit(size, dtype, device):
    """Weight with which an RMS norm gives rows of length one: size**-0.5."""
    return torch.full((size,), size ** -0.5, dtype=dtype, device=device)


@torch.no_grad()
def run(A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, cu_seqlens, output, final_state):
    """A_log float32 and dt_bias bf16 [num_v_heads]; a, b bf16 [num_tokens, num_v_heads]; q, k bf16 [num_tokens,
    num_q_heads, key_dim]; v bf16 [num_tokens, num_v_heads, value_dim]; initial_state float32 [state_count,
    num_v_heads, value_dim, key_dim]; cu_seqlens int32 [num_seqs + 1]. Writes output, as v, and final_state.
    """
    import flashinfer.gdn_prefill
    import flashinfer.norm

    if final_state.data_ptr() != initial_state.data_ptr():
        final_state.copy_(initial_state)
    key_dim, slots = q.shape[2], initial_state_indices.long()
    if len(v) == 0:
        return
    weight = to_unit(key_dim, q.dtype, q.device)
    q, k = (flashinfer.norm.rmsnorm(x.flatten(0, 1), weight, 1e-6 / key_dim, enable_pdl=False).view_as(x)
            for x in (q, k))
    decay = torch.exp(-A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias.float()))
    state = final_state[slots]
    _, last = flashinfer.gdn_prefill.chunk_gated_delta_rule(
        q, k, v, decay, b.float().sigmoid(), key_dim ** -0.5, state, True, cu_seqlens, output=output,
        output_state=torch.empty_like(state))
    final_state.index_copy_(0, slots, last)
