"""derby_paged_attention_decode_sm90: CUDA C++ kernels for sm_90 and later, which paged_decode.py chooses."""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")
decode = importlib.import_module(f"{__name__}.paged_decode")

library, long_library = decode.library, decode.long_library  # named here to be built ahead
other_library, wide_library, shares_library = decode.other_library, decode.wide_library, decode.shares_library
tuning_key, candidates, run_with = decode.tuning_key, decode.candidates, decode.run_with
choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)
check = contract.Contract("derby_paged_attention_decode_sm90",
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
