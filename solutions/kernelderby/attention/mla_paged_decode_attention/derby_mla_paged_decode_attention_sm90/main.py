"""derby_mla_paged_decode_attention_sm90: latent_attention.cu with a block table, two launches."""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")
latent_attention = importlib.import_module(f"{__name__}.latent_attention")

workers = cuda_library.CudaLibrary(__file__, "derby_latent_attention", "latent_attention.cu",
                                   latent_attention.parameters(cuda_library))


check = contract.Contract("derby_mla_paged_decode_attention_sm90",
                          query="bfloat16 batch_size num_heads 576",
                          kv_cache="bfloat16 num_blocks block_size 576",
                          block_table="int32 batch_size max_blocks_per_seq", context_lens="int32 batch_size",
                          output="bfloat16 batch_size num_heads 512")


def run(query, kv_cache, block_table, context_lens, max_context_len, sm_scale, output):
    """query bf16 [batch, heads, 576], kv_cache bf16 [blocks, block_size, 576], block_table int32 [batch, columns],
    context_lens int32 [batch] -> output bf16 [batch, heads, 512]."""
    layout = check(query, kv_cache, block_table, context_lens, output)
    if layout.config is None:  # once for these sizes
        size = kv_cache.shape[1]
        if size < 8 or size & (size - 1):
            raise check.error("kv_cache", f"has block_size {size}, which is no power of two from 8 on")
        layout.config = size
    if output.data_ptr() % 16:
        raise check.error("output", "begins at an address that 16 does not divide; pass a .clone()")
    query, kv_cache = latent_attention.aligned(query), latent_attention.aligned(kv_cache)
    if query.numel():
        latent_attention.attend(workers, query, kv_cache, context_lens, block_table, max_context_len, sm_scale, output)
