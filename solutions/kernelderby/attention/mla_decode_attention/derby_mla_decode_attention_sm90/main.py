"""derby_mla_decode_attention_sm90: clusters of CTAs for small batches (kernel.cu, one launch), workers that share
out all tiles for larger ones (latent_attention.cu, two launches; latent_uncut.cu, one). Estimated times decide
(latent_clusters.py)."""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")
contract = importlib.import_module(f"{__name__}.contract")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")
latent_attention = importlib.import_module(f"{__name__}.latent_attention")
latent_clusters = importlib.import_module(f"{__name__}.latent_clusters")

POINTER, INT, FLOAT = cuda_library.POINTER, cuda_library.INT, cuda_library.FLOAT
library = cuda_library.CudaLibrary(__file__, "derby_mla_decode_attention_sm90", "kernel.cu",
                                   [POINTER] * 4 + [INT] * 4 + [FLOAT] + [INT] * 3)
workers = cuda_library.CudaLibrary(__file__, "derby_latent_attention", "latent_attention.cu",
                                   latent_attention.parameters(cuda_library))
uncut = cuda_library.CudaLibrary(__file__, "derby_latent_uncut", "latent_uncut.cu",
                                 latent_attention.parameters(cuda_library))


def tuning_key(query, kv_cache, context_lens, max_context_len, sm_scale):
    return latent_clusters.key(query, max_context_len)


def candidates(query, kv_cache, context_lens, max_context_len, sm_scale):
    return latent_clusters.candidates(query, max_context_len)


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, query, kv_cache, context_lens, max_context_len, sm_scale, output):
    batch, heads, _ = query.shape
    if not query.numel():
        return
    if "workers" in config:
        latent_attention.attend(workers, uncut, query, kv_cache, context_lens, None, max_context_len, sm_scale, output)
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
