"""derby_unified_attention_triton: causal attention over a paged cache, prefill and decode in one kernel.

A program takes the query heads of one key head for some tokens of one sequence, as rows of one tile, over that
sequence's keys in tiles. It finds the tile's sequence in cu_seqlens_q. Every sequence gets one tile more than its share
of the tokens, so the grid needs no number that only the GPU knows. If there are few programs and much context, each
tile's keys go to several programs, and a second kernel puts their parts together.
"""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")
kernels = importlib.import_module(f"{__name__}.paged_attention_triton")

candidates, run_with = kernels.candidates, kernels.run_with


def tuning_key(query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, max_query_len, max_seq_len,
               sm_scale):
    heads, head_dim = query.shape[1:]
    return f"heads={heads}/{key_cache.shape[2]} d={head_dim} tokens<={kernels.power_of_two(query.shape[0])} " \
           f"query<={kernels.power_of_two(max_query_len)} length<={kernels.power_of_two(max_seq_len)} " \
           f"seqs<={kernels.power_of_two(len(seq_lens))}"


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)
check = contract.Contract("derby_unified_attention_triton", on_current=True,
    where=("len_cu_seqlens == num_seqs + 1", "num_query_heads a multiple of num_kv_heads"),
    query="bfloat16 num_tokens num_query_heads head_dim", key_cache="bfloat16 num_blocks 16 num_kv_heads head_dim",
    value_cache="bfloat16 num_blocks 16 num_kv_heads head_dim", cu_seqlens_q="int32 len_cu_seqlens",
    seq_lens="int32 num_seqs", block_table="int32 num_seqs max_blocks_per_seq",
    output="bfloat16 num_tokens num_query_heads head_dim")


def run(query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, max_query_len, max_seq_len, sm_scale,
        output):
    """query bfloat16 [num_tokens, heads, head_dim], caches bfloat16 [num_blocks, 16, kv_heads, head_dim], cu_seqlens_q
    int32 [num_seqs + 1], seq_lens int32 [num_seqs], block_table int32 [num_seqs, blocks]; the other three are numbers
    -> output like query."""
    check(query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, output)
    inputs = query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, max_query_len, max_seq_len, sm_scale
    run_with(choose(*inputs), *inputs, output)
