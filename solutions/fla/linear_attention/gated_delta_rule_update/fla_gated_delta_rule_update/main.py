"""fla-core's gated delta rule: its recurrent kernel for few tokens, its chunked ones for more."""

import torch

CHUNK = 64
RECURRENT = 16  # tokens up to which its recurrent kernel is taken


def recurrent(A_log, a, dt_bias, q, k, v, b, state, output):
    """As fused_recurrent_gated_delta_rule_fwd launches, with gates, sigmoid and norm inside. Returns the last state."""
    import fla.ops.gated_delta_rule.fused_recurrent as ops
    import triton

    (tokens, heads, value_dim), key_dim = v.shape, q.shape[2]
    last, columns = torch.empty_like(state), min(8, triton.next_power_of_2(value_dim))
    ops.fused_recurrent_gated_delta_rule_fwd_kernel[(triton.cdiv(value_dim, columns) * heads,)](
        q=q, k=k, v=v, g=a, gk=None, gv=None, beta=b, A_log=A_log, dt_bias=dt_bias, o=output, h0=state, ht=last,
        cu_seqlens=None, scale=key_dim ** -0.5, T=tokens, H=q.shape[1], HV=heads, K=key_dim, V=value_dim,
        BK=triton.next_power_of_2(key_dim), BV=columns, IS_BETA_HEADWISE=True, USE_QK_L2NORM_IN_KERNEL=True,
        APPLY_BETA_SIGMOID=True, ALLOW_NEG_EIGVAL=False, STATE_V_FIRST=False, num_warps=1, num_stages=3)
    return last


def chunked(A_log, a, dt_bias, q, k, v, b, state, output):
    """As chunk_gated_delta_rule runs with norm, sigmoid and gates inside, but for the output, which it would allocate.
    Returns the last state."""
    import triton
    from fla.modules.norm.l2norm import l2norm_fwd
    from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_fwd_h
    from fla.ops.common.chunk_o import chunk_fwd_kernel_o
    from fla.ops.common.gate import fused_beta_sigmoid_fwd
    from fla.ops.gated_delta_rule.chunk_fwd import chunk_gated_delta_rule_fwd_intra
    from fla.ops.gated_delta_rule.gate import gdn_gate_chunk_cumsum
    from fla.ops.utils.constant import RCP_LN2

    a, q, k, v, b = (x.unsqueeze(0) for x in (a, q, k, v, b))
    q, k = l2norm_fwd(q)[0], l2norm_fwd(k)[0]
    g = gdn_gate_chunk_cumsum(g=a, A_log=A_log, chunk_size=CHUNK, scale=RCP_LN2, dt_bias=dt_bias)
    w, u, _ = chunk_gated_delta_rule_fwd_intra(k=k, v=v, g=g, beta=fused_beta_sigmoid_fwd(b))
    h, v_new, last = chunk_gated_delta_rule_fwd_h(k=k, w=w, u=u, g=g, initial_state=state, output_final_state=True)
    _, tokens, heads, value_dim = v.shape
    chunk_fwd_kernel_o[lambda meta: (triton.cdiv(value_dim, meta["BV"]) * triton.cdiv(tokens, CHUNK), heads)](
        q=q, k=k, v=v_new, h=h, g=g, g_gamma=None, o=output, cu_seqlens=None, chunk_indices=None,
        scale=q.shape[3] ** -0.5, T=tokens, H=q.shape[2], HV=heads, K=q.shape[3], V=value_dim, BT=CHUNK,
        STATE_V_FIRST=False)
    return last


@torch.no_grad()
def run(A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, output, final_state):
    """A_log float32 and dt_bias bf16 [num_v_heads]; a, b bf16 [num_tokens, num_v_heads]; q, k bf16 [num_tokens,
    num_q_heads, key_dim]; v bf16 [num_tokens, num_v_heads, value_dim]; initial_state float32 [state_count,
    num_v_heads, key_dim, value_dim]. Writes output, as v, and final_state, as initial_state.
    """
    state = initial_state.index_select(0, initial_state_indices)
    if final_state.data_ptr() != initial_state.data_ptr():
        final_state.copy_(initial_state)
    if len(v):
        form = recurrent if len(v) <= RECURRENT else chunked
        final_state.index_copy_(0, initial_state_indices.long(),
                                form(A_log, a, dt_bias, q, k, v, b, state, output))
