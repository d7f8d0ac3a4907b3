"""FlashMLA's dense decode as vLLM builds it, without importing vllm."""

import functools
import importlib.util
from pathlib import Path

import torch

PAGE = 64  # tokens; FlashMLA knows no other


@functools.cache
def ops():
    """torch.ops._flashmla_C after its library was loaded. RuntimeError in one line when it is not installed."""
    spec = importlib.util.find_spec("vllm")
    for folder in spec.submodule_search_locations or [] if spec else []:
        path = Path(folder) / "_flashmla_C.abi3.so"
        if path.is_file():
            torch.ops.load_library(str(path))
            return torch.ops._flashmla_C
    raise RuntimeError("_flashmla_C.abi3.so is missing: no installed vllm has it; pip install vllm==0.25.1")


@functools.cache
def pages(batch, each, device):
    """The table of a cache whose pages follow each other: int32 [batch, each]. No input stands in it."""
    return torch.arange(batch * each, dtype=torch.int32, device=device).view(batch, each)


@torch.no_grad()
def run(query, kv_cache, context_lens, max_context_len, sm_scale, output):
    """query bf16 [batch, heads, 576], kv_cache bf16 [batch, slots, 576] -> output bf16 [batch, heads, 512]."""
    if not query.numel():
        return
    batch, slots, size = kv_cache.shape
    if slots % PAGE:
        kv_cache = torch.nn.functional.pad(kv_cache, (0, 0, 0, -slots % PAGE))
    each = kv_cache.shape[1] // PAGE
    # Neither metadata nor splits are given: it works them out from the lengths in a kernel of its own in each call.
    ops().dense_decode_fwd(query.unsqueeze(1), kv_cache.view(-1, PAGE, 1, size), output.shape[-1], context_lens,
                           pages(batch, each, query.device), sm_scale, False, None, None, output.unsqueeze(1))
