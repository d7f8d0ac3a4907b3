"""vLLM's Triton unified_attention, one query a sequence."""

import functools

import torch

SEGMENTS, LEAST_GRID = 16, 128  # NUM_PAR_SOFTMAX_SEGMENTS and MIN_LAUNCH_GRID_SIZE_2D of its backend


@functools.cache
def buffers(heads, kv_heads, head_dim, device):
    """What its backend makes at the start of a model: sequences up to which keys are split, and room for the parts."""
    most = LEAST_GRID // kv_heads
    sizes = (most, heads, SEGMENTS)
    padded = 1 << (head_dim - 1).bit_length()
    return most, (torch.empty(*sizes, padded, device=device), *(torch.empty(sizes, device=device) for _ in range(2)))


@functools.cache
def offsets(count, device):
    """First row of each sequence among the queries: every number of sequences has its own, made once."""
    return torch.arange(count + 1, dtype=torch.int32, device=device)


@torch.no_grad()
def run(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale, output):
    """query bf16 [num_seqs, heads, head_dim], caches bf16 [blocks, 16, kv_heads, head_dim] -> output, as query."""
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    if not query.numel():
        return
    most, (parts, maxima, sums) = buffers(query.shape[1], key_cache.shape[2], query.shape[2], query.device)
    unified_attention(
        q=query, k=key_cache, v=value_cache, out=output, cu_seqlens_q=offsets(len(query), query.device),
        max_seqlen_q=1, seqused_k=context_lens, max_seqlen_k=max_context_len, softmax_scale=sm_scale, causal=True,
        window_size=(-1, -1), block_table=block_table, softcap=0, q_descale=None, k_descale=None, v_descale=None,
        seq_threshold_3D=most, num_par_softmax_segments=SEGMENTS, softmax_segm_output=parts,
        softmax_segm_max=maxima, softmax_segm_expsum=sums)
