"""fla-core's state kernel of the chunked gated delta rule, launched into the given outputs."""

import math

import torch

CHUNK = 64


@torch.no_grad()
def run(k, w, u, g, initial_state, initial_state_indices, chunk_starts, h, v_new, final_state):
    """k bf16 [num_tokens, num_k_heads, key_dim], w as k and u bf16 [num_tokens, num_v_heads, value_dim], g float32
    [num_tokens, num_v_heads], initial_state float32 [state_count, num_v_heads, key_dim, value_dim] -> h, v_new,
    final_state.
    """
    import fla.ops.common.chunk_delta_h as states
    import triton

    tokens, heads, value_dim = u.shape
    state = initial_state.index_select(0, initial_state_indices)
    if tokens == 0:
        final_state.copy_(state)
        return
    # As states.chunk_gated_delta_rule_fwd_h launches; that function allocates its results. It wants powers of two.
    states.chunk_gated_delta_rule_fwd_kernel_h_blockdim64[
        lambda meta: (triton.cdiv(value_dim, meta["BV"]) * heads,)
    ](k=k, v=u, w=w, v_new=v_new, g=g * (1 / math.log(2)), gk=None, h=h, h0=state, ht=final_state, cu_seqlens=None,
      chunk_offsets=None, T=tokens, H=k.shape[1], HV=heads, K=k.shape[2], V=value_dim, BT=CHUNK, STATE_V_FIRST=False)
