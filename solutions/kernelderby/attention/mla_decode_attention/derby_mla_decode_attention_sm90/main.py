"""derby_mla_decode_attention_sm90: clusters of CTAs for small batches (kernel.cu, one launch), workers that share out
all tiles for larger ones (common/latent_attention.cu, two launches). Estimated times decide."""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")
contract = importlib.import_module(f"{__name__}.contract")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")
estimates = importlib.import_module(f"{__name__}.estimates")
latent_attention = importlib.import_module(f"{__name__}.latent_attention")

POINTER, INT, FLOAT = cuda_library.POINTER, cuda_library.INT, cuda_library.FLOAT
library = cuda_library.CudaLibrary(__file__, "derby_mla_decode_attention_sm90", "kernel.cu",
                                   [POINTER] * 4 + [INT] * 4 + [FLOAT] + [INT] * 3)
workers = cuda_library.CudaLibrary(__file__, "derby_latent_attention", "latent_attention.cu",
                                   latent_attention.parameters(cuda_library))
MOST_SPLITS = 16
SHAPES = [(1, 16), (1, 32), (1, 64), (2, 16), (2, 32), (2, 64), (4, 32), (8, 32)]  # groups of 8 heads, tokens


def rounded(longest):
    """Rounded up to a sixteenth of an octave, so that a growing context does not need a new choice at each step."""
    step = max((1 << max(longest - 1, 1).bit_length()) >> 5, 16)
    return -(-max(longest, 1) // step) * step


def tuning_key(query, kv_cache, context_lens, max_context_len, sm_scale):
    batch, heads, _ = query.shape
    return f"batch={batch} heads={heads} longest<={rounded(max_context_len)}"


def candidates(query, kv_cache, context_lens, max_context_len, sm_scale):
    """Ordered by estimated time. groups: of 8 heads in a block; tokens: of a tile; splits: blocks of a cluster that
    share a context. On Hopper also workers."""
    (batch, heads, _), longest = query.shape, rounded(max_context_len)
    processors = latent_attention.multiprocessors(query.device)
    found = []
    for groups, tokens in SHAPES:
        if groups > 1 and 4 * groups >= heads:
            continue
        for splits in (1, 2, 4, 8, 16):
            one_tile = groups == 1 and splits <= 8 and longest <= splits * tokens
            if splits >= 2 * -(-longest // tokens) or ((groups, tokens) == (1, 64) and not one_tile):
                continue
            time = estimates.of_clusters(batch, heads, longest, groups, tokens, splits, processors)
            found.append((time, {"groups": groups, "tokens": tokens, "splits": splits}))
    if latent_attention.on_hopper(query.device):
        found.append((estimates.of_workers(batch, heads, longest, processors), {"workers": processors}))
    return [config for _, config in sorted(found, key=lambda one: one[0])]


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, query, kv_cache, context_lens, max_context_len, sm_scale, output):
    batch, heads, _ = query.shape
    if not query.numel():
        return
    if "workers" in config:
        latent_attention.attend(workers, query, kv_cache, context_lens, None, max_context_len, sm_scale, output)
        return
    library(query.device, query, kv_cache, context_lens, output, batch, heads, kv_cache.shape[1], max_context_len,
            sm_scale, config["splits"], config["groups"], config["tokens"])


check = contract.Contract("derby_mla_decode_attention_sm90", query="bfloat16 batch_size num_heads 576",
                          kv_cache="bfloat16 batch_size cache_len 576", context_lens="int32 batch_size",
                          output="bfloat16 batch_size num_heads 512")


def run(query, kv_cache, context_lens, max_context_len, sm_scale, output):
    """query bf16 [batch, heads, 576], kv_cache bf16 [batch, slots, 576], context_lens int32 [batch] -> output bf16
    [batch, heads, 512]."""
    check(query, kv_cache, context_lens, output)
    if output.data_ptr() % 16:
        raise check.error("output", "begins at an address that 16 does not divide; pass a .clone()")
    if not query.numel():
        return
    query, kv_cache = latent_attention.aligned(query), latent_attention.aligned(kv_cache)
    inputs = query, kv_cache, context_lens, max_context_len, sm_scale
    run_with(choose(*inputs), *inputs, output)
