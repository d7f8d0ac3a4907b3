"""vLLM's gated delta rule (its own copies of fla's kernels): fused and recurrent for few tokens, chunked for more.

Its states lie [value_dim, key_dim], and slot 0 of its pool is the one that no sequence has: the sequence's state is
turned into slot 1 before, and back into the pool after.
"""

import functools
import importlib
import importlib.util

import torch

RECURRENT = 16  # tokens up to which its recurrent kernel is taken


@functools.cache
def kernels():
    """vLLM's module of them, which lies elsewhere since 0.33."""
    moved = importlib.util.find_spec("vllm.third_party.flash_linear_attention")
    return importlib.import_module(
        "vllm.third_party.flash_linear_attention.ops" if moved else "vllm.model_executor.layers.fla.ops")


@torch.no_grad()
def run(A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, output, final_state):
    """A_log float32 and dt_bias bf16 [num_v_heads]; a, b bf16 [num_tokens, num_v_heads]; q, k bf16 [num_tokens,
    num_q_heads, key_dim]; v bf16 [num_tokens, num_v_heads, value_dim]; initial_state float32 [state_count,
    num_v_heads, key_dim, value_dim]. Writes output, as v, and final_state, as initial_state.
    """
    tokens, heads, value_dim = v.shape
    key_dim = q.shape[2]
    state = initial_state.index_select(0, initial_state_indices).transpose(2, 3)
    if final_state.data_ptr() != initial_state.data_ptr():
        final_state.copy_(initial_state)
    if tokens == 0:
        return
    if tokens <= RECURRENT:
        pool = state.new_empty(tokens + 1, heads, value_dim, key_dim)  # it keeps the state after every token
        pool[1:2] = state
        slots = torch.arange(1, tokens + 1, dtype=torch.int32, device=v.device).unsqueeze(0)
        bounds = torch.arange(0, 2 * tokens, tokens, dtype=torch.int32, device=v.device)
        result, _ = kernels().fused_sigmoid_gating_delta_rule_update(
            A_log, a, b, dt_bias, *(x.unsqueeze(0) for x in (q, k, v)), initial_state=pool, cu_seqlens=bounds,
            ssm_state_indices=slots, use_qk_l2norm_in_kernel=True)
        last = pool[tokens:]
    else:
        # Its gate kernel wants q, k and v packed, which would cost more than these small launches.
        g = -A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias.float())
        result, last = kernels().chunk_gated_delta_rule(
            *(x.unsqueeze(0) for x in (q, k, v, g, b.float().sigmoid())), initial_state=state.contiguous(),
            output_final_state=True, use_qk_l2norm_in_kernel=True, core_attn_out=output)
    if result.data_ptr() != output.data_ptr():
        output.copy_(result[0])
    final_state.index_copy_(0, initial_state_indices.long(), last.transpose(2, 3))
