"""FlashInfer's XQA decode (from TensorRT-LLM): paged, without a plan."""

import functools

import torch

SEMAPHORES, SCRATCH = 8 << 20, 120 << 20  # bytes; as FlashInfer divides its recommended workspace of 128 MiB


@functools.cache
def workspace(device):
    """Semaphores, which count back to zero by themselves, and room for partial results of splits."""
    return (torch.zeros(SEMAPHORES, dtype=torch.uint8, device=device),
            torch.empty(SCRATCH, dtype=torch.uint8, device=device))


@torch.no_grad()
def run(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale, output):
    """query bf16 [num_seqs, heads, head_dim], caches bf16 [blocks, 16, kv_heads, head_dim] -> output, as query."""
    import flashinfer

    if not query.numel():
        return
    semaphores, scratch = workspace(query.device)
    # Its own factor is 1 / sqrt(head_dim). Lengths are bits of uint32. No start before the kernel ahead has ended.
    flashinfer.xqa(query.unsqueeze(1), key_cache, value_cache, block_table,
                   context_lens.view(torch.uint32).unsqueeze(1), output.unsqueeze(1), scratch, semaphores,
                   key_cache.shape[2], key_cache.shape[1],
                   q_scale=sm_scale * query.shape[-1] ** 0.5, enable_pdl=False)
