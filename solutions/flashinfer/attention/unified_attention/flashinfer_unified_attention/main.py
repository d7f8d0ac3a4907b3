"""FlashInfer's paged prefill with a plan that a step's layers share."""

import functools

import torch

WORKSPACE = 512 << 20  # bytes for partial results of splits
FA3_SIZES = (64, 128, 256)


@functools.cache
def workspace(device):
    return torch.empty(WORKSPACE, dtype=torch.uint8, device=device)


class Step:
    """Lengths and blocks of a step, and the wrapper that was planned for them."""

    def __init__(self, cu_seqlens_q, seq_lens, block_table):
        self.bounds, self.lengths, self.table = cu_seqlens_q, seq_lens, block_table
        self.planned = {}

    def wrapper(self, heads, kv_heads, head_dim, block_size, sm_scale):
        """Planned at its first use, when sizes of the layers are known."""
        import flashinfer

        key = heads, kv_heads, head_dim, block_size, sm_scale
        if key not in self.planned:
            backend = "fa3" if head_dim in FA3_SIZES else "fa2"
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
                workspace(self.table.device), "NHD", backend=backend)
            used = (self.lengths + block_size - 1) // block_size
            first = torch.nn.functional.pad(used.cumsum(0), (1, 0)).to(torch.int32)
            columns = torch.arange(self.table.shape[1], device=self.table.device)
            pages = self.table[columns < used[:, None]]
            wrapper.plan(
                self.bounds, first, pages, (self.lengths - 1) % block_size + 1, heads, kv_heads, head_dim, block_size,
                causal=True, sm_scale=sm_scale, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
            self.planned[key] = wrapper
        return self.planned[key]


def setup(cu_seqlens_q, seq_lens, block_table):
    return {"step": Step(cu_seqlens_q, seq_lens, block_table)}


@torch.no_grad()
def run(query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, max_query_len, max_seq_len, sm_scale,
        output, **prepared):
    """query bf16 [num_tokens, heads, head_dim], caches bf16 [blocks, 16, kv_heads, head_dim] -> output, as query."""
    if not query.numel():
        return
    step = prepared.get("step") or Step(cu_seqlens_q, seq_lens, block_table)
    block_size, kv_heads = key_cache.shape[1:3]
    wrapper = step.wrapper(*query.shape[1:2], kv_heads, query.shape[2], block_size, float(sm_scale))
    wrapper.run(query, (key_cache, value_cache), out=output)
