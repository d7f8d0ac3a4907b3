"""FlashInfer's latent attention with a plan that a step's layers share."""

import functools
import math

import torch

WORKSPACE = 256 << 20  # bytes for partial results of splits
LATENT = 512


@functools.cache
def workspace(device):
    return torch.empty(WORKSPACE, dtype=torch.uint8, device=device)


class Step:
    """Lengths of a step, and the wrapper that was planned for them."""

    def __init__(self, context_lens):
        self.lengths = context_lens
        self.planned = {}

    def wrapper(self, heads, cache_len, rope, page, sm_scale):
        """Planned at its first use, when sizes of the layers are known."""
        import flashinfer

        key = heads, cache_len, rope, sm_scale
        if key not in self.planned:
            device, count = self.lengths.device, len(self.lengths)
            wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace(device), backend="fa3")
            used = (self.lengths + page - 1) // page
            first = torch.nn.functional.pad(used.cumsum(0), (1, 0)).to(torch.int32)
            columns = torch.arange(cache_len // page, dtype=torch.int32, device=device)
            own = columns + columns.new_tensor(range(count))[:, None] * (cache_len // page)
            wrapper.plan(
                columns.new_tensor(range(count + 1)), first, own[columns < used[:, None]], self.lengths, heads, LATENT,
                rope, page, False, sm_scale, torch.bfloat16, torch.bfloat16)
            self.planned[key] = wrapper
        return self.planned[key]


def setup(context_lens):
    return {"step": Step(context_lens)}


@torch.no_grad()
def run(query, kv_cache, context_lens, max_context_len, sm_scale, output, **prepared):
    """query bf16 [batch, heads, 576], kv_cache bf16 [batch, cache_len, 576] -> output bf16 [batch, heads, 512]."""
    if not query.numel():
        return
    (_, heads, size), cache_len = query.shape, kv_cache.shape[1]
    page = math.gcd(cache_len, 64)
    step = prepared.get("step") or Step(context_lens)
    wrapper = step.wrapper(heads, cache_len, size - LATENT, page, float(sm_scale))
    pages = kv_cache.view(-1, page, size)
    wrapper.run(query[..., :LATENT], query[..., LATENT:], pages[..., :LATENT], pages[..., LATENT:], out=output)
