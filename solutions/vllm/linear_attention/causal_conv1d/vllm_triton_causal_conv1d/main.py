"""vLLM's causal_conv1d_fn over one sequence, channels beside each other."""

import functools
import types

import torch


@functools.cache
def planned(tokens, device):
    """What a step makes once for all layers, of the lengths that the host knows: offsets, slot, whether there is a
    state, and its list of chunks."""
    from vllm.v1.attention.backends.utils import compute_causal_conv1d_metadata

    host = torch.tensor([0, tokens], dtype=torch.int32)
    nums, batch, chunks = compute_causal_conv1d_metadata(host, device=device)
    metadata = types.SimpleNamespace(nums_dict=nums, batch_ptr=batch, token_chunk_offset_ptr=chunks)
    return {"query_start_loc": host.to(device), "metadata": metadata,
            "cache_indices": torch.ones(1, dtype=torch.int32, device=device),
            "has_initial_state": torch.ones(1, dtype=torch.bool, device=device)}


@torch.no_grad()
def run(x, weight, bias, initial_state):
    """x bf16 [num_tokens, dim], weight bf16 [dim, 4], bias bf16 [dim], initial_state bf16 [dim, 3] -> as x."""
    from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_fn

    if not x.numel():
        return torch.empty_like(x)
    pool = x.new_empty(2, initial_state.shape[1], x.shape[1]).transpose(1, 2)
    pool[1].copy_(initial_state)
    return causal_conv1d_fn(x.t(), weight, bias, pool, activation="silu", **planned(len(x), x.device)).t()
