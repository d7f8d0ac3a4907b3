"""vLLM's reshape_and_cache_flash, in place on both caches."""

import functools
import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")


@functools.cache
def unit_scale(device):
    """The scale of an fp8 cache, which "auto" does not use but the op takes."""
    return torch.ones(1, dtype=torch.float32, device=device)


@torch.no_grad()
def run(key, value, key_cache, value_cache, slot_mapping, key_cache_out, value_cache_out):
    """key, value bf16 [num_tokens, num_heads, head_dim], caches bf16 [num_blocks, block_size, num_heads, head_dim],
    slot_mapping int64 [num_tokens] -> both caches.
    """
    if key_cache_out.data_ptr() != key_cache.data_ptr():
        key_cache_out.copy_(key_cache)
    if value_cache_out.data_ptr() != value_cache.data_ptr():
        value_cache_out.copy_(value_cache)
    one = unit_scale(key.device)
    vllm_library.load("_C_cache_ops").reshape_and_cache_flash(
        key, value, key_cache_out, value_cache_out, slot_mapping, "auto", one, one)
