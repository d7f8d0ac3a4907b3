"""vLLM's gated delta rule of several sequences: one token each by its fused recurrent kernel, in place on the pool;
else its chunked kernels (its own copies of fla's), whose list of chunks is made on the GPU in each call."""

import functools
import importlib
import importlib.util

import torch

CHUNK = 64


def list_chunks(cu_seqlens, tokens):
    """(sequence and number of each chunk [places, 2], first place of each sequence), as its prepare_chunk_indices and
    prepare_chunk_offsets make them with the lengths on the host. There are at most tokens / CHUNK + sequences chunks;
    the places beyond name one behind the first sequence's last, where the kernels do nothing."""
    ends = ((cu_seqlens.diff() + (CHUNK - 1)) // CHUNK).cumsum(0)
    starts = torch.nn.functional.pad(ends, (1, 0))
    place = torch.arange(tokens // CHUNK + len(ends), device=ends.device)
    sequence = torch.searchsorted(ends, place, right=True) % len(ends)
    number = torch.where(place < ends[-1], place - starts[sequence], tokens // CHUNK + 1)
    return torch.stack([sequence, number], 1).to(cu_seqlens.dtype), starts


@functools.cache
def kernels():
    """vLLM's module of them, which lies elsewhere since 0.33."""
    moved = importlib.util.find_spec("vllm.third_party.flash_linear_attention")
    return importlib.import_module(
        "vllm.third_party.flash_linear_attention.ops" if moved else "vllm.model_executor.layers.fla.ops")


@torch.no_grad()
def run(A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, cu_seqlens, output, final_state):
    """A_log float32 and dt_bias bf16 [num_v_heads]; a, b bf16 [num_tokens, num_v_heads]; q, k bf16 [num_tokens,
    num_q_heads, key_dim]; v bf16 [num_tokens, num_v_heads, value_dim]; initial_state float32 [state_count,
    num_v_heads, value_dim, key_dim]; cu_seqlens int32 [num_seqs + 1]. Writes output, as v, and final_state.
    """
    if final_state.data_ptr() != initial_state.data_ptr():
        final_state.copy_(initial_state)
    tokens = len(v)
    if tokens == 0:
        return
    q, k, v = (x.unsqueeze(0) for x in (q, k, v))
    if tokens == len(initial_state_indices):  # one each
        result, _ = kernels().fused_sigmoid_gating_delta_rule_update(
            A_log, a, b, dt_bias, q, k, v, initial_state=final_state, cu_seqlens=cu_seqlens,
            ssm_state_indices=initial_state_indices, use_qk_l2norm_in_kernel=True)
        output.copy_(result[0])
        return
    # Its gate kernel wants q, k and v packed, which would cost more than these small launches.
    g = -A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias.float())
    slots, (chunks, starts) = initial_state_indices.long(), list_chunks(cu_seqlens, tokens)
    result, last = kernels().chunk_gated_delta_rule(
        q, k, v, g.unsqueeze(0), b.float().sigmoid().unsqueeze(0), initial_state=final_state[slots],
        output_final_state=True, cu_seqlens=cu_seqlens, chunk_indices=chunks, chunk_offsets=starts,
        use_qk_l2norm_in_kernel=True, core_attn_out=output)
    if result.data_ptr() != output.data_ptr():
        output.copy_(result[0])
    final_state.index_copy_(0, slots, last)
