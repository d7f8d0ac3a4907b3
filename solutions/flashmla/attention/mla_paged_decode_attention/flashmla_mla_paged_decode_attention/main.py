"""FlashMLA's dense decode as vLLM builds it, without importing vllm. It refuses blocks of other than 64 tokens."""

import functools
import importlib.util
from pathlib import Path

import torch


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


@torch.no_grad()
def run(query, kv_cache, block_table, context_lens, max_context_len, sm_scale, output):
    """query bf16 [batch, heads, 576], kv_cache bf16 [blocks, 64, 576], block_table int32 [batch, columns] -> output
    bf16 [batch, heads, 512]."""
    if not query.numel():
        return
    # Neither metadata nor splits are given: it works them out from the lengths in a kernel of its own in each call.
    ops().dense_decode_fwd(query.unsqueeze(1), kv_cache.unsqueeze(2), output.shape[-1], context_lens, block_table,
                           sm_scale, False, None, None, output.unsqueeze(1))
