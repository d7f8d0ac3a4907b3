"""derby_attention_forward_triton: full attention over packed sequences; each program takes a tile of one head's
queries.

It finds the tile's sequence in cu_seqlens_q. Every sequence gets one tile more than its share of the tokens, so the
grid needs no number that only the GPU knows.
"""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")
kernels = importlib.import_module(f"{__name__}.full_attention_triton")

candidates, run_with = kernels.candidates, kernels.run_with


def tuning_key(query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen, sm_scale):
    tokens, heads, head_dim = query.shape
    return f"heads={heads} d={head_dim} tokens<={kernels.power_of_two(tokens)} " \
           f"length<={kernels.power_of_two(max_seqlen)}"


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)
check = contract.Contract("derby_attention_forward_triton", on_current=True, where=("len_cu_seqlens > 0",),
    query="bfloat16 num_tokens num_heads head_dim", key="bfloat16 num_tokens num_heads head_dim",
    value="bfloat16 num_tokens num_heads head_dim", cu_seqlens_q="int32 len_cu_seqlens",
    cu_seqlens_k="int32 len_cu_seqlens", output="bfloat16 num_tokens num_heads head_dim")


def run(query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen, sm_scale, output):
    """query, key, value bfloat16 [num_tokens, heads, head_dim], cu_seqlens_q, cu_seqlens_k int32 [num_seqs + 1]; the
    other two are numbers -> output like query."""
    check(query, key, value, cu_seqlens_q, cu_seqlens_k, output)
    if not output.numel():
        return
    inputs = query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen, sm_scale
    run_with(choose(*inputs), *inputs, output)
