"""vLLM's triton_reshape_and_cache_flash, in place on both caches."""

import functools

import torch


@functools.cache
def unit_scale(device):
    """The scale of an fp8 cache, which "auto" does not use but the function takes."""
    return torch.ones(1, dtype=torch.float32, device=device)


@torch.no_grad()
def run(key, value, key_cache, value_cache, slot_mapping, key_cache_out, value_cache_out):
    """key, value bf16 [num_tokens, num_heads, head_dim], caches bf16 [num_blocks, block_size, num_heads, head_dim],
    slot_mapping int64 [num_tokens] -> both caches.
    """
    from vllm.v1.attention.ops.triton_reshape_and_cache_flash import triton_reshape_and_cache_flash

    for output, cache in ((key_cache_out, key_cache), (value_cache_out, value_cache)):
        if output.data_ptr() != cache.data_ptr():
            output.copy_(cache)
    if not key.numel():
        return
    one = unit_scale(key.device)
    triton_reshape_and_cache_flash(key, value, key_cache_out, value_cache_out, slot_mapping, "auto", one, one)
