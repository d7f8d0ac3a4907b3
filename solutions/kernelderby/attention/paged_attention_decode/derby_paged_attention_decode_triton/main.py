"""Decode attention over a paged cache: a program takes up to 16 query heads of a key head, every n-th tile.

split_context.py, which lies beside this file once it is packed, puts the parts of a context together.
"""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")
kernels = importlib.import_module(f"{__name__}.paged_decode_triton")

candidates, run_with = kernels.candidates, kernels.run_with


def tuning_key(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale):
    return f"units<={kernels.split_context.power(kernels.sizes(query, key_cache)[2])} dim={query.shape[2]} " \
           f"longest<={kernels.split_context.power(max_context_len)}"


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)
check = contract.Contract("derby_paged_attention_decode_triton", on_current=True,
    where=("num_query_heads a multiple of num_kv_heads",),
    query="bfloat16 num_seqs num_query_heads head_dim", key_cache="bfloat16 num_blocks 16 num_kv_heads head_dim",
    value_cache="bfloat16 num_blocks 16 num_kv_heads head_dim", block_table="int32 num_seqs max_blocks_per_seq",
    context_lens="int32 num_seqs", output="bfloat16 num_seqs num_query_heads head_dim")


def run(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale, output):
    """query bf16 [num_seqs, heads, head_dim], caches bf16 [blocks, 16, kv_heads, head_dim], block_table int32
    [num_seqs, columns], context_lens int32 [num_seqs] -> output, as query."""
    check(query, key_cache, value_cache, block_table, context_lens, output)
    if not query.numel():
        return
    inputs = query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale
    run_with(choose(*inputs), *inputs, output)
