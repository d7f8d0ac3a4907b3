"""derby_mla_paged_decode_attention_sm90: latent_attention.cu with a block table, two launches."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
cuda_library = importlib.import_module(f"{__name__}.cuda_library")
latent_attention = importlib.import_module(f"{__name__}.latent_attention")

library = cuda_library.CudaLibrary(__file__, "derby_latent_attention", latent_attention.SOURCES,
                                   latent_attention.parameters(cuda_library))


def candidates(query, *_):
    return latent_attention.forms(query.shape[1])


def run_with(config, query, kv_cache, block_table, context_lens, max_context_len, sm_scale, output):
    if query.numel():
        latent_attention.attend(library, config, query, kv_cache, context_lens, block_table, max_context_len, sm_scale,
                                output)


@torch.no_grad()
def run(query, kv_cache, block_table, context_lens, max_context_len, sm_scale, output):
    """query bf16 [batch, heads, 576], kv_cache bf16 [blocks, block_size, 576], block_table int32 [batch, columns],
    context_lens int32 [batch] -> output bf16 [batch, heads, 512]."""
    run_with(candidates(query)[0], query, kv_cache, block_table, context_lens, max_context_len, sm_scale, output)
