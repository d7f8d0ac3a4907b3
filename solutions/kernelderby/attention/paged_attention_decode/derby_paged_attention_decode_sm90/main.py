"""derby_paged_attention_decode_sm90: one CUDA C++ kernel (kernel.cu), one launch."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT, FLOAT = cuda_library.POINTER, cuda_library.INT, cuda_library.FLOAT
library = cuda_library.CudaLibrary(__file__, "derby_paged_attention_decode_sm90", ["kernel.cu", "decode_mma.cuh"],
                                   [POINTER] * 6 + [INT] * 6 + [FLOAT] + [INT] * 2)
PAGE, MOST_DIM, MOST_SPLITS, SMS = 16, 256, 16, 132


def sizes(query, key_cache, max_context_len):
    """(blocks without splits, pages of the longest context)."""
    kv_heads = key_cache.shape[2]
    group = query.shape[1] // kv_heads
    return query.shape[0] * kv_heads * -(-group // (16 if group > 8 else 8)), -(-max_context_len // PAGE)


def tuning_key(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale):
    units, pages = sizes(query, key_cache, max_context_len)
    return f"units<={1 << (units - 1).bit_length()} pages<={1 << (pages - 1).bit_length()} " \
           f"group={query.shape[1] // key_cache.shape[2]} dim={query.shape[2]}"


def candidates(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale):
    """splits: blocks of a cluster that share a context; warps: of a block, each at a page at a time."""
    units, pages = sizes(query, key_cache, max_context_len)
    splits = 1
    while splits < MOST_SPLITS and splits * 8 < pages and splits * units < 2 * SMS:
        splits *= 2
    pairs = [(splits, 8 if pages > 4 else 4)] + [(s, w) for s in (1, 2, 4, 8, 16) for w in (1, 2, 4, 8)
                                                  if s * w < 2 * pages and (s == 1 or s * units <= 8 * SMS)]
    return [{"splits": splits, "warps": warps} for splits, warps in dict.fromkeys(pairs)]


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale, output):
    (sequences, heads, head_dim), kv_heads = query.shape, key_cache.shape[2]
    if not query.numel():
        return
    if head_dim > MOST_DIM:
        raise RuntimeError(f"derby_paged_attention_decode_sm90: head_dim {head_dim} is over {MOST_DIM}; "
                           "use derby_paged_attention_decode_triton")
    library(query.device, query, key_cache, value_cache, block_table, context_lens, output, sequences, heads, kv_heads,
            head_dim, block_table.shape[1], -(-max_context_len // PAGE), sm_scale, config["splits"].bit_length() - 1,
            config["warps"])


@torch.no_grad()
def run(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale, output):
    """query bf16 [num_seqs, heads, head_dim], caches bf16 [blocks, 16, kv_heads, head_dim], block_table int32
    [num_seqs, columns], context_lens int32 [num_seqs] -> output, as query."""
    if not query.numel():
        return
    inputs = query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale
    run_with(choose(*inputs), *inputs, output)
